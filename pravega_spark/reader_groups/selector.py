"""Selects which of a reader's segments to read next, with the events that were read ahead."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import immutables
import pyarrow as pa

from pravega_spark.engine.chunks.format import RAW, EventFormat
from pravega_spark.engine.log.tail import LogTail
from pravega_spark.engine.runtime.observers import open_readers
from pravega_spark.engine.stream.read import events_in, payload_of, read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import NoSuchScope, NoSuchStream, StaleIdentity, TruncatedData
from pravega_spark.reader_groups.segments import EndOffsets
from pravega_spark.reader_groups.state import GroupState, Ownership, SegmentKey
from pravega_spark.reader_groups.table import Streams
from pravega_spark.values.events import Event
from pravega_spark.values.limits import GROUP_BUFFER_EVENTS
from pravega_spark.values.segments import SegmentRange

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


_Events = TypeVar("_Events")


def view_in_life(stream: StreamLog, life: int, *, refresh: bool = True) -> StreamView | None:
    """Return the newest view of a stream in this life, or the last known one; None if deleted.

    Raises CorruptLog if the stream has lost its log, since nothing says then that it was deleted.
    """
    try:
        return stream.view(life=life) if refresh else stream.view_after_wait(life)
    except (NoSuchStream, StaleIdentity):
        return None


def views_of(streams: Streams, lives: Mapping[str, int]) -> Callable[[str], StreamView | None]:
    """Return the function that returns a stream's newest view in its life, as above."""
    return lambda stream: view_in_life(streams(stream), lives[stream])


@dataclass(frozen=True, slots=True)
class _PolledStream:
    """A stream as of the last poll, and where the group ends in its segments."""

    view: StreamView
    end_offsets: EndOffsets


