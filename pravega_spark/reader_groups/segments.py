"""Transitions from segments to their successors: pure, over the layout of a stream's epochs.

A segment that was read to its end is replaced by its successors immediately. A successor whose
predecessors are all complete waits for a reader; a successor of a half-read merge is future. Empty
sealed segments are skipped. A group that the head has passed moves to the head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.errors import InvalidStreamCut, TruncatedData
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration, StreamCutRange
from pravega_spark.reader_groups.owners import Owners
from pravega_spark.reader_groups.state import Checkpoint, GroupState, Ownership, Phase, SegmentKey
from pravega_spark.values.limits import KEPT_FINISHED
from pravega_spark.values.segments import END, NOT_REACHED, Segment, SegmentRange, StreamCut


def begin(
    group: str,
    generation: int,
    configuration: ReaderGroupConfiguration,
    layouts: Mapping[str, Layout],
    *,
    starts: Mapping[str, StreamCut] | None = None,
    next_number: int = 1,
    phase: Phase = Phase.ACTIVE,
    last: Checkpoint | None = None,
) -> GroupState:
    """Return the first state of a generation, with every stream at its start cut.

    ``starts`` override the configured start cuts. Raises InvalidStreamCut for a cut of no stream
    of the group, or a start after its end; TruncatedData for a start whose segments have no record
    any more. Readers find and report a start that is below the head otherwise.
    """
    state = GroupState(
        group, generation, phase, configuration, {}, next_number=next_number, last_checkpoint=last
    )
    for stream, configured in configuration.streams.items():
        start = (starts or {}).get(stream, configured.start)
        state = begin_stream(state, layouts[stream], StreamCutRange(start, configured.end))
    return state


def begin_stream(state: GroupState, layout: Layout, cuts: StreamCutRange) -> GroupState:
    """Return the state with a stream that it does not have yet, at its start cut.

    Raises InvalidStreamCut and TruncatedData as :func:`begin` does.
    """
    stream = layout.stream
    start, end = _located(layout, cuts)
    state = replace(
        state,
        lives={**state.lives, stream: layout.life},
        ends=state.ends if end is None else {**state.ends, stream: end},
        began={**state.began, stream: state.generation},
        finished_since={**state.finished_since, stream: 0},
    )
    frontier = Frontier(start)
    _advance(state, stream, frontier, {})
    return with_frontier(state, stream, frontier)


def remove_streams(state: GroupState, streams: Collection[str]) -> GroupState:
    """Return the state without anything of these streams; none of them may have a reader."""
    last = state.last_checkpoint
    if last is not None:
        positions = {k: offset for k, offset in last.positions.items() if k.stream not in streams}
        last = replace(last, positions=positions)
    return replace(
        state,
        lives={s: life for s, life in state.lives.items() if s not in streams},
        ends={s: end for s, end in state.ends.items() if s not in streams},
        began={s: number for s, number in state.began.items() if s not in streams},
        unassigned={k: offset for k, offset in state.unassigned.items() if k.stream not in streams},
        future={k: missing for k, missing in state.future.items() if k.stream not in streams},
        completed={k: offset for k, offset in state.completed.items() if k.stream not in streams},
        last_checkpoint=last,
        finds={n: found for n, found in state.finds.items() if found.stream not in streams},
        owners={k: record for k, record in state.owners.items() if k.stream not in streams},
        finished_since={s: n for s, n in state.finished_since.items() if s not in streams},
    )


def _located(layout: Layout, given: StreamCutRange) -> tuple[LocatedCut, StreamCut | None]:
    start = locate(layout, given.start)
    if start.forgotten:
        clipped, lost = start.clipped_to_head()
        if lost:
            raise _truncated(start, clipped, lost)
        start = clipped
    if given.end is None:
        return start, None
    end = locate(layout, given.end)
    if not end.canonical().is_at_or_after(start.canonical()):
        raise InvalidStreamCut(f"the start {start} lies after the end {end}; exchange them.")
    return start, end.cut


def check_start(layout: Layout, cut: StreamCut | str) -> None:
    """Raise TruncatedData unless a stream still has all events after a cut."""
    start = locate(layout, cut)
    clipped, lost = start.clipped_to_head()
    if lost:
        raise _truncated(start, clipped, lost)


def _truncated(
    start: LocatedCut, clipped: LocatedCut, lost: tuple[SegmentRange, ...]
) -> TruncatedData:
    layout = start.layout
    return TruncatedData(
        f"start {start} lies below the head of {layout.stream}, which was "
        f"truncated{layout.truncated_by}: use {clipped}.",
        head=clipped.cut,
        lost=lost,
    )


class EndOffsets:
    """The offsets at which a group ends in a stream's segments, by its end cut."""

    __slots__ = ("_layout", "_limit")

    def __init__(self, state: GroupState, layout: Layout) -> None:
        """Locate the end cut in the layout, once for all segments."""
        end = state.ends.get(layout.stream)
        self._layout = layout
        self._limit = None if end is None else locate(layout, end)

    def of(self, segment_id: int) -> int | None:
        """Return the offset at which the group ends in a segment; None at the segment's end."""
        if self._limit is None or not self._layout.has_segment(segment_id):
            return None
        offset = self._limit.offset_in(self._layout.lineage.find(segment_id))
        return None if offset == END else max(offset, 0)


