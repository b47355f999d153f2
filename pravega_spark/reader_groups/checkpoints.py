"""Checkpoints of a group: pure transitions.

A checkpoint begins with the places of all segments that no reader has, and is complete when every
reader of that moment has answered with the places of its own. Until a reader has answered it gets
no further segment, and one that it gives up is noted in the checkpoint as it is given up. So the
positions of a checkpoint are of the same segments as the state's when it began, and cover all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.errors import TooManyCheckpoints
from pravega_spark.model import NOT_REACHED
from pravega_spark.reader_groups.group_state import Checkpoint, GroupState, Key

KEPT_CHECKPOINTS = 8
"""So many completed checkpoints stay for those who wait for them, and as many silent ones."""


def initiate(
    state: GroupState, name: str, *, silent: bool = False, automatic: bool = False
) -> tuple[GroupState, Checkpoint]:
    """Begin a checkpoint, or join the one of that name that is under way.

    Without readers it is complete at once. Raises TooManyCheckpoints if as many as the group
    allows are under way; silent and automatic ones do not count.
    """
    under_way = [c for c in state.checkpoints if not c.is_complete]
    for known in under_way:
        if known.name == name:
            return state, known
    counted = [c for c in under_way if not (c.silent or c.automatic)]
    if not (silent or automatic) and len(counted) >= state.configuration.max_outstanding:
        raise TooManyCheckpoints(
            f"reader group {state.group} has {len(counted)} checkpoints under way "
            f"({', '.join(c.name for c in counted)}), as many as its configuration allows; wait "
            "for one of them, or cancel them.",
            group=state.group,
            limit=state.configuration.max_outstanding,
        )
    positions = {**state.unassigned, **dict.fromkeys(state.future, NOT_REACHED), **state.completed}
    begun = Checkpoint(
        name, state.next_number, silent, automatic, frozenset(state.readers), positions
    )
    state = replace(
        state, next_number=state.next_number + 1, checkpoints=(*state.checkpoints, begun)
    )
    return _settle(state), begun


def note(state: GroupState, name: str) -> GroupState:
    """Note where the group is as a completed checkpoint: all before its places is done."""
    positions = dict(state.positions())
    noted = Checkpoint(name, state.next_number, False, True, frozenset(), positions)
    return _settle(
        replace(state, next_number=state.next_number + 1, checkpoints=(*state.checkpoints, noted))
    )


def answer(state: GroupState, reader: str, number: int, offsets: Mapping[Key, int]) -> GroupState:
    """Answer a checkpoint with the reader's offsets; whoever owes nothing changes nothing.

    Offsets that are not told are the recorded ones; unless it is silent, the told are recorded.
    """
    found = state.checkpoint(number)
    if found is None or reader not in found.owing:
        return state
    owned = state.owned_by(reader)
    told = {key: max(o.offset, offsets.get(key, 0)) for key, o in owned.items()}
    checkpoints = tuple(_answered(c, reader, told) if c is found else c for c in state.checkpoints)
    if not found.silent:
        assigned = {k: replace(o, offset=told.get(k, o.offset)) for k, o in state.assigned.items()}
        state = replace(state, assigned=assigned)
    return _settle(replace(state, checkpoints=checkpoints))


def give_up(state: GroupState, reader: str, offsets: Mapping[Key, int]) -> GroupState:
    """Note in the checkpoints that wait for the reader where it gives up segments."""

    def noted(checkpoint: Checkpoint) -> Checkpoint:
        if reader not in checkpoint.owing:
            return checkpoint
        return replace(checkpoint, positions={**checkpoint.positions, **offsets})

    return replace(state, checkpoints=tuple(map(noted, state.checkpoints)))


def leave(state: GroupState, reader: str) -> GroupState:
    """Count a reader that has given up all as having answered."""
    answered = tuple(_answered(c, reader, {}) for c in state.checkpoints)
    return _settle(replace(state, checkpoints=answered))


def cancel(state: GroupState) -> GroupState:
    """Drop the checkpoints that are under way, silent ones too."""
    return replace(state, checkpoints=tuple(c for c in state.checkpoints if c.is_complete))


def _answered(checkpoint: Checkpoint, reader: str, offsets: Mapping[Key, int]) -> Checkpoint:
    return replace(
        checkpoint,
        owing=checkpoint.owing - {reader},
        positions={**checkpoint.positions, **offsets},
    )


def _settle(state: GroupState) -> GroupState:
    """Take note of the last complete checkpoint, and let old ones go."""
    complete = [c for c in state.checkpoints if c.is_complete]
    loud = [c for c in complete if not c.silent]
    last = state.last
    if loud and (last is None or loud[-1].number > last.number):
        last = loud[-1]
    quiet = [c for c in complete if c.silent]
    old = {c.number for kind in (loud, quiet) for c in kind[:-KEPT_CHECKPOINTS]}
    if last is not None:
        # An automatic one is nobody's to wait for: the last says all.
        old |= {c.number for c in complete if c.automatic and c.number < last.number}
    kept = tuple(c for c in state.checkpoints if c.number not in old)
    return replace(state, checkpoints=kept, last=last)
