"""Reads a stream without a reader group: between cuts, by range, by pointer, or along its tail."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from pravega_spark.config.descriptions import TimeWindow
from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.tail import wait_for_commits
from pravega_spark.engine.runtime.observers import open_readers
from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.stream.positions import TimeSearch
from pravega_spark.engine.stream.read import (
    WantedEvents,
    WantedTable,
    events_in,
    payload_of,
    read_range,
)
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import latest_window, window_at
from pravega_spark.errors import InvalidInput, InvalidStreamCut, NoSuchEvent, TruncatedData
from pravega_spark.values.checks import check_function, check_timeout, check_whole, shown
from pravega_spark.values.events import Deserializer, Event
from pravega_spark.values.handles import NotPicklable
from pravega_spark.values.segments import EventPointer, SegmentRange, StreamCut

_Found = TypeVar("_Found")


def json_deserializer(data: bytes) -> Any:
    """Decode a JSON event in UTF-8."""
    return json.loads(data)


@dataclass(slots=True)
class _ReadState:
    """The state of one read: the cut at which its step began, and the offsets read since then."""

    view: StreamView
    start: LocatedCut
    target: LocatedCut
    read: dict[int, int] = field(default_factory=dict)
    window: TimeWindow | None = None
    """The time window that was returned last."""

    @property
    def position(self) -> StreamCut:
        if not self.read:
            return self.start.cut
        return read_plan.within(self.start, self.target, self.read)

    def follow(self, view: StreamView) -> None:
        """Continue in a newer view of the stream, up to its tail."""
        self.view = view
        self.start, self.target = locate(view, self.start.cut), view.located_tail


class EventReader(NotPicklable):
    """Reads one stream without a group, for one thread at a time; see ``Stream.create_reader``.

    A reader belongs to the life that the stream had when it was made. After that life has ended
    each call, and each read in progress that needs more of the log, raises StaleIdentity or
    NoSuchStream.
    """

    _NOT_PICKLABLE = "an EventReader cannot be pickled; create it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        *,
        deserializer: Deserializer | None = None,
        life: int | None = None,
    ) -> None:
        """Name the stream; ``deserializer`` turns an event's bytes into ``Event.data``.

        ``life`` is the life of the stream to read, by default that of the first call.
        """
        self._stream = stream
        self._life = life
        self._deserializer = check_function("a deserializer", deserializer)
        self._guard = ProcessGuard(f"the reader of {stream.name}")
        self._current: _ReadState | None = None
        open_readers.add(self)

    observed_as = "", ""
    """The reader has no group and no name."""

    def known_lag(self) -> Mapping[str, int]:
        """Return how many events are after the position, by what is known of the stream.

        For metrics, from any thread; makes no storage call.
        """
        state = self._current
        if state is None:
            return {}
        view = self._stream.known_view()
        if view.life != state.view.life:
            return {}
        return {self._stream.name: locate(view, state.position).events_to(view.located_tail)}

    @property
    def position(self) -> StreamCut | None:
        """The cut after the last event or batch that was handed out; None before the first."""
        return None if self._current is None else self._current.position

    def current_time_window(self) -> TimeWindow:
        """Return the times between which the reader is at its position, by the writers' notes.

        Unread events are of the lower bound or later. The window never goes back while
        one read goes on. Makes no storage call: it is as new as what the reader has seen of the
        stream. Both bounds are None before the first event. See ``StreamManager.event_time``.
        """
        state = self._current
        if state is None:
            return TimeWindow()
        found = window_at(state.view, locate(state.view, state.position))
        state.window = latest_window(state.window, found)
        return state.window

    def events(
        self, start: StreamCut | str = StreamCut.EARLIEST, end: StreamCut | str = StreamCut.LATEST
    ) -> Iterator[Event]:
        """Yield the events between two cuts: each segment in order, predecessors first.

        LATEST is the tail at the time of the call. Raises InvalidStreamCut, and TruncatedData if
        ``start`` lies below the head.
        """
        return self._events(self._between(start, end))

    def _view(self) -> StreamView:
        view = self._stream.view(life=self._life)
        self._life = view.life
        return view

    def _on_newest(self, look_up: Callable[[StreamView], _Found]) -> _Found:
        """Return what ``look_up`` finds on the newest view of the reader's life."""

        def found(view: StreamView) -> _Found:
            self._life = view.life
            return look_up(view)

        return self._stream.on_newest(found, life=self._life)

    def _between(self, start: StreamCut | str, end: StreamCut | str) -> _ReadState:
        self._guard.check()
        view = self._view()
        first, last = locate(view, start), locate(view, end)
        if not last.is_at_or_after(first):
            raise InvalidStreamCut(f"the start {first} lies after the end {last}; exchange them.")
        return _ReadState(view, first, last)

    def _events(self, state: _ReadState) -> Iterator[Event]:
        for rng, batch in self._batches_of(state):
            for event in self._decode(rng, batch):
                state.read[rng.segment_id] = event.offset + 1
                self._current = state
                yield event

    def batches(
        self,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
    ) -> Iterator[tuple[SegmentRange, pa.RecordBatch]]:
        """Yield the same events as Arrow batches of one segment each, with their ranges.

        Columns: offset int64, routing_key string, timestamp timestamp[us, UTC], and event binary or
        those of the stream's schema when the call begins; or only ``columns``. With ``where``, an
        expression of ``pyarrow.compute``, only the events for which it is true; row groups without
        one are not read. A large event is a separate batch, and is in memory as a whole. Raises
        InvalidInput for a column that is not there.
        """
        state = self._between(start, end)
        return self._batches(state, WantedEvents(state.view, columns, where))

    def table(
        self,
        start: StreamCut | str = StreamCut.EARLIEST,
        end: StreamCut | str = StreamCut.LATEST,
        *,
        columns: Sequence[str] | None = None,
        where: Any = None,
    ) -> pa.Table:
        """Return the events as one table; see ``Stream.read_table``."""
        state = self._between(start, end)
        wanted = WantedTable(state.view, columns, where)
        return wanted.table(self._batches(state, wanted.events))

    def _batches(
        self, state: _ReadState, wanted: WantedEvents
    ) -> Iterator[tuple[SegmentRange, pa.RecordBatch]]:
        for rng, part in self._batches_of(state, wanted):
            batch = payload_of(self._stream, rng, part)
            self._current = state
            if batch.num_rows:
                state.read[rng.segment_id] = batch.column("offset")[-1].as_py() + 1
                yield rng, wanted.of(batch)

    def _batches_of(
        self, state: _ReadState, wanted: WantedEvents | None = None
    ) -> Iterator[tuple[SegmentRange, pa.RecordBatch]]:
        self._current = state
        while True:
            step = read_plan.next_step(state.start, state.target)
            for rng in step.ranges:
                batches = read_range(
                    self._stream,
                    rng,
                    payload_bytes=0,
                    event_format=state.view.event_format,
                    columns=None if wanted is None else wanted.columns,
                    where=None if wanted is None else wanted.where,
                    soon=wanted is None,
                )
                while (batch := self._next_batch(state, batches)) is not None:
                    # Only now: the wait for the disk has overlapped with reading (ADR 38).
                    self._stream.ensure_durable(state.view)
                    yield rng, batch
            self._stream.ensure_durable(state.view)  # a step may also be a scale without events
            state.start, state.read = step.end, {}
            if step.done or not step.ranges:
                return

    def _next_batch(
        self, state: _ReadState, batches: Iterator[pa.RecordBatch]
    ) -> pa.RecordBatch | None:
        """Return the next batch; TruncatedData says what is lost after the reader's position."""
        try:
            return next(batches, None)
        except TruncatedData:
            view = self._stream.view(life=state.view.life)
            locate(view, state.position).readable()
            raise

    def follow(
        self, start: StreamCut | str = StreamCut.LATEST, *, timeout: float | None = None
    ) -> Iterator[Event]:
        """Yield events from a cut on, waiting for new events at the tail.

        Ends when a sealed stream was read to its end, even if it was deleted since, or when no
        event came for ``timeout`` seconds. Raises NoSuchStream or StaleIdentity if the stream was
        deleted, or created again, before this reader saw that it was sealed. On a local disk,
        raises CorruptLog if the stream's log was removed, and RootChanged if it was replaced.

        All threads of this process that wait for a stream share its polls, and a commit of this
        process wakes them at once. A poll that finds nothing is one storage call. Polls come when
        an event is due by the last ones, and get rare: the longest pause is two seconds on an
        object store, also on a local disk whose file system reports new commits, else 50 ms. The
        last one comes when the timeout is over, so an event that came before is found.
        """
        self._guard.check()
        check_timeout("follow", timeout)
        view = self._view()
        state = _ReadState(view, locate(view, start), view.located_tail)
        return self._follow(state, timeout)

    def _follow(self, state: _ReadState, timeout: float | None) -> Iterator[Event]:
        runtime = self._stream.runtime
        idle_since = runtime.monotonic()
        while True:
            before = state.start.cut
            yield from self._events(state)
            if state.start.cut != before:
                idle_since = runtime.monotonic()
            if state.view.record.state is StreamState.SEALED:
                if state.start.cut == before:
                    return
                continue
            newer = self._wait_for_newer_view(state.view, idle_since, timeout)
            if newer is None:
                return
            state.follow(newer)

    def _wait_for_newer_view(
        self, known: StreamView, idle_since: float, timeout: float | None
    ) -> StreamView | None:
        """Return the view of a newer version; None if none appears before the timeout.

        The disk may not have it yet: its chunks are read meanwhile.
        """
        runtime, tail = self._stream.runtime, self._stream.tail
        deadline = None if timeout is None else idle_since + timeout
        while wait_for_commits(runtime, [(tail, known.version)], deadline):
            view = self._stream.view_after_wait(self._life, durable=False)
            if view.version != known.version:
                return view
        return None

    def ranges(
        self, start: StreamCut | str = StreamCut.EARLIEST, end: StreamCut | str = StreamCut.LATEST
    ) -> list[SegmentRange]:
        """Return the ranges of each segment between two cuts, as work for other processes.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """
        view = self._view()
        first, last = locate(view, start), locate(view, end)
        first.readable()
        return first.ranges_to(last)

    def read_range(self, rng: SegmentRange) -> Iterator[Event]:
        """Yield the events of one segment's range, in order.

        Raises InvalidInput for a range that ends after the segment's last event, TruncatedData,
        DataLoss, NoSuchSegment.
        """
        self._guard.check()
        if not isinstance(rng, SegmentRange):
            raise InvalidInput(
                "read_range reads a SegmentRange, such as segment_ranges returns; got "
                f"{shown(rng)}."
            )
        check_whole("the segment of a range", rng.segment_id)
        check_whole("the start of a range", rng.start)
        check_whole("the end of a range", rng.end, rng.start)
        self._check_stream("a range", rng.stream)
        view = self._view()
        view.check_life(rng.life)
        next_offset = rng.end
        if view.has_segment(rng.segment_id):
            next_offset = view.segment(rng.segment_id).next_offset
        if rng.end > next_offset:
            raise InvalidInput(
                f"{rng} ends after the segment's last event: its next offset is {next_offset}. "
                "Take ranges from segment_ranges, or end this one there."
            )
        return self._range(rng)

    def _range(self, rng: SegmentRange) -> Iterator[Event]:
        for batch in read_range(self._stream, rng, payload_bytes=0, soon=True):
            yield from self._decode(rng, batch)

    def next_cut(self, cut: StreamCut | str, approx_events: int) -> StreamCut:
        """Return a cut about ``approx_events`` after ``cut``; it never skips over a scale."""
        view = self._view()
        return read_plan.next_cut(locate(view, cut), approx_events).cut

    def distance(self, start: StreamCut | str, end: StreamCut | str) -> tuple[int, int]:
        """Return the exact number of events, and of bytes, between two cuts.

        Raises InvalidStreamCut, and TruncatedData if ``start`` lies below the head.
        """

        def measure(view: StreamView) -> tuple[int, int]:
            first, last = locate(view, start), locate(view, end)
            first.readable()
            bytes_at = partial(self._stream.bytes_at, view=view)
            return first.events_to(last), first.bytes_to(last, bytes_at)

        return self._on_newest(measure)

    def cut_at(self, timestamp_us: int) -> StreamCut:
        """Return the cut before the first events at or after a time, in us since 1970 (UTC)."""
        check_whole("a time in us", timestamp_us, None)

        def search(view: StreamView) -> StreamCut:
            return TimeSearch(self._stream, timestamp_us).cut(view).cut

        return self._on_newest(search)

    def fetch(self, pointer: EventPointer | str) -> Event:
        """Return the event of a pointer or of its text.

        Raises NoSuchEvent, StaleIdentity, and TruncatedData for an event below the head.
        """
        self._guard.check()
        pointer = EventPointer.of(pointer)
        self._check_stream("a pointer", pointer.stream)
        check_whole("the offset of a pointer", pointer.offset)
        view = self._view()
        view.check_life(pointer.life)
        rng = SegmentRange(
            pointer.stream,
            life=pointer.life,
            segment_id=pointer.segment_id,
            start=pointer.offset,
            end=pointer.offset + 1,
        )
        if not view.is_truncated(pointer.segment_id, pointer.offset):
            known = view.has_segment(pointer.segment_id)
            if not known or pointer.offset >= view.segment(pointer.segment_id).next_offset:
                raise NoSuchEvent(
                    f"{pointer} names no event of the stream; take pointers from events.",
                    pointer=pointer,
                )
        (batch,) = read_range(self._stream, rng, payload_bytes=0)
        (event,) = self._decode(rng, batch)
        return event

    def _check_stream(self, what: str, stream: str) -> None:
        if stream != self._stream.name:
            raise InvalidInput(
                f"{what} of stream {stream} was given to the reader of stream "
                f"{self._stream.name}; use a reader of {stream}."
            )

    def _decode(self, rng: SegmentRange, batch: pa.RecordBatch) -> Iterator[Event]:
        return events_in(self._stream, rng, batch, self._deserializer)
