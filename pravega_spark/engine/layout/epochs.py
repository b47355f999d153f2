"""Epochs of a stream: the layout of the key space over time. Pure functions, no I/O, no clock.

Two facts make the functions fast. The epoch that seals a segment creates all its successors, and
the epoch that creates a segment seals all its predecessors. So a segment's neighbours in time are
found in one epoch, never by a walk over epochs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from pravega_spark.errors import InvalidConfiguration, NoSuchSegment, StreamSealed
from pravega_spark.limits import MAX_SEGMENTS
from pravega_spark.model import (
    NOT_REACHED,
    Epoch,
    KeyRange,
    Segment,
    StreamCut,
    make_segment_id,
    segment_epoch,
    segment_text,
)

_SHOWN = 8


class SegmentState(Protocol):
    """A segment's record: how many events and bytes it has, and whether it is sealed."""

    @property
    def next_offset(self) -> int:
        """The offset of its next event: the number of its events since creation."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its events since creation."""

    @property
    def sealed_epoch(self) -> int | None:
        """The epoch that sealed it, its own last one if the stream was sealed, or None."""


class Layout(Protocol):
    """One version of one stream: what the functions of this package work on."""

    @property
    def stream(self) -> str:
        """The name, ``scope/stream``."""

    @property
    def life(self) -> int:
        """The creation count of the name, from 1."""

    @property
    def oldest_epoch(self) -> int:
        """The oldest epoch that is kept: the earliest creation epoch in the head."""

    @property
    def active(self) -> Epoch:
        """The current epoch."""

    @property
    def head(self) -> StreamCut:
        """The cut below which everything is truncated."""

    @property
    def truncated_by(self) -> str:
        """The author and time of the last truncation, as a part of a sentence, or empty."""

    def epoch(self, number: int, /) -> Epoch:
        """Return a kept epoch."""

    def segment(self, segment_id: int, /) -> SegmentState:
        """Return the record of a segment; raise NoSuchSegment if it has none."""

    def has_segment(self, segment_id: int, /) -> bool:
        """Return True if the segment has a record: some kept epoch names it."""

    @property
    def lineage(self) -> Lineage:
        """The successors and predecessors of segments; an immutable layout has one lineage."""


class Lineage:
    """The successors and predecessors of the segments of one layout; caches its look-ups.

    ``located`` caches the cuts that ``located_cut.locate`` returned last.
    """

    __slots__ = ("_index", "layout", "located")

    def __init__(self, layout: Layout) -> None:
        """Take a layout that does not change."""
        self.layout = layout
        self.located: dict[StreamCut, Any] = {}
        self._index: dict[int, dict[int, Segment]] = {}

    def find(self, segment_id: int) -> Segment:
        """Return the segment with its key range; raise NoSuchSegment if no kept epoch names it."""
        active = self.layout.active.number
        segment = self._of_epoch(active).get(segment_id)
        if segment is not None:
            return segment
        created = max(segment_epoch(segment_id), self.layout.oldest_epoch)
        if created <= active:
            segment = self._of_epoch(created).get(segment_id)
            if segment is not None:
                return segment
        raise NoSuchSegment(
            f"stream {self.layout.stream} has no segment {segment_text(segment_id)} in the epochs "
            f"{self.layout.oldest_epoch} to {self.layout.active.number}.",
            stream=self.layout.stream,
            segment_id=segment_id,
        )

    def end(self, segment: Segment) -> int:
        """Return the offset after the segment's last event so far."""
        return self.layout.segment(segment.segment_id).next_offset

    def is_sealed(self, segment: Segment) -> bool:
        """Return True if the segment accepts no more events."""
        return self.layout.segment(segment.segment_id).sealed_epoch is not None

    def until(self, segment: Segment) -> int:
        """Return the first epoch without the segment; active + 1 if there is none yet."""
        sealed = self.layout.segment(segment.segment_id).sealed_epoch
        active = self.layout.active.number
        if sealed is None or segment.segment_id in self._of_epoch(active):
            return active + 1
        return sealed

    def successors(self, segment: Segment) -> tuple[Segment, ...]:
        """Return the segments that continue its keys, in range order; empty if none do yet."""
        number = self.until(segment)
        if number > self.layout.active.number:
            return ()
        return overlapping(self.layout.epoch(number), segment.key_range)

    def predecessors(self, segment: Segment) -> tuple[Segment, ...]:
        """Return the segments that it continues; empty if it is of the oldest kept epoch."""
        if segment.epoch <= self.layout.oldest_epoch:
            return ()
        return overlapping(self.layout.epoch(segment.epoch - 1), segment.key_range)

    def _of_epoch(self, number: int) -> dict[int, Segment]:
        if number not in self._index:
            epoch = self.layout.epoch(number)
            self._index[number] = {s.segment_id: s for s in epoch.segments}
        return self._index[number]


