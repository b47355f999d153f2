"""Who is in a group and has which segments: pure transitions.

A segment goes from reader to reader through ``unassigned``, with the exact offset to go on from.
Every ownership has a number of its own; what a reader says of a segment counts only if it names
the number, so a reader that was taken over and comes back changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.errors import IllegalState
from pravega_spark.reader_groups import checkpoints
from pravega_spark.reader_groups.group_state import GroupState, Key, Member, Owned, Phase

Held = Mapping[Key, tuple[int, int]]
"""What a reader says it holds: by segment, the number of the ownership and the next offset."""


def join(
    state: GroupState, reader: str, lease_ms: int | None, *, alone: bool = False
) -> GroupState:
    """Let a reader into the group. Raises IllegalState if one of that name is in it.

    Also if it wants to be ``alone`` and is not, or if one is in it that is alone.
    """
    if state.phase is not Phase.ACTIVE:
        raise IllegalState(f"reader group {state.group} is being changed or deleted; try again.")
    if reader in state.readers:
        raise IllegalState(
            f"reader {reader} is in reader group {state.group} already: close it first, or call "
            "`reader_offline` if it died; without that its lease must run out, if it has one."
        )
    beside = [name for name, member in state.readers.items() if alone or member.alone]
    if beside:
        raise IllegalState(
            f"reader {reader} cannot join reader group {state.group} beside {', '.join(beside)}: a "
            "streaming query reads all of a group by itself. Stop the one or the other, or use a "
            "group of its own."
        )
    member = Member(state.next_number, lease_ms, alone)
    readers = {**state.readers, reader: member}
    return replace(state, next_number=state.next_number + 1, readers=readers)


def record(state: GroupState, reader: str, number: int, held: Held) -> GroupState:
    """Record how far a reader has come; an offset never goes back.

    Raises ReinitializationRequired if the reader is not in the group any more.
    """
    state.member(reader, number)
    offsets = _mine(state, reader, held)
    moved = {k: o for k, o in offsets.items() if o > state.assigned[k].offset}
    if not moved:
        return state
    assigned = {
        k: replace(o, offset=moved[k]) if k in moved else o for k, o in state.assigned.items()
    }
    return replace(state, assigned=assigned)


def _mine(state: GroupState, reader: str, held: Held) -> dict[Key, int]:
    """Return the offsets of what the reader holds indeed."""
    found = {}
    for key, (number, offset) in held.items():
        owned = state.assigned.get(key)
        if owned is not None and (owned.reader, owned.number) == (reader, number):
            found[key] = offset
    return found


def offline(state: GroupState, reader: str, offsets: Mapping[Key, int] | None = None) -> GroupState:
    """Take a reader out of the group; its segments wait for others.

    They go on at the given offsets, where one is not given at the recorded one. A reader that is
    not in the group changes nothing.
    """
    if reader not in state.readers:
        return state
    given = offsets or {}
    final = {key: given.get(key, o.offset) for key, o in state.owned_by(reader).items()}
    state = checkpoints.give_up(state, reader, final)
    readers = {name: member for name, member in state.readers.items() if name != reader}
    state = replace(_unassign(state, final), readers=readers)
    return checkpoints.leave(state, reader)


def taken_over(state: GroupState, reader: str, number: int, held: Held | None = None) -> GroupState:
    """Take a dead reader out, unless it has joined anew; ``held`` is what it last said."""
    member = state.readers.get(reader)
    if member is None or member.number != number:
        return state
    return offline(record(state, reader, number, held or {}), reader)


def acquire(state: GroupState, reader: str, number: int) -> GroupState:
    """Give a reader its share of the segments that wait, in the order in which they came.

    Not while a checkpoint waits for its answer. Raises ReinitializationRequired.
    """
    state.member(reader, number)
    if state.phase is not Phase.ACTIVE or state.owed_by(reader) is not None:
        return state
    keys = list(state.unassigned)[: may_acquire(state, reader)]
    if not keys:
        return state
    taken = {
        key: Owned(reader, state.next_number + i, state.unassigned[key])
        for i, key in enumerate(keys)
    }
    return replace(
        state,
        next_number=state.next_number + len(keys),
        assigned={**state.assigned, **taken},
        unassigned={k: o for k, o in state.unassigned.items() if k not in taken},
    )


def release(state: GroupState, reader: str, number: int, held: Held) -> GroupState:
    """Give segments back with their exact next offsets. Raises ReinitializationRequired."""
    state.member(reader, number)
    offsets = _mine(state, reader, held)
    return _unassign(checkpoints.give_up(state, reader, offsets), offsets)


def _unassign(state: GroupState, offsets: Mapping[Key, int]) -> GroupState:
    assigned = {key: owned for key, owned in state.assigned.items() if key not in offsets}
    return replace(state, assigned=assigned, unassigned={**state.unassigned, **offsets})


def may_acquire(state: GroupState, reader: str) -> int:
    """Return how many of the waiting segments are the reader's share.

    All readers may have the same number, and as many as there are left over one more.
    """
    loads = loads_of(state)
    base, extra = divmod(sum(loads.values()) + len(state.unassigned), len(loads))
    mine = loads.pop(reader)
    share = max(0, base - mine)
    beyond = sum(max(0, load - base) for load in loads.values()) + max(0, mine - base)
    if mine <= base and beyond < extra:
        share += 1
    return min(share, len(state.unassigned))


def surplus(state: GroupState, reader: str) -> int:
    """Return how many segments the reader is to release, so that those with too few get theirs.

    What waits already is counted. Everybody works out the same, so no more than that goes.
    """
    loads = loads_of(state)
    total = sum(loads.values()) + len(state.unassigned)
    base, extra = divmod(total, len(loads))
    most = base + (extra > 0)
    missing = sum(max(0, base - load) for load in loads.values()) - len(state.unassigned)
    before = loads[reader]
    while True:
        richest = max(sorted(loads), key=lambda name: loads[name])
        if loads[richest] <= most and missing <= 0:
            break
        loads[richest] -= 1
        missing -= 1
    return before - loads[reader]


def loads_of(state: GroupState) -> dict[str, int]:
    """Return the number of segments of each reader."""
    loads = dict.fromkeys(state.readers, 0)
    for owned in state.assigned.values():
        loads[owned.reader] += 1
    return loads
