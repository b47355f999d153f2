"""What to read next: one round of reading after another, between two cuts. Pure, no I/O.

The ranges of one round belong to different segments, and none precedes another, so they may be
read in parallel; a successor is in a round only after all its predecessors were read to their ends
in earlier rounds. The plain reader and Spark's streaming source share this rule; the latter takes
several small rounds at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, reached
from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import check_whole
from pravega_spark.values.segments import END, NOT_REACHED, SegmentRange, StreamCut


@dataclass(frozen=True, slots=True)
class ReadStep:
    """One round: the ranges to read, the cut after them, and whether that reaches the target."""

    ranges: tuple[SegmentRange, ...]
    end: LocatedCut
    done: bool


def next_step(
    start: LocatedCut,
    target: LocatedCut,
    *,
    max_events: int | None = None,
    max_bytes: int | None = None,
    events_within: Callable[[int, int, int], int] | None = None,
) -> ReadStep:
    """Plan one round of reading from ``start`` towards ``target``.

    A segment of the target is read up to its offset there, an earlier one to its end, a later one
    not at all. ``max_events`` is shared over the segments that have any by their backlog, at least
    1 each (Kafka's rule), and exceeded only for that. ``max_bytes`` is shared likewise and is
    soft: ``events_within(segment_id, start, max_bytes)`` returns the offset up to which the bytes
    suffice, and at least 1 event is read. If both are given, the smaller counts.

    ``end`` is canonical, except that a finished segment which the target itself names with an
    offset is not replaced by its successors; once nothing remains, ``end`` is the target, letter
    for letter. So steps from any cut at or before the target arrive at the target. Where the start
    is ahead of the target nothing is read, and it stays. If ``end`` is the same cut as ``start``
    there is nothing to do until the target moves.

    Raises TruncatedData if the start lies below the head; InvalidInput for a limit below 1 or
    ``max_bytes`` without ``events_within``.
    """
    _check_limits(max_events, max_bytes, events_within)
    here = start.readable()
    frontier, advance = _begin(here, target)
    ranges = _backlog(frontier, target)
    if max_events is not None:
        ranges = _limit_events(ranges, max_events)
    if max_bytes is not None and events_within is not None:
        ranges = _limit_bytes(ranges, max_bytes, events_within)
    frontier.offsets.update((r.segment_id, r.end) for r in ranges)
    advance()
    done = _has_reached(frontier, target)
    ends_at_target = done and target.is_at_or_after(here)
    return ReadStep(tuple(ranges), target if ends_at_target else reached(frontier), done)


def next_steps(
    start: LocatedCut,
    target: LocatedCut,
    weight: Callable[[SegmentRange], float],
    **limits: Any,
) -> ReadStep:
    """Plan the next round, and those behind it while the weights of all ranges are at most 1.

    So scales at which few events were written need no round each. A successor's range then follows
    those of its predecessors: they overlap in their keys, and are read in this order. ``limits``
    are those of :func:`next_step`, for the first round.
    """
    step = next_step(start, target, **limits)
    ranges, total = [*step.ranges], sum(map(weight, step.ranges))
    while not step.done and total <= 1:
        following = next_step(step.end, target)
        total += sum(map(weight, following.ranges))
        if not following.ranges or total > 1:
            break
        step = following
        ranges += step.ranges
    return replace(step, ranges=tuple(ranges))


def within(start: LocatedCut, target: LocatedCut, read: Mapping[int, int]) -> StreamCut:
    """Return the cut in the middle of the round that :func:`next_step` plans, to resume from.

    ``read`` holds the offset up to which each of its segments was read; a segment without one is
    where the round begins. A step from that cut to the same target reads the rest.
    """
    frontier, advance = _begin(start.readable(), target)
    frontier.offsets.update(read)
    advance()
    return frontier.cut()


def next_cut(start: LocatedCut, approx_events: int) -> LocatedCut:
    """Return a cut about ``approx_events`` later (Pravega's getNextStreamCut, in events).

    Each segment moves by an equal part, at least 1 event, up to its end. Never jumps over a
    scale: a sealed segment is first returned at its end, and by the next call replaced by its
    successors, which share its part, or get the parts of all of their predecessors. Without new
    events the same cut is returned. Raises TruncatedData below the head.
    """
    check_whole("approx_events", approx_events, 1)
    lineage = start.lineage
    frontier = Frontier(start.readable())
    part = max(1, approx_events // len(frontier.offsets))
    finished = [s for s in map(lineage.find, list(frontier.offsets)) if frontier.is_finished(s)]
    before = dict(frontier.offsets)
    frontier.offsets.update((s.segment_id, END) for s in finished)
    entered = {s for segment in finished for s in frontier.ready_successors(segment)}
    for segment in finished:
        if not entered.intersection(lineage.successors(segment)):
            frontier.offsets[segment.segment_id] = before[segment.segment_id]
    for segment, offset in frontier.open_segments():
        frontier.offsets[segment.segment_id] = min(lineage.end(segment), offset + part)
    for segment in entered:
        shares = (1 / len(lineage.successors(s)) for s in lineage.predecessors(segment))
        frontier.offsets[segment.segment_id] = min(
            lineage.end(segment), max(1, round(part * sum(shares)))
        )
    return reached(frontier)


def cut_at(start: LocatedCut, offsets: Callable[[int], int | None]) -> LocatedCut:
    """Return the consistent cut that independent offsets of segments make, such as one of a time.

    From ``start`` on, ``offsets(segment_id)`` is called for each segment that is reached, and
    returns its first event after the cut; None means that all of its events are. A segment is left
    for its successors only if it is sealed and its offset is its end, so where one is not finished
    its successors lie after the cut, at any event time. Offsets are clipped to
    the segment's events, to ``start`` and to the head. To search for a late time, start at the cut
    of its epoch (``cut_of_epoch``) instead of walking all epochs from the head.
    """
    lineage = start.lineage
    frontier = Frontier(start.above_head())

    def begin(segment_id: int, end: int, least: int) -> int:
        offset = offsets(segment_id)
        return least if offset is None else max(least, min(offset, end))

    for segment, offset in frontier.open_segments():
        segment_id = segment.segment_id
        frontier.offsets[segment_id] = begin(segment_id, lineage.end(segment), offset)
    frontier.advance(begin=lambda s: begin(s.segment_id, lineage.end(s), 0))
    return reached(frontier)


def cut_of_epoch(layout: Layout, number: int) -> StreamCut:
    """Return the cut with each segment of an epoch at 0, also those of earlier epochs.

    ``cut_at`` moves it to a later time. It is not clipped to the head.
    """
    positions = dict.fromkeys(layout.epoch(number).segment_ids, 0)
    return StreamCut(layout.stream, layout.life, positions)


def share(backlog: Mapping[int, int], limit: int) -> dict[int, int]:
    """Divide ``limit`` over the keys in proportion to their backlogs (all above 0).

    Each gets at least 1 and at most its backlog. The parts sum up to the limit, unless the
    backlog is smaller than that or has more keys. Integer arithmetic, and ties decided by key, make
    the result the same on every machine.
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


def _begin(here: LocatedCut, there: LocatedCut) -> tuple[Frontier, Callable[[], None]]:
    """Return the frontier at the beginning of a round, and a call that advances it.

    A segment that ``here`` calls ended, and the target names with its last offset, is at the same
    position in both. It takes the target's form: otherwise, with a predecessor that only the target
    calls ended, it would let a successor be entered that the target has not reached.
    """
    frontier = Frontier(here)
    for segment_id, offset in list(frontier.offsets.items()):
        segment = frontier.lineage.find(segment_id)
        if offset != END or there.offset_in(segment) in (END, NOT_REACHED):
            continue
        if not any(frontier.is_entered(after) for after in frontier.lineage.successors(segment)):
            frontier.offsets[segment_id] = frontier.lineage.end(segment)

    def advance() -> None:
        frontier.advance(may_pass=lambda segment: there.offset_in(segment) in (END, NOT_REACHED))

    advance()
    return frontier, advance


def _check_limits(max_events: int | None, max_bytes: int | None, events_within: object) -> None:
    for name, limit in (("max_events", max_events), ("max_bytes", max_bytes)):
        if limit is not None and limit < 1:
            raise InvalidInput(f"{name} must be at least 1, got {limit}.")
    if max_bytes is not None and events_within is None:
        raise InvalidInput("max_bytes needs events_within, which converts bytes to offsets.")


def _backlog(frontier: Frontier, there: LocatedCut) -> list[SegmentRange]:
    """Return the events of each segment of the frontier before the target, by id."""
    layout = there.layout
    ranges = []
    for segment, offset in frontier.open_segments():
        goal = there.offset_in(segment)
        end = frontier.lineage.end(segment) if goal == END else goal
        if end > offset:
            ranges.append(
                SegmentRange(
                    layout.stream,
                    life=layout.life,
                    segment_id=segment.segment_id,
                    start=offset,
                    end=end,
                )
            )
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
    """Return True if every event before the target is before the frontier."""
    offsets = ((cell, frontier.offset_in(cell.segment)) for cell in there.cells)
    return all(offset == END or offset >= cell.offset for cell, offset in offsets)
