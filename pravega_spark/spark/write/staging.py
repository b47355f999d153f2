"""The work of a write's task: turn rows into events, route them to segments, stage chunks.

Chunks keep the order of the task's rows in each segment. Row groups are encoded as they fill, while
Spark sends the next rows. Chunks become visible by the driver's commit; a sweep later deletes those
that were never committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from types import TracebackType
from typing import TypeVar

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import ChunkSequence, RowGroupBuffer
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.columns import InputColumns, RowNumbers, TypedColumns, to_events
from pravega_spark.spark.write.joined_batches import joined
from pravega_spark.spark.write.plan import StagingPlan
from pravega_spark.values.limits import STAGING_THREADS, TASK_BYTES

_Given = TypeVar("_Given")


class StagingThreads:
    """Does the work of all streams and segments of a task; a call waits while enough waits.

    A context manager, whose end waits for the work.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="pravega-staging")
        self._room = Semaphore(2 * STAGING_THREADS)

    def start(
        self, work: Callable[[_Given], None], given: _Given, *, after: Future[None] | None
    ) -> Future[None]:
        """Begin a piece of work that follows an earlier one, whose error it raises as its own."""
        if after is not None and after.done():
            after.result()
            after = None

        def run() -> None:
            try:
                if after is not None:
                    after.result()  # began before this: pieces begin in the order of the calls
                work(given)
            finally:
                self._room.release()

        self._room.acquire()
        return self._pool.submit(run)

    def __enter__(self) -> StagingThreads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the work."""
        self._pool.shutdown()


def stage(
    batches: Iterable[pa.RecordBatch],
    plan: StagingPlan,
    columns: InputColumns | TypedColumns,
    settings: WriteSettings,
    partition_id: int,
) -> list[StagedChunk]:
    """Stage a task's rows; return the chunks, those of a segment in the order of the rows."""
    name = f"{os.urandom(8).hex()}-{partition_id}"
    with StagingThreads() as threads:
        stager = ChunkStager(plan, settings, name, partition_id, threads)
        first = 0
        for batch in joined(batches):
            numbers = range(first, first + batch.num_rows)
            stager.add(events_of(batch, columns, partition_id, numbers))
            first += batch.num_rows
        return stager.finish()


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


class _Segment:
    """Events of one segment: those that fill no row group yet, and the chunks before them."""

    def __init__(self, chunks: ChunkSequence, threads: StagingThreads) -> None:
        self._waiting = RowGroupBuffer()
        self._chunks = chunks
        self._threads = threads
        self._last: Future[None] | None = None
        self._is_drained = False

    @property
    def size(self) -> int:
        """The bytes in memory, without those that are on their way into a file."""
        open_bytes = 0 if self._is_drained else self._chunks.open_bytes
        return self._waiting.memory_bytes + open_bytes

    def add(self, events: pa.Table) -> None:
        self._waiting.add(events)
        for group in self._waiting.take():
            self._last = self._threads.start(self._chunks.write, group, after=self._last)
            self._is_drained = False
        self._waiting.own()

    def drain(self) -> None:
        """Stage what is in memory."""
        self._is_drained = True
        rest = list(self._waiting.take(complete=True))
        self._last = self._threads.start(self._chunks.finish, rest, after=self._last)

    def staged(self) -> list[StagedChunk]:
        if self._last is not None:
            self._last.result()
        return self._chunks.chunks


class ChunkStager:
    """Routes a task's events to segments, and stages them as chunks.

    ``first_segment`` is where the rotation of events without a key starts, so that the tasks of a
    write do not all start at the same segment.
    """

    def __init__(
        self,
        plan: StagingPlan,
        settings: WriteSettings,
        name: str,
        first_segment: int,
        threads: StagingThreads,
    ) -> None:
        self._plan = plan
        self._store = open_store(plan.root)
        self._path = events_path(plan.stream)
        self._router = Router(plan.segments)
        self._settings = settings
        self._name = name
        self._next_keyless = first_segment
        self._segments: dict[int, _Segment] = {}
        self._threads = threads

    def add(self, table: pa.Table) -> None:
        """Route events and buffer them; encode full row groups, and stage full chunks."""
        for segment_id, part in split(table, self._router, self._next_keyless):
            if segment_id not in self._segments:
                self._segments[segment_id] = self._begin(segment_id)
            self._segments[segment_id].add(part)
        self._next_keyless += table.column("routing_key").null_count
        while self.size > TASK_BYTES:
            self.drain_largest()

    @property
    def size(self) -> int:
        """The bytes of the events that are in memory."""
        return sum(segment.size for segment in self._segments.values())

    def drain_largest(self) -> None:
        """Stage the events of the segment that has the most in memory."""
        max(self._segments.values(), key=lambda segment: segment.size).drain()

    def finish(self) -> list[StagedChunk]:
        """Stage all events and return the chunks of the task."""
        ordered = [self._segments[segment_id] for segment_id in sorted(self._segments)]
        for segment in ordered:
            segment.drain()
        return [chunk for segment in ordered for chunk in segment.staged()]

    def _begin(self, segment_id: int) -> _Segment:
        chunks = ChunkSequence(
            self._store,
            self._path,
            self._plan.folder,
            segment_id,
            name=f"{self._name}-{len(self._segments)}",
            compression=self._settings.compression,
            key=self._plan.key,
            max_rows=self._settings.max_rows,
        )
        return _Segment(chunks, self._threads)