def segment_of(epoch: Epoch, position: float) -> Segment:
    """Return the epoch's segment at a position in [0, 1), by binary search."""
    return epoch.segments[bisect_right(epoch.segments, position, key=_low) - 1]


def overlapping(epoch: Epoch, key_range: KeyRange) -> tuple[Segment, ...]:
    """Return the segments of the epoch that share keys with the range, by binary search."""
    first = bisect_right(epoch.segments, key_range.low, key=_low) - 1
    last = bisect_left(epoch.segments, key_range.high, key=_low)
    return epoch.segments[first:last]


def _low(segment: Segment) -> float:
    return segment.key_range.low


def split(key_range: KeyRange, parts: int) -> tuple[KeyRange, ...]:
    """Split the range into equal parts that tile it exactly."""
    low, width = key_range.low, key_range.high - key_range.low
    edges = [low + width * i / parts for i in range(parts)] + [key_range.high]
    return tuple(KeyRange(a, b) for a, b in pairwise(edges))


def first_epoch(count: int, first_number: int, number: int, created_ms: int) -> Epoch:
    """Lay out a new stream: ``count`` equal ranges, numbered from ``first_number``.

    Raises InvalidConfiguration unless 1 <= count <= MAX_SEGMENTS.
    """
    if not 1 <= count <= MAX_SEGMENTS:
        raise InvalidConfiguration(f"a stream has 1 to {MAX_SEGMENTS} segments, got {count}.")
    ranges = split(KeyRange(0.0, 1.0), count)
    return Epoch(number, number, created_ms, _new_segments(ranges, first_number, number))


def duplicate(source: Epoch, number: int, created_ms: int) -> Epoch:
    """Repeat an epoch's layout under a new number, as Pravega's rolling transactions do.

    Segments keep numbers and ranges and get the new epoch in their ids. The reference is the
    source's: by it a later transaction sees that the layouts are the same.
    """
    segments = tuple(
        Segment(make_segment_id(s.number, number), s.key_range) for s in source.segments
    )
    return Epoch(number, source.reference, created_ms, segments)


def scale(
    layout: Layout,
    seal: Collection[int],
    ranges: Sequence[KeyRange],
    created_ms: int,
    next_number: int,
    *,
    minimum: int = 1,
) -> Epoch:
    """Return the epoch that follows when segments of new ranges replace those of ``seal``.

    One call may make any number of disjoint splits and merges, in any order; ranges may equal the
    old ones (Pravega's scaleStream). New segments are numbered from ``next_number`` in range
    order. The epoch's time is ``created_ms``, or 1 ms after the active epoch's if that is later.
    Raises InvalidConfiguration if a segment is not current, if the new ranges overlap or do not
    cover the same keys as the sealed ones, or if fewer than ``minimum`` segments would remain;
    StreamSealed if the stream is sealed.
    """
    what = f"scale of {layout.stream}"
    sealed = _current(layout, what, seal)
    fresh = sorted(ranges)
    _check_same_keys(what, sealed, fresh)
    kept = [s for s in layout.active.segments if s not in sealed]
    count = len(kept) + len(fresh)
    if not minimum <= count <= MAX_SEGMENTS:
        raise InvalidConfiguration(
            f"{what} would leave {count} segments; its policy asks for at least {minimum}, and a "
            f"stream has at most {MAX_SEGMENTS}."
        )
    number = layout.active.number + 1
    segments = _new_segments(fresh, next_number, number)
    assert not any(layout.has_segment(s.segment_id) for s in segments), f"{what} repeats an id"
    epoch = Epoch(
        number,
        number,
        max(created_ms, layout.active.created_ms + 1),
        tuple(sorted([*kept, *segments], key=_low)),
    )
    splits = sum(len(overlapping(epoch, s.key_range)) > 1 for s in sealed)
    merges = sum(len(overlapping(layout.active, s.key_range)) > 1 for s in segments)
    return Epoch(number, number, epoch.created_ms, epoch.segments, splits, merges)