def complete(
    state: GroupState, layout: Layout, reader: str, number: int, done: Mapping[SegmentKey, int]
) -> GroupState:
    """Complete segments of one stream that their reader has read to their ends.

    ``done`` has the ownership numbers; segments that the reader does not own stay as they are. A
    segment ends at its own end or at the group's end cut. Raises ReinitializationRequired, and
    TruncatedData if the group is below the head: see :func:`move_to_head`.
    """
    state.reader_entry(reader, number)
    stream = layout.stream
    mine = {
        key: owned
        for key, owned in state.assigned.items()
        if key.stream == stream and (owned.reader, owned.number) == (reader, done.get(key))
    }
    if not mine:
        return state
    lineage = layout.lineage
    here = locate(layout, state.cut(stream))
    if here.forgotten:
        raise _behind_head(state, layout)
    ends, frontier, end_offsets = {}, Frontier(here), EndOffsets(state, layout)
    for key in mine:
        segment = lineage.find(key.segment_id)
        group_end = end_offsets.of(key.segment_id)
        assert group_end is not None or lineage.is_sealed(segment), f"{key} has not ended"
        ends[key] = lineage.end(segment) if group_end is None else group_end
        frontier.offsets[key.segment_id] = ends[key]
    state = transitions.record_release(state, reader, ends)
    assigned = {key: owned for key, owned in state.assigned.items() if key not in mine}
    state = replace(state, assigned=assigned)
    _advance(state, stream, frontier, state.assigned)
    return with_frontier(state, stream, frontier)


def move_to_head(state: GroupState, layout: Layout) -> tuple[GroupState, tuple[SegmentRange, ...]]:
    """Move a group that is below the head of a stream to it; return the lost ranges.

    These lie between the recorded cut and the head; a reader may have read some of them. Owners
    keep the segments that the head still has.
    """
    here = locate(layout, state.cut(layout.stream))
    clipped, lost = here.clipped_to_head()
    if clipped.cut == here.cut:
        return state, ()
    return _at_cut(state, clipped), lost


def move_to(state: GroupState, layout: Layout, cut: StreamCut) -> GroupState:
    """Move the group to a cut up to which a stream was read; ignore a cut that is not later.

    Owners keep the segments that the cut is in. Raises InvalidStreamCut for a cut of another
    stream.
    """
    here = locate(layout, state.cut(layout.stream)).raised_to_head()
    there = locate(layout, cut).raised_to_head()
    if there.cut == here.cut or not there.is_at_or_after(here):
        return state
    return _at_cut(state, there)


def _at_cut(state: GroupState, cut: LocatedCut) -> GroupState:
    """Return the state with a stream at a later cut; owners keep the segments that it is in."""
    stream = cut.layout.stream
    frontier = Frontier(cut)
    kept = {SegmentKey(stream, segment_id) for segment_id, offset in cut.cut if offset >= 0}
    passed = {k: o for k, o in state.assigned.items() if k.stream == stream and k not in kept}
    state = _revoke(state, passed)
    _advance(state, stream, frontier, state.assigned)
    return with_frontier(state, stream, frontier)


def _revoke(state: GroupState, revoked: Mapping[SegmentKey, Ownership]) -> GroupState:
    """Revoke segments from their readers, at the recorded offsets."""
    for reader in {owned.reader for owned in revoked.values()}:
        offsets = {k: o.offset for k, o in revoked.items() if o.reader == reader}
        state = transitions.record_release(state, reader, offsets)
    return replace(state, assigned={k: o for k, o in state.assigned.items() if k not in revoked})


