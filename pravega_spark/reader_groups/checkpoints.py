"""Checkpoints of a group: pure transitions.

A checkpoint begins with the positions of all segments without a reader. It is complete when every
reader of that moment has answered with the positions of its own segments. Until a reader has
answered it acquires no segment, and a segment that it releases is recorded in the checkpoint at
that offset. So a checkpoint has positions of the segments that the state had when it began, and
they cover all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.errors import TooManyCheckpoints
from pravega_spark.limits import KEPT_CHECKPOINTS
from pravega_spark.model import NOT_REACHED
from pravega_spark.reader_groups.group_state import Checkpoint, GroupState, SegmentKey


def initiate(
    state: GroupState, name: str, *, silent: bool = False, automatic: bool = False
) -> tuple[GroupState, Checkpoint]:
    """Begin a checkpoint, or return the pending one of that name.

    Without readers it is complete immediately. Raises TooManyCheckpoints if the configured number
    is pending; silent and automatic checkpoints do not count.
    """
    pending = [c for c in state.checkpoints if not c.is_complete]
    for known in pending:
        if known.name == name:
            return state, known
    counted = [c for c in pending if not (c.silent or c.automatic)]
    if not (silent or automatic) and len(counted) >= state.configuration.max_outstanding:
        raise TooManyCheckpoints(
            f"reader group {state.group} has {len(counted)} pending checkpoints "
            f"({', '.join(c.name for c in counted)}), as many as its configuration allows; wait "
            "for one of them, or cancel them.",
            group=state.group,
            limit=state.configuration.max_outstanding,
        )
    positions = {**state.unassigned, **dict.fromkeys(state.future, NOT_REACHED), **state.completed}
    begun = Checkpoint(
        name, state.next_number, silent, automatic, frozenset(state.readers), positions
    )
    return _add(state, begun), begun


def begin_automatic(state: GroupState) -> GroupState:
    """Begin an automatic checkpoint unless the group has a pending one that is not silent."""
    if any(not c.is_complete and not c.silent for c in state.checkpoints):
        return state
    return initiate(state, f"automatic-{state.next_number}", automatic=True)[0]


def add_complete(state: GroupState, name: str) -> GroupState:
    """Add a complete checkpoint at the group's recorded positions."""
    positions = dict(state.positions())
    return _add(state, Checkpoint(name, state.next_number, False, True, frozenset(), positions))


def _add(state: GroupState, checkpoint: Checkpoint) -> GroupState:
    checkpoints = (*state.checkpoints, checkpoint)
    return _retain(replace(state, next_number=state.next_number + 1, checkpoints=checkpoints))


def answer(
    state: GroupState, reader: str, number: int, offsets: Mapping[SegmentKey, int]
) -> GroupState:
    """Answer a checkpoint with the reader's offsets; without a pending answer change nothing.

    Segments without a given offset answer with the recorded one. Unless the checkpoint is silent,
    the offsets are recorded in the state, too.
    """
    found = state.checkpoint(number)
    if found is None or reader not in found.pending_readers:
        return state
    owned = state.owned_by(reader)
    answered = {key: max(o.offset, offsets.get(key, 0)) for key, o in owned.items()}
    checkpoints = tuple(
        _answered(c, reader, answered) if c is found else c for c in state.checkpoints
    )
    if not found.silent:
        moved = {
            k: replace(o, offset=answered[k]) for k, o in owned.items() if o.offset < answered[k]
        }
        state = replace(state, assigned={k: moved.get(k, o) for k, o in state.assigned.items()})
    return _retain(replace(state, checkpoints=checkpoints))


def record_release(state: GroupState, reader: str, offsets: Mapping[SegmentKey, int]) -> GroupState:
    """Record the offsets of released segments in the checkpoints that wait for the reader."""

    def recorded(checkpoint: Checkpoint) -> Checkpoint:
        if reader not in checkpoint.pending_readers:
            return checkpoint
        return replace(checkpoint, positions={**checkpoint.positions, **offsets})

    return replace(state, checkpoints=tuple(map(recorded, state.checkpoints)))


def drop_reader(state: GroupState, reader: str) -> GroupState:
    """Stop waiting for a reader that has released all its segments."""
    return _retain(
        replace(state, checkpoints=tuple(_answered(c, reader, {}) for c in state.checkpoints))
    )


def cancel(state: GroupState) -> GroupState:
    """Remove all pending checkpoints, silent ones included."""
    return replace(state, checkpoints=tuple(c for c in state.checkpoints if c.is_complete))


def _answered(checkpoint: Checkpoint, reader: str, offsets: Mapping[SegmentKey, int]) -> Checkpoint:
    return replace(
        checkpoint,
        pending_readers=checkpoint.pending_readers - {reader},
        positions={**checkpoint.positions, **offsets},
    )


def _retain(state: GroupState) -> GroupState:
    """Update the last checkpoint and drop complete ones beyond the retained number."""
    complete = [c for c in state.checkpoints if c.is_complete]
    loud = [c for c in complete if not c.silent]
    last = state.last_checkpoint
    if loud and (last is None or loud[-1].number > last.number):
        last = loud[-1]
    silent = [c for c in complete if c.silent]
    old = {c.number for kind in (loud, silent) for c in kind[:-KEPT_CHECKPOINTS]}
    if last is not None:
        # No caller waits for an automatic checkpoint, so the last one is enough.
        old |= {c.number for c in complete if c.automatic and c.number < last.number}
    kept = tuple(c for c in state.checkpoints if c.number not in old)
    return replace(state, checkpoints=kept, last_checkpoint=last)
