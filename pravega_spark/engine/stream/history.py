"""Records that left a stream's log state, as rows of the Delta table ``metadata/``, for SQL.

Rows are only appended, and the table is partitioned by the kind of record. No commit of the stream
reads it. Each append writes a file for each kind; a sweep merges these.

Decide which small files of a stream's history become one file. Pure. Files of one kind of record
lie in the order in which they were appended. Their tier is the number of hexadecimal digits of
their rows. Neighbours of a tier, and smaller files between them, are merged when there are 16 of
them and the result is of a higher tier. So a row is written once more for each tier, and the number
of files grows with the logarithm of the rows, until files are large.

Merge the small files of a stream's history, in a commit that changes no row. A sweep does this
after each 16 appends. It decides on the newest version, so of two sweeps at the same time one finds
nothing to merge; an append in between stays as it is. A process that is killed leaves staged files,
which a later sweep deletes. Replaced files stay as long as other removed ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.chunk_paths import file_path, staged_version, version_folder
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.commit import Log, Proposal
from pravega_spark.engine.log.files import rows_of
from pravega_spark.engine.log.snapshot import PROTOCOL, Snapshot, new_table
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.errors import CorruptLog, DataLoss
from pravega_spark.values.limits import HISTORY_FILE_BYTES, HISTORY_MERGE_FILES, STORAGE_THREADS

ORDER_TAG = "staged"
"""Tag of a merged file: the version at which the newest of its files was staged."""

_TIER_BITS = 4
_TIERS = 16


@dataclass(frozen=True, slots=True)
class _Unit:
    """Neighbouring files that are one file after the merge."""

    files: tuple[Add, ...]
    rows: int
    size: int

    @property
    def tier(self) -> int:
        return (self.rows.bit_length() - 1) // _TIER_BITS

    @property
    def is_full(self) -> bool:
        return 2 * self.size >= HISTORY_FILE_BYTES


def order_of(add: Add) -> int:
    """Return the position of a file among those of its kind: what was appended later is higher."""
    tag = (add.tags or {}).get(ORDER_TAG)
    return int(tag) if tag is not None else staged_version(add.path) or 0


def in_order(adds: Iterable[Add]) -> list[Add]:
    """Return files in the order in which their rows were appended.

    Only the two oldest files may have the same version, which their times then order.
    """
    return sorted(adds, key=lambda add: (order_of(add), add.modified_ms))


def plan_merges(adds: Sequence[Add]) -> list[tuple[Add, ...]]:
    """Return the groups of neighbours that each become one file; ``adds`` are in order."""
    units = [_Unit((add,), rows_of(add), add.size) for add in adds]
    for tier in range(_TIERS):
        units = list(_merged_up_to(tier, units))
    return [unit.files for unit in units if len(unit.files) > 1]


def _merged_up_to(tier: int, units: Iterable[_Unit]) -> Iterator[_Unit]:
    """Yield the units after merging those of a tier and below."""
    for is_low, run in groupby(units, lambda unit: unit.tier <= tier and not unit.is_full):
        if not is_low:
            yield from run
            continue
        piece: list[_Unit] = []
        rows = size = 0
        for unit in run:
            piece.append(unit)
            rows, size = rows + unit.rows, size + unit.size
            if size >= HISTORY_FILE_BYTES:
                yield _joined(piece, rows, size)
                piece, rows, size = [], 0, 0
        joined = _joined(piece, rows, size)
        if len(piece) >= HISTORY_MERGE_FILES and joined.tier > tier:
            yield joined
        else:
            yield from piece


def _joined(units: Iterable[_Unit], rows: int, size: int) -> _Unit:
    return _Unit(tuple(add for unit in units for add in unit.files), rows, size)


APPENDS_DOMAIN = "pravega.history"
"""Domain of a history: the number of its appends, and the one at which its files were merged."""
COLUMNS = {"record": "string", "version": "long", "name": "string", "value": "string"}
_FILE_SCHEMA = pa.schema([("version", pa.int64()), ("name", pa.string()), ("value", pa.string())])


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One record: its kind, the last version of the stream's log with it, its name, its JSON."""

    record: str
    version: int
    name: str
    value: str


class HistoryOwner(Protocol):
    """The open stream whose history it is: a ``StreamLog``, which reads histories itself."""

    name: str
    store: Store
    runtime: Runtime

    def now_ms(self) -> int:
        """Return the time of a commit that is made now."""


