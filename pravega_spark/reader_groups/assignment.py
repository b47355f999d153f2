"""Readers of a group and the segments assigned to them: pure transitions.

A segment moves from reader to reader through ``unassigned``, with the exact next offset. Every
ownership has its own number, and a reader's report about a segment counts only with that number.
So an evicted reader that comes back changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from heapq import heapify, heapreplace

from pravega_spark.errors import IllegalState, TooBusy
from pravega_spark.reader_groups import checkpoints, finds
from pravega_spark.reader_groups.group_state import (
    GroupState,
    Ownership,
    Phase,
    ReaderEntry,
    SegmentKey,
)

HeldSegments = Mapping[SegmentKey, tuple[int, int]]
"""The segments that a reader reports as its own: ownership number and next offset of each."""


def join(
    state: GroupState, reader: str, lease_ms: int | None, *, exclusive: bool = False
) -> GroupState:
    """Add a reader to the group.

    Raises TooBusy if the group is being changed; IllegalState if it has a reader of that name, if
    an exclusive one cannot acknowledge as the group says, or if the new reader or one in the group
    is exclusive and would not be the only one.
    """
    if state.phase is not Phase.ACTIVE:
        raise TooBusy(f"reader group {state.group} is being changed or deleted; try again.")
    if reader in state.readers:
        raise IllegalState(
            f"reader {reader} is already in reader group {state.group}: close it first, or call "
            "`reader_offline` if its process crashed; otherwise wait until its lease expires, if "
            "it has one."
        )
    if exclusive and state.configuration.acknowledges_in_transactions:
        raise IllegalState(
            f"reader {reader} cannot join reader group {state.group}, in which only transactions "
            "acknowledge events: a streaming query has none. Use another group."
        )
    others = [name for name, entry in state.readers.items() if exclusive or entry.exclusive]
    if others:
        raise IllegalState(
            f"reader {reader} cannot join reader group {state.group}, which {', '.join(others)} "
            "reads: a streaming query is the only reader of its group. Stop one of them, or use "
            "another group."
        )
    entry = ReaderEntry(state.next_number, lease_ms, exclusive)
    readers = {**state.readers, reader: entry}
    return replace(state, next_number=state.next_number + 1, readers=readers)


def record_offsets(state: GroupState, reader: str, number: int, held: HeldSegments) -> GroupState:
    """Record a reader's progress; an offset never moves back.

    Records nothing where only checkpoints or transactions acknowledge events. Raises
    ReinitializationRequired if the reader is no longer in the group.
    """
    state.reader_entry(reader, number)
    if not state.configuration.acknowledges_on_reading:
        return state
    offsets = owned_offsets(state, reader, held)
    moved = {k: o for k, o in offsets.items() if o > state.assigned[k].offset}
    if not moved:
        return state
    assigned = {
        k: replace(o, offset=moved[k]) if k in moved else o for k, o in state.assigned.items()
    }
    return replace(state, assigned=assigned)


def owned_offsets(state: GroupState, reader: str, held: HeldSegments) -> dict[SegmentKey, int]:
    """Return the reported offsets of the segments that the reader really owns."""
    found = {}
    for key, (number, offset) in held.items():
        owned = state.assigned.get(key)
        if owned is not None and (owned.reader, owned.number) == (reader, number):
            found[key] = offset
    return found


def remove_reader(
    state: GroupState, reader: str, offsets: Mapping[SegmentKey, int] | None = None
) -> GroupState:
    """Remove a reader from the group and unassign its segments.

    Other readers continue at the given offsets, or at the recorded offset of a segment without a
    given one. A reader that is not in the group changes nothing. Raises UndecidedPositions.
    """
    if reader not in state.readers:
        return state
    state.check_nothing_prepared([reader])
    given = offsets or {}
    owned = state.owned_by(reader)
    final = {key: given.get(key, o.offset) for key, o in owned.items()}
    handed_over = {key: given[key] for key in owned if key in given}
    state = finds.forget_handed_over(state, reader, handed_over)
    state = checkpoints.record_release(state, reader, final)
    readers = {name: entry for name, entry in state.readers.items() if name != reader}
    state = replace(_unassign(state, final), readers=readers)
    return checkpoints.drop_reader(state, reader)


def evict(
    state: GroupState, reader: str, number: int, held: HeldSegments | None = None
) -> GroupState:
    """Remove an expired reader unless it joined again; ``held`` is from its last heartbeat."""
    entry = state.readers.get(reader)
    if entry is None or entry.number != number:
        return state
    return remove_reader(record_offsets(state, reader, number, held or {}), reader)


def remove_readers(state: GroupState) -> GroupState:
    """Return the state without readers and without checkpoints that anybody waits for.

    The segments of the readers wait at their recorded offsets. Raises UndecidedPositions.
    """
    state.check_nothing_prepared(state.prepared)
    owned = {key: owned.offset for key, owned in state.assigned.items()}
    unassigned = {**state.unassigned, **owned}
    return replace(state, readers={}, assigned={}, unassigned=unassigned, checkpoints=())


def acquire(state: GroupState, reader: str, number: int) -> GroupState:
    """Assign to a reader its share of the waiting segments, the longest waiting first.

    Assigns nothing while a checkpoint waits for the reader. Raises ReinitializationRequired.
    """
    state.reader_entry(reader, number)
    if state.phase is not Phase.ACTIVE or state.pending_checkpoint(reader) is not None:
        return state
    keys = list(state.unassigned)[: missing_share(state, reader)]
    if not keys:
        return state
    acquired = {
        key: Ownership(reader, state.next_number + i, state.unassigned[key])
        for i, key in enumerate(keys)
    }
    return replace(
        state,
        next_number=state.next_number + len(keys),
        assigned={**state.assigned, **acquired},
        unassigned={k: o for k, o in state.unassigned.items() if k not in acquired},
    )


def release(state: GroupState, reader: str, number: int, held: HeldSegments) -> GroupState:
    """Unassign segments at their exact next offsets. Raises ReinitializationRequired."""
    state.reader_entry(reader, number)
    offsets = owned_offsets(state, reader, held)
    return _unassign(checkpoints.record_release(state, reader, offsets), offsets)


def _unassign(state: GroupState, offsets: Mapping[SegmentKey, int]) -> GroupState:
    assigned = {key: owned for key, owned in state.assigned.items() if key not in offsets}
    return replace(state, assigned=assigned, unassigned={**state.unassigned, **offsets})


def missing_share(state: GroupState, reader: str) -> int:
    """Return how many of the waiting segments belong to the reader's share.

    All readers get the same number of segments; as many readers as the remainder get one more.
    """
    counts = segment_counts(state)
    base, extra = divmod(sum(counts.values()) + len(state.unassigned), len(counts))
    mine = counts.pop(reader)
    share = max(0, base - mine)
    beyond = sum(max(0, count - base) for count in counts.values()) + max(0, mine - base)
    if mine <= base and beyond < extra:
        share += 1
    return min(share, len(state.unassigned))


def surplus(state: GroupState, reader: str) -> int:
    """Return how many segments the reader must release to readers with too few.

    Waiting segments are counted too. Every reader computes the same plan from the same state, so
    together they release no more than is missing.
    """
    counts = segment_counts(state)
    total = sum(counts.values()) + len(state.unassigned)
    base, extra = divmod(total, len(counts))
    most = base + (extra > 0)
    missing = sum(max(0, base - count) for count in counts.values()) - len(state.unassigned)
    if counts[reader] <= base:
        return 0
    largest, released = [(-count, name) for name, count in counts.items()], 0
    heapify(largest)
    while -largest[0][0] > most or missing > 0:
        count, name = largest[0]
        heapreplace(largest, (count + 1, name))
        missing -= 1
        released += name == reader
    return released


def segment_counts(state: GroupState) -> dict[str, int]:
    """Return the number of segments of each reader."""
    counts = dict.fromkeys(state.readers, 0)
    for owned in state.assigned.values():
        counts[owned.reader] += 1
    return counts
