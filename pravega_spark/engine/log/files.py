"""The live files of a table, by segment and offset, and what a range of commits did to them.

The newest layer holds the file actions since the last state file. Each state file holds those
since the state file before it, and a checkpoint holds all older files. A read at the tail loads
only the first layer or two, however long the stream is.

The files that a range of commits added and removed, as a sweep needs them: paths alone. A sweep
learns of each commit once, from a state file that passed it or from the commit itself, and keeps
what it found: the paths that were added, by folder, and those that were removed, by version. The
range since the last segment is part of its record; older ranges are segments,
``_pravega/changes/<first>-<last>.json``, written once each.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import xxhash

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.chunk_paths import staged_version
from pravega_spark.engine.log.actions import Add, Commit
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json
from pravega_spark.errors import CorruptLog

SEGMENT_COLUMN = "segment_id"
OFFSET_COLUMN = "base_offset"

_ADD_BYTES = 1_800
"""The memory of a live file as an object, by measurement."""

_T = TypeVar("_T")


def position_of(add: Add) -> tuple[int, int]:
    """Return (segment id, base offset) of an event file; (0, 0) for a file of another table."""
    partition = add.partition
    try:
        return int(partition.get(SEGMENT_COLUMN, 0)), int(partition.get(OFFSET_COLUMN, 0))
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"the log names the file {add.path} with a segment id or base offset that is not a "
            "number. Restore the log from a copy."
        ) from error


def rows_of(add: Add) -> int:
    """Return the number of events in the file."""
    try:
        return int((add.tags or {}).get("rows", 0))
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"the log names the file {add.path} with a count of rows that is not a number. Restore "
            "the log from a copy."
        ) from error


FileCell = tuple[int, int, int, str, int]
"""An event file without an object: base offset, rows, event bytes, path, size of the file."""


def cell_of(add: Add) -> FileCell:
    """Return an event file as a cell."""
    event_bytes = int((add.tags or {}).get("bytes", 0))
    return position_of(add)[1], rows_of(add), event_bytes, add.path, add.size


class Layer(Protocol):
    """The net file actions of a range of versions."""

    @property
    def older(self) -> int:
        """The last version of the next older layer; -1 if there is none."""
        ...

    @property
    def removed(self) -> set[str]:
        """Paths that older layers may still hold, but that are no longer live."""
        ...

    def find(self, segment_id: int, start: int, end: int) -> list[Add]:
        """Return this layer's files of the segment that overlap [start, end), in offset order."""
        ...

    def cells(self, segment_id: int, start: int, end: int) -> list[FileCell]:
        """Return what :meth:`find` does, as cells."""
        ...

    def all(self) -> Iterable[Add]:
        """Return this layer's files."""
        ...

    @property
    def held_bytes(self) -> int:
        """About how much memory the layer takes."""
        ...

    def __len__(self) -> int: ...