def drop_stream(state: GroupState, stream: str) -> GroupState:
    """Return the state with a deleted stream completed at its recorded offsets."""
    revoked = {key: owned for key, owned in state.assigned.items() if key.stream == stream}
    left = {key: offset for key, offset in state.unassigned.items() if key.stream == stream}
    left |= {key: owned.offset for key, owned in revoked.items()}
    return replace(
        _revoke(state, revoked),
        unassigned={key: o for key, o in state.unassigned.items() if key.stream != stream},
        future={key: missing for key, missing in state.future.items() if key.stream != stream},
        completed={**state.completed, **left},
    )


def _behind_head(state: GroupState, layout: Layout) -> TruncatedData:
    return TruncatedData(
        f"reader group {state.group} is below the head of {layout.stream}, {layout.head}, "
        f"which was truncated{layout.truncated_by}, and continues at the head.",
        head=layout.head,
    )


def _advance(
    state: GroupState, stream: str, frontier: Frontier, assigned: Mapping[SegmentKey, Ownership]
) -> None:
    """Advance over finished segments, except where a reader has one or the end cut ends it."""
    end = state.ends.get(stream)
    limit = None if end is None else locate(frontier.lineage.layout, end)

    def may_pass(segment: Segment) -> bool:
        has_reader = SegmentKey(stream, segment.segment_id) in assigned
        return not has_reader and (limit is None or limit.offset_in(segment) == END)

    frontier.advance(may_pass)


def with_frontier(state: GroupState, stream: str, frontier: Frontier) -> GroupState:
    """Return the state with the segments of a stream as in the frontier.

    Segments keep their readers. New ones wait after those that already waited.
    """
    lineage, before = frontier.lineage, (*state.assigned, *state.unassigned)
    end = state.ends.get(stream)
    limit = None if end is None else locate(lineage.layout, end)
    assigned = {k: o for k, o in state.assigned.items() if k.stream != stream}
    future = {k: missing for k, missing in state.future.items() if k.stream != stream}
    completed = {k: o for k, o in state.completed.items() if k.stream != stream}
    waiting: dict[SegmentKey, int] = {}
    for segment_id, offset in frontier.cut():
        key, segment = SegmentKey(stream, segment_id), lineage.find(segment_id)
        group_end = END if limit is None else limit.offset_in(segment)
        if offset == NOT_REACHED:
            earlier = lineage.predecessors(segment)
            missing = {e.segment_id for e in earlier if frontier.offset_in(e) != END}
            if group_end != NOT_REACHED:
                future[key] = frozenset(missing)
        elif offset == END:
            completed[key] = END
        elif key in state.assigned:
            owned = state.assigned[key]
            assigned[key] = replace(owned, offset=max(owned.offset, offset))
        elif group_end != END and offset >= group_end:
            completed[key] = offset
        else:
            waiting[key] = offset
    unassigned = {
        k: waiting.pop(k, o)
        for k, o in state.unassigned.items()
        if k.stream != stream or k in waiting
    }
    return _with_owners(
        replace(
            state,
            assigned=assigned,
            unassigned={**unassigned, **waiting},
            future=future,
            completed=completed,
        ),
        lineage.layout,
        frozenset(before),
    )


def _with_owners(state: GroupState, layout: Layout, before: Collection[SegmentKey]) -> GroupState:
    """Return the state with a record for each segment that began to wait; it has those of before.

    Of the segments that are not in reach any more, it keeps the records of those that were finished
    last, up to twice as many as it has in reach.
    """
    stream, parts = layout.stream, (state.assigned, state.unassigned, state.completed)
    reached = {key for part in parts for key in part if key.stream == stream}
    mine = {key: record for key, record in state.owners.items() if key.stream == stream}
    new = {k: Owners() for k in state.unassigned if k.stream == stream and k not in before}
    finished = [k for k, found in mine.items() if k not in reached and found.last]
    finished.sort(key=lambda key: mine[key].last[-1].number, reverse=True)
    count = max(KEPT_FINISHED, 2 * len(reached))
    kept = {k for k in finished[:count] if layout.has_segment(k.segment_id)}
    since = [mine[key].last[-1].number + 1 for key in finished if key not in kept]
    owners = {k: r for k, r in state.owners.items() if k.stream != stream}
    owners |= {k: record for k, record in mine.items() if k in reached or k in kept}
    since.append(state.finished_since.get(stream, 0))
    return replace(
        state,
        owners={**new, **owners},
        finished_since={**state.finished_since, stream: max(since)},
    )
