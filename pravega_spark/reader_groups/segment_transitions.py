"""From segment to segment of a stream: pure transitions over the layout of its epochs.

A segment that was read to its end makes way for its successors at once: those whose predecessors
are all done wait for a reader, those of a half-read merge are future. Empty sealed segments are
passed over. Where the head has moved past the group, the group moves on to the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.errors import InvalidStreamCut, TruncatedData
from pravega_spark.model import END, NOT_REACHED, Segment, SegmentRange, StreamCut
from pravega_spark.reader_groups import checkpoints
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration, Span
from pravega_spark.reader_groups.group_state import Checkpoint, GroupState, Key, Owned, Phase


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

    ``starts`` take the place of the configuration's. Raises InvalidStreamCut for cuts that are
    none of the streams, or a start after its end; TruncatedData for a start of which whole
    segments are forgotten (one that is below the head otherwise is left for readers to find).
    """
    state = GroupState(
        group,
        generation,
        phase,
        configuration,
        {stream: layouts[stream].life for stream in configuration.streams},
        next_number=next_number,
        last=last,
    )
    for stream, span in configuration.streams.items():
        layout = layouts[stream]
        start, end = _bounds(layout, Span((starts or {}).get(stream, span.start), span.end))
        if end is not None:
            state = replace(state, ends={**state.ends, stream: end})
        frontier = Frontier(start)
        _advance(state, stream, frontier, {})
        state = _arrange(state, stream, frontier)
    return state


def _bounds(layout: Layout, span: Span) -> tuple[LocatedCut, StreamCut | None]:
    start = locate(layout, span.start)
    if start.forgotten:
        raise _truncated(start, *start.clipped_to_head())
    if span.end is None:
        return start, None
    end = locate(layout, span.end)
    if not end.canonical().is_at_or_after(start.canonical()):
        raise InvalidStreamCut(f"the start {start} lies after the end {end}.")
    return start, end.cut


def check_start(layout: Layout, cut: StreamCut | str) -> None:
    """Raise TruncatedData unless a stream still has all that comes after a cut."""
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


class Stops:
    """Where a group stops in the segments of a stream: at its end cut, if it has one there."""

    __slots__ = ("_layout", "_limit")

    def __init__(self, state: GroupState, layout: Layout) -> None:
        """Lay the end cut over the layout, once for all segments."""
        end = state.ends.get(layout.stream)
        self._layout = layout
        self._limit = None if end is None else locate(layout, end)

    def of(self, segment_id: int) -> int | None:
        """Return the offset at which the group stops in a segment; None: at the segment's end."""
        if self._limit is None or not self._layout.has_segment(segment_id):
            return None
        mark = self._limit.offset_in(self._layout.lineage.find(segment_id))
        return None if mark == END else max(mark, 0)


def complete(
    state: GroupState, layout: Layout, reader: str, number: int, done: Mapping[Key, int]
) -> GroupState:
    """Take segments of one stream from their reader, which has read them to their ends.

    ``done`` has the numbers of the ownerships; what the reader does not own is left alone. Ends
    are the layout's, or the group's end cut. Raises ReinitializationRequired, and TruncatedData
    if the group's place is below the head: see :func:`to_head`.
    """
    state.member(reader, number)
    stream = layout.stream
    mine = {
        key: owned
        for key, owned in state.assigned.items()
        if key.stream == stream and (owned.reader, owned.number) == (reader, done.get(key))
    }
    if not mine:
        return state
    lineage = layout.lineage
    place = locate(layout, state.cut(stream))
    if place.forgotten:
        raise _below(state, layout)
    ends, frontier, stops = {}, Frontier(place), Stops(state, layout)
    for key in mine:
        segment = lineage.find(key.segment_id)
        stop = stops.of(key.segment_id)
        assert stop is not None or lineage.is_sealed(segment), f"{key} has not ended"
        ends[key] = lineage.end(segment) if stop is None else stop
        frontier.offsets[key.segment_id] = ends[key]
    state = checkpoints.give_up(state, reader, ends)
    assigned = {key: owned for key, owned in state.assigned.items() if key not in mine}
    state = replace(state, assigned=assigned)
    _advance(state, stream, frontier, state.assigned)
    return _arrange(state, stream, frontier)


def to_head(state: GroupState, layout: Layout) -> tuple[GroupState, tuple[SegmentRange, ...]]:
    """Move the group on to the head of a stream where it is below; return what was lost.

    Lost is what lies between the recorded place and the head; a reader may have read some of it.
    Owners keep the segments that the head leaves.
    """
    here = locate(layout, state.cut(layout.stream))
    clipped, lost = here.clipped_to_head()
    if clipped.cut == here.cut:
        return state, ()
    return _put(state, clipped), lost


