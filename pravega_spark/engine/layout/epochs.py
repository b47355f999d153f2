"""Epochs of a stream: the layout of the key space over time. Pure functions, no I/O, no clock.

Two facts make the functions fast. The epoch that seals a segment creates all its successors, and
the epoch that creates a segment seals all its predecessors. So a segment's neighbours in time are
found in one epoch, never by a walk over epochs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Protocol

from pravega_spark.errors import NoSuchSegment
from pravega_spark.values.segments import (
    NOT_REACHED,
    Epoch,
    KeyRange,
    Segment,
    StreamCut,
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

    def since(self, number: int, /) -> Layout | None:
        """Return this version with forgotten epochs, too, from a number on; None if unknown."""

    @property
    def lineage(self) -> Lineage:
        """The successors and predecessors of segments; an immutable layout has one lineage."""


class Lineage:
    """The successors and predecessors of the segments of one layout; caches its look-ups.

    ``located`` caches the cuts that ``located_cut.locate`` returned last.
    """

    __slots__ = ("_index", "layout", "located")

    def __init__(self, layout: Layout) -> None:
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
        raise no_such_segment(self.layout, segment_id)

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


def no_such_segment(layout: Layout, segment_id: int) -> NoSuchSegment:
    """Return the error for a segment without a record: it was truncated, or never existed."""
    next_step = "Take segments from segments() or epochs()."
    if segment_epoch(segment_id) < layout.oldest_epoch:
        next_step = (
            f"Those of epochs before {layout.oldest_epoch} were truncated: epochs() has them, with "
            "their key ranges."
        )
    return NoSuchSegment(
        f"stream {layout.stream} has no segment {segment_text(segment_id)}; its active ones are "
        f"{short_list(layout.active.segments)}. {next_step}",
        stream=layout.stream,
        segment_id=segment_id,
    )


def segment_of(epoch: Epoch, position: float) -> Segment:
    """Return the epoch's segment at a position in [0, 1), by binary search."""
    return epoch.segments[bisect_right(epoch.segments, position, key=lowest_key) - 1]


def overlapping(epoch: Epoch, key_range: KeyRange) -> tuple[Segment, ...]:
    """Return the segments of the epoch that share keys with the range, by binary search."""
    first = bisect_right(epoch.segments, key_range.low, key=lowest_key) - 1
    last = bisect_left(epoch.segments, key_range.high, key=lowest_key)
    return epoch.segments[first:last]


def lowest_key(segment: Segment) -> float:
    """Return where the segment's key range begins: the order of an epoch's segments."""
    return segment.key_range.low


def split(key_range: KeyRange, parts: int) -> tuple[KeyRange, ...]:
    """Split the range into equal parts that tile it exactly."""
    low, width = key_range.low, key_range.high - key_range.low
    edges = [low + width * i / parts for i in range(parts)] + [key_range.high]
    return tuple(KeyRange(a, b) for a, b in pairwise(edges))


def short_list(items: Iterable[object]) -> str:
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
        sorted(
            (lineage.find(s) for s, offset in layout.head if offset != NOT_REACHED), key=lowest_key
        )
    )


def successors(layout: Layout, segment_id: int) -> tuple[tuple[Segment, tuple[Segment, ...]], ...]:
    """Return each successor of a segment with all predecessors of that successor.

    Empty while the segment is open, and at the end of a sealed stream. (Pravega's
    getSegmentsImmediatelyFollowing.) Raises NoSuchSegment.
    """
    lineage = layout.lineage
    found = lineage.successors(lineage.find(segment_id))
    return tuple((segment, lineage.predecessors(segment)) for segment in found)


def predecessors(
    layout: Layout, segment_id: int
) -> tuple[tuple[Segment, tuple[Segment, ...]], ...]:
    """Return each predecessor of a segment with all successors of that predecessor.

    Empty for a segment of the oldest kept epoch: it has none, or only truncated ones. Raises
    NoSuchSegment.
    """
    lineage = layout.lineage
    found = lineage.predecessors(lineage.find(segment_id))
    return tuple((segment, lineage.successors(segment)) for segment in found)
