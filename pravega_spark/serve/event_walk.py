"""A bounded walk through the events of a stream, from a position forward or back.

The walk has a lane for each segment that it is in. Lanes are joined by the times of their events,
and each keeps its segment's order, so the place after any event is a cut of the stream. A lane
loads a part of its segment when its turn comes. What a part may cost, and all of them together,
does not depend on the size of the stream: a walk that has spent its budget ends where it is, and
the next one goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, Final, Protocol

import pyarrow as pa

from pravega_spark.engine.chunks.arrow_arrays import numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged, KeyUnavailable, PravegaSparkError
from pravega_spark.values.limits import LARGE_EVENT_WINDOW_BYTES
from pravega_spark.values.segments import END, NOT_REACHED, Segment, SegmentRange
from pravega_spark.values.units import MIB

_READ_TOGETHER: Final = 8
"""So many lanes whose turn comes at the same time load their parts in parallel."""
_FEW_LANES: Final = 128
"""With so many lanes at most, all of them are read for a page if that is what the times need."""
_PART_BYTES: Final = 8 * MIB
_PART_CHUNKS: Final = 64


@dataclass(slots=True)
class Budget:
    """What a walk may still read; a part that was begun is read to its end."""

    chunks: int
    size_bytes: int
    seconds: float

    @property
    def is_spent(self) -> bool:
        """Whether no further part may be begun."""
        return self.chunks <= 0 or self.size_bytes <= 0


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A range of a segment that cannot be read, and why."""

    lost: SegmentRange
    error: PravegaSparkError


Row = Any
"""What a walk makes of an event."""
Rows = Iterable[tuple[int, Row]]
"""Offsets and rows of those events of a batch that are wanted, in their order."""
_Part = tuple[SegmentRange, list[ChunkRef]]
OnRead = Callable[[SegmentRange, Sequence[Unreadable]], object]
"""Takes a range that was tried, and what of it could not be read; of any thread."""


class Reader(Protocol):
    """Makes rows of events: all of them, or those that are wanted."""

    @property
    def is_selective(self) -> bool:
        """Whether events may be left out, so that parts are larger than a page."""
        ...

    def rows(self, rng: SegmentRange, batch: pa.RecordBatch) -> Rows:
        """Return the rows of a batch that has all columns."""
        ...

    def locked_rows(self, rng: SegmentRange, batch: pa.RecordBatch, error: KeyUnavailable) -> Rows:
        """Return rows of events of which only offsets and times can be read."""
        ...


@dataclass(slots=True)
class Looked:
    """How far a walk looked."""

    events: int = 0
    chunks: int = 0
    size_bytes: int = 0
    lost: int = 0
    """Of ``events``, those that could not be read."""
    from_us: int | None = None
    to_us: int | None = None

    def at(self, times: tuple[int, int]) -> None:
        """Count the times of events that were passed."""
        low, high = times
        self.from_us = low if self.from_us is None else min(self.from_us, low)
        self.to_us = high if self.to_us is None else max(self.to_us, high)


@dataclass(slots=True)
class _Item:
    """A wanted event, or a range that cannot be read; ``after`` is the lane's offset behind it."""

    after: int
    times: tuple[int, int]
    row: Row = None
    lost: Unreadable | None = None


_Loaded = tuple[list[_Item], tuple[int, int] | None]


@dataclass(slots=True, eq=False)
class Lane:
    """A segment of the walk: the next offset, and the part that is loaded."""

    segment: Segment
    at: int
    stop: int
    part_chunks: int
    """The most chunks of the next part."""
    items: deque[_Item] | None = None
    """None: no part is loaded."""
    part_end: int = 0
    part_times: tuple[int, int] | None = None

    @property
    def segment_id(self) -> int:
        """The id of the segment."""
        return self.segment.segment_id


class Route(Protocol):
    """The segments of a walk: those in which it begins, and those that follow."""

    def begin(self) -> list[tuple[Segment, int]]:
        """Return the first segments, with the offset at which the walk enters each."""
        ...

    def follow(self, segment: Segment, offset: int) -> list[tuple[Segment, int]]:
        """Return the segments that follow one that has been walked to its end."""
        ...

    def position(self, offsets: dict[int, int]) -> str:
        """Return the text of the position at which the lanes are at these offsets."""
        ...


