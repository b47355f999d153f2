"""State tables: small sets of rows in a Delta table, changed by compare-and-set on its version.

The live rows are in Parquet files of at most 512 rows; most tables have one file. A commit replaces
the files whose rows it changes, so any Delta reader sees exactly one version of the state. The
domain ``pravega.rows`` names the first file and ``pravega.rows.1`` the next one, so this package
reads the state without the list of live files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from pravega_spark.engine.chunk_paths import file_path, version_folder
from pravega_spark.engine.chunks.arrow_arrays import ready
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.commit import Log, Proposal
from pravega_spark.engine.log.snapshot import PROTOCOL, ROWS_FEATURE, Snapshot, new_table
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.open_objects import OpenObjects
from pravega_spark.errors import CorruptChunk, StoreError
from pravega_spark.values.limits import STATE_TABLE_FILE_ROWS

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
Changes = Mapping[str, Row | None]
"""Rows to put by key; None for a row to remove."""


def differences(before: Rows, rows: Rows) -> Changes:
    """Return the rows that turn ``before`` into ``rows``."""
    changes: dict[str, Row | None] = dict.fromkeys(before.keys() - rows.keys())
    for key, row in rows.items():
        known = before.get(key)
        if known is not row and known != row:
            changes[key] = row
    return changes


def rearrange(
    files: Mapping[int, Rows], changes: Changes, limit: int = STATE_TABLE_FILE_ROWS
) -> dict[int, Rows]:
    """Return the files to write so that the table has the changes; delete those that are empty.

    ``files`` holds the present rows of each file. New rows fill the file with the fewest rows.
    Files that are less than half full are merged.
    """
    changed = _changed(files, changes, limit)
    held = {key for old in files.values() for key in changes.keys() & old.keys()}
    fresh = {key: row for key, row in sorted(changes.items()) if row and key not in held}
    counts = {number: len(changed.get(number, old)) for number, old in files.items()}
    while fresh:
        number = min(counts, key=lambda n: (counts[n], n), default=0)
        if counts.get(number, 0) >= limit:
            number = _unused(counts)
        room = limit - counts.get(number, 0)
        taken = [(key, fresh.pop(key)) for key in list(fresh)[:room]]
        into = changed.setdefault(number, dict(files.get(number, {})))
        into.update(taken)
        counts[number] = len(into)
    _split(changed, counts, limit)
    _merge(changed, counts, files, limit)
    return dict(changed)


def _changed(files: Mapping[int, Rows], changes: Changes, limit: int) -> dict[int, dict[str, Row]]:
    """Return the files that are too long or have changed rows, with their remaining rows."""
    changed: dict[int, dict[str, Row]] = {}
    for number, old in files.items():
        if len(old) > limit:  # the only file of a table of an older format
            changed[number] = dict(old)
    for key, row in changes.items():
        holder = next((number for number, old in files.items() if key in old), None)
        if holder is None:
            continue
        remaining = changed.setdefault(holder, dict(files[holder]))
        if row is None:
            del remaining[key]
        else:
            remaining[key] = row
    return changed


def _split(changed: dict[int, dict[str, Row]], counts: dict[int, int], limit: int) -> None:
    """Split files that are too long."""
    for number, rows in list(changed.items()):
        keys = sorted(rows)
        for first in range(limit, len(keys), limit):
            part = _unused(counts)
            changed[part] = {key: rows.pop(key) for key in keys[first : first + limit]}
            counts[part] = len(changed[part])
        counts[number] = len(rows)


def _merge(
    changed: dict[int, dict[str, Row]],
    counts: dict[int, int],
    files: Mapping[int, Rows],
    limit: int,
) -> None:
    """Merge a changed file that is less than half full into the file with the fewest rows."""
    for number in sorted(changed, reverse=True):
        fewest = min((n for n in counts if n != number), key=lambda n: (counts[n], n), default=None)
        if not 0 < counts[number] < limit // 2 or fewest is None or counts[fewest] == 0:
            continue
        if counts[number] + counts[fewest] <= limit:
            into, out = sorted((number, fewest))
            both = {n: changed.get(n, dict(files.get(n, {}))) for n in (into, out)}
            changed[into], changed[out] = {**both[into], **both[out]}, {}
            counts[into], counts[out] = len(changed[into]), 0


def _unused(counts: Mapping[int, int]) -> int:
    return next(number for number in range(len(counts) + 1) if number not in counts)


ROWS_DOMAIN = "pravega.rows"

_DELTA_TYPES = {
    pa.string(): "string",
    pa.int64(): "long",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.list_(pa.string()): {"type": "array", "elementType": "string", "containsNull": True},
}


@dataclass(frozen=True, slots=True)
class TableState:
    """The rows by key at one version, and the snapshot with the table's domains."""

    version: int
    rows: Rows = field(default_factory=dict)
    snapshot: Snapshot | None = None
    files: Mapping[str, Rows] = field(default_factory=dict)
    """The rows of each file, by its path."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """What to commit: an operation's name, all rows or those that change, and domains to set."""

    operation: str
    rows: Rows | None = None
    """All rows; None if ``changes`` tells those that change, which costs less in a long table."""
    domains: Mapping[str, str | None] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)