def _new_segments(ranges: Iterable[KeyRange], first: int, epoch: int) -> tuple[Segment, ...]:
    return tuple(Segment(make_segment_id(first + i, epoch), r) for i, r in enumerate(ranges))


def _current(layout: Layout, what: str, seal: Collection[int]) -> frozenset[Segment]:
    """Return the segments to seal; all must be current and open."""
    active = layout.active
    current = {s.segment_id: s for s in active.segments}
    shown = f"epoch {active.number} has {few(active.segments)}"
    if not seal:
        raise InvalidConfiguration(f"{what} names no segment to seal; {shown}.")
    for segment_id in seal:
        if segment_id not in current:
            raise InvalidConfiguration(
                f"{what}: segment {segment_text(segment_id)} is not current; {shown}."
            )
        if layout.segment(segment_id).sealed_epoch is not None:
            raise StreamSealed(
                f"{what}: the stream is sealed; its segments cannot change.",
                stream=layout.stream,
            )
    return frozenset(current[segment_id] for segment_id in seal)


def _check_same_keys(what: str, sealed: Iterable[Segment], fresh: Sequence[KeyRange]) -> None:
    """Compare the maximal blocks of both sides, which finds gaps and foreign keys alike."""
    for left, right in pairwise(fresh):
        if left.overlaps(right):
            raise InvalidConfiguration(
                f"{what}: the new ranges {_shown(left)} and {_shown(right)} overlap; give disjoint "
                "ones."
            )
    old, new = _blocks(sorted(s.key_range for s in sealed)), _blocks(fresh)
    if old != new:
        raise InvalidConfiguration(
            f"{what}: the segments to seal cover {few(map(_shown, old))}, the new ranges cover "
            f"{few(map(_shown, new)) or 'nothing'}; both must cover the same keys."
        )


def _blocks(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Join neighbouring ranges (sorted, disjoint) into maximal ones."""
    blocks: list[KeyRange] = []
    for key_range in ranges:
        if blocks and blocks[-1].high == key_range.low:
            blocks[-1] = KeyRange(blocks[-1].low, key_range.high)
        else:
            blocks.append(key_range)
    return blocks


def _shown(key_range: KeyRange) -> str:
    return f"[{key_range.low}, {key_range.high})"


def few(items: Iterable[object]) -> str:
    """Return the first few of the items as text for an error."""
    listed = [str(item) for item in items]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def epoch_at(layout: Layout, time_ms: int) -> Epoch:
    """Return the kept epoch that was active at a time; the oldest if the time is before it."""
    low, high = layout.oldest_epoch, layout.active.number
    while low < high:
        middle = (low + high + 1) // 2
        if layout.epoch(middle).created_ms <= time_ms:
            low = middle
        else:
            high = middle - 1
    return layout.epoch(low)


def segments_at(layout: Layout, time_ms: int) -> tuple[Segment, ...]:
    """Return the segments that were open at a time; time 0 means those of the head.

    (Pravega's getSegments at a timestamp.) An epoch older than parts of the head may name segments
    below it: ``LocatedCut.clipped_to_head`` raises a cut made of them to the head.
    """
    if time_ms > 0:
        return epoch_at(layout, time_ms).segments
    lineage = layout.lineage
    return tuple(
        sorted((lineage.find(s) for s, offset in layout.head if offset != NOT_REACHED), key=_low)
    )


def successors(layout: Layout, segment_id: int) -> tuple[tuple[Segment, tuple[Segment, ...]], ...]:
    """Return each successor of a segment with all predecessors of that successor.

    Empty while the segment is open, and at the end of a sealed stream. (Pravega's
    getSegmentsImmediatelyFollowing.) Raises NoSuchSegment.
    """
    lineage = layout.lineage
    found = lineage.successors(lineage.find(segment_id))
    return tuple((segment, lineage.predecessors(segment)) for segment in found)


def predecessors(layout: Layout, segment_id: int) -> tuple[Segment, ...]:
    """Return the segments that a segment continues; empty in the oldest kept epoch."""
    lineage = layout.lineage
    return lineage.predecessors(lineage.find(segment_id))
