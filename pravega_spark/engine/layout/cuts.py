"""Stream cuts: which are valid, which is earlier, what lies between two. Pure, no I/O.

Every function takes ``StreamCut.EARLIEST`` (the head) and ``StreamCut.LATEST`` (the tail), and
raises InvalidStreamCut for a cut that is no place of this stream. Order is by the age of the
segments first and by offset in a segment second, as Pravega has it: a cut at the end of a sealed
segment is before the cut at the start of its successors, though no event lies between them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

from pravega_spark.engine.layout.epochs import Layout, Lineage, few
from pravega_spark.engine.layout.located_cut import Frontier, LocatedCut, locate, together
from pravega_spark.errors import InvalidInput, InvalidStreamCut, TruncatedData
from pravega_spark.model import END, NOT_REACHED, Segment, SegmentRange, StreamCut, segment_text


class Order(enum.Enum):
    """How a cut lies to another one."""

    BEFORE = "before"
    OVERLAPS = "overlaps"
    EQUAL_OR_AFTER = "equal or after"


def tail(layout: Layout) -> StreamCut:
    """Return the cut after the last event; of a sealed stream it is END everywhere."""
    lineage = layout.lineage
    positions = {
        s.segment_id: END if lineage.is_sealed(s) else lineage.end(s)
        for s in layout.active.segments
    }
    return StreamCut(layout.stream, layout.life, positions)


def check(layout: Layout, cut: StreamCut) -> None:
    """Raise InvalidStreamCut unless the cut is a place of this stream.

    Valid is a cut of this stream and life, of known segments, with offsets up to their ends,
    that covers every key exactly once and passes no segment on a part of its keys only: never a
    segment and a successor of it both to be read, no gap, at least one segment reached. ``END``
    needs a sealed segment, ``NOT_REACHED`` an unfinished predecessor. (Pravega's rule for
    truncation and subscribers, done right also for gaps at the low end and pending merges.) A
    segment that has no record any more is below the head, which is allowed.
    """
    locate(layout.lineage, _bound(layout, cut))


def resolve(layout: Layout, cut: StreamCut | str) -> StreamCut:
    """Return the cut or its text, checked, with EARLIEST and LATEST replaced by head and tail."""
    bound = _bound(layout, StreamCut.of(cut))
    locate(layout.lineage, bound)
    return bound


def canonical(layout: Layout, cut: StreamCut) -> StreamCut:
    """Return the same place in the one form it has in this layout.

    Finished segments make way for their successors, empty sealed ones too. What stays: reached
    segments with offsets; END for a finished segment while a successor of it waits for another
    predecessor, and NOT_REACHED for that successor; END at the end of a sealed stream.
    """
    lineage = layout.lineage
    frontier = Frontier(lineage, locate(lineage, _bound(layout, cut)))
    frontier.advance()
    return frontier.cut()


def compare(layout: Layout, a: StreamCut, b: StreamCut) -> Order:
    """Tell where ``a`` lies seen from ``b`` (Pravega's three-valued compare).

    BEFORE if it is behind somewhere and ahead nowhere, OVERLAPS if both, EQUAL_OR_AFTER if it is
    behind nowhere.
    """
    lineage = layout.lineage
    return order(locate(lineage, _bound(layout, a)), locate(lineage, _bound(layout, b)))


def equal_or_after(layout: Layout, a: StreamCut, b: StreamCut) -> bool:
    """Tell whether ``a`` is behind ``b`` nowhere (Pravega's strict equalOrAfter)."""
    return compare(layout, a, b) is Order.EQUAL_OR_AFTER


def span(layout: Layout, cut: StreamCut) -> dict[int, int]:
    """Return for each segment the latest epoch that has it, up to the newest of the cut's own.

    (Pravega's span.) Segments without a record are left out.
    """
    lineage = layout.lineage
    cut = locate(lineage, _bound(layout, cut)).cut
    known = [lineage.find(s) for s, _ in cut if layout.has_segment(s)]
    newest = max((s.epoch for s in known), default=layout.oldest_epoch)
    return {s.segment_id: min(lineage.until(s) - 1, newest) for s in known}


def segments_between(layout: Layout, a: StreamCut, b: StreamCut) -> list[Segment]:
    """Return every segment that is not before ``a`` and not after ``b`` on its keys.

    The segments of both cuts are included, future ones of ``b`` are not; predecessors come
    before their successors. Raises InvalidStreamCut if ``b`` is behind ``a`` anywhere, and
    TruncatedData if ``a`` names a segment that has no record any more.
    """
    return _walk(*_pair(layout, a, b))


def ranges_between(layout: Layout, a: StreamCut, b: StreamCut) -> list[SegmentRange]:
    """Return what lies between two cuts, in events, predecessors before their successors.

    Empty ranges are left out. For a step of ``plan.step`` these are exactly its ranges. Raises
    as :func:`segments_between` does; ranges below the head are returned like any other.
    """
    return _ranges(*_pair(layout, a, b))


def distance_events(layout: Layout, a: StreamCut, b: StreamCut) -> int:
    """Return the number of events between two cuts."""
    return sum(map(len, ranges_between(layout, a, b)))


def distance_bytes(
    layout: Layout, a: StreamCut, b: StreamCut, bytes_at: Callable[[int, int], int]
) -> int:
    """Return the bytes of the events between two cuts.

    ``bytes_at(segment_id, offset)`` gives the bytes of a segment before an offset, counted from
    the segment's creation; it is asked only where the segment's record does not tell.
    """

    def at(segment_id: int, offset: int) -> int:
        if offset == 0:
            return 0
        record = layout.segment(segment_id)
        return record.size_bytes if offset == record.next_offset else bytes_at(segment_id, offset)

    return sum(
        at(r.segment_id, r.end) - at(r.segment_id, r.start) for r in ranges_between(layout, a, b)
    )


def clip_to_head(layout: Layout, cut: StreamCut) -> tuple[StreamCut, tuple[SegmentRange, ...]]:
    """Bring a cut up to the head where it is below; return it and what was lost.

    An unharmed cut comes back as it is. Lost are the events between the cut and the result. A
    segment without a record, not read to its end, is lost from its offset by an unknown number:
    its range is empty. Readers raise TruncatedData once if anything was lost, and go on.
    """
    lineage = layout.lineage
    return _clip(lineage, locate(lineage, _bound(layout, cut)))


def has_lost(layout: Layout, cut: StreamCut) -> bool:
    """Tell whether events after a cut are gone, or may be: of a segment that is forgotten."""
    return bool(clip_to_head(layout, cut)[1])


def from_head(lineage: Lineage, cut: StreamCut) -> LocatedCut:
    """Return the place of a cut that lost nothing; raise TruncatedData if events of it are gone."""
    here = locate(lineage, _bound(lineage.layout, cut))
    clipped, lost = _clip(lineage, here)
    if lost:
        raise TruncatedData(
            f"cut of {cut.stream} begins below the head: {lost_text(lineage.layout, lost)}; go on "
            f"at the head, {clipped}",
            head=clipped,
            lost=lost,
        )
    return here if clipped is here.cut else locate(lineage, clipped)


def next_cut(layout: Layout, cut: StreamCut, approx_events: int) -> StreamCut:
    """Return a cut about so many events on (Pravega's getNextStreamCut, in events).

    Each segment moves by an equal part, at least 1 event, up to its end. Never jumps over a
    scale: a sealed segment is first returned at its end, and by the next call replaced by its
    successors, which share its part, or take the parts of all of theirs. Without new events
    the cut comes back the same. Raises TruncatedData below the head.
    """
    if approx_events < 1:
        raise InvalidInput(f"approx_events must be at least 1, got {approx_events}.")
    lineage = layout.lineage
    frontier = Frontier(lineage, from_head(lineage, cut))
    part = max(1, approx_events // len(frontier.at))
    finished = [s for s in map(lineage.find, list(frontier.at)) if frontier.is_finished(s)]
    before = dict(frontier.at)
    frontier.at.update((s.segment_id, END) for s in finished)
    entered = {s for segment in finished for s in frontier.ready(segment)}
    for segment in finished:
        if not entered.intersection(lineage.successors(segment)):
            frontier.at[segment.segment_id] = before[segment.segment_id]
    for segment, offset in frontier.open():
        frontier.at[segment.segment_id] = min(lineage.end(segment), offset + part)
    for segment in entered:
        shares = (1 / len(lineage.successors(s)) for s in lineage.predecessors(segment))
        frontier.at[segment.segment_id] = min(
            lineage.end(segment), max(1, round(part * sum(shares)))
        )
    return frontier.cut()


def _bound(layout: Layout, cut: StreamCut) -> StreamCut:
    if cut.is_bound:
        return cut
    return layout.head if cut == StreamCut.EARLIEST else tail(layout)


def order(a: LocatedCut, b: LocatedCut) -> Order:
    """Do what :func:`compare` does, with places that were located before."""
    behind = ahead = False
    for mine, other in together(a, b):
        left, right = mine.age, other.age
        behind |= left < right
        ahead |= left > right
    if not behind:
        return Order.EQUAL_OR_AFTER
    return Order.OVERLAPS if ahead else Order.BEFORE


def _clip(lineage: Lineage, here: LocatedCut) -> tuple[StreamCut, tuple[SegmentRange, ...]]:
    layout = lineage.layout
    head = locate(lineage, layout.head)
    if not here.forgotten and order(here, head) is Order.EQUAL_OR_AFTER:
        return here.cut, ()
    frontier = Frontier(lineage, here, head)
    frontier.advance()
    clipped = frontier.cut()
    unknown = (
        SegmentRange(layout.stream, layout.life, segment_id, offset, offset)
        for segment_id in here.forgotten
        if (offset := here.cut.positions[segment_id]) >= 0
    )
    return clipped, (*unknown, *_ranges(lineage, here, locate(lineage, clipped)))


def _pair(layout: Layout, a: StreamCut, b: StreamCut) -> tuple[Lineage, LocatedCut, LocatedCut]:
    lineage = layout.lineage
    start, end = locate(lineage, _bound(layout, a)), locate(lineage, _bound(layout, b))
    if start.forgotten:
        start = from_head(lineage, start.cut)
    if order(end, start) is not Order.EQUAL_OR_AFTER:
        raise InvalidStreamCut(
            f"cut {end.cut} is behind {start.cut}, at least in part; give the earlier one first."
        )
    return lineage, start, end


def _walk(lineage: Lineage, a: LocatedCut, b: LocatedCut) -> list[Segment]:
    """Go from the segments of ``a`` forward, as far as ``b`` has come; in the order of ids."""
    found = {cell.segment for cell in a.cells if b.of(cell.segment) != NOT_REACHED}
    todo = list(found)
    while todo:
        segment = todo.pop()
        if b.of(segment) != END:
            continue
        for successor in lineage.successors(segment):
            new = successor not in found and a.of(successor) == NOT_REACHED
            if new and b.of(successor) != NOT_REACHED:
                found.add(successor)
                todo.append(successor)
    return sorted(found, key=lambda segment: segment.segment_id)


def _ranges(lineage: Lineage, a: LocatedCut, b: LocatedCut) -> list[SegmentRange]:
    def offset(place: LocatedCut, segment: Segment) -> int:
        mark = place.of(segment)
        return lineage.end(segment) if mark == END else max(mark, 0)

    layout = lineage.layout
    return [
        SegmentRange(layout.stream, layout.life, segment.segment_id, start, end)
        for segment in _walk(lineage, a, b)
        if (start := offset(a, segment)) < (end := offset(b, segment))
    ]


def lost_text(layout: Layout, lost: Iterable[SegmentRange]) -> str:
    """Return what was lost, who truncated it and when, in words."""
    return f"{ranges_text(lost)} was truncated{layout.truncated_by}"


def ranges_text(ranges: Iterable[SegmentRange]) -> str:
    """Return ranges in words; one without an end that is known goes on from its start."""
    return few(map(_lost, ranges))


def _lost(lost: SegmentRange) -> str:
    count = f"[{lost.start}, {lost.end})" if len(lost) else f"from {lost.start}"
    return f"segment {segment_text(lost.segment_id)} {count}"