_Value = TypeVar("_Value")

Decide = Callable[[TableState], tuple[TableChange | None, _Value]]
"""Given the newest state, the change to commit (None: none), and a value for the caller."""


class StateTable:
    """One state table: rows of ``schema`` keyed by the column ``key``."""

    def __init__(
        self, store: Store, path: str, schema: pa.Schema, key: str, runtime: Runtime = SYSTEM
    ) -> None:
        """Name the table; nothing is read yet, and it need not exist."""
        self.log = Log(store, path, runtime)
        self.log.maintain = checkpoint.maintain_in_background
        self._schema = schema
        self._key = key
        self._cached = TableState(-1)
        self._files: dict[str, Rows] = {}
        """Rows by file path: of the files of the cached state, and of those last written."""

    @property
    def known_rows(self) -> Rows:
        """The rows that were read last; no storage is asked."""
        return self._cached.rows

    def read(self, *, refresh: bool = True) -> TableState:
        """Return the newest state, or the last known one; version -1 if there is no table.

        Raises CorruptChunk if the rows of the newest version cannot be read.
        """
        snapshot = self.log.refresh(durable=True) if refresh else self.log.snapshot
        while True:
            try:
                return self._state(snapshot)
            except CorruptChunk:  # a sweep may have deleted the file of an old version
                known, snapshot = snapshot, self.log.refresh(durable=True)
                if snapshot is known:
                    raise

    def at(self, snapshot: Snapshot) -> TableState:
        """Return the state of a snapshot; raise CorruptChunk if its rows cannot be read."""
        return self._state(snapshot)

    def _state(self, snapshot: Snapshot | None) -> TableState:
        if snapshot is None:
            return TableState(-1)
        cached = self._cached
        if cached.version == snapshot.version:
            return cached
        pointers = _pointers(snapshot)
        rows, files = cached.rows, cached.files
        if pointers != _pointers(cached.snapshot):
            found = self._rows_of(pointers)
            files = {pointers[number]["path"]: part for number, part in found.items()}
            rows = _moved(cached, files)
            self._files = dict(files)
        state = TableState(snapshot.version, rows, snapshot, files)
        self._cached = state
        return state

    def _rows_of(self, pointers: _Pointers) -> dict[int, Rows]:
        """Return the rows of files; load the files that are not cached."""
        paths, known = [pointer["path"] for pointer in pointers.values()], dict(self._files)
        missing = [path for path in paths if path not in known]
        loaded = dict(zip(missing, self.log.runtime.each(self._load, missing), strict=True))
        found = {**known, **loaded}
        return {number: found[path] for number, path in zip(pointers, paths, strict=True)}

    def _load(self, path: str) -> Rows:
        import pyarrow.parquet as pq  # late: a streaming query seldom reads a table

        try:
            data = self.log.store.get(f"{self.log.path}/{path}")
            # pq.read_table starts threads, and a process that ends meanwhile aborts.
            table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        except StoreError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise CorruptChunk(
                f"{self.log.reader.where}: the rows in {path} cannot be read. Restore the file "
                "from a copy.",
                path=f"{self.log.reader.where}/{path}",
            ) from error
        return self._rows(table)

    def _rows(self, table: pa.Table) -> Rows:
        return {row[self._key]: row for row in table.to_pylist()}

    def change(self, decide: Decide[_Value]) -> tuple[TableState, _Value]:
        """Commit the change that ``decide`` returns for the newest state.

        Returns the state after it, and the value of the call of ``decide`` that was committed.
        """

        def propose(snapshot: Snapshot | None) -> Proposal[_Value]:
            change, value = decide(self._state(snapshot))
            return None if change is None else self._body(snapshot, change), value

        done = self.log.commit(propose)
        return self._state(done.snapshot), done.value

    def _body(self, snapshot: Snapshot | None, change: TableChange) -> Body:
        now_ms = self.log.clock.now_ms()
        version = 0 if snapshot is None else snapshot.version
        body = Body(change.operation, parameters=change.parameters, domains=dict(change.domains))
        pointers = _pointers(snapshot)
        domains: dict[str, str | None] = dict(change.domains)
        changes = change.changes
        if change.rows is not None:
            changes = differences(self._state(snapshot).rows, change.rows)
        if changes:
            for number, rows in rearrange(self._rows_of(pointers), changes).items():
                pointer = None
                if rows:
                    add = self._stage(rows, version, now_ms)
                    body.adds = [*body.adds, add]
                    pointer = to_json({"path": add.path, "size": add.size})
                if number in pointers:
                    path, size = pointers[number]["path"], pointers[number]["size"]
                    old = Remove.of(Add(path, {}, size=size, modified_ms=now_ms), now_ms)
                    body.removes = [*body.removes, old]
                domains[_domain(number)] = pointer
        if snapshot is None:
            schema = {f.name: _DELTA_TYPES[f.type] for f in self._schema}
            table_id = self.log.runtime.token()
            body.protocol = PROTOCOL
            body.metadata = new_table(schema, [], table_id, self.log.path, now_ms)
        features = (PROTOCOL if snapshot is None else snapshot.protocol)["writerFeatures"]
        if ROWS_FEATURE not in features and any(d.startswith(f"{ROWS_DOMAIN}.") for d in domains):
            body.protocol = {**PROTOCOL, "writerFeatures": sorted([*features, ROWS_FEATURE])}
        body.domains = domains
        return body

    def _stage(self, rows: Rows, version: int, now_ms: int) -> Add:
        """Write the rows into the folder of the version on which the change was decided.

        Each retry after a lost race writes them again, so the file is not below the horizon when
        it is committed.
        """
        import pyarrow.parquet as pq  # late: a streaming query seldom reads a table

        ordered = [rows[key] for key in sorted(rows)]
        sink = pa.BufferOutputStream()
        ready()
        table = pa.Table.from_pylist(ordered, self._schema)
        pq.write_table(table, sink, compression="zstd")
        data = sink.getvalue()
        path = file_path(version_folder(version), self.log.runtime.token())
        self.log.store.stage([(f"{self.log.path}/{path}", data)])
        self._files[path] = self._rows(table)
        stats = to_json({"numRecords": len(ordered)})
        return Add(
            path=path,
            partition={},
            size=data.size,
            modified_ms=now_ms,
            stats=stats,
            tags={"rows": str(len(ordered))},
        )


