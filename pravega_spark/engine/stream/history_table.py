"""Records that left a stream's log state, as rows of the Delta table ``metadata/``, for SQL.

The table is append-only and partitioned by the kind of record. No commit of the stream reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.actions import Add, Body
from pravega_spark.engine.log.commit_log import Log, Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.table_definition import PROTOCOL, new_table
from pravega_spark.engine.staging_folder import staged_version, version_folder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CorruptLog, DataLoss
from pravega_spark.limits import STORAGE_THREADS

COLUMNS = {"record": "string", "version": "long", "name": "string", "value": "string"}
_FILE_SCHEMA = pa.schema([("version", pa.int64()), ("name", pa.string()), ("value", pa.string())])


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One record: its kind, the last version of the stream's log with it, its name, its JSON."""

    record: str
    version: int
    name: str
    value: str


def history_log(stream: StreamLog) -> Log:
    """Return the log of the stream's ``metadata/`` table; it need not exist."""
    log = Log(stream.store, f"{stream.name}/metadata", stream.runtime)
    log.maintain = checkpointing.maintain_in_background
    return log


def append_history(stream: StreamLog, rows: Sequence[HistoryRow]) -> None:
    """Append rows to the stream's ``metadata/`` table in one commit; create a missing table."""
    if not rows:
        return
    log = history_log(stream)

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        now_ms = stream.now_ms()
        staged_at = 0 if snapshot is None else snapshot.version
        body = Body("APPEND HISTORY", metrics={"numOutputRows": len(rows)})
        kinds = sorted({row.record for row in rows})
        body.adds = [
            _stage(log, kind, [row for row in rows if row.record == kind], staged_at, now_ms)
            for kind in kinds
        ]
        if snapshot is None:
            table_id = stream.runtime.token()
            body.protocol = PROTOCOL
            body.metadata = new_table(COLUMNS, ["record"], table_id, log.path, now_ms)
        return body, None

    log.commit(decide)


def read_history(stream: StreamLog, record: str) -> Iterator[list[HistoryRow]]:
    """Yield the rows of one kind by falling versions, as lists of the rows of a few files.

    So a caller that needs the newest rows reads few files. Raises DataLoss for a missing file, and
    CorruptLog for a damaged one.
    """
    log = history_log(stream)
    if log.refresh() is None:
        return
    with log.files() as files:
        found = [add.path for add in files.all() if add.partition.get("record") == record]
    found.sort(key=lambda path: staged_version(path) or 0, reverse=True)
    while found:
        # Only the two oldest files may have the same version in their paths: read both at once.
        count = STORAGE_THREADS if len(found) > STORAGE_THREADS + 1 else len(found)
        paths, found = found[:count], found[count:]
        rows = chain.from_iterable(
            stream.runtime.each(lambda path: _read(log, record, path), paths)
        )
        yield sorted(rows, key=lambda row: row.version, reverse=True)


def _read(log: Log, record: str, path: str) -> list[HistoryRow]:
    key = f"{log.path}/{path}"
    try:
        table = pq.read_table(pa.BufferReader(log.store.get(key)))
        columns = (table.column(name).to_pylist() for name in _FILE_SCHEMA.names)
        return [HistoryRow(record, *row) for row in zip(*columns, strict=True)]
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


def _stage(log: Log, kind: str, rows: Sequence[HistoryRow], version: int, now_ms: int) -> Add:
    columns = [[row.version for row in rows], [row.name for row in rows], [r.value for r in rows]]
    table = pa.table([pa.array(c) for c in columns], schema=_FILE_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue()
    path = f"data/{version_folder(version)}/{kind}-{log.runtime.token()}.parquet"
    log.store.put(f"{log.path}/{path}", data)
    stats = to_json({"numRecords": len(rows)})
    return Add(path, {"record": kind}, data.size, now_ms, stats, {"rows": str(len(rows))})