def history_log(stream: HistoryOwner) -> Log:
    """Return the log of the stream's ``metadata/`` table; it need not exist."""
    log = Log(stream.store, f"{stream.name}/metadata", stream.runtime)
    log.maintain = checkpoint.maintain_in_background
    return log


Addition = tuple[Sequence[HistoryRow], Mapping[str, str]]
"""More rows, and the domains of the table's log to set with them."""


def append_history(
    stream: HistoryOwner,
    given: Sequence[HistoryRow],
    more: Callable[[Snapshot | None], Addition] = lambda snapshot: ((), {}),
    log: Log | None = None,
) -> None:
    """Append rows to the stream's ``metadata/`` table in one commit; create a missing table.

    ``more`` returns what belongs into the same commit, on the version before. If there is nothing
    at all, no commit is made. ``log`` is the table's log, if it is open.
    """
    log = log or history_log(stream)

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        added, domains = more(snapshot)
        rows = [*given, *added]
        if not rows and not domains:
            return None, None
        now_ms = stream.now_ms()
        staged_at = 0 if snapshot is None else snapshot.version
        body = Body("APPEND HISTORY", metrics={"numOutputRows": len(rows)})
        appends, merged = append_counts(snapshot)
        body.domains = {**domains, APPENDS_DOMAIN: to_json([appends + 1, merged])}
        kinds = sorted({row.record for row in rows})
        body.adds = [
            stage_rows(log, kind, _table([r for r in rows if r.record == kind]), staged_at, now_ms)
            for kind in kinds
        ]
        failpoint("history.staged")
        if snapshot is None:
            table_id = stream.runtime.token()
            body.protocol = PROTOCOL
            body.metadata = new_table(COLUMNS, ["record"], table_id, log.path, now_ms)
        return body, None

    log.commit(decide)


def append_counts(snapshot: Snapshot | None) -> tuple[int, int]:
    """Return how many appends the table has counted, and how many when files were last merged.

    A table of an older release has counted none, and is due to be merged if it has some versions.
    """
    if snapshot is None:
        return 0, 0
    counts = snapshot.get(APPENDS_DOMAIN)
    return (snapshot.version, 0) if counts is None else (int(counts[0]), int(counts[1]))


def read_history(stream: HistoryOwner, record: str) -> Iterator[list[HistoryRow]]:
    """Yield the rows of one kind by falling versions, as lists of the rows of a few files.

    So a caller that needs the newest rows reads few files. If a sweep deletes a merged file before
    it is read, the rows are read again from the newest on. Raises DataLoss for a missing file, and
    CorruptLog for a damaged one.
    """
    log = history_log(stream)
    found = _live_files(log, record)
    while found:
        adds = _newest(found)
        try:
            tables = stream.runtime.each(lambda add: read_rows(log, add), adds)
        except DataLoss:
            known, found = {add.path for add in adds}, _live_files(log, record)
            if known <= {add.path for add in found}:
                raise
            continue
        del found[-len(adds) :]
        rows = chain.from_iterable(_rows(record, table) for table in tables)
        yield sorted(rows, key=lambda row: row.version, reverse=True)


def _live_files(log: Log, record: str) -> list[Add]:
    """Return the files of a kind in the newest version, the oldest first."""
    if log.refresh() is None:
        return []
    with log.files() as files:
        return in_order(add for add in files.all() if add.partition.get("record") == record)


def _newest(found: Sequence[Add]) -> list[Add]:
    """Return the files to read together, the newest first: a few, and less of large ones."""
    # Only the two oldest files may have the same version in their paths: read both at once.
    count = STORAGE_THREADS if len(found) > STORAGE_THREADS + 1 else len(found)
    adds = list(reversed(found[-count:]))
    sizes = accumulate(add.size for add in adds)
    small = sum(size <= HISTORY_FILE_BYTES for size in sizes)
    return adds[: max(1, small)] if small < count else adds