def _moved(known: TableState, files: Mapping[str, Rows]) -> Rows:
    """Return the rows of these files; of a long table, of which few changed, from known ones."""
    kept = known.files.keys() & files.keys()
    if not kept:
        return {key: row for part in files.values() for key, row in part.items()}
    rows = dict(known.rows)
    for path in known.files.keys() - kept:
        for key in known.files[path]:
            del rows[key]
    for path in files.keys() - kept:
        rows.update(files[path])
    return rows


_Pointers = Mapping[int, Mapping[str, Any]]


def _domain(number: int) -> str:
    return ROWS_DOMAIN if number == 0 else f"{ROWS_DOMAIN}.{number}"


def _pointers(snapshot: Snapshot | None) -> _Pointers:
    """Return path and size of each file of rows, by file number."""
    if snapshot is None:
        return {}
    found = {}
    for name in snapshot.names(ROWS_DOMAIN):
        value = snapshot.get(name)
        assert value is not None
        found[int(name.removeprefix(ROWS_DOMAIN).removeprefix(".") or 0)] = value
    return dict(sorted(found.items()))


_Table = TypeVar("_Table")

_MOST = 64


class OpenTables(Generic[_Table]):
    """Tables of one kind that stay open: a repeated read costs one storage call."""

    def __init__(self, open_table: Callable[[Store, Runtime], _Table]) -> None:
        """Start without a table; ``open_table`` opens the one of a root."""
        self._open_table = open_table
        self._open = OpenObjects(lambda store, _: open_table(store, SYSTEM), lambda _: 1, _MOST)

    def get(self, store: Store, runtime: Runtime = SYSTEM) -> _Table:
        """Return the table of a root; with another runtime than the system's, a new one."""
        return self._open.get(store, "") if runtime is SYSTEM else self._open_table(store, runtime)
