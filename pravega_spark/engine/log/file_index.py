"""The live files of a table, found by segment and offset, in layers read newest first.

The newest layer holds the file actions since the last state file. Each state file holds those
since the state file before it, and a checkpoint holds all older files. A read at the tail loads
only the first layer or two, however long the stream is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from pravega_spark.engine.json_codec import DECODE_ERRORS
from pravega_spark.engine.log.actions import Add, Commit
from pravega_spark.errors import CorruptLog
from pravega_spark.model import FileTotals

SEGMENT_COLUMN = "segment_id"
OFFSET_COLUMN = "base_offset"

_ADD_BYTES = 1_800
"""What a live file takes as an object, by measurement."""

_T = TypeVar("_T")


def position_of(add: Add) -> tuple[int, int]:
    """Return (segment id, base offset) of an event file; (0, 0) for a file of another table."""
    partition = add.partition
    try:
        return int(partition.get(SEGMENT_COLUMN, 0)), int(partition.get(OFFSET_COLUMN, 0))
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"the log names the file {add.path} with a segment id or base offset that is no "
            "number. Restore the log from a copy."
        ) from error


def rows_of(add: Add) -> int:
    """Return the number of events in the file."""
    try:
        return int((add.tags or {}).get("rows", 0))
    except DECODE_ERRORS as error:
        raise CorruptLog(
            f"the log names the file {add.path} with a count of rows that is no number. Restore "
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

    def __len__(self) -> int:
        """Return the number of files."""
        ...


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
        """Add a live file; each file has a name of its own, so it is not live already."""
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
        """Return the number of files."""
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
