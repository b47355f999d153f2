"""Changes of a group's state: its readers, their segments, checkpoints and finds. Pure.

**Segments.** A segment moves from reader to reader through ``unassigned``, with the exact next
offset. Every ownership has its own number, and a reader's report about a segment counts only with
that number. So an evicted reader that comes back changes nothing.

**Checkpoints.** A checkpoint begins with the positions of all segments without a reader. It is
complete when every reader of that moment has answered with the positions of its own segments. Until
a reader has answered it acquires no segment, and a segment that it releases is recorded in the
checkpoint at that offset. So a checkpoint has positions of the segments that the state had when it
began, and they cover all keys.

Where streams keep what follows the last checkpoint, the change that takes the last reader away
completes one of what was acknowledged, since no reader is left that begins one.

**Finds** are what readers found on their way and have to tell. A find is in the state from the
step's own commit on, so neither an error nor a crash between the step and the call that tells it
loses it. It belongs to one reader, of the segment that lost events or of a part of the deleted
stream. Once that reader has told it, its next commit clears it. A find of a reader that is not in
the group any more goes to the next reader that does a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from heapq import heapify, heapreplace

from pravega_spark.errors import IllegalState, TooBusy, TooManyCheckpoints
from pravega_spark.reader_groups.owners import Owner, Owners
from pravega_spark.reader_groups.state import (
    Checkpoint,
    Find,
    GroupState,
    Ownership,
    Phase,
    ReaderEntry,
    SegmentKey,
)
from pravega_spark.values.limits import KEPT_CHECKPOINTS
from pravega_spark.values.segments import NOT_REACHED, SegmentRange


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
        name=name,
        number=state.next_number,
        silent=silent,
        automatic=automatic,
        pending_readers=frozenset(state.readers),
        positions=positions,
    )
    return _add_checkpoint(state, begun), begun


def begin_automatic(state: GroupState) -> GroupState:
    """Begin an automatic checkpoint unless the group has a pending one that is not silent."""
    if any(not c.is_complete and not c.silent for c in state.checkpoints):
        return state
    return initiate(state, f"automatic-{state.next_number}", automatic=True)[0]


def add_complete(state: GroupState, name: str) -> GroupState:
    """Add a complete checkpoint at the group's recorded positions."""
    positions = dict(state.positions())
    return _add_checkpoint(
        state,
        Checkpoint(
            name=name,
            number=state.next_number,
            silent=False,
            automatic=True,
            pending_readers=frozenset(),
            positions=positions,
        ),
    )


def _add_checkpoint(state: GroupState, checkpoint: Checkpoint) -> GroupState:
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


def add_lost(
    state: GroupState,
    lost: Iterable[SegmentRange],
    owners: Mapping[SegmentKey, Ownership],
    finder: str,
) -> GroupState:
    """Add ranges that were truncated unread; each belongs to its owner, or else to the finder."""
    for rng in lost:
        owned = owners.get(SegmentKey(rng.stream, rng.segment_id))
        state = _add_find(state, finder if owned is None else owned.reader, rng.stream, rng)
    return state


def add_deleted(state: GroupState, stream: str, finder: str) -> GroupState:
    """Add the deletion of a stream, for each reader that had a part of it."""
    readers = {owned.reader for key, owned in state.assigned.items() if key.stream == stream}
    for reader in sorted(readers or {finder}):
        state = _add_find(state, reader, stream, None)
    return state


def _add_find(state: GroupState, reader: str, stream: str, lost: SegmentRange | None) -> GroupState:
    found = Find(reader, state.readers[reader].number, stream, lost)
    finds = {**state.finds, state.next_number: found}
    return replace(state, finds=finds, next_number=state.next_number + 1)


def clear(state: GroupState, told: Collection[int]) -> GroupState:
    """Remove the finds with these numbers."""
    if state.finds.keys().isdisjoint(told):
        return state
    return replace(state, finds={n: f for n, f in state.finds.items() if n not in told})


def clip(
    state: GroupState,
    reader: str,
    handed_out: Mapping[SegmentKey, int],
    known: Mapping[int, Find],
) -> GroupState:
    """Leave to a reader's losses what lies after the events that it has handed out.

    ``known`` are those that the reader has learnt, as it has to tell them: since then it stands at
    the head, and its offsets no longer say what it has handed out.
    """

    def unread(number: int, found: Find) -> Find | None:
        lost = found.lost
        if number in known:
            return known[number]
        if found.reader != reader or lost is None or not len(lost):
            return found
        key = SegmentKey(lost.stream, lost.segment_id)
        start = max(lost.start, handed_out.get(key, lost.start))
        return replace(found, lost=replace(lost, start=start)) if start < lost.end else None

    clipped = {n: unread(n, found) for n, found in state.finds.items()}
    left = {n: found for n, found in clipped.items() if found is not None}
    return state if left == state.finds else replace(state, finds=left)