def read_rows(log: Log, add: Add) -> pa.Table:
    """Return the rows of a file, the oldest append first. Raises DataLoss, CorruptLog."""
    key = f"{log.path}/{add.path}"
    try:
        data = log.store.get(key)
        # pq.read_table starts threads, and a process that ends meanwhile aborts.
        table = pq.ParquetFile(pa.BufferReader(data)).read(_FILE_SCHEMA.names, use_threads=False)
        return table.select(_FILE_SCHEMA.names).cast(_FILE_SCHEMA)
    except FileNotFoundError as error:
        raise DataLoss(
            f"{log.store.url}/{key} does not exist, but the history of the stream names it; "
            "restore the file from a copy.",
            path=key,
        ) from error
    except (pa.ArrowException, KeyError) as error:
        raise CorruptLog(
            f"{log.store.url}/{key} is not a file of the stream's history: {error!r}; restore it "
            "from a copy.",
            path=key,
        ) from error


def _rows(record: str, table: pa.Table) -> Iterator[HistoryRow]:
    """Yield the rows of a file, those of the newest append first."""
    columns = (column.to_pylist() for column in table.columns)
    return (HistoryRow(record, *row) for row in reversed(list(zip(*columns, strict=True))))


def _table(rows: Sequence[HistoryRow]) -> pa.Table:
    columns = [[row.version for row in rows], [row.name for row in rows], [r.value for r in rows]]
    return pa.table([pa.array(c) for c in columns], schema=_FILE_SCHEMA)


def stage_rows(
    log: Log,
    kind: str,
    rows: pa.Table,
    version: int,
    now_ms: int,
    *,
    order: int | None = None,
) -> Add:
    """Write a file of rows into the folder of a version; return its action.

    A file of merged rows has the ``order`` of its newest file, and its action changes no data.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    data = sink.getvalue()
    path = file_path(version_folder(version), f"{kind}-{log.runtime.token()}")
    log.store.put(f"{log.path}/{path}", data)
    stats, tags = to_json({"numRecords": rows.num_rows}), {"rows": str(rows.num_rows)}
    if order is not None:
        tags[ORDER_TAG] = str(order)
    is_new = order is None
    return Add(
        path=path,
        partition={"record": kind},
        size=data.size,
        modified_ms=now_ms,
        stats=stats,
        tags=tags,
        data_change=is_new,
    )


logger = own_logger(__name__)


def merge_history(log: Log) -> None:
    """Merge small files of a history if its known snapshot shows enough appends since the last.

    Costs no storage call otherwise.
    """
    if _is_due(log.snapshot):
        log.commit(partial(_decide, log))


def _is_due(snapshot: Snapshot | None) -> bool:
    appends, merged = append_counts(snapshot)
    return appends - merged >= HISTORY_MERGE_FILES


def _decide(log: Log, snapshot: Snapshot | None) -> Proposal[None]:
    if snapshot is None or not _is_due(snapshot):
        return None, None
    with log.files() as files:
        live = sorted(in_order(files.all()), key=_kind)
    now_ms = log.clock.now_ms()
    adds: list[Add] = []
    removes: list[Remove] = []
    for kind, found in groupby(live, _kind):
        for group in plan_merges(list(found)):
            for inputs, rows in _intact(log, group):
                order = order_of(inputs[-1])
                adds.append(stage_rows(log, kind, rows, snapshot.version, now_ms, order=order))
                removes += [Remove.of(add, now_ms, data_change=False) for add in inputs]
    failpoint("history.merged")
    appends, _ = append_counts(snapshot)
    metrics = {
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove.size for remove in removes),
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(add.size for add in adds),
    }
    domains = {APPENDS_DOMAIN: to_json([appends, appends])}
    return Body(
        operation="COMPACT",
        parameters={},
        metrics=metrics,
        domains=domains,
        adds=adds,
        removes=removes,
    ), None


def _kind(add: Add) -> str:
    return add.partition["record"]


def _intact(log: Log, group: Sequence[Add]) -> Iterator[tuple[Sequence[Add], pa.Table]]:
    """Yield the files of a group with their rows; without damaged files, in several parts."""
    tables = log.runtime.each(partial(_rows_of, log), group)
    damaged = [at for at, table in enumerate(tables) if table is None]
    if not damaged:
        yield group, pa.concat_tables(tables)
        return
    start = 0
    for end in (*damaged, len(group)):
        for part in plan_merges(group[start:end]):
            yield from _intact(log, part)
        start = end + 1


def _rows_of(log: Log, add: Add) -> pa.Table | None:
    try:
        return read_rows(log, add)
    except (DataLoss, CorruptLog) as error:
        logger.warning(
            "left a file of %s as it is: %s",
            log.reader.where,
            error,
            extra=log_fields("sweep", log.path),
        )
        return None
