"""The writing side of a task: rows become events, events are routed, segments' events are staged.

What a task stages is in the order of its rows, segment by segment; nothing is visible before the
driver's commit, and what is never committed is swept one day.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pravega_spark.engine.chunks import chunk
from pravega_spark.engine.chunks.arrow_arrays import constant
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, StagedChunk
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.limits import CHUNK_BYTES
from pravega_spark.model import Segment
from pravega_spark.spark.settings import WriteSettings

ROUTE_BYTES = 16 << 20
"""Rows are routed in groups of about this size: each distinct key is hashed once a group."""
TASK_BYTES = 256 << 20
"""Most bytes of events that a task holds before it stages the largest of its segments."""
STAGING_THREADS = 2
"""Chunks that a task stages at once, so that one is compressed while another is being fsynced."""

_TEXT = (StringType, BinaryType)
_TIME = (TimestampType, TimestampNTZType)


@dataclass(frozen=True, slots=True)
class InputColumns:
    """Names of the frame's columns that hold event, routing key (or None) and time (or None)."""

    event: str
    routing_key: str | None
    timestamp: str | None

    @classmethod
    def of(cls, schema: StructType, settings: WriteSettings) -> InputColumns:
        """Find the columns in a frame's schema; raise InvalidOption that says what to change."""
        types = {f.name: f.dataType for f in schema.fields}
        event, key = _DEFAULT
        if settings.column_names == "kafka":
            event, key = "value", "key"
            _check_kafka(types)
        if event not in types:
            raise InvalidOption(
                f"the frame has no column {event!r} (binary or string) to write as events; its "
                f"columns are {', '.join(types)}. Make one: "
                f'frame.selectExpr("... AS routing_key", "to_json(struct(*)) AS {event}").'
            )
        _check(event, types[event], _TEXT, "binary or string")
        key_column = _named("routingKey", settings.routing_key, types)
        if key_column is None and key in types:
            key_column = key
        if key_column is not None:
            _check(key_column, types[key_column], _TEXT, "string or binary")
        time_column = _named("eventTime", settings.event_time, types)
        if time_column is not None:
            _check(time_column, types[time_column], _TIME, "timestamp")
        return cls(event, key_column, time_column)


_DEFAULT = ("event", "routing_key")
_KAFKA_OBEYS = ("topic", "partition", "headers")


def _check_kafka(types: dict[str, DataType]) -> None:
    """Raise InvalidOption for columns that Spark's Kafka sink obeys, and a stream has no place for.

    Others (offset, timestamp, timestampType) are left out, as that sink does.
    """
    found = [name for name in _KAFKA_OBEYS if name in types]
    if found:
        raise InvalidOption(
            f"the frame's columns {', '.join(found)} cannot be written: the stream is the one of "
            "the write, the routing key chooses the segment, and events have no headers. Leave "
            'them out, .select("key", "value"), or write one frame for each topic; what is to be '
            "kept of them goes into value."
        )


def _named(option: str, column: str | None, types: dict[str, DataType]) -> str | None:
    if column is None or column in types:
        return column
    raise InvalidOption(
        f"option {option} names {column!r}, which is no column of the frame ("
        f"{', '.join(types)}). It takes a column's name, not an expression: add the column first, "
        f'such as frame.withColumn("{option}", expr("...")).'
    )


def _check(column: str, found: DataType, wanted: tuple[type[DataType], ...], words: str) -> None:
    if not isinstance(found, wanted):
        raise InvalidOption(
            f"column {column} must be {words}, and is {found.simpleString()}; cast it first."
        )


@dataclass(frozen=True, slots=True)
class TaskStaging:
    """What the driver fixes for all tasks of a write: stream, life, version, and the routing.

    ``folder`` is where a transaction's chunks lie; without one they lie in the version's.
    """

    root: str
    stream: str
    life: int
    version: int
    segments: tuple[Segment, ...]
    folder: str | None = None


def stage(
    batches: Iterable[pa.RecordBatch],
    staging: TaskStaging,
    columns: InputColumns,
    settings: WriteSettings,
    partition: int,
) -> list[StagedChunk]:
    """Stage a task's rows; return the chunks, each segment's in the order of the rows."""
    name = f"{os.urandom(8).hex()}-{partition}"
    with ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="pravega-staging") as pool:
        return _stage_all(batches, columns, _Stager(staging, settings, name, partition, pool))