def forget_handed_over(
    state: GroupState, reader: str, offsets: Mapping[SegmentKey, int]
) -> GroupState:
    """Remove a reader's losses in segments that it hands over below the end of the loss.

    The next reader begins at the offset, and finds from there what is lost, and no more.
    """

    def is_found_again(found: Find) -> bool:
        lost = found.lost
        if found.reader != reader or lost is None:
            return False
        key = SegmentKey(lost.stream, lost.segment_id)
        return key in offsets and offsets[key] < lost.end

    return clear(state, {n for n, found in state.finds.items() if is_found_again(found)})


def take_over(state: GroupState, reader: str, number: int) -> GroupState:
    """Give a reader the finds of those that are not in the group any more."""
    left = {
        n: replace(found, reader=reader, joining=number)
        for n, found in state.finds.items()
        if found.reader not in state.readers or state.readers[found.reader].number != found.joining
    }
    return replace(state, finds={**state.finds, **left}) if left else state


def finds_of(state: GroupState, reader: str, number: int) -> dict[int, Find]:
    """Return the finds that a reader has to tell."""
    return {
        n: found
        for n, found in state.finds.items()
        if (found.reader, found.joining) == (reader, number)
    }


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
    state: GroupState,
    reader: str,
    offsets: Mapping[SegmentKey, int] | None = None,
    *,
    is_lost: bool = False,
) -> GroupState:
    """Remove a reader from the group and unassign its segments.

    Other readers continue at the given offsets, or at the recorded offset of a segment without a
    given one. Of a reader that ``is_lost`` the application has said nothing. One that is not in the
    group changes nothing. Raises UndecidedPositions.
    """
    if reader not in state.readers:
        return state
    state = drop_reader(hand_over(state, reader, offsets or {}), reader)
    return without_readers(state, was_lost=is_lost)


def hand_over(state: GroupState, reader: str, given: Mapping[SegmentKey, int]) -> GroupState:
    """Remove a reader, as :func:`remove_reader` does; checkpoints still wait for it."""
    state.check_nothing_prepared([reader])
    owned = state.owned_by(reader)
    final = {key: given.get(key, o.offset) for key, o in owned.items()}
    handed_over = {key: given[key] for key in owned if key in given}
    state = forget_handed_over(state, reader, handed_over)
    state = record_release(state, reader, final)
    readers = {name: entry for name, entry in state.readers.items() if name != reader}
    return replace(_unassign(state, final), readers=readers)


def without_readers(state: GroupState, *, was_lost: bool = True) -> GroupState:
    """Return the state with a checkpoint of what was acknowledged, if no reader is left to make it.

    Only of a group whose streams keep what follows its last checkpoint, and none at the positions
    that this has. Without an interval the application makes the checkpoints, so none is made for a
    last reader that ``was_lost``.
    """
    configuration, last = state.configuration, state.last_checkpoint
    is_due = configuration.checkpoint_ms is not None or not was_lost
    if state.readers or not (configuration.releases_at_checkpoints and is_due):
        return state
    positions = dict(state.positions())
    if state.next_number == 1 or (last is not None and positions == dict(last.positions)):
        return state  # nobody has read since
    return add_complete(state, f"automatic-{state.next_number}")


def evict(
    state: GroupState, reader: str, number: int, held: HeldSegments | None = None
) -> GroupState:
    """Remove an expired reader unless it joined again; ``held`` is from its last heartbeat."""
    entry = state.readers.get(reader)
    if entry is None or entry.number != number:
        return state
    return remove_reader(record_offsets(state, reader, number, held or {}), reader, is_lost=True)


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
    owners = dict(state.owners)
    for key, owned in acquired.items():
        known = owners.get(key, Owners(since=owned.number))
        owners[key] = known.acquired(Owner(reader, owned.number, owned.offset))
    return replace(
        state,
        next_number=state.next_number + len(keys),
        assigned={**state.assigned, **acquired},
        unassigned={k: o for k, o in state.unassigned.items() if k not in acquired},
        owners=owners,
    )


def release(state: GroupState, reader: str, number: int, held: HeldSegments) -> GroupState:
    """Unassign segments at their exact next offsets. Raises ReinitializationRequired."""
    state.reader_entry(reader, number)
    offsets = owned_offsets(state, reader, held)
    return _unassign(record_release(state, reader, offsets), offsets)


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