class SegmentSelector:
    """A reader's segments: next offsets, ownership numbers, and buffers of read-ahead events.

    ``next_offsets`` has the offset of the next event of each segment. ``behind_head`` are the
    streams whose head has passed a held segment, or that were deleted.
    """

    def __init__(
        self, streams: Streams, state: Callable[[], GroupState], reader_id: str = ""
    ) -> None:
        """Begin without segments; ``state`` returns the group's state as the reader knows it."""
        self._streams, self._state, self._reader_id = streams, state, reader_id
        self.next_offsets: immutables.Map[SegmentKey, int] = immutables.Map()
        self.ownership_numbers: dict[SegmentKey, int] = {}
        self.behind_head: set[str] = set()
        self.before_last: tuple[SegmentKey, int] | None = None
        """The segment and offset of the last events that were read."""
        self.polled_in_background: frozenset[str] = frozenset()
        """Streams whose newest versions were read; the next poll does not read them again."""
        self._is_assigned = False
        """Whether segments were assigned since the last poll."""
        self._polled: dict[str, _PolledStream | None] = {}
        self._idle: tuple[object, ...] | None = None
        """The held offsets and the views of the last poll that found nothing to read."""
        self._known_ended: frozenset[SegmentKey] = frozenset()
        """The segments that the last refresh of the group's state found ended."""
        self._ended: tuple[object, object, frozenset[SegmentKey]] | None = None
        """The held offsets, the polled streams, and the segments that these show as ended."""
        self._buffers: OrderedDict[SegmentKey, SegmentBuffer] = OrderedDict()
        """In the order of their turns."""
        open_readers.add(self)

    def end(self) -> None:
        """The reader has left the group."""
        open_readers.discard(self)

    @property
    def observed_as(self) -> tuple[str, str]:
        """The names of the group and of the reader."""
        return self._state().group, self._reader_id

    def known_lag(self) -> Mapping[str, int]:
        """Return the unread events of the held segments by stream, as of the last poll.

        For metrics, from any thread; makes no storage call.
        """
        polled, found = self._polled, Counter[str]()
        for key, offset in self.next_offsets.items():
            known = polled.get(key.stream)
            found[key.stream] += 0
            if known is not None and known.view.has_segment(key.segment_id):
                end = known.end_offsets.of(key.segment_id)
                next_offset = known.view.segment(key.segment_id).next_offset
                found[key.stream] += max(0, (next_offset if end is None else end) - offset)
        return found

    @property
    def event_format(self) -> EventFormat:
        """The format of the group's streams: the raw one, unless they share another.

        A reader without segments has polled none of them, and looks each up once.
        """
        formats = set()
        for name in self._state().lives:
            with suppress(NoSuchStream, NoSuchScope):
                formats.add(self._streams(name).event_format)
        return formats.pop() if len(formats) == 1 else RAW

    @property
    def has_events_at_hand(self) -> bool:
        """Whether :meth:`read` has events to return, without a storage call."""
        for buffer in self._buffers.values():
            return buffer.has_events_at_hand
        return False

    def load(self) -> None:
        """Read the next events of the first buffer that has any; may wait for the storage."""
        while self._buffers:
            key, buffer = next(iter(self._buffers.items()))
            try:
                if buffer.load():
                    return
            except (TruncatedData, NoSuchStream, StaleIdentity):
                self.behind_head.add(key.stream)  # the step finds what was lost
                del self._buffers[key]
                return
            del self._buffers[key]

    def read(self, read_buffer: Callable[[SegmentBuffer], _Events]) -> _Events:
        """Return what the first buffer returns, which has events at hand.

        The caller then reports by :meth:`advance` how far it has read.
        """
        key, buffer = next(iter(self._buffers.items()))
        found = read_buffer(buffer)
        self.before_last = key, self.next_offsets[key]
        if not buffer.has_events_at_hand:
            self._buffers.move_to_end(key)
        return found

    def advance(self, offset: int) -> None:
        """Set the next offset of the segment that was read last."""
        assert self.before_last is not None
        self.next_offsets = self.next_offsets.set(self.before_last[0], offset)

    def poll(self) -> bool:
        """Look for new events of segments without a buffer.

        Returns whether there are events to read or streams in ``behind_head``. Asks the storage
        only while other segments have events, and after an assignment, which may name segments that
        this process does not know yet. Else the reader waits at the tails next, where one of this
        process's readers asks for all (``known_versions``).
        """
        known, self.polled_in_background = self.polled_in_background, frozenset()
        asks, self._is_assigned = self._is_assigned or bool(self._buffers), False
        polled = {s: self._poll_stream(s, asks and s not in known) for s in self._without_buffer()}
        seen = self.next_offsets, *(found and found.view for found in polled.values())
        if seen == self._idle and not self._buffers:
            return False  # nothing changed: an idle poll costs nothing for each segment
        self._polled, self._idle = polled, None
        for key, offset in sorted(self.next_offsets.items()):
            if key in self._buffers:
                continue
            found = polled[key.stream]
            if found is None or found.view.is_truncated(key.segment_id, offset):
                self.behind_head.add(key.stream)
                return True
            end = found.view.segment(key.segment_id).next_offset
            group_end = found.end_offsets.of(key.segment_id)
            end = end if group_end is None else min(end, group_end)
            if end > offset:
                rng = SegmentRange(
                    key.stream,
                    life=found.view.life,
                    segment_id=key.segment_id,
                    start=offset,
                    end=end,
                )
                self._buffers[key] = SegmentBuffer(self._streams(key.stream), rng)
        if not self._buffers:
            self._idle = seen
        return bool(self._buffers)

    def _without_buffer(self) -> list[str]:
        return sorted({key.stream for key in self.next_offsets if key not in self._buffers})

    def known_versions(self) -> list[tuple[LogTail, int]]:
        """Return the tails of the streams that the last poll looked at, with their versions."""
        found = ((stream, self._polled.get(stream)) for stream in self._without_buffer())
        return [
            (self._streams(stream).tail, polled.view.version)
            for stream, polled in found
            if polled is not None
        ]

    @property
    def has_buffers(self) -> bool:
        """Whether there are events to read."""
        return bool(self._buffers)

    def streams_behind(self) -> frozenset[str]:
        """Return the streams to poll while other segments are read; none at the tail."""
        if not self._buffers:
            return frozenset()
        return frozenset(key.stream for key in self.next_offsets if key not in self._buffers)

    def _poll_stream(self, stream: str, refresh: bool) -> _PolledStream | None:
        """Return the stream's newest view, or the last known one; None if it was deleted."""
        state = self._state()
        view = view_in_life(self._streams(stream), state.lives[stream], refresh=refresh)
        return None if view is None else _PolledStream(view, EndOffsets(state, view))

    def held(self) -> dict[SegmentKey, tuple[int, int]]:
        """Return the ownership number and the next offset of each segment."""
        numbers = self.ownership_numbers
        return {key: (numbers[key], offset) for key, offset in self.next_offsets.items()}

    def unread(self) -> dict[SegmentKey, int]:
        """Return the number of unread events of segments, as of the last poll."""
        return {key: buffer.end - self.next_offsets[key] for key, buffer in self._buffers.items()}

    def ended(self) -> frozenset[SegmentKey]:
        """Return the segments that were read to their ends, as of the last poll."""
        known = self._ended
        if known is None or known[0] is not self.next_offsets or known[1] is not self._polled:
            held = self.next_offsets.items()
            found = frozenset(key for key, offset in held if self._has_ended(key, offset))
            known = self._ended = self.next_offsets, self._polled, found
        return known[2]

    def newly_ended(self) -> frozenset[SegmentKey]:
        """Return the ended segments that no refresh of the group's state has considered yet."""
        return self.ended() - self._known_ended

    def _has_ended(self, key: SegmentKey, offset: int) -> bool:
        polled = self._polled.get(key.stream)
        if polled is None or not polled.view.has_segment(key.segment_id):
            return False
        group_end = polled.end_offsets.of(key.segment_id)
        if group_end is not None:
            return offset >= group_end
        record = polled.view.segment(key.segment_id)
        return record.is_sealed and offset >= record.next_offset

    def rewind(self, owned: Mapping[SegmentKey, Ownership]) -> None:
        """Go back to the recorded offsets of the held segments, and read again from there."""
        for key, mine in owned.items():
            if self.ownership_numbers.get(key) != mine.number:
                continue
            if self.next_offsets[key] != mine.offset:
                self.next_offsets = self.next_offsets.set(key, mine.offset)
                self._buffers.pop(key, None)
        self.before_last, self._idle = None, None

    def assign(self, owned: Mapping[SegmentKey, Ownership]) -> None:
        """Hold the segments of the group's state; buffers of unchanged segments stay."""
        self._known_ended = self.ended()
        next_offsets, numbers = {}, {}
        for key, mine in owned.items():
            is_known = self.ownership_numbers.get(key) == mine.number
            known = self.next_offsets.get(key) if is_known else None
            next_offsets[key] = mine.offset if known is None else max(known, mine.offset)
            numbers[key] = mine.number
        for key in list(self._buffers):
            if (next_offsets.get(key), numbers.get(key)) != (
                self.next_offsets.get(key),
                self.ownership_numbers.get(key),
            ):
                del self._buffers[key]
        self.next_offsets, self.ownership_numbers = immutables.Map(next_offsets), numbers
        self.behind_head, self._is_assigned = set(), True