def _stage_all(
    batches: Iterable[pa.RecordBatch], columns: InputColumns, stager: _Stager
) -> list[StagedChunk]:
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            events = as_events(batch, columns)
            group.append(events)
            size += events.nbytes
        if size >= ROUTE_BYTES:
            stager.add(pa.Table.from_batches(group))
            group, size = [], 0
    if group:
        stager.add(pa.Table.from_batches(group))
    return stager.finish()


@dataclass(slots=True)
class _Held:
    """Events of one segment that are not staged yet."""

    parts: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size: int = 0


class _Stager:
    """Holds a task's events by segment until they fill a chunk."""

    def __init__(
        self,
        staging: TaskStaging,
        settings: WriteSettings,
        name: str,
        start: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._staging = staging
        self._store = open_store(staging.root)
        self._path = events_path(staging.stream)
        self._router = Router(staging.segments)
        self._settings = settings
        self._name = name
        self._start = start
        self._held: dict[int, _Held] = {}
        self._size = 0
        self._pool = pool
        self._staged: list[Future[list[StagedChunk]]] = []

    def add(self, table: pa.Table) -> None:
        for segment_id, part in split(table, self._router, self._start):
            held = self._held.setdefault(segment_id, _Held())
            held.parts.append(part)
            held.rows += part.num_rows
            held.size += part.nbytes
            self._size += part.nbytes
            if held.size >= CHUNK_BYTES or held.rows >= self._settings.max_rows:
                self._write(segment_id, whole=False)
        self._start += table.column("routing_key").null_count
        while self._size > TASK_BYTES:
            self._write(max(self._held, key=lambda s: self._held[s].size), whole=True)

    def finish(self) -> list[StagedChunk]:
        for segment_id in sorted(self._held):
            self._write(segment_id, whole=True)
        return [found for future in self._staged for found in future.result()]

    def _write(self, segment_id: int, *, whole: bool) -> None:
        """Stage full chunks of a segment; what is left stays, unless all is wanted."""
        held = self._held.pop(segment_id)
        self._size -= held.size
        table = pa.concat_tables(held.parts)
        most = self._settings.max_rows
        while table.num_rows and (whole or table.num_rows >= most or table.nbytes >= CHUNK_BYTES):
            self._stage(segment_id, table.slice(0, most))
            table = table.slice(most)
        if table.num_rows:
            self._held[segment_id] = _Held([table], table.num_rows, table.nbytes)
            self._size += table.nbytes

    def _stage(self, segment_id: int, events: pa.Table) -> None:
        """Stage in another thread; wait while the threads have enough to do."""
        if len(self._staged) >= STAGING_THREADS:
            self._staged[-STAGING_THREADS].result()
        future = self._pool.submit(
            chunk.stage,
            self._store,
            self._path,
            self._staging.version,
            segment_id,
            events,
            name=f"{self._name}-{len(self._staged)}",
            compression=self._settings.compression,
            folder=self._staging.folder,
        )
        self._staged.append(future)


def as_events(batch: pa.RecordBatch, columns: InputColumns) -> pa.RecordBatch:
    """Return a frame's batch as events; raise InvalidInput for values that cannot be any."""
    key: pa.Array
    if columns.routing_key is None:
        key = pa.nulls(batch.num_rows, pa.string())
    else:
        key = _cast(batch, columns.routing_key, pa.string())
    if columns.timestamp is None:
        at = constant(time.time_ns() // 1_000, _TIMESTAMP, batch.num_rows)
    else:
        at = _cast(batch, columns.timestamp, _TIMESTAMP)
    event = _cast(batch, columns.event, pa.binary())
    for name, array in ((columns.event, event), (columns.timestamp, at)):
        if array.null_count:
            raise InvalidInput(
                f"column {name} is null in {array.null_count} of {batch.num_rows} rows; an event "
                "has neither a null payload nor a null time: filter or fill them first."
            )
    return pa.RecordBatch.from_arrays([key, at, event], schema=EVENT_SCHEMA)


_TIMESTAMP = EVENT_SCHEMA.field("timestamp").type


def _cast(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    array = batch.column(name)
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise InvalidInput(
            f"column {name} ({array.type}) cannot be written as {kind}: {error}"
        ) from error
