"""Records that left a stream's log state, as rows of the Delta table ``metadata/``, for SQL.

Rows are only appended, and the table is partitioned by the kind of record. No commit of the stream
reads it. Each append writes a file for each kind; a sweep merges these (``history_merge``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.actions import Add, Body
from pravega_spark.engine.log.commit_log import Log, Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.table_definition import PROTOCOL, new_table
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.history_tiers import ORDER_TAG, in_order
from pravega_spark.errors import CorruptLog, DataLoss
from pravega_spark.limits import HISTORY_FILE_BYTES, STORAGE_THREADS

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
    log.maintain = checkpointing.maintain_in_background
    return log


def append_history(stream: HistoryOwner, rows: Sequence[HistoryRow]) -> None:
    """Append rows to the stream's ``metadata/`` table in one commit; create a missing table."""
    if not rows:
        return
    log = history_log(stream)

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        now_ms = stream.now_ms()
        staged_at = 0 if snapshot is None else snapshot.version
        body = Body("APPEND HISTORY", metrics={"numOutputRows": len(rows)})
        appends, merged = append_counts(snapshot)
        body.domains = {APPENDS_DOMAIN: to_json([appends + 1, merged])}
        kinds = sorted({row.record for row in rows})
        body.adds = [
            stage_rows(log, kind, _table([r for r in rows if r.record == kind]), staged_at, now_ms)
            for kind in kinds
        ]
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
            f"{log.store.url}/{key} is no file of the stream's history: {error!r}; restore it from "
            "a copy.",
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
    path = f"data/{version_folder(version)}/{kind}-{log.runtime.token()}.parquet"
    log.store.put(f"{log.path}/{path}", data)
    stats, tags = to_json({"numRecords": rows.num_rows}), {"rows": str(rows.num_rows)}
    if order is not None:
        tags[ORDER_TAG] = str(order)
    is_new = order is None
    return Add(path, {"record": kind}, data.size, now_ms, stats, tags, data_change=is_new)