def move_to(state: GroupState, layout: Layout, cut: StreamCut) -> GroupState:
    """Move the group on to a cut up to which a stream was read; one that is not later is ignored.

    Owners keep the segments that the cut is in. Raises InvalidStreamCut for a cut that is none of
    this stream.
    """
    here = locate(layout, state.cut(layout.stream)).raised_to_head()
    there = locate(layout, cut).raised_to_head()
    if there.cut == here.cut or not there.is_at_or_after(here):
        return state
    return _put(state, there)


def _put(state: GroupState, cut: LocatedCut) -> GroupState:
    """Return the state with a stream at a later cut; owners keep segments that it is in."""
    stream = cut.layout.stream
    frontier = Frontier(cut)
    kept = {Key(stream, segment_id) for segment_id, offset in cut.cut if offset >= 0}
    gone = {k: o for k, o in state.assigned.items() if k.stream == stream and k not in kept}
    state = _take_back(state, gone)
    _advance(state, stream, frontier, state.assigned)
    return _arrange(state, stream, frontier)


def _take_back(state: GroupState, gone: Mapping[Key, Owned]) -> GroupState:
    """Take segments from their readers, as far as these had come by the state."""
    for reader in {owned.reader for owned in gone.values()}:
        offsets = {k: o.offset for k, o in gone.items() if o.reader == reader}
        state = checkpoints.give_up(state, reader, offsets)
    return replace(state, assigned={k: o for k, o in state.assigned.items() if k not in gone})


def abandon(state: GroupState, stream: str) -> GroupState:
    """Return the state with a stream done as far as it is recorded: it was deleted."""
    gone = {key: owned for key, owned in state.assigned.items() if key.stream == stream}
    left = {key: offset for key, offset in state.unassigned.items() if key.stream == stream}
    left |= {key: owned.offset for key, owned in gone.items()}
    return replace(
        _take_back(state, gone),
        unassigned={key: o for key, o in state.unassigned.items() if key.stream != stream},
        future={key: missing for key, missing in state.future.items() if key.stream != stream},
        completed={**state.completed, **left},
    )


def _below(state: GroupState, layout: Layout) -> TruncatedData:
    return TruncatedData(
        f"reader group {state.group} is below the head of {layout.stream}, {layout.head}, "
        f"which was truncated{layout.truncated_by}, and goes on there.",
        head=layout.head,
    )


def _advance(
    state: GroupState, stream: str, frontier: Frontier, assigned: Mapping[Key, Owned]
) -> None:
    """Move on over what is finished, but not over what a reader has or the end cut stops."""
    end = state.ends.get(stream)
    limit = None if end is None else locate(frontier.lineage.layout, end)

    def may_pass(segment: Segment) -> bool:
        has_reader = Key(stream, segment.segment_id) in assigned
        return not has_reader and (limit is None or limit.offset_in(segment) == END)

    frontier.advance(may_pass)


def _arrange(state: GroupState, stream: str, frontier: Frontier) -> GroupState:
    """Return the state with the places of a stream as the frontier has them.

    Segments keep their readers; what is new waits, behind what waited before.
    """
    lineage = frontier.lineage
    end = state.ends.get(stream)
    limit = None if end is None else locate(lineage.layout, end)
    assigned = {k: o for k, o in state.assigned.items() if k.stream != stream}
    future = {k: missing for k, missing in state.future.items() if k.stream != stream}
    completed = {k: mark for k, mark in state.completed.items() if k.stream != stream}
    waiting: dict[Key, int] = {}
    for segment_id, mark in frontier.cut():
        key, segment = Key(stream, segment_id), lineage.find(segment_id)
        stop = END if limit is None else limit.offset_in(segment)
        if mark == NOT_REACHED:
            before = lineage.predecessors(segment)
            missing = {b.segment_id for b in before if frontier.offset_in(b) != END}
            if stop != NOT_REACHED:
                future[key] = frozenset(missing)
        elif mark == END:
            completed[key] = END
        elif key in state.assigned:
            owned = state.assigned[key]
            assigned[key] = replace(owned, offset=max(owned.offset, mark))
        elif stop != END and mark >= stop:
            completed[key] = mark
        else:
            waiting[key] = mark
    unassigned = {
        k: waiting.pop(k, offset)
        for k, offset in state.unassigned.items()
        if k.stream != stream or k in waiting
    }
    return replace(
        state,
        assigned=assigned,
        unassigned={**unassigned, **waiting},
        future=future,
        completed=completed,
    )
