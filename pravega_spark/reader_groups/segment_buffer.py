"""A buffer of read-ahead events of one segment."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from pravega_spark.engine.chunks.event_format import EventFormat
from pravega_spark.engine.stream.large_event import events_in, payload_of
from pravega_spark.engine.stream.range_reader import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.limits import GROUP_BUFFER_EVENTS
from pravega_spark.model import Event, SegmentRange

_ORIGIN = (pa.field("stream", pa.string()), pa.field("segment_id", pa.int64()))
"""The columns of ``read_events`` that precede those of the stream's events."""


@lru_cache(maxsize=256)
def no_events(event_format: EventFormat) -> pa.RecordBatch:
    """Return an empty batch with the columns of ``read_events`` on a stream of this format.

    Not by ``from_pylist``, which imports pandas, and every user of the package imports this module.
    """
    schema = pa.schema((*_ORIGIN, *event_format.batch))
    return pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)


class SegmentBuffer:
    """Hands out the events of a range one by one, or in batches."""

    def __init__(self, stream: StreamLog, rng: SegmentRange) -> None:
        """Begin at the range's start; the first chunk is read at the first call."""
        self._range = rng
        self._stream = stream
        self._batches = read_range(
            stream, rng, batch_rows=GROUP_BUFFER_EVENTS, payload_bytes=0, soon=True
        )
        self._batch: pa.RecordBatch | None = None
        self._at = self._left = 0
        self._events: Iterator[Event] | None = None

    @property
    def end(self) -> int:
        """The offset after the last event of the range."""
        return self._range.end

    @property
    def has_events_at_hand(self) -> bool:
        """Whether some events of a batch that was read are left; else others may have a turn."""
        return self._batch is not None

    def load(self) -> bool:
        """Have events at hand; return False at the end of the range. Raises as ``read_range``."""
        if self._batch is None:
            self._batch, self._at, self._events = next(self._batches, None), 0, None
        return self._batch is not None

    def next_event(self) -> Event:
        """Return the next of the events at hand."""
        if self._events is None:
            assert self._batch is not None
            rng, rest = self._range, self._batch.slice(self._at)
            self._left = rest.num_rows
            self._events = events_in(self._stream, rng, rest, None)
        event = next(self._events)
        self._at += 1
        self._left -= 1
        if not self._left:
            self._batch = self._events = None
        return event

    def next_batch(self, limit: int) -> pa.RecordBatch:
        """Return up to ``limit`` of the events at hand."""
        batch = self._batch
        assert batch is not None
        part = payload_of(self._stream, self._range, batch.slice(self._at, limit))
        self._at += part.num_rows
        self._events = None
        if self._at == batch.num_rows:
            self._batch = None
        names = pa.array([self._range.stream] * part.num_rows, pa.string())
        segments = pa.array([self._range.segment_id] * part.num_rows, pa.int64())
        schema = pa.schema((*_ORIGIN, *part.schema))
        return pa.RecordBatch.from_arrays([names, segments, *part.columns], schema=schema)
