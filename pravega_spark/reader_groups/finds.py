"""What readers found on their way and have to tell: pure transitions of a group's state.

A find is in the state from the step's own commit on, so neither an error nor a crash between the
step and the call that tells it loses it. It belongs to one reader, of the segment that lost events
or of a part of the deleted stream. Once that reader has told it, its next commit clears it. A find
of a reader that is not in the group any more goes to the next reader that does a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from pravega_spark.model import SegmentRange
from pravega_spark.reader_groups.group_state import Find, GroupState, Ownership, SegmentKey


def add_lost(
    state: GroupState,
    lost: Iterable[SegmentRange],
    owners: Mapping[SegmentKey, Ownership],
    finder: str,
) -> GroupState:
    """Add ranges that were truncated unread; each belongs to its owner, or else to the finder."""
    for rng in lost:
        owned = owners.get(SegmentKey(rng.stream, rng.segment_id))
        state = _add(state, finder if owned is None else owned.reader, rng.stream, rng)
    return state


def add_deleted(state: GroupState, stream: str, finder: str) -> GroupState:
    """Add the deletion of a stream, for each reader that had a part of it."""
    readers = {owned.reader for key, owned in state.assigned.items() if key.stream == stream}
    for reader in sorted(readers or {finder}):
        state = _add(state, reader, stream, None)
    return state


def _add(state: GroupState, reader: str, stream: str, lost: SegmentRange | None) -> GroupState:
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
