"""The work of a write's task: turn rows into events, route them to segments, stage chunks.

Chunks keep the order of the task's rows in each segment. They become visible by the driver's
commit; a sweep later deletes chunks that were never committed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from pravega_spark.engine.chunks import chunk_writer
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.limits import CHUNK_BYTES, ROUTE_BYTES, STAGING_THREADS, TASK_BYTES
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.input_columns import InputColumns, to_events
from pravega_spark.spark.write.staging_plan import StagingPlan
from pravega_spark.spark.write.typed_columns import RowNumbers, TypedColumns


def stage(
    batches: Iterable[pa.RecordBatch],
    plan: StagingPlan,
    columns: InputColumns | TypedColumns,
    settings: WriteSettings,
    partition_id: int,
) -> list[StagedChunk]:
    """Stage a task's rows; return the chunks, those of a segment in the order of the rows."""
    name = f"{os.urandom(8).hex()}-{partition_id}"
    with ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="pravega-staging") as pool:
        stager = ChunkStager(plan, settings, name, partition_id, pool)
        return _stage_all(_events(batches, columns, partition_id), stager)


def _events(
    batches: Iterable[pa.RecordBatch], columns: InputColumns | TypedColumns, partition_id: int
) -> Iterator[pa.Table]:
    first = 0
    for batch in batches:
        if batch.num_rows:
            yield events_of(batch, columns, partition_id, range(first, first + batch.num_rows))
        first += batch.num_rows


def events_of(
    batch: pa.RecordBatch,
    columns: InputColumns | TypedColumns,
    partition_id: int,
    numbers: RowNumbers,
) -> pa.Table:
    """Return a frame's batch as events; ``numbers`` are those of its rows in the task."""
    if isinstance(columns, TypedColumns):
        return columns.events(batch, partition_id, numbers)
    return pa.Table.from_batches([to_events(batch, columns)])


def _stage_all(tables: Iterable[pa.Table], stager: ChunkStager) -> list[StagedChunk]:
    group: list[pa.Table] = []
    size = 0
    for events in tables:
        group.append(events)
        size += events.nbytes
        if size >= ROUTE_BYTES:
            stager.add(pa.concat_tables(group))
            group, size = [], 0
    if group:
        stager.add(pa.concat_tables(group))
    return stager.finish()


@dataclass(slots=True)
class _SegmentEvents:
    """Buffered events of one segment."""

    parts: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    size: int = 0


class ChunkStager:
    """Buffers a task's events by segment, and stages them once they fill a chunk.

    ``first_segment`` is where the rotation of events without a key starts, so that the tasks of a
    write do not all start at the same segment.
    """

    def __init__(
        self,
        plan: StagingPlan,
        settings: WriteSettings,
        name: str,
        first_segment: int,
        pool: ThreadPoolExecutor,
    ) -> None:
        self._plan = plan
        self._store = open_store(plan.root)
        self._path = events_path(plan.stream)
        self._router = Router(plan.segments)
        self._settings = settings
        self._name = name
        self._next_keyless = first_segment
        self._buffered: dict[int, _SegmentEvents] = {}
        self._size = 0
        self._pool = pool
        self._staged: list[Future[list[StagedChunk]]] = []

    def add(self, table: pa.Table) -> None:
        """Route events and buffer them; stage the segments that have enough."""
        for segment_id, part in split(table, self._router, self._next_keyless):
            buffered = self._buffered.setdefault(segment_id, _SegmentEvents())
            buffered.parts.append(part)
            buffered.rows += part.num_rows
            buffered.size += part.nbytes
            self._size += part.nbytes
            if buffered.size >= CHUNK_BYTES or buffered.rows >= self._settings.max_rows:
                self._drain(segment_id, partial=False)
        self._next_keyless += table.column("routing_key").null_count
        while self._size > TASK_BYTES:
            self.drain_largest()

    @property
    def size(self) -> int:
        """The bytes of the events that are buffered."""
        return self._size

    def drain_largest(self) -> None:
        """Stage the buffered events of the segment that has the most."""
        self._drain(max(self._buffered, key=lambda s: self._buffered[s].size), partial=True)

    def finish(self) -> list[StagedChunk]:
        """Stage all buffered events and return the chunks of the task."""
        for segment_id in sorted(self._buffered):
            self._drain(segment_id, partial=True)
        return [found for future in self._staged for found in future.result()]

    def _drain(self, segment_id: int, *, partial: bool) -> None:
        """Stage a segment's full chunks; with ``partial`` also the remaining events."""
        buffered = self._buffered.pop(segment_id)
        self._size -= buffered.size
        table = pa.concat_tables(buffered.parts)
        most = self._settings.max_rows
        while table.num_rows and (partial or table.num_rows >= most or table.nbytes >= CHUNK_BYTES):
            self._stage(segment_id, table.slice(0, most))
            table = table.slice(most)
        if table.num_rows:
            self._buffered[segment_id] = _SegmentEvents([table], table.num_rows, table.nbytes)
            self._size += table.nbytes

    def _stage(self, segment_id: int, events: pa.Table) -> None:
        """Stage a chunk in another thread; first wait if all threads are busy."""
        if len(self._staged) >= STAGING_THREADS:
            self._staged[-STAGING_THREADS].result()
        future = self._pool.submit(
            chunk_writer.stage,
            self._store,
            self._path,
            self._plan.folder,
            segment_id,
            events,
            name=f"{self._name}-{len(self._staged)}",
            compression=self._settings.compression,
            key=self._plan.key,
        )
        self._staged.append(future)
