"""Located cuts: stream cuts that are proved against one version of their stream.

A stream cut names a few segments. A located cut answers for any segment of the version: an offset,
``END`` (all events of it lie before the cut) or ``NOT_REACHED`` (all lie after it). ``locate`` is
the one way from what a user gives to a located cut; all questions about cuts are its methods. They
are pure, except that a layout may read the stream's history to say what a cut has lost.

Cuts are ordered by the age of segments first and by offset in a segment second, as in Pravega: the
end of a sealed segment is before the start of its successors, though no event lies between them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence

from pravega_spark.engine.layout.cut_validation import (
    Cell,
    cells_of,
    offset_in,
    overlapping_cells,
    validate,
)
from pravega_spark.engine.layout.epochs import Layout, Lineage, short_list
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.errors import InvalidStreamCut, TruncatedData
from pravega_spark.values.segments import (
    END,
    NOT_REACHED,
    Segment,
    SegmentRange,
    StreamCut,
    segment_epoch,
    segment_text,
)

_REMEMBERED = 8
"""How many located cuts a lineage remembers: one operation asks for a few of them, and often."""


class Order(enum.Enum):
    """How a cut lies relative to another one."""

    BEFORE = "before"
    OVERLAPS = "overlaps"
    EQUAL_OR_AFTER = "equal or after"


class LocatedCut:
    """A consistent cut of one version of a stream; made by :func:`locate` and by its own methods.

    ``forgotten`` are the ids in the cut of segments without a record: they are below the head.
    Methods that take another cut need one of the same version.
    """

    __slots__ = ("_cells", "_lows", "cut", "forgotten", "lineage")

    def __init__(
        self,
        lineage: Lineage,
        cut: StreamCut,
        cells: Sequence[Cell] | None = None,
        forgotten: Sequence[int] = (),
    ) -> None:
        """Take a consistent cut; without ``cells`` they are laid when first needed."""
        self.lineage = lineage
        self.cut = cut
        self.forgotten = tuple(forgotten)
        self._cells = cells
        self._lows: list[float] | None = None

    def __str__(self) -> str:
        return str(self.cut)

    @property
    def layout(self) -> Layout:
        """The version of the stream that the cut is located in."""
        return self.lineage.layout

    @property
    def cells(self) -> Sequence[Cell]:
        """The cut laid over the key space, in key order."""
        if self._cells is None:
            self._cells = cells_of(self.lineage, self.cut)
        return self._cells

    def offset_in(self, segment: Segment) -> int:
        """Return how far the segment is read: an offset, END or NOT_REACHED."""
        if self._lows is None:
            self._lows = [cell.low for cell in self.cells]
        return offset_in(self.cells, self._lows, segment)

    def compare(self, other: LocatedCut) -> Order:
        """Return how this cut lies relative to another one (Pravega's three-valued compare).

        BEFORE if it is behind somewhere and ahead nowhere, OVERLAPS if both, EQUAL_OR_AFTER if it
        is behind nowhere.
        """
        assert self.layout is other.layout, f"{self} and {other} are of different versions"
        behind = ahead = False
        for mine, theirs in overlapping_cells(self.cells, other.cells):
            left, right = mine.age, theirs.age
            behind |= left < right
            ahead |= left > right
        if not behind:
            return Order.EQUAL_OR_AFTER
        return Order.OVERLAPS if ahead else Order.BEFORE

    def is_at_or_after(self, other: LocatedCut) -> bool:
        """Return True if this cut is behind the other one nowhere (Pravega's equalOrAfter)."""
        return self.compare(other) is Order.EQUAL_OR_AFTER

    def canonical(self) -> LocatedCut:
        """Return the same position in the one form that it has in this version.

        Successors replace finished segments, also empty sealed ones. The form keeps reached
        segments with offsets; END for a finished segment while a successor of it waits
        for another predecessor, and NOT_REACHED for that successor; END at the end of a sealed
        stream.
        """
        frontier = Frontier(self)
        frontier.advance()
        return reached(frontier)

    def clipped_to_head(self) -> tuple[LocatedCut, tuple[SegmentRange, ...]]:
        """Return the cut, raised to the head where it is below, and the ranges that were lost.

        A cut that is nowhere below the head is returned as it is. Lost are the events between the
        cut and the result, also those of segments that the stream's history alone remembers: for a
        cut of a forgotten segment this reads the history, once for a version. A segment that it
        does not know counts as lost from the cut's offset, or from ``END``, by an unknown number:
        such a range is empty.
        """
        clipped = self.above_head()
        if clipped is self:
            return self, ()
        known = self._remembered()
        if known is not None:
            return clipped, tuple(known._ranges_up_to(_located(known.lineage, clipped.cut)))
        layout = self.layout
        unknown = (
            SegmentRange(
                layout.stream, life=layout.life, segment_id=segment_id, start=offset, end=offset
            )
            for segment_id in self.forgotten
            if (offset := self.cut.positions[segment_id]) != NOT_REACHED
        )
        return clipped, (*unknown, *self._ranges_up_to(clipped))

    def above_head(self) -> LocatedCut:
        """Return the cut, raised to the head where it is below; itself if it is nowhere below."""
        head = _located(self.lineage, self.layout.head)
        if not self.forgotten and self.is_at_or_after(head):
            return self
        frontier = Frontier(self, head)
        frontier.advance()
        return reached(frontier)

    def _remembered(self) -> LocatedCut | None:
        """Return the cut in a layout that has all of its segments; None if the history lacks some.

        A cut at which the history has no such position is as good as forgotten, too.
        """
        if not self.forgotten:
            return self
        layout = self.layout.since(min(map(segment_epoch, self.forgotten)))
        try:
            return None if layout is None else _located(layout.lineage, self.cut)
        except InvalidStreamCut:
            return None

    def raised_to_head(self) -> LocatedCut:
        """Return the cut in canonical form, at the head where it is below."""
        return self.above_head().canonical()

    def has_lost(self) -> bool:
        """Return True if events after the cut are deleted, or may be (of a forgotten segment)."""
        return bool(self.clipped_to_head()[1])

    def readable(self) -> LocatedCut:
        """Return the cut, moved to the head if that loses nothing; else raise TruncatedData."""
        clipped, lost = self.clipped_to_head()
        if lost:
            raise TruncatedData(
                f"cut of {self.cut.stream} begins below the head: {lost_text(self.layout, lost)}; "
                f"continue from the head, {clipped}",
                head=clipped.cut,
                lost=lost,
            )
        return clipped

    def segments_to(self, end: LocatedCut) -> list[Segment]:
        """Return every segment that is not before this cut and not after ``end`` on its keys.

        The segments of both cuts are included, future ones of ``end`` are not; predecessors come
        before their successors. Raises InvalidStreamCut if ``end`` is behind this cut anywhere,
        and TruncatedData if this cut names a segment without a record and lost events of it.
        """
        start, end = self._readable_to(end)
        return start._segments_up_to(end)

    def ranges_to(self, end: LocatedCut) -> list[SegmentRange]:
        """Return the events between two cuts as ranges, predecessors before their successors.

        Empty ranges are left out. For a step of ``read_plan.next_step`` these are its ranges.
        Raises as :meth:`segments_to` does; ranges below the head are returned like any other.
        """
        start, end = self._readable_to(end)
        return start._ranges_up_to(end)

    def events_to(self, end: LocatedCut) -> int:
        """Return the number of events between two cuts."""
        return sum(map(len, self.ranges_to(end)))

    def bytes_to(self, end: LocatedCut, bytes_at: Callable[[int, int], int]) -> int:
        """Return the bytes of the events between two cuts.

        ``bytes_at(segment_id, offset)`` returns the bytes of a segment before an offset, counted
        from the segment's creation; it is called only for offsets inside a segment.
        """
        layout = self.layout

        def at(segment_id: int, offset: int) -> int:
            if offset == 0:
                return 0
            record = layout.segment(segment_id)
            at_end = offset == record.next_offset
            return record.size_bytes if at_end else bytes_at(segment_id, offset)

        return sum(at(r.segment_id, r.end) - at(r.segment_id, r.start) for r in self.ranges_to(end))

    def _readable_to(self, end: LocatedCut) -> tuple[LocatedCut, LocatedCut]:
        """Return this cut and the end; both at the head, if this one names forgotten segments."""
        if not end.is_at_or_after(self):
            raise InvalidStreamCut(
                f"cut {end} is behind {self}, at least in part; give the earlier one first."
            )
        return (self.readable(), end.above_head()) if self.forgotten else (self, end)

    def _segments_up_to(self, end: LocatedCut) -> list[Segment]:
        """Walk from this cut's segments forward as far as ``end`` is; in the order of ids."""
        found = {cell.segment for cell in self.cells if end.offset_in(cell.segment) != NOT_REACHED}
        todo = list(found)
        while todo:
            segment = todo.pop()
            if end.offset_in(segment) != END:
                continue
            for successor in self.lineage.successors(segment):
                new = successor not in found and self.offset_in(successor) == NOT_REACHED
                if new and end.offset_in(successor) != NOT_REACHED:
                    found.add(successor)
                    todo.append(successor)
        return sorted(found, key=lambda segment: segment.segment_id)

    def _ranges_up_to(self, end: LocatedCut) -> list[SegmentRange]:
        layout = self.layout
        return [
            SegmentRange(
                layout.stream,
                life=layout.life,
                segment_id=segment.segment_id,
                start=first,
                end=last,
            )
            for segment in self._segments_up_to(end)
            if (first := self._event_offset(segment)) < (last := end._event_offset(segment))
        ]

    def _event_offset(self, segment: Segment) -> int:
        """Return how far the segment is read as an offset of events."""
        offset = self.offset_in(segment)
        return self.lineage.end(segment) if offset == END else max(offset, 0)


def locate(layout: Layout, cut: StreamCut | str) -> LocatedCut:
    """Return a cut, or its text, proved and located; EARLIEST is the head, LATEST the tail.

    Raises InvalidStreamCut, with the reason, if the cut is not a consistent position of this
    stream. The lineage remembers the cuts that were located last.
    """
    cut = StreamCut.of(cut)
    if cut == StreamCut.LATEST:
        return _consistent(layout.lineage, tail(layout))
    return _located(layout.lineage, cut if cut.is_bound else layout.head)


def _located(lineage: Lineage, cut: StreamCut) -> LocatedCut:
    known: LocatedCut | None = lineage.located.get(cut)
    return _remember(LocatedCut(lineage, cut, *validate(lineage, cut))) if known is None else known


def reached(frontier: Frontier) -> LocatedCut:
    """Return the cut of a frontier that was moved by consistent offsets only; it needs no proof."""
    return _consistent(frontier.lineage, frontier.cut())


def _consistent(lineage: Lineage, cut: StreamCut) -> LocatedCut:
    known: LocatedCut | None = lineage.located.get(cut)
    return _remember(LocatedCut(lineage, cut)) if known is None else known


def _remember(located: LocatedCut) -> LocatedCut:
    remembered = located.lineage.located
    if len(remembered) >= _REMEMBERED:
        remembered.clear()
    remembered[located.cut] = located
    return located


def tail(layout: Layout) -> StreamCut:
    """Return the cut after the last event; of a sealed stream it is END everywhere."""
    lineage = layout.lineage
    positions = {
        s.segment_id: END if lineage.is_sealed(s) else lineage.end(s)
        for s in layout.active.segments
    }
    return StreamCut(layout.stream, layout.life, positions)


def lost_text(layout: Layout, lost: Iterable[SegmentRange]) -> str:
    """Return the lost ranges, and the author and time of the truncation, as text."""
    return f"{ranges_text(lost)} was truncated{layout.truncated_by}"


def ranges_text(ranges: Iterable[SegmentRange]) -> str:
    """Return ranges as text; an empty range has an unknown end."""
    return short_list(map(_range_text, ranges))


def _range_text(rng: SegmentRange) -> str:
    start = "its end" if rng.start == END else rng.start
    count = f"[{rng.start}, {rng.end})" if len(rng) else f"from {start}"
    return f"segment {segment_text(rng.segment_id)} {count}"
