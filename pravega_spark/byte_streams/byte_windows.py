"""The bytes of a stream from a position on, in pieces; each is read while the last one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from pravega_spark.byte_streams.byte_positions import ByteSegment, Located
from pravega_spark.engine.chunks.arrow_arrays import offsets_of
from pravega_spark.engine.chunks.reference_batches import marked_ref
from pravega_spark.engine.stream.large_event import payload_parts
from pravega_spark.engine.stream.range_reader import read_range
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import DataLoss, TruncatedData
from pravega_spark.limits import PREFETCH_CHUNKS, READ_BATCH_EVENTS
from pravega_spark.model import SegmentRange

WINDOW_BYTES: Final = 4 << 20
"""About how many bytes are read at a time, unless an event has more."""
_LONG_BYTES: Final = 128 << 10
"""Events of so many bytes are used one by one."""
_EMPTY: Final = memoryview(b"")


class _Window(NamedTuple):
    """Bytes in memory, with the position of the first one."""

    start: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class _Run(NamedTuple):
    """A read that goes on from event to event, up to the tail of a view or of a large event."""

    parts: Iterator[memoryview]
    end_offset: int
    end: int
    """The bytes of the segment before ``end_offset``."""
    located: Located


class ByteWindows:
    """Finds bytes by position; for one thread at a time. Two windows are in memory, or three."""

    def __init__(self, segment: ByteSegment) -> None:
        """Begin without a window."""
        self._segment = segment
        self._window = _Window(0, _EMPTY)
        self._run: _Run | None = None

    def at(self, view: StreamView, position: int) -> memoryview:
        """Return bytes from a position on, at least one; it lies between head and tail.

        Raises SegmentTruncated, DataLoss, CorruptChunk.
        """
        self._segment.check_readable(view, position)
        window = self._window
        if not window.start <= position < window.end:
            if self._run is None or position != window.end:
                self._begin(self._segment.locate(view, position), view, position)
            while not self._window.start <= position < self._window.end:
                self._advance(view, position)
        return self._window.data[position - self._window.start :]

    def close(self) -> None:
        """End the reads, and free the memory."""
        self._window = _Window(0, _EMPTY)
        if self._run is not None:
            run, self._run = self._run, None
            close = getattr(run.parts, "close", None)
            if close is not None:
                close()

    def _begin(self, located: Located, view: StreamView, position: int) -> None:
        """Begin a run with an event; in a large one, at the position itself."""
        self.close()
        rng = self._segment.rest_of(view, located.offset)
        start, end = located.offset_bytes, self._segment.tail(view)
        if located.is_large:  # alone: its size says nothing about those that follow
            rng = replace(rng, end=located.offset + 1)
            start, end = position, start + located.event_bytes
        self._window = _Window(start, _EMPTY)
        parts = self._parts(rng, located, start - located.offset_bytes)
        self._run = _Run(parts, rng.end, end, located)

    def _parts(
        self, rng: SegmentRange, located: Located, skipped: int
    ) -> Generator[memoryview, None, None]:
        """Yield the bytes of batches; from the second on, the next one is read meanwhile.

        Not from the first one on: a reader that seeks would pay for what it does not read.
        """
        stream = self._segment.stream
        most = min(READ_BATCH_EVENTS, PREFETCH_CHUNKS * located.chunk_rows)
        rows = max(1, min(most, WINDOW_BYTES // max(1, located.event_bytes)))
        if located.event_bytes >= _LONG_BYTES:
            rows = 1  # blocks are views of a file's pages, and joining them would copy them
        batches = read_range(stream, rng, columns=("event",), batch_rows=rows, payload_bytes=0)
        first = next(batches, None)
        if first is None:
            return
        yield from self._bytes_of(rng, first, skipped)
        ahead = stream.runtime.read_ahead([_groups(batches)], 1)
        try:
            for group in ahead:
                for batch in group:
                    yield from self._bytes_of(rng, batch)
        finally:
            ahead.close()

    def _bytes_of(
        self, rng: SegmentRange, batch: pa.RecordBatch, skipped: int = 0
    ) -> Iterator[memoryview]:
        """Yield the bytes of a batch, or of the large event whose reference it holds."""
        if marked_ref(batch) is None:
            yield _payload(batch)[skipped:]
        else:
            yield from payload_parts(self._segment.stream, rng, batch, skipped)

    def _advance(self, view: StreamView, position: int) -> None:
        """Go on to the next window; where the head has passed that, to the one of ``position``."""
        run, end = self._run, self._window.end
        assert run is not None
        try:
            data = next(run.parts, None)
        except TruncatedData:
            newest = self._segment.view()
            self.close()
            self._segment.check_readable(newest, position)
            self._begin(self._segment.locate(newest, position), newest, position)
            return
        except BaseException:
            self.close()
            raise
        if data is not None:
            self._window = _Window(end, data)
            return
        if end != run.end:
            self.close()
            raise DataLoss(
                f"stream {self._segment.stream.name}: the chunks before event {run.end_offset} "
                f"hold {end} bytes, and the log records {run.end}. Restore the table from a copy.",
                stream=self._segment.stream.name,
            )
        located = run.located._replace(offset=run.end_offset, offset_bytes=run.end)
        if run.located.is_large:
            located = self._segment.locate(view, end)
        self._begin(located, view, end)


def _groups(batches: Iterator[pa.RecordBatch]) -> Generator[list[pa.RecordBatch], None, None]:
    """Yield batches of about a window together: what the next one is read during."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += len(_payload(batch))
        if size >= WINDOW_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _payload(batch: pa.RecordBatch) -> memoryview:
    """Return the bytes of a batch's events, one after the other, without a copy."""
    events: Any = batch.column("event")
    ends = offsets_of(events)
    first, last = int(ends[0]), int(ends[-1])
    data = events.buffers()[2]
    return _EMPTY if data is None else memoryview(data).cast("B")[first:last]