class RecentLayer:
    """A layer of Python objects, built from commits or from the lines of a state file."""

    def __init__(self, older: int) -> None:
        """Start an empty layer above the one that ends at version ``older``."""
        self.older = older
        self.removed: set[str] = set()
        self.net = FileTotals()
        """The files that the applied commits added, less those that they removed."""
        self._adds: dict[str, Add] = {}
        self._segments: dict[int, list[tuple[int, Add]]] = {}

    def apply(self, commit: Commit) -> None:
        """Apply the file actions of the next commit."""
        adds = tuple(commit.adds)
        for add in adds:
            self.add(add)
        removed = set(commit.removes)
        ours = removed & self._adds.keys()
        for path in ours:
            self.remove(path)
        self.removed |= removed - ours
        self.net += FileTotals(
            len(adds) - len(commit.removes),
            sum(add.stored_bytes for add in adds) - commit.removed_bytes,
        )

    def extend(self, later: RecentLayer) -> None:
        """Apply the file actions of a layer that begins where this one ends."""
        for path in later.removed:
            self.remove(path)
        for add in later.all():
            self.add(add)
        self.net += later.net

    def add(self, add: Add) -> None:
        """Add a live file; file names are unique, so it is not live already."""
        assert add.path not in self._adds, f"{add.path} is added while it is live"
        self._adds[add.path] = add
        segment_id, base = position_of(add)
        cells = self._segments.setdefault(segment_id, [])
        if not cells or cells[-1][0] <= base:
            cells.append((base, add))
        else:
            cells.insert(bisect_right(cells, base, key=_base), (base, add))

    def remove(self, path: str) -> None:
        """Remove a file that is no longer live."""
        add = self._adds.pop(path, None)
        if add is None:
            self.removed.add(path)
            return
        segment_id, base = position_of(add)
        cells = self._segments[segment_id]
        at = bisect_left(cells, base, key=_base)
        while cells[at][1].path != path:
            at += 1
        del cells[at]

    def find(self, segment_id: int, start: int, end: int) -> list[Add]:
        """Return the files that overlap [start, end)."""
        cells = self._segments.get(segment_id, [])
        first = max(0, bisect_right(cells, start, key=_base) - 1)
        found = []
        for base, add in cells[first:]:
            if base >= end:
                break
            if base + rows_of(add) > start:
                found.append(add)
        return found

    def cells(self, segment_id: int, start: int, end: int) -> list[FileCell]:
        """Return the files that overlap [start, end) as cells."""
        return [cell_of(add) for add in self.find(segment_id, start, end)]

    def all(self) -> Iterable[Add]:
        """Return the files in the order in which they were added."""
        return self._adds.values()

    @property
    def held_bytes(self) -> int:
        """About how much memory the layer takes."""
        return _ADD_BYTES * (len(self._adds) + len(self.removed) // 8)

    def __len__(self) -> int:
        return len(self._adds)


class FileIndex:
    """The live files of one table as of one version. Not thread-safe: its log locks it."""

    def __init__(
        self,
        recent: RecentLayer,
        load: Callable[[int], Layer],
        renew: Callable[[], RecentLayer] | None = None,
        *,
        recorded: Callable[[int], FileTotals | None] = lambda version: None,
        where: str,
    ) -> None:
        """Start with the newest layer; ``load(version)`` returns the one that ends there.

        ``recorded(version)`` returns what a state file says of the files that are live there, and
        None without one. ``where`` is the path or URL of the table, for errors.

        ``renew()`` builds the newest layer again, above a layer that can be loaded. It is called
        if cleanup deleted the older layer that the present one needs.
        """
        self._layers: list[Layer] = [recent]
        self._newest = recent
        self._load = load
        self._renew = renew
        self._recorded = recorded
        self._older: FileTotals | None = None
        """The files that were live where the newest layer begins, once they were asked for."""
        self._where = where

    @property
    def recent(self) -> int:
        """The number of files in the newest layer."""
        return len(self._newest)

    @property
    def held_bytes(self) -> int:
        """About how much memory the layers take that were loaded; needs no lock."""
        return sum(layer.held_bytes for layer in list(self._layers))

    def apply(self, commit: Commit) -> None:
        """Apply the next commit."""
        try:
            self._newest.apply(commit)
        except CorruptLog as error:
            error.locate(self._where)
            raise

    def find(self, segment_id: int, start: int, end: int) -> list[Add]:
        """Return the live files that overlap [start, end) of the segment, in offset order.

        They may leave parts of the range uncovered: those were truncated or never written.
        """
        return self._with_renewal(lambda: self._find(segment_id, start, end))

    def _find(self, segment_id: int, start: int, end: int) -> list[Add]:
        found: list[Add] = []
        removed: list[set[str]] = []
        for layer in self._layers_down():
            adds = layer.find(segment_id, start, end)
            if removed:
                adds = [add for add in adds if not any(add.path in paths for paths in removed)]
            if adds:
                found = sorted(found + adds, key=_offset) if found else adds
                # A reader at the tail stops here, at the newest layer: older ones, which hold all
                # of a long stream, are not even loaded (ADR 2).
                if layer.older >= 0 and _covers(found, start, end):
                    break
            if layer.removed:
                removed.append(layer.removed)
        return found

    def cells(self, segment_id: int, start: int, end: int) -> list[FileCell]:
        """Return what :meth:`find` does, as cells: for very many files."""
        return self._with_renewal(lambda: self._cells(segment_id, start, end))

    def _cells(self, segment_id: int, start: int, end: int) -> list[FileCell]:
        found: list[FileCell] = []
        removed: list[set[str]] = []
        for layer in self._layers_down():
            cells = layer.cells(segment_id, start, end)
            for paths in removed:
                cells = [cell for cell in cells if cell[3] not in paths]
            found = sorted(found + cells) if found else cells
            if layer.older >= 0 and _cells_cover(found, start, end):
                break
            if layer.removed:
                removed.append(layer.removed)
        return found

    def all(self) -> Iterator[Add]:
        """Yield every live file, newest layer first."""
        removed: list[set[str]] = []
        for layer in self._with_renewal(lambda: list(self._layers_down())):
            for add in layer.all():
                if not any(add.path in paths for paths in removed):
                    yield add
            if layer.removed:
                removed.append(layer.removed)

    def totals(self) -> FileTotals:
        """Return the number and size of all live files.

        A recorded total makes that cheap; without one, all layers are read once.
        """
        newest = self._newest
        if newest.older < 0:
            return newest.net
        if self._older is None:
            self._older = self._recorded(newest.older)
        if self._older is None:
            sizes = [add.stored_bytes for add in self.all()]
            newest = self._newest  # reading may have renewed it
            self._older = FileTotals(len(sizes), sum(sizes)) - newest.net
        return self._older + newest.net

    def _with_renewal(self, work: Callable[[], _T]) -> _T:
        try:
            try:
                return work()
            except CorruptLog:
                if self._renew is None:
                    raise
                self._newest = self._renew()
                self._layers, self._older = [self._newest], None
                return work()
        except CorruptLog as error:
            error.locate(self._where)
            raise

    def _layers_down(self) -> Iterator[Layer]:
        """Yield the layers from the newest to the oldest; load each when it is needed."""
        at = 0
        while True:
            layer = self._layers[at]
            yield layer
            at += 1
            if at == len(self._layers):
                if layer.older < 0:
                    return
                self._layers.append(self._load(layer.older))


def _base(cell: tuple[int, Add]) -> int:
    return cell[0]


def _offset(add: Add) -> int:
    return position_of(add)[1]


def _covers(found: list[Add], start: int, end: int) -> bool:
    """Return whether files, sorted by offset, cover a range without a gap."""
    at = start
    for add in found:
        base = _offset(add)
        if base > at:
            return False
        at = max(at, base + rows_of(add))
    return at >= end


def _cells_cover(found: list[FileCell], start: int, end: int) -> bool:
    """Return whether cells, sorted by offset, cover a range without a gap."""
    at = start
    for base, rows, *_ in found:
        if base > at:
            return False
        at = max(at, base + rows)
    return at >= end


FORMAT = 1


@dataclass(slots=True)
class FileChanges:
    """The files that the commits of (since, version] added and removed."""

    since: int
    version: int
    added: dict[str, list[str]] = field(default_factory=dict)
    """Names of added files, by folder."""
    removed: dict[int, tuple[int, list[str]]] = field(default_factory=dict)
    """Bytes and paths of removed files, by the version that removed them."""
    ended: dict[str, int] = field(default_factory=dict)
    """Transactions that ended, each with the version; no part of a segment or a record."""
    paths: int = 0
    """The number of added and removed paths."""

    def apply(self, commit: Commit) -> None:
        """Add the file actions of the next commit."""
        assert commit.version == self.version + 1, (commit.version, self.version)
        self.version = commit.version
        self.add([add.path for add in commit.adds])
        if commit.removes:
            self.removed[commit.version] = commit.removed_bytes, list(commit.removes)
            self.paths += len(commit.removes)
        for name, value in commit.domains.items():
            if value is None and name.startswith(OPEN_PREFIX):
                self.ended[name.removeprefix(OPEN_PREFIX)] = commit.version

    def add(self, paths: Collection[str]) -> None:
        """Note that files were added."""
        for path in paths:
            folder, _, name = path.rpartition("/")
            self.added.setdefault(folder, []).append(name)
        self.paths += len(paths)

    def join(self, later: FileChanges) -> None:
        """Add the changes of a range that begins where this one ends, or before that."""
        assert later.since <= self.version < later.version, (self.version, later.version)
        for folder, names in later.added.items():
            known = self.added.setdefault(folder, [])
            seen = set(known)
            new = [name for name in names if name not in seen]
            known += new
            self.paths += len(new)
        for version, (size, paths) in later.removed.items():
            if version > self.version:
                self.removed[version] = size, paths
                self.paths += len(paths)
        self.ended |= {name: v for name, v in later.ended.items() if v > self.version}
        self.version = later.version

    @property
    def staged_from(self) -> int:
        """The oldest version at which one of the added files was staged."""
        staged = (staged_version(f"{folder}/") for folder in self.added)
        return min((v for v in staged if v is not None), default=self.version)

    def added_paths(self) -> Iterator[str]:
        """Yield the paths of the added files."""
        for folder, names in self.added.items():
            for name in names:
                yield f"{folder}/{name}" if folder else name

    def removed_in(self, after: int, last: int) -> tuple[int, list[str]]:
        """Return the bytes and paths of the files that the versions of (after, last] removed."""
        found = [entry for version, entry in self.removed.items() if after < version <= last]
        return sum(size for size, _ in found), [path for _, paths in found for path in paths]

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a segment or a record."""
        removed = {str(version): [size, paths] for version, (size, paths) in self.removed.items()}
        return {
            "since": self.since,
            "version": self.version,
            "added": self.added,
            "removed": removed,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> FileChanges:
        """Read the fields; raises one of DECODE_ERRORS if they are not those of ``to_json``."""
        removed = {int(v): (int(cell[0]), list(cell[1])) for v, cell in record["removed"].items()}
        added = {folder: list(names) for folder, names in record["added"].items()}
        paths = sum(map(len, added.values())) + sum(len(found) for _, found in removed.values())
        return cls(
            since=int(record["since"]),
            version=int(record["version"]),
            added=added,
            removed=removed,
            paths=paths,
        )


@dataclass(frozen=True, slots=True)
class ChangesPart:
    """What a record holds of a segment: its range, what it removed, and its digest."""

    since: int
    version: int
    staged_from: int
    files: int
    size_bytes: int
    first_removal: int
    """The oldest version in the range that removed files; 0 if none did."""
    last_removal: int
    digest: str

    @classmethod
    def of(cls, changes: FileChanges, data: bytes) -> ChangesPart:
        """Return the segment of the changes; ``data`` are the bytes of its object."""
        size_bytes, paths = changes.removed_in(changes.since, changes.version)
        first, last = min(changes.removed, default=0), max(changes.removed, default=0)
        digest = xxhash.xxh3_128_hexdigest(data)
        return cls(
            since=changes.since,
            version=changes.version,
            staged_from=changes.staged_from,
            files=len(paths),
            size_bytes=size_bytes,
            first_removal=first,
            last_removal=last,
            digest=digest,
        )


def changes_folder(path: str) -> str:
    """Return the folder of the segments of the table at ``path``."""
    return f"{path}/_pravega/changes"


def changes_key(path: str, since: int, version: int) -> str:
    """Return the key of the segment of the commits in (since, version]."""
    return f"{changes_folder(path)}/{since + 1:020d}-{version:020d}.json"


def encode_changes(changes: FileChanges) -> bytes:
    """Return the bytes of a segment's object."""
    return to_json({"format": FORMAT, **changes.to_json()}).encode() + b"\n"


def decode_changes(data: bytes, segment: ChangesPart) -> FileChanges | None:
    """Read the object of a segment; None if it is not the one that the record names."""
    if xxhash.xxh3_128_hexdigest(data) != segment.digest:
        return None
    try:
        return FileChanges.from_json(json.loads(data))
    except DECODE_ERRORS:
        return None
