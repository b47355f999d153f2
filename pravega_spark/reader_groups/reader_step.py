"""What a reader does with its group's state when it looks at it: one pure step for all of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.model import SegmentRange
from pravega_spark.reader_groups import assignment, checkpoints, segment_transitions
from pravega_spark.reader_groups.assignment import Held
from pravega_spark.reader_groups.group_state import GroupState, Key


@dataclass(frozen=True, slots=True)
class ReaderView:
    """A reader as its group knows it, and what it has come to since it last looked.

    ``held`` are its segments, each with the number of its ownership and the offset of the next
    event to hand out; the application has asked for more, so all before it is done. ``ended`` are
    those of them that were read to their ends, ``below`` the streams in which it met the head, or
    which are gone. ``unread`` is how many events are known to be left in its segments.
    """

    reader: str
    number: int
    held: Held = field(default_factory=dict)
    ended: frozenset[Key] = frozenset()
    below: frozenset[str] = frozenset()
    unread: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a turn makes of the state, and what the reader must know of it.

    ``lost`` are ranges that truncation took from the group, found by this reader; ``vanished``
    the segments that the reader held, and that a truncation found by another one has taken.
    """

    state: GroupState
    lost: tuple[SegmentRange, ...] = ()
    vanished: frozenset[Key] = frozenset()


def reader_step(
    state: GroupState,
    seat: ReaderView,
    layout_of: Callable[[str], Layout | None],
    *,
    answering: int | None = None,
    automatic: str | None = None,
) -> StepResult:
    """Do for a reader all that is to be done now; nothing is recorded if nothing is.

    ``layout_of`` knows the newest layout of a stream, None of one that was deleted. The reader
    answers the checkpoint whose marker it has shown (``answering``) and silent ones, begins
    the automatic checkpoint of that name unless one is under way, moves on from ended segments,
    releases its surplus, and acquires its share. Raises ReinitializationRequired.
    """
    before = state
    state.member(seat.reader, seat.number)
    mine = {key: owned.number for key, owned in state.owned_by(seat.reader).items()}
    vanished = frozenset(key for key, (number, _) in seat.held.items() if mine.get(key) != number)
    offsets = {key: offset for key, (_, offset) in seat.held.items() if key not in vanished}
    if answering is not None:
        state = checkpoints.answer(state, seat.reader, answering, offsets)
    if automatic is not None and not any(
        not c.is_complete and not c.silent for c in state.checkpoints
    ):
        state, _ = checkpoints.initiate(state, automatic, automatic=True)
    is_loud = state != before
    while (owed := state.owed_by(seat.reader)) is not None and owed.silent:
        state = checkpoints.answer(state, seat.reader, owed.number, offsets)
    quiet = state
    state, lost = _move_on(state, seat, layout_of)
    count = assignment.surplus(state, seat.reader)
    if count:
        owned = state.owned_by(seat.reader)
        given = {
            key: seat.held.get(key, (owned[key].number, owned[key].offset))
            for key in _spread(owned, seat.unread, count)
        }
        state = assignment.release(state, seat.reader, seat.number, given)
    state = assignment.acquire(state, seat.reader, seat.number)
    if is_loud or state != quiet:  # an answer to a silent checkpoint records no position
        state = assignment.record(state, seat.reader, seat.number, seat.held)
    return StepResult(state, lost, vanished)


def _spread(keys: Collection[Key], unread: Mapping[Key, int], count: int) -> list[Key]:
    """Return so many of the segments, with about as large a part of what is unread in all."""
    ordered = sorted(keys, key=lambda key: -unread.get(key, 0))
    parts = [place * count // len(ordered) for place in range(len(ordered) + 1)]
    return [key for place, key in enumerate(ordered) if parts[place] < parts[place + 1]]


def _move_on(
    state: GroupState, seat: ReaderView, layout_of: Callable[[str], Layout | None]
) -> tuple[GroupState, tuple[SegmentRange, ...]]:
    """Move on from segments that ended, to the head, and away from streams that are gone."""
    lost: tuple[SegmentRange, ...] = ()
    ended = {key.stream for key in seat.ended if key in state.assigned}
    for stream in sorted(ended | seat.below):
        layout = layout_of(stream)
        if layout is None:
            state = segment_transitions.abandon(state, stream)
            continue
        if stream in seat.below or locate(layout, state.cut(stream)).forgotten:
            state = assignment.record(state, seat.reader, seat.number, seat.held)
            state, found = segment_transitions.to_head(state, layout)
            lost += found
        done = {key: seat.held[key][0] for key in seat.ended if key.stream == stream}
        state = segment_transitions.complete(state, layout, seat.reader, seat.number, done)
    return state, lost
