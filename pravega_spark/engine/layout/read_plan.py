"""What to read next: one round of reading after another, between two cuts. Pure, no I/O.

The ranges of one round are of different segments, and none precedes another, so they may be
read in parallel; a successor is in a round only when all its predecessors were read to their
ends in rounds before. One rule for the plain reader and for Spark's streaming source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pravega_spark.engine.layout.cuts import Order, clip_to_head, from_head, order, resolve
from pravega_spark.engine.layout.epochs import Layout, Lineage
from pravega_spark.engine.layout.located_cut import Frontier, LocatedCut, locate
from pravega_spark.errors import InvalidInput
from pravega_spark.model import END, NOT_REACHED, SegmentRange, StreamCut


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One round: what to read, the cut after it, and whether the target is reached."""

    ranges: tuple[SegmentRange, ...]
    end: StreamCut
    done: bool


def next_step(
    layout: Layout,
    cut: StreamCut,
    target: StreamCut,
    *,
    max_events: int | None = None,
    max_bytes: int | None = None,
    events_within: Callable[[int, int, int], int] | None = None,
) -> ReadStep:
    """Plan one round of reading from ``cut`` towards ``target``.

    A segment of the target is read up to its offset there, an earlier one to its end, a later
    one not at all. ``max_events`` is shared over the segments that have any by their backlog,
    at least 1 each (Kafka's rule), and exceeded only for that. ``max_bytes`` is shared likewise
    and is soft: ``events_within(segment_id, start, max_bytes)`` returns the offset up to which
    the bytes suffice, and at least 1 event is read. Both together: the smaller counts.

    ``end`` is canonical in this layout (see ``cuts.canonical``), except that a finished segment
    which the target itself names with an offset is not exchanged for its successors; once
    nothing is left, ``end`` is the target, letter for letter. So steps from any cut at or
    before the target arrive at the target. Where the cut is ahead of the target nothing is
    read, and it stays. ``end == cut`` means that there is nothing to do until the target moves.

    Raises InvalidStreamCut; TruncatedData if the cut begins below the head; InvalidInput for a
    limit below 1 or ``max_bytes`` without ``events_within``.
    """
    _check_limits(max_events, max_bytes, events_within)
    lineage = layout.lineage
    here, there = from_head(lineage, cut), locate(lineage, resolve(layout, target))
    frontier, advance = _begin(lineage, here, there)
    ranges = _backlog(lineage, frontier, there)
    if max_events is not None:
        ranges = _limit_events(ranges, max_events)
    if max_bytes is not None and events_within is not None:
        ranges = _limit_bytes(ranges, max_bytes, events_within)
    frontier.at.update((r.segment_id, r.end) for r in ranges)
    advance()
    done = _has_reached(frontier, there)
    snaps = done and order(there, here) is Order.EQUAL_OR_AFTER
    return ReadStep(tuple(ranges), there.cut if snaps else frontier.cut(), done)


def within(layout: Layout, cut: StreamCut, target: StreamCut, read: Mapping[int, int]) -> StreamCut:
    """Return the cut in the middle of the round that :func:`step` plans, to go on from.

    ``read`` holds the offset up to which each of its segments was read; another is where the
    round begins. A step from there to the same target reads the rest.
    """
    lineage = layout.lineage
    frontier, advance = _begin(
        lineage, from_head(lineage, cut), locate(lineage, resolve(layout, target))
    )
    frontier.at.update(read)
    advance()
    return frontier.cut()


def cut_at(
    layout: Layout,
    offsets: Callable[[int], int | None],
    start: StreamCut = StreamCut.EARLIEST,
) -> StreamCut:
    """Return the consistent cut that independent offsets of segments make, such as one of a time.

    From ``start`` on, ``offsets(segment_id)`` is asked for each segment that is reached, and
    gives its first event after the cut; None means that all of its events are. A segment is
    left for its successors only if it is sealed and its offset is its end, so where one is not
    finished its successors lie after the cut, whatever their own events say. Offsets are
    clipped to what the segment has, to ``start`` and to the head. To look at a late time, start
    at the cut of its epoch (``cut_of_epoch``) instead of walking all epochs from the head.
    """
    lineage = layout.lineage
    frontier = Frontier(lineage, locate(lineage, clip_to_head(layout, start)[0]))

    def begin(segment_id: int, end: int, least: int) -> int:
        offset = offsets(segment_id)
        return least if offset is None else max(least, min(offset, end))

    for segment, offset in frontier.open():
        frontier.at[segment.segment_id] = begin(segment.segment_id, lineage.end(segment), offset)
    frontier.advance(begin=lambda s: begin(s.segment_id, lineage.end(s), 0))
    return frontier.cut()