class OneSegment:
    """A walk through one segment, which ends with it."""

    def __init__(self, segment: Segment, offset: int) -> None:
        """Take where it begins."""
        self._segment, self._offset = segment, offset

    def begin(self) -> list[tuple[Segment, int]]:
        """Return the segment."""
        return [(self._segment, self._offset)]

    def follow(self, segment: Segment, offset: int) -> list[tuple[Segment, int]]:
        """Return nothing."""
        return []

    def position(self, offsets: dict[int, int]) -> str:
        """Return ``number#epoch=offset``."""
        return f"{self._segment}={offsets[self._segment.segment_id]}"


class KeyChain:
    """A walk along the segments that a key hashes to, one after the other."""

    def __init__(
        self, view: StreamView, segment: Segment, offset: int, key_at: float, *, back: bool
    ) -> None:
        """Take where it begins, and the key's place in [0, 1)."""
        self._view, self._segment, self._offset = view, segment, offset
        self._key_at, self._back = key_at, back

    def begin(self) -> list[tuple[Segment, int]]:
        """Return the segment."""
        return [(self._segment, self._offset)]

    def follow(self, segment: Segment, offset: int) -> list[tuple[Segment, int]]:
        """Return the one successor, or predecessor, that holds the key."""
        view = self._view
        if self._back:
            near = view.lineage.predecessors(segment) if offset == 0 else ()
        else:
            near = view.lineage.successors(segment) if view.lineage.is_sealed(segment) else ()
        for found in near:
            if found.key_range.low <= self._key_at < found.key_range.high:
                at = view.lineage.end(found) if self._back else 0
                self._segment = found
                return [(found, at)]
        return []

    def position(self, offsets: dict[int, int]) -> str:
        """Return ``number#epoch=offset`` of the segment that the walk is in."""
        return f"{self._segment}={offsets[self._segment.segment_id]}"


class WholeStream:
    """A walk through all segments: a cut that moves."""

    def __init__(self, view: StreamView, start: LocatedCut, *, back: bool) -> None:
        """Begin at a cut that is nowhere below the head."""
        self._view, self._back = view, back
        self._frontier = Frontier(start)

    def begin(self) -> list[tuple[Segment, int]]:
        """Return the segments of the cut."""
        frontier = self._frontier
        if self._back:
            ended = [s for s, offset in list(frontier.offsets.items()) if offset == END]
            for segment_id in ended:
                self._go_back_to(self._view.lineage.find(segment_id))
        else:
            frontier.advance()
        return frontier.open_segments()

    def follow(self, segment: Segment, offset: int) -> list[tuple[Segment, int]]:
        """Return the segments that are entered now that one is walked to its end."""
        frontier = self._frontier
        before = {s.segment_id for s, _ in frontier.open_segments()}
        frontier.offsets[segment.segment_id] = offset
        if self._back:
            if offset == 0:
                for earlier in self._view.lineage.predecessors(segment):
                    self._go_back_to(earlier)
        else:
            frontier.advance()
        return [(s, at) for s, at in frontier.open_segments() if s.segment_id not in before]

    def _go_back_to(self, segment: Segment) -> None:
        """Enter a segment at its end, once nothing of those that follow it lies before the cut."""
        frontier, lineage = self._frontier, self._view.lineage
        if self._view.located_head.offset_in(segment) == END:
            return  # truncated
        later = (frontier.offset_in(s) for s in lineage.successors(segment))
        if all(offset in (0, NOT_REACHED) for offset in later):
            frontier.go_back(segment, lineage.end(segment))

    def position(self, offsets: dict[int, int]) -> str:
        """Return the cut."""
        for segment_id, offset in offsets.items():
            if self._frontier.offsets.get(segment_id, END) >= 0:
                self._frontier.offsets[segment_id] = offset
        return str(self._frontier.cut())


@dataclass(slots=True)
class WalkResult:
    """What a walk found, in the order in which it went."""

    rows: list[Row]
    lost: list[Unreadable]
    looked: Looked
    begin: str
    """The position at which it began."""
    end: str
    """The position behind all that it looked at."""
    is_done: bool
    """Whether nothing more follows in this direction."""


