"""A reader's step at each refresh of its group's state, as one pure function."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups.state import GroupState, SegmentKey
from pravega_spark.reader_groups.transitions import HeldSegments


@dataclass(frozen=True, slots=True)
class ReaderView:
    """A reader's own knowledge: its identity in the group and its progress since the last refresh.

    ``held`` are its segments, each with the ownership number and the offset of the next event to
    hand out. The application has asked for more, so all events before it are processed, unless
    only checkpoints acknowledge events. ``ended`` are the held segments that were read to their
    ends. ``behind_head`` are the streams whose head has passed the reader, or that were deleted.
    ``unread`` is the known number of unread events of each segment, ``told`` the numbers of the
    finds that the reader has told. ``shows_automatic`` says whether the application sees automatic
    checkpoints, too.
    """

    reader: str
    number: int
    held: HeldSegments = field(default_factory=dict)
    ended: frozenset[SegmentKey] = frozenset()
    behind_head: frozenset[str] = frozenset()
    unread: Mapping[SegmentKey, int] = field(default_factory=dict)
    told: frozenset[int] = frozenset()
    shows_automatic: bool = True


class Marker(NamedTuple):
    """The marker of a checkpoint that a reader has shown, and what the reader held then.

    The application has stored the results of the events before these offsets, and perhaps of no
    later ones: a reader that cannot reach its group's state reads on before it answers.
    """

    number: int
    held: HeldSegments
    name: str


def reader_step(
    state: GroupState,
    view: ReaderView,
    layout_of: Callable[[str], Layout | None],
    *,
    answering: Marker | None = None,
    automatic: bool = False,
) -> GroupState:
    """Do everything that is due for a reader; return an equal state if nothing is.

    The reader answers the checkpoint whose marker it has shown (``answering``), silent ones, and
    automatic ones that it does not show; it begins an ``automatic`` checkpoint unless one is
    pending, moves on from ended segments, releases its surplus, and acquires its share. Where only
    checkpoints acknowledge events, it moves on and releases only what it has acknowledged, and
    begins a checkpoint if that is not everything.
    ``layout_of`` returns the newest layout of a stream, or None if it was deleted. Raises
    ReinitializationRequired.

    Where transactions acknowledge events, the reader answers every checkpoint by itself, with the
    positions that are acknowledged. Where reading does, it can answer automatic ones by itself: the
    application asks for more, so it has processed what it was handed.
    """
    before = state
    state.reader_entry(view.reader, view.number)
    offsets = transitions.owned_offsets(state, view.reader, view.held)
    state = transitions.take_over(transitions.clear(state, view.told), view.reader, view.number)
    if answering is not None:
        at_marker = transitions.owned_offsets(state, view.reader, answering.held)
        state = transitions.answer(state, view.reader, answering.number, at_marker)
    if automatic:
        state = transitions.begin_automatic(state)
    has_changed = state != before
    in_transactions = state.configuration.acknowledges_in_transactions
    hides_automatic = state.configuration.acknowledges_on_reading and not view.shows_automatic
    while pending := state.pending_checkpoint(view.reader):
        if not (pending.silent or in_transactions or (pending.automatic and hides_automatic)):
            break
        answered = {} if in_transactions else offsets
        state = transitions.answer(state, view.reader, pending.number, answered)
    after_silent = state
    state = _move_on(state, view, layout_of)
    state = _release_surplus(state, view)
    state = transitions.acquire(state, view.reader, view.number)
    if _needs_checkpoint(state, view):
        state = transitions.begin_automatic(state)
    if has_changed or state != after_silent:  # answering a silent checkpoint records no offset
        state = transitions.record_offsets(state, view.reader, view.number, view.held)
    return state


def _unacknowledged(state: GroupState, view: ReaderView) -> frozenset[SegmentKey]:
    """Return the segments with events that the reader handed out and has not acknowledged.

    The application may not have stored their results, so no other reader may read on from there.
    """
    if state.configuration.acknowledges_on_reading:
        return frozenset()
    offsets = transitions.owned_offsets(state, view.reader, view.held)
    return frozenset(k for k, offset in offsets.items() if offset > state.assigned[k].offset)


def _needs_checkpoint(state: GroupState, view: ReaderView) -> bool:
    """Return whether a reader cannot move on or release before it answers a checkpoint."""
    if state.configuration.acknowledges_in_transactions:
        return False
    waiting = _unacknowledged(state, view)
    return bool(waiting and (waiting & view.ended or transitions.surplus(state, view.reader)))


def _release_surplus(state: GroupState, view: ReaderView) -> GroupState:
    """Release the reader's surplus.

    Waits while anything is unacknowledged, so that the choice is among all segments.
    """
    count = transitions.surplus(state, view.reader)
    if not count or _unacknowledged(state, view):
        return state
    owned = state.owned_by(view.reader)
    released = {}
    for key in _spread(owned, view.unread, count):
        number, offset = view.held.get(key, (owned[key].number, owned[key].offset))
        # The group is further than the reader where this step has moved it to the head.
        released[key] = number, max(offset, owned[key].offset)
    return transitions.release(state, view.reader, view.number, released)


def _spread(
    keys: Collection[SegmentKey], unread: Mapping[SegmentKey, int], count: int
) -> list[SegmentKey]:
    """Return ``count`` of the segments, with a proportional part of all unread events."""
    ordered = sorted(keys, key=lambda key: -unread.get(key, 0))
    parts = [index * count // len(ordered) for index in range(len(ordered) + 1)]
    return [key for index, key in enumerate(ordered) if parts[index] < parts[index + 1]]


def _move_on(
    state: GroupState, view: ReaderView, layout_of: Callable[[str], Layout | None]
) -> GroupState:
    """Complete ended segments, move to the head where it has passed, and drop deleted streams."""
    ended = frozenset(key for key in view.ended if key in state.assigned)
    ended -= _unacknowledged(state, view)
    for stream in sorted({key.stream for key in ended} | view.behind_head):
        layout = layout_of(stream)
        if layout is None:
            if _is_read(state, stream):
                state = transitions.add_deleted(state, stream, view.reader)
                state = segments.drop_stream(state, stream)
            continue
        if stream in view.behind_head or locate(layout, state.cut(stream)).forgotten:
            state = transitions.record_offsets(state, view.reader, view.number, view.held)
            owners = state.assigned
            state, lost = segments.move_to_head(state, layout)
            state = transitions.add_lost(state, lost, owners, view.reader)
        done = {key: view.held[key][0] for key in ended if key.stream == stream}
        state = segments.complete(state, layout, view.reader, view.number, done)
    return state


def _is_read(state: GroupState, stream: str) -> bool:
    """Return whether the group still reads a stream, so that nobody has found its deletion."""
    parts = (state.assigned, state.unassigned, state.future)
    return any(key.stream == stream for part in parts for key in part)
