"""The folded table of a key-value table: a Delta table with exactly one live row a key.

Its files have disjoint ranges of keys. A fold replaces the files whose ranges its changes touch,
and the same commit records which part of the change log the table now reflects. So any Delta
reader sees each key once, at any version, and a look-up needs one row group of one file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.kinds import FOLD_SUBSCRIBER
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.commit import Log, Proposal
from pravega_spark.engine.log.reader import table_at
from pravega_spark.engine.log.snapshot import PROTOCOL, Snapshot, new_table
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.stream.records import SUBSCRIBER_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, InvalidInput
from pravega_spark.key_value.changes import Change
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.folded_files import (
    FileMerge,
    FileReader,
    FoldedFile,
    FoldedWriter,
    bounded_columns,
    folded_file,
)
from pravega_spark.key_value.folded_record import FOLDED_DOMAIN, FoldedRecord
from pravega_spark.key_value.keys import KeyType, TableKey
from pravega_spark.key_value.rows import RowLayout, SortKey, first_key, keys_of, last_key, position
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import FOLDED_FILE_BYTES
from pravega_spark.values.names import folded_path
from pravega_spark.values.segments import StreamCut


class FoldedState:
    """One version of a folded table. Immutable and thread-safe; its files stay until a sweep."""

    def __init__(
        self,
        reader: FileReader,
        version: int,
        record: FoldedRecord,
        files: Sequence[FoldedFile],
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Take the files in the order of their keys."""
        self._reader = reader
        self._runtime = runtime
        self.version = version
        self.record = record
        self.files = files
        self._firsts = [file.first for file in files]

    @property
    def life(self) -> int:
        """The life of the change log."""
        return self.record.life

    @property
    def cut(self) -> StreamCut:
        """The cut of the change log that the table reflects."""
        if self.record.cut is None:
            return StreamCut.EARLIEST
        return StreamCut(self._reader.log_name, self.life, self.record.cut)

    @property
    def log_version(self) -> int:
        """The version of the change log that the table reflects."""
        return self.record.log_version

    def get(self, keys: Sequence[TableKey]) -> dict[TableKey, Change]:
        """Return the entries of some keys; those without an entry are left out.

        Each row group with wanted keys costs one storage call, and each file whose footer is not
        kept one more. Raises CorruptChunk and DataLoss, which name the file.
        """
        layout, reader = self._reader.layout, self._reader
        wanted: dict[str, list[tuple[SortKey, TableKey]]] = defaultdict(list)
        files: dict[str, FoldedFile] = {}
        for key in keys:
            order = layout.sort_key(key)
            at = bisect_right(self._firsts, order) - 1
            if at >= 0 and order <= self.files[at].last:
                file = self.files[at]
                files[file.path] = file
                wanted[file.path].append((order, key))

        def look_up(path: str) -> list[tuple[TableKey, Change]]:
            file, groups = files[path], defaultdict(list)
            footer = reader.footer(file)
            for order, key in wanted[path]:
                groups[footer.group_of(order)].append((order, key))
            return [
                found
                for number, some in groups.items()
                for found in _entries(reader.group(file, number), some)
            ]

        with reader.missing_files():
            parts = self._runtime.each(look_up, list(wanted))
        return {key: entry for part in parts for key, entry in part}

    def scan(
        self,
        low: TableKey | None = None,
        high: TableKey | None = None,
        after: TableKey | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the entries of [low, high), or those behind ``after``, sorted by key.

        Batches have ``ENTRY_SCHEMA``; a few megabytes are in memory. Raises what :meth:`get` does.
        """
        layout, reader = self._reader.layout, self._reader
        least = None if low is None else layout.sort_key(low)
        end = None if high is None else layout.sort_key(high)
        behind = None if after is None else layout.sort_key(after)
        if behind is not None and (least is None or behind >= least):
            least = behind
        else:
            behind = None
        first = 0
        if least is not None:
            first = max(0, bisect_right(self._firsts, least) - 1)
            if self.files and self.files[first].last < least:
                first += 1  # it begins in the gap behind this file
        last = len(self.files)
        if end is not None:
            last = bisect_left(self._firsts, end)
        for file in self.files[first:last]:
            with reader.missing_files():
                for rows in reader.rows(file, least, end):
                    part = rows_between(rows, least, end, is_after=behind is not None)
                    if part.num_rows:
                        yield from layout.entries_of_rows(part).to_batches()

    def entries(
        self, low: TableKey | None = None, high: TableKey | None = None
    ) -> Iterator[tuple[TableKey, Change]]:
        """Yield the entries of [low, high), sorted by key, as :meth:`scan` does."""
        for batch in self.scan(low, high):
            columns = [batch.column(n).to_pylist() for n in ("segment_id", "offset")]
            columns += [batch.column("timestamp").view(pa.int64()).to_pylist()]
            columns += [batch.column("value").to_pylist()]
            keys = map(
                TableKey,
                batch.column("key").to_pylist(),
                batch.column("secondary_key").to_pylist(),
            )
            yield from zip(keys, map(Change, *columns), strict=True)


def _entries(
    rows: pa.Table, wanted: Iterable[tuple[SortKey, TableKey]]
) -> Iterator[tuple[TableKey, Change]]:
    order = keys_of(rows)
    for key, name in wanted:
        at = position(order, key)
        if at < len(order) and order[at].as_py() == key:
            row = [rows.column(column)[at] for column in ("segment_id", "offset", "timestamp")]
            place = row[0].as_py(), row[1].as_py(), row[2].value
            yield name, Change(*place, rows.column("value")[at].as_py())


def rows_between(
    rows: pa.Table, low: SortKey | None, high: SortKey | None, *, is_after: bool = False
) -> pa.Table:
    """Return the sorted rows of the keys of [low, high), or those behind ``low``."""
    order = keys_of(rows)
    first, last = 0, rows.num_rows
    if not last:
        return rows
    if low is not None and not first_key(rows) > low:
        first = position(order, low, after=is_after)
    if high is not None and not last_key(rows) < high:
        last = position(order, high)
    return rows.slice(first, max(0, last - first))


FOLD, END_LIFE = "FOLD", "END LIFE"
"""Operations of a folded table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldResult:
    """What a merge did. It is void if another folder was first, or if the life has ended."""

    is_committed: bool
    version: int = -1
    changes: int = 0
    """Keys that changed."""
    rows: int = 0
    files_removed: int = 0
    bytes_written: int = 0
    bytes_replaced: int = 0


class FoldedTable:
    """The folded table at a path; thread-safe. It need not exist before the first fold."""

    def __init__(
        self,
        store: Store,
        path: str,
        key_type: KeyType,
        has_secondary: bool,
        runtime: Runtime = SYSTEM,
        *,
        file_bytes: int = FOLDED_FILE_BYTES,
    ) -> None:
        """Name the table; nothing is read yet."""
        self.log = Log(store, path, runtime)
        self.log.maintain = checkpoint.maintain_in_background
        self.layout = RowLayout(key_type, has_secondary)
        self.reader = FileReader(store, path, self.layout)
        self.file_bytes = file_bytes
        self._lock = new_lock()
        self._state: FoldedState | None = None

    def record(self, refresh: bool = True) -> FoldedRecord | None:
        """Return what the table reflects now, without its files; None before the first fold."""
        snapshot = self.log.refresh(durable=True) if refresh else self.log.snapshot
        return None if snapshot is None else FoldedRecord.of(snapshot)

    def read(self, refresh: bool = True) -> FoldedState | None:
        """Return the newest state (one storage call if it is known), or the last known one.

        None before the first fold. Raises CorruptLog.
        """
        snapshot = self.log.snapshot
        if refresh or snapshot is None:
            snapshot = self.log.refresh(durable=True)
        if snapshot is None:
            return None
        known = self._state
        if known is not None and known.version == snapshot.version:
            return known
        with self._lock, self.log.files() as index:
            snapshot = self.log.snapshot
            assert snapshot is not None
            record = FoldedRecord.of(snapshot)
            if record is None:
                return None
            known = self._state
            files: Sequence[FoldedFile]
            if known is not None and known.record == record:
                files = known.files  # only folds change files
            else:
                files = self._sorted(index.all(), snapshot)
                self.reader.forget({file.path: file for file in files})
            state = FoldedState(self.reader, snapshot.version, record, files, self.log.runtime)
            self._state = state
        return state

    def read_at(self, version: int) -> FoldedState:
        """Return the state at a retained version of the folded table. Raises InvalidInput."""
        snapshot = self.log.refresh(durable=True)
        if snapshot is None or not snapshot.retention_mark <= version <= snapshot.version:
            kept = "none" if snapshot is None else f"{snapshot.retention_mark}..{snapshot.version}"
            raise InvalidInput(
                f"{self.log.reader.where} has no version {version}: versions {kept} are retained. "
                "Read a newer version."
            )
        found, index = table_at(self.log.reader, version)
        record = FoldedRecord.of(found)
        if record is None:
            raise CorruptLog(
                f"{self.log.reader.where}: version {version} has no {FOLDED_DOMAIN}. Restore the "
                "log from a copy.",
                path=self.log.reader.where,
                version=version,
            )
        return FoldedState(
            self.reader, version, record, self._sorted(index.all(), found), self.log.runtime
        )

    def read_before(self, log_version: int) -> FoldedState | None:
        """Return the newest retained state that reflects no later version of the change log.

        None if there is none, which says that the change log alone tells all up to that version,
        or that this version is no longer retained. Costs a read for each fold since then.
        """
        snapshot = self.log.refresh(durable=True)
        if snapshot is None:
            return None
        for version in range(snapshot.version, max(0, snapshot.retention_mark) - 1, -1):
            commit = self.log.reader.commit(version, light=True)
            text = None if commit is None else commit.domains.get(FOLDED_DOMAIN)
            if text is None:
                continue
            state = self.read_at(version)
            if state.log_version <= log_version:
                return state
        return None

    def _sorted(self, adds: Iterable[Add], snapshot: Snapshot) -> list[FoldedFile]:
        """Return files in the order of their keys; raise CorruptLog if two overlap."""
        where = self.log.reader.where
        files = sorted(
            (folded_file(add, self.layout, where) for add in adds),
            key=lambda file: file.first,
        )
        for before, after in pairwise(files):
            if before.last >= after.first:
                raise CorruptLog(
                    f"{where}: the files {before.path} and {after.path} of version "
                    f"{snapshot.version} overlap, so a key may be there twice. Restore the log "
                    "from a copy.",
                    path=where,
                    version=snapshot.version,
                )
        return files

    def merge(
        self,
        state: FoldedState | None,
        changes: pa.Table | Iterable[pa.Table],
        cut: Mapping[int, int],
        log_version: int,
        life: int,
        *,
        expired_us: int | None = None,
        expired_files: Iterable[str] = (),
    ) -> FoldResult:
        """Merge changes into the state, and commit that the table reflects ``cut``.

        ``changes`` of ``ENTRY_SCHEMA`` are sorted, with one row a key, as one table or in parts.
        Only the files whose ranges they touch are written again, and ``expired_files``; entries
        not younger than ``expired_us`` are dropped from what is written. Nothing is committed if
        another folder has changed the table since ``state``, or if the life has ended. Raises
        CorruptChunk and DataLoss, which name the file.
        """
        parts = [changes] if isinstance(changes, pa.Table) else changes
        rows = (self.layout.rows_of_entries(part) for part in parts if part.num_rows)
        reflects = FoldedRecord(life, log_version=log_version, cut=dict(cut))
        return self.merge_rows(
            state, rows, reflects, expired_us=expired_us, expired_files=expired_files
        )

    def merge_rows(
        self,
        state: FoldedState | None,
        rows: Iterable[pa.Table],
        reflects: FoldedRecord,
        *,
        expired_us: int | None = None,
        expired_files: Iterable[str] = (),
        check: Callable[[], object] = bool,
    ) -> FoldResult:
        """Merge changes as :meth:`merge` does, which are rows of the engine (``rows``).

        ``reflects`` says what of the change log; its figures are filled in here. ``check`` is
        called just before the commit, and raises to prevent it.
        """
        base = state.record if state is not None else None
        is_continued = base is not None and base.life == reflects.life and not base.is_ended
        staged_at = self._staging_version()
        files = list(state.files) if state is not None and is_continued else []
        dropped = [] if is_continued or state is None else list(state.files)
        with (
            self.reader.missing_files(),
            FoldedWriter(
                store=self.log.store,
                table_path=self.log.path,
                folder=version_folder(staged_at),
                layout=self.layout,
                target_bytes=self.file_bytes,
                runtime=self.log.runtime,
            ) as writer,
        ):
            merge = FileMerge(self.reader, writer, self.file_bytes, expired_us)
            plan = merge.run(files, rows, set(expired_files))
        failpoint("fold.written")
        replaced = [*dropped, *plan.replaced]
        gone = {file.path for file in plan.replaced}
        live = [*(file for file in files if file.path not in gone), *writer.files]
        record = replace(
            reflects,
            number=1 + (base.number if base is not None else 0),
            rows=sum(file.rows for file in live),
            size_bytes=_bytes(live),
            files=len(live),
            folded_ms=self.log.clock.now_ms(),
        )
        check()
        done = self._commit(base, record, writer.files, replaced, staged_at)
        failpoint("fold.committed")
        return FoldResult(
            is_committed=done is not None,
            version=-1 if done is None else done,
            changes=plan.changes,
            rows=record.rows,
            files_removed=len(replaced),
            bytes_written=_bytes(writer.files),
            bytes_replaced=_bytes(replaced),
        )

    def _staging_version(self) -> int:
        snapshot = self.log.snapshot
        return 0 if snapshot is None else snapshot.version

    def _commit(
        self,
        base: FoldedRecord | None,
        record: FoldedRecord,
        added: Sequence[FoldedFile],
        removed: Sequence[FoldedFile],
        staged_at: int,
    ) -> int | None:
        """Commit a fold if the table is still as it was; return its version, or None."""

        def decide(snapshot: Snapshot | None) -> Proposal[bool]:
            known = None if snapshot is None else FoldedRecord.of(snapshot)
            if known != base or is_refused(known, record.life):
                return None, False
            if snapshot is not None and staged_at < snapshot.horizon:
                return None, False  # a sweep may have deleted the files
            body = _body(
                FOLD,
                self.log,
                layout=self.layout,
                snapshot=snapshot,
                record=record,
                removed=removed,
            )
            body.adds = [file.to_add(self.layout, record.folded_ms) for file in added]
            return body, True

        if self.log.snapshot is None and self.log.refresh() is None and base is not None:
            return None
        failpoint("fold.commit")
        done = self.log.commit(decide)
        return done.snapshot.version if done.value else None

    def end_life(self, life: int) -> bool:
        """Remove all rows of a life that has ended, and refuse all later folds of it.

        A table that was never folded is created for that. Returns whether anything was committed:
        a later life is left as it is.
        """
        return end_folded_life(self.log, life, self.layout)


def is_refused(known: FoldedRecord | None, life: int) -> bool:
    """Return whether a fold of a life may not commit: that life has ended."""
    if known is None:
        return False
    return known.life > life or (known.life == life and known.is_ended)


def _bytes(files: Iterable[FoldedFile]) -> int:
    return sum(file.size for file in files)


def end_folded_life(log: Log, life: int, layout: RowLayout | None = None) -> bool:
    """End a life as :meth:`FoldedTable.end_life` does; without a layout no table is created."""

    def decide(snapshot: Snapshot | None) -> Proposal[bool]:
        known = None if snapshot is None else FoldedRecord.of(snapshot)
        if known is not None and is_refused(known, life):
            return None, False
        adds: list[Add] = []
        if snapshot is not None:
            with log.files() as index:
                adds = list(index.all())
        number = 0 if known is None else known.number + 1
        record = FoldedRecord(life, number, folded_ms=log.clock.now_ms(), is_ended=True)
        return _body(
            END_LIFE, log, layout=layout, snapshot=snapshot, record=record, removed=adds
        ), True

    if layout is None and log.refresh() is None:
        return False
    return log.commit(decide).value


def _body(
    operation: str,
    log: Log,
    layout: RowLayout | None,
    snapshot: Snapshot | None,
    record: FoldedRecord,
    removed: Sequence[FoldedFile] | Sequence[Add],
) -> Body:
    now_ms = record.folded_ms
    removes = [Remove(file.path, now_ms, {}, file.size) for file in removed]
    parameters = {"life": record.life, "logVersion": record.log_version}
    metrics = {"numOutputRows": record.rows, "numRemovedFiles": len(removed)}
    domains: dict[str, str | None] = {FOLDED_DOMAIN: record.encode()}
    body = Body(operation, parameters, metrics, domains, removes=removes)
    if snapshot is None:
        body.protocol = PROTOCOL
    if layout is None:
        return body
    table_id = log.runtime.token() if snapshot is None else snapshot.metadata["id"]
    metadata = new_table(
        layout.delta_columns, [], table_id, log.path, now_ms, bounded=bounded_columns(layout)
    )
    known = {} if snapshot is None else snapshot.metadata
    if known.get("schemaString") != metadata["schemaString"]:  # a life with other keys
        body.metadata = metadata
    return body


_MARK = f"{SUBSCRIBER_PREFIX}{FOLD_SUBSCRIBER}"


def folded_log(stream: StreamLog) -> Log:
    """Return the log of the folded table, for keys of any type."""
    log = Log(stream.store, folded_path(stream.name), stream.runtime)
    log.maintain = checkpoint.maintain_in_background
    return log


def folded_table(stream: StreamLog, configuration: KeyValueTableConfiguration) -> FoldedTable:
    """Return the folded table of a change log, as this process has it open."""
    key_type = KeyType(configuration.key_type)
    name = "folded", key_type, configuration.secondary_key_length > 0
    known = stream.shared.get(name)
    if known is None:
        made = FoldedTable(stream.store, folded_path(stream.name), *name[1:], stream.runtime)
        known = stream.shared.setdefault(name, made)
    assert isinstance(known, FoldedTable)
    return known


class LogFold:
    """The folded table as the index of a change log sees it."""

    def __init__(self, stream: StreamLog, configuration: KeyValueTableConfiguration) -> None:
        """Take the change log; reads nothing."""
        self._table = folded_table(stream, configuration)

    def read(self) -> FoldedState | None:
        """Return the newest version; None if nothing was folded."""
        state = self._table.read()
        return None if state is None or state.record.is_ended else state

    def fold_id(self, view: StreamView) -> str | None:
        """Return what the last fold published in the change log."""
        return view.snapshot.domains.get(_MARK)