def cut_of_epoch(layout: Layout, number: int) -> StreamCut:
    """Return the cut that has each segment of an epoch at 0, old ones of it too.

    Where a later time is meant, ``cut_at`` moves it on. It is not clipped to the head.
    """
    positions = dict.fromkeys(layout.epoch(number).segment_ids, 0)
    return StreamCut(layout.stream, layout.life, positions)


def share(backlog: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide ``limit`` over the keys in proportion to their backlogs (all above 0).

    Each gets at least 1 and at most its backlog. The parts sum up to the limit, unless the
    backlog is smaller than that or has more keys. Whole numbers only, and ties go by key, so
    that the same question has the same answer everywhere.
    """
    total = sum(backlog.values())
    if limit >= total:
        return dict(backlog)
    if limit <= len(backlog):
        return dict.fromkeys(backlog, 1)
    room, rest = limit - len(backlog), total - len(backlog)
    parts = {key: 1 + (size - 1) * room // rest for key, size in backlog.items()}
    remainders = sorted(backlog, key=lambda key: (-((backlog[key] - 1) * room % rest), key))
    for key in remainders[: limit - sum(parts.values())]:
        parts[key] += 1
    return parts


def _begin(
    lineage: Lineage, here: LocatedCut, there: LocatedCut
) -> tuple[Frontier, Callable[[], None]]:
    """Return the frontier at the beginning of a round, and what moves it on while it may."""
    frontier = Frontier(lineage, here)

    def advance() -> None:
        frontier.advance(may_pass=lambda segment: there.of(segment) in (END, NOT_REACHED))

    advance()
    return frontier, advance


def _check_limits(max_events: int | None, max_bytes: int | None, events_within: object) -> None:
    for name, limit in (("max_events", max_events), ("max_bytes", max_bytes)):
        if limit is not None and limit < 1:
            raise InvalidInput(f"{name} must be at least 1, got {limit}.")
    if max_bytes is not None and events_within is None:
        raise InvalidInput("max_bytes needs events_within, which turns bytes into offsets.")


def _backlog(lineage: Lineage, frontier: Frontier, there: LocatedCut) -> list[SegmentRange]:
    """Return what each segment of the frontier has before the target, in the order of ids."""
    layout = lineage.layout
    ranges = []
    for segment, offset in frontier.open():
        mark = there.of(segment)
        end = lineage.end(segment) if mark == END else mark
        if end > offset:
            ranges.append(SegmentRange(layout.stream, layout.life, segment.segment_id, offset, end))
    return ranges


def _limit_events(ranges: list[SegmentRange], limit: int) -> list[SegmentRange]:
    parts = share({r.segment_id: len(r) for r in ranges}, limit)
    return [replace(r, end=r.start + parts[r.segment_id]) for r in ranges]


def _limit_bytes(
    ranges: list[SegmentRange], limit: int, events_within: Callable[[int, int, int], int]
) -> list[SegmentRange]:
    total = sum(map(len, ranges))
    limited = []
    for r in ranges:
        end = events_within(r.segment_id, r.start, max(1, limit * len(r) // total))
        limited.append(replace(r, end=min(r.end, max(r.start + 1, end))))
    return limited


def _has_reached(frontier: Frontier, there: LocatedCut) -> bool:
    """Tell whether every event before the target is before the frontier."""
    marks = ((cell, frontier.of(cell.segment)) for cell in there.cells)
    return all(mark == END or mark >= cell.offset for cell, mark in marks)