@dataclass(slots=True, kw_only=True)
class Walk:
    """One walk; for one thread."""

    log: StreamLog
    view: StreamView
    route: Route
    reader: Reader
    back: bool
    limit: int
    """The most rows."""
    part_events: int
    """The most events of a part."""
    budget: Budget
    on_read: OnRead
    looked: Looked = field(default_factory=Looked)
    _is_wide: bool = False
    _first_chunks: int = 1

    def run(self) -> WalkResult:
        """Walk until there are enough rows, the budget is spent, or no event follows."""
        begins = self.route.begin()
        first = self.route.position({s.segment_id: offset for s, offset in begins})
        offsets: dict[int, int] = {}
        self._first_chunks = max(1, _PART_CHUNKS // max(1, len(begins)))
        self._is_wide = len(begins) > _FEW_LANES
        heap = [self._queued(lane) for lane in self._lanes(begins, offsets)]
        heapify(heap)
        rows: list[Row] = []
        lost: list[Unreadable] = []
        until = self.log.runtime.monotonic() + self.budget.seconds
        has_begun, is_left = False, False
        while heap and len(rows) < self.limit:
            lane = heappop(heap)[2]
            if lane.items is None:
                late = self.budget.is_spent or self.log.runtime.monotonic() >= until
                if has_begun and late:
                    is_left = True
                    continue
                has_begun = True
                self._load_together(lane, heap)
                heappush(heap, self._queued(lane))
                continue
            if lane.items:
                item = lane.items.popleft()
                self._pass(lane, item.after, item.times, offsets)
                if item.lost is None:
                    rows.append(item.row)
                else:
                    lost.append(item.lost)
                    self.looked.lost += len(item.lost.lost)
            if not lane.items:
                self._pass(lane, lane.part_end, lane.part_times, offsets)
                lane.items = None
            for each in self._going_on(lane, offsets):
                heappush(heap, self._queued(each))
        return WalkResult(
            rows=rows,
            lost=lost,
            looked=self.looked,
            begin=first,
            end=self.route.position(offsets),
            is_done=not heap and not is_left,
        )

    def _lanes(
        self, entered: Sequence[tuple[Segment, int]], offsets: dict[int, int]
    ) -> Iterator[Lane]:
        """Yield lanes with events; a segment without any is left for those that follow it."""
        todo = list(entered)
        while todo:
            segment, at = todo.pop()
            stop = self._stop(segment)
            offsets[segment.segment_id] = at
            if at == stop:
                todo += self.route.follow(segment, at)
            else:
                yield Lane(segment, at, stop, self._first_chunks)

    def _going_on(self, lane: Lane, offsets: dict[int, int]) -> Iterator[Lane]:
        if lane.items is not None or lane.at != lane.stop:
            yield lane
        else:
            yield from self._lanes(self.route.follow(lane.segment, lane.at), offsets)

    def _stop(self, segment: Segment) -> int:
        if self.back:
            return self.view.head_offset(segment.segment_id)
        return self.view.lineage.end(segment)

    def _pass(
        self, lane: Lane, to: int, times: tuple[int, int] | None, offsets: dict[int, int]
    ) -> None:
        self.looked.events += abs(to - lane.at)
        if times is not None and to != lane.at:
            self.looked.at(times)
        lane.at = offsets[lane.segment_id] = to

    def _queued(self, lane: Lane) -> tuple[int, int, Lane]:
        """Return a lane with its place in the queue: by the time of what it has next."""
        if lane.items:
            time_us = lane.items[0].times[0]
        elif lane.items is not None:
            time_us = 0 if lane.part_times is None else lane.part_times[0 if self.back else 1]
        else:
            time_us = self._bound_us(lane)
        return -time_us if self.back else time_us, lane.segment_id, lane

    def _bound_us(self, lane: Lane) -> int:
        """Return a time that no event of the lane's next chunk is before, or after if it is back.

        Of many lanes it is estimated inside a chunk, so that each has its turn when only some of
        them can be read for a page.
        """
        at = lane.at - 1 if self.back else lane.at
        refs = self.log.known_chunks(self._range(lane, at, at + 1))
        if not refs:
            return 0
        ref = refs[0]
        if not self._is_wide:
            return ref.max_timestamp_us if self.back else ref.min_timestamp_us
        spread_us = ref.max_timestamp_us - ref.min_timestamp_us
        passed = (ref.end - lane.at if self.back else lane.at - ref.base_offset) / ref.rows
        moved = int(spread_us * passed)
        return ref.max_timestamp_us - moved if self.back else ref.min_timestamp_us + moved

    def _range(self, lane: Lane, start: int, end: int) -> SegmentRange:
        return SegmentRange(
            self.view.stream,
            life=self.view.life,
            segment_id=lane.segment_id,
            start=start,
            end=end,
        )

    def _load_together(self, first: Lane, heap: list[tuple[int, int, Lane]]) -> None:
        """Load a lane, and those behind it in the queue that wait for a part, too."""
        lanes, parts = [first], [self._part(first)]
        while heap and heap[0][2].items is None and len(lanes) < _READ_TOGETHER:
            if self.budget.is_spent:
                break
            lanes.append(heappop(heap)[2])
            parts.append(self._part(lanes[-1]))
        loaded = self.log.runtime.each(self._loaded, parts)
        for lane, (rng, _), (items, times) in zip(lanes, parts, loaded, strict=True):
            lane.items = deque(reversed(items) if self.back else items)
            lane.part_end = rng.start if self.back else rng.end
            lane.part_times = times
        for lane in lanes[1:]:
            heappush(heap, self._queued(lane))

    def _part(self, lane: Lane) -> _Part:
        """Return what a lane loads next, and take it from the budget."""
        if self.back:
            window = self._range(lane, max(lane.stop, lane.at - self.part_events), lane.at)
        else:
            window = self._range(lane, lane.at, min(lane.stop, lane.at + self.part_events))
        refs = self.log.known_chunks(window)
        part, taken, size = window, list[ChunkRef](), 0
        for ref in reversed(refs) if self.back else refs:
            first, last = max(ref.base_offset, window.start), min(ref.end, window.end)
            each = max(1, 0 if ref.attachment else ref.event_bytes // ref.rows)
            fits = min(last - first, max(0 if taken else 1, (_PART_BYTES - size) // each))
            if not fits or len(taken) == lane.part_chunks or (taken and ref.attachment):
                break
            taken.append(ref)
            size += fits * each
            self.budget.size_bytes -= min(ref.size, fits * each + MIB)
            if ref.attachment and self.reader.is_selective:
                self.budget.size_bytes -= LARGE_EVENT_WINDOW_BYTES
            if self.back:
                part = replace(window, start=last - fits)
            else:
                part = replace(window, end=first + fits)
            if fits < last - first or ref.attachment:
                break
        lane.part_chunks = min(_PART_CHUNKS, 4 * lane.part_chunks)
        self.budget.chunks -= max(1, len(taken))
        self.looked.chunks += len(taken)
        self.looked.size_bytes += size
        return part, taken[::-1] if self.back else taken

    def _loaded(self, part: _Part) -> _Loaded:
        """Return the wanted events of a part in their order, and the times of all of them."""
        items, times = self._tried(*part)
        self.on_read(part[0], [item.lost for item in items if item.lost is not None])
        return items, times

    def _tried(self, rng: SegmentRange, refs: Sequence[ChunkRef]) -> _Loaded:
        try:
            return self._read(rng, refs)
        except (Damaged, KeyUnavailable):
            pass  # of one of the chunks: the others are read
        items, every = list[_Item](), list[tuple[int, int]]()
        for ref in refs:
            own = replace(rng, start=max(rng.start, ref.base_offset), end=min(rng.end, ref.end))
            try:
                found, times = self._read(own, [ref])
            except KeyUnavailable as error:
                found, times = self._read(own, [ref], error)
            except Damaged as error:
                found, times = [self._lost(own, error, refs)], None
            items += found
            every += [] if times is None else [times]
        return items, _span(every)

    def _read(
        self, rng: SegmentRange, refs: Sequence[ChunkRef], locked: KeyUnavailable | None = None
    ) -> _Loaded:
        items, every = list[_Item](), list[tuple[int, int]]()

        def on_loss(lost: SegmentRange, error: PravegaSparkError) -> None:
            items.append(self._lost(lost, error, refs))

        batches = read_range(
            self.log,
            rng,
            refs,
            payload_bytes=0,
            event_format=self.view.event_format,
            columns=None if locked is None else ("offset", "timestamp"),
            on_loss=on_loss,
            shared=not self.reader.is_selective,
        )
        for batch in batches:
            times = numbers(batch.column("timestamp").view(pa.int64()))
            every.append((int(times.min()), int(times.max())))
            if locked is None:
                rows = self.reader.rows(rng, batch)
            else:
                rows = self.reader.locked_rows(rng, batch, locked)
            first = batch.column("offset")[0].as_py()
            for offset, row in rows:
                time_us = int(times[offset - first])
                items.append(_Item(offset + (not self.back), (time_us, time_us), row))
        return items, _span(every)

    def _lost(
        self, lost: SegmentRange, error: PravegaSparkError, refs: Iterable[ChunkRef]
    ) -> _Item:
        near = next((ref for ref in refs if ref.end > lost.start), None)
        time_us = 0 if near is None else near.min_timestamp_us
        after = lost.start if self.back else lost.end
        return _Item(after, (time_us, time_us), lost=Unreadable(lost, error))


def _span(times: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    return (min(low for low, _ in times), max(high for _, high in times)) if times else None
