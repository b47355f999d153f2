from __future__ import annotations

import pytest

from pravega_spark.errors import (
    IllegalState,
    InvalidStreamCut,
    ReinitializationRequired,
    TooBusy,
    TooManyCheckpoints,
)
from pravega_spark.reader_groups import segments as reader_group_segments
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.leases import Heartbeat, record_heartbeat
from pravega_spark.reader_groups.state import GroupState, Phase, SegmentKey
from pravega_spark.reader_groups.step import ReaderView, reader_step
from pravega_spark.values.segments import END, NOT_REACHED, StreamCut
from tests.harness import stream_cuts as cuts
from tests.harness.strategies import MemoryStream, half_merged

NAME = "nyc/flights"


def key(number: int, epoch: int = 0) -> SegmentKey:
    return SegmentKey(NAME, epoch << 32 | number)


def begun(stream: MemoryStream, end: StreamCut | None = None) -> GroupState:
    configuration = ReaderGroupConfiguration({NAME: (None, end)})
    return reader_group_segments.begin("nyc/g", 0, configuration, {NAME: stream})


def step(
    state: GroupState,
    stream: MemoryStream,
    reader: str,
    offsets: dict[SegmentKey, int] | None = None,
) -> GroupState:
    """Do a step of a reader that has read its segments up to some offsets."""
    owned = state.owned_by(reader)
    held = {k: (o.number, (offsets or {}).get(k, o.offset)) for k, o in owned.items()}
    ended = frozenset(
        k
        for k, (_, offset) in held.items()
        if stream.records[k.segment_id].sealed_epoch is not None
        and offset == stream.records[k.segment_id].next_offset
    )
    view = ReaderView(reader, state.readers[reader].number, held, ended)
    return reader_step(state, view, {NAME: stream}.__getitem__)


def joined(state: GroupState, *readers: str) -> GroupState:
    for reader in readers:
        state = transitions.join(state, reader, 10_000)
    return state


def shares(state: GroupState) -> list[int]:
    return list(transitions.segment_counts(state).values())


def test_one_reader_acquires_all_and_releases_half_when_another_joins() -> None:
    stream = MemoryStream.of(4)
    state = step(joined(begun(stream), "a"), stream, "a")
    assert shares(state) == [4]
    state = joined(state, "b")
    state = step(state, stream, "b")
    assert shares(state) == [4, 0], "no segment waits yet"
    stream.append(key(3).segment_id, 9)
    state = step(state, stream, "a", {key(3): 7})
    assert shares(state) == [2, 0]
    assert state.unassigned[key(3)] == 7, "the exact next offset"
    state = step(state, stream, "b")
    assert shares(state) == [2, 2]
    assert state.assigned[key(3)].offset == 7


@pytest.mark.parametrize(
    ("unread", "released"),
    [
        ({key(0): 100, key(1): 90}, {key(1), key(3)}),
        ({key(2): 100, key(3): 90}, {key(1), key(3)}),
        ({}, {key(1), key(3)}),
        ({key(3): 1}, {key(0), key(2)}),
    ],
)
def test_reader_releases_about_half_of_the_unread_events_with_half_of_its_segments(
    unread: dict[SegmentKey, int], released: set[SegmentKey]
) -> None:
    stream = MemoryStream.of(4)
    state = step(joined(begun(stream), "a"), stream, "a")
    state = joined(state, "b")
    view = ReaderView("a", state.readers["a"].number, unread=unread)
    assert set(reader_step(state, view, {NAME: stream}.__getitem__).unassigned) == released


@pytest.mark.parametrize(("segments", "readers"), [(1, 3), (4, 3), (8, 3), (7, 2), (2, 5)])
def test_shares_differ_by_at_most_one_in_any_order(segments: int, readers: int) -> None:
    stream = MemoryStream.of(segments)
    state = begun(stream)
    names = [f"r{i}" for i in range(readers)]
    for name in names:
        state = step(joined(state, name), stream, name)
    for _ in range(3):
        for name in reversed(names):
            state = step(state, stream, name)
    assert sum(shares(state)) == segments
    assert max(shares(state)) - min(shares(state)) <= 1
    calm = state
    for name in names:
        assert step(calm, stream, name) == calm, "a balanced group stays as it is"


def test_successors_are_acquired_immediately_without_a_checkpoint() -> None:
    stream = MemoryStream.of(1)
    stream.append(0, 3)
    stream.scale([0], [(0.0, 0.5), (0.5, 1.0)])
    state = step(joined(begun(stream), "a"), stream, "a")
    state = step(state, stream, "a", {key(0): 3})
    assert set(state.owned_by("a")) == {key(1, 1), key(2, 1)}


def test_successor_of_a_half_read_merge_is_future_in_a_checkpoint() -> None:
    stream = half_merged()
    state = step(joined(begun(stream), "a"), stream, "a")
    state = step(state, stream, "a", {key(0): 10})
    assert state.future == {key(2, 1): frozenset({1})}
    state, checkpoint = transitions.initiate(state, "c")
    state = transitions.answer(state, "a", checkpoint.number, {key(1): 5})
    done = state.checkpoint(checkpoint.number)
    assert done is not None
    assert done.is_complete
    cut = state.cuts_of(done.positions)[NAME]
    assert dict(cut) == {0: END, 1: 5, key(2, 1).segment_id: NOT_REACHED}
    cuts.check(stream, cut)
    again = reader_group_segments.begin(
        "nyc/g", 1, state.configuration, {NAME: stream}, starts={NAME: cut}, next_number=9
    )
    assert (again.unassigned, again.future) == ({key(1): 5}, {key(2, 1): frozenset({1})})


def test_empty_sealed_segments_are_skipped() -> None:
    stream = MemoryStream.of(1)
    stream.scale([0], [(0.0, 1.0)])
    stream.scale([key(1, 1).segment_id], [(0.0, 1.0)])
    assert begun(stream).unassigned == {key(2, 2): 0}


def test_group_with_an_end_cut_reads_up_to_it() -> None:
    stream = half_merged()
    end = StreamCut(NAME, 1, {0: END, 1: 5, key(2, 1).segment_id: NOT_REACHED})
    state = step(joined(begun(stream, end), "a"), stream, "a")
    assert reader_group_segments.EndOffsets(state, stream).of(0) is None
    assert reader_group_segments.EndOffsets(state, stream).of(1) == 5
    numbers = {k: o.number for k, o in state.assigned.items()}
    number = state.readers["a"].number
    state = reader_group_segments.complete(state, stream, "a", number, {key(0): numbers[key(0)]})
    assert not state.is_at_end
    state = reader_group_segments.complete(state, stream, "a", number, {key(1): numbers[key(1)]})
    assert state.is_at_end
    assert state.completed == {key(0): END, key(1): 5}


def test_start_after_its_end_is_refused() -> None:
    stream = half_merged()
    spans = {NAME: (StreamCut(NAME, 1, {0: 5, 1: 5}), StreamCut(NAME, 1, {0: 5, 1: 4}))}
    with pytest.raises(InvalidStreamCut, match="lies after the end"):
        reader_group_segments.begin("nyc/g", 0, ReaderGroupConfiguration(spans), {NAME: stream})


def test_evicted_reader_is_refused_and_its_last_position_counts() -> None:
    stream = MemoryStream.of(2)
    stream.append(0, 9)
    state = step(joined(begun(stream), "a", "b"), stream, "a")
    number = state.readers["a"].number
    held = {key(0): (state.assigned[key(0)].number, 4), key(1): (99, 7)}
    after = transitions.evict(state, "a", number, held)
    assert after.unassigned == {key(1): 0, key(0): 4} or after.unassigned[key(0)] == 4
    assert after.unassigned[key(1)] == 0, "reported for an ownership that it does not have"
    with pytest.raises(ReinitializationRequired, match="lease expired"):
        reader_step(after, ReaderView("a", number), {NAME: stream}.__getitem__)
    again = transitions.join(after, "a", 10_000)
    assert transitions.evict(again, "a", number) == again, "it has joined again"


def test_reader_id_is_in_a_group_once() -> None:
    state = joined(begun(MemoryStream.of(1)), "a")
    with pytest.raises(IllegalState, match="reader_offline"):
        transitions.join(state, "a", 10_000)
    assert transitions.remove_reader(state, "nobody") == state


def test_checkpoint_waits_for_all_readers_except_those_that_left() -> None:
    stream = MemoryStream.of(2)
    stream.append(0, 9)
    state = joined(begun(stream), "a", "b")
    state = step(step(state, stream, "a"), stream, "b")
    state, begun_one = transitions.initiate(state, "c")
    assert transitions.initiate(state, "c")[1] == begun_one, "the same name joins"
    state = transitions.answer(state, "a", begun_one.number, {key(0): 6})
    state = transitions.answer(state, "a", begun_one.number, {key(0): 9})
    assert state.last_checkpoint is None
    state = transitions.remove_reader(state, "b", {key(1): 0})
    assert state.last_checkpoint is not None
    assert state.last_checkpoint.positions == {key(0): 6, key(1): 0}
    assert state.assigned[key(0)].offset == 6


def test_reader_that_has_not_answered_a_checkpoint_acquires_no_segment() -> None:
    """Else it answers with a segment that comes after one that is in the checkpoint already."""
    stream = MemoryStream.of(1)
    stream.append(key(0).segment_id, 3)
    state = step(joined(begun(stream), "a", "b"), stream, "a")
    state, checkpoint = transitions.initiate(state, "c")
    state = transitions.answer(state, "a", checkpoint.number, {key(0): 1})
    stream.scale([0], [(0.0, 0.5), (0.5, 1.0)])
    state = step(state, stream, "a", {key(0): 3})
    assert len(state.unassigned) == 1
    state = step(state, stream, "b")
    assert not state.owned_by("b")
    state = step(transitions.answer(state, "b", checkpoint.number, {}), stream, "b")
    assert len(state.owned_by("b")) == 1
    assert state.last_checkpoint is not None
    assert dict(state.last_checkpoint.positions) == {key(0): 1}


def test_silent_checkpoint_records_no_offset() -> None:
    stream = MemoryStream.of(1)
    stream.append(0, 9)
    state = step(joined(begun(stream), "a"), stream, "a")
    state, silent = transitions.initiate(state, "s", silent=True)
    state = transitions.answer(state, "a", silent.number, {key(0): 6})
    done = state.checkpoint(silent.number)
    assert done is not None
    assert (done.is_complete, done.positions) == (True, {key(0): 6})
    assert (state.last_checkpoint, state.assigned[key(0)].offset) == (None, 0)


def test_checkpoints_beyond_the_limit_are_refused() -> None:
    state = joined(begun(MemoryStream.of(1)), "a")
    for name in "xyz":
        state, _ = transitions.initiate(state, name)
    with pytest.raises(TooManyCheckpoints, match="3 pending checkpoints"):
        transitions.initiate(state, "more")
    state, _ = transitions.initiate(state, "s", silent=True)
    assert transitions.cancel(state).checkpoints == ()


def test_group_without_readers_completes_a_checkpoint_immediately() -> None:
    state, found = transitions.initiate(begun(MemoryStream.of(2)), "c")
    assert state.last_checkpoint is not None
    assert state.last_checkpoint.number == found.number
    assert set(state.last_checkpoint.positions) == {key(0), key(1)}


def test_reader_cannot_join_a_group_that_is_being_changed() -> None:
    stream = MemoryStream.of(1)
    configuration = ReaderGroupConfiguration([NAME])
    state = reader_group_segments.begin("g", 0, configuration, {NAME: stream}, phase=Phase.CHANGING)
    with pytest.raises(TooBusy, match="being changed"):
        joined(state, "a")


def test_group_behind_the_head_continues_there_and_owners_keep_the_rest() -> None:
    stream = MemoryStream.of(2)
    stream.append(0, 5)
    stream.append(1, 5)
    state = step(joined(begun(stream), "a"), stream, "a")
    number = state.assigned[key(1)].number
    stream.scale([0], [(0.0, 0.25), (0.25, 0.5)])
    stream.truncate(StreamCut(NAME, 1, {1: 3, key(2, 1).segment_id: 0, key(3, 1).segment_id: 0}))
    state, lost = reader_group_segments.move_to_head(state, stream)
    assert sum(map(len, lost)) == 8
    assert (state.assigned[key(1)].number, state.assigned[key(1)].offset) == (number, 3)
    assert set(state.unassigned) == {key(2, 1), key(3, 1)}
    assert reader_group_segments.move_to_head(state, stream) == (state, ())


def test_deleted_stream_is_completed_at_its_recorded_offsets() -> None:
    stream = half_merged()
    state = step(joined(begun(stream), "a"), stream, "a")
    state = step(state, stream, "a", {key(0): 10})
    assert (set(state.assigned), set(state.future)) == ({key(1)}, {key(2, 1)})
    state, checkpoint = transitions.initiate(state, "c")
    view = ReaderView("a", state.readers["a"].number, behind_head=frozenset({NAME}))
    after = reader_step(state, view, lambda _: None)
    assert after.is_at_end
    assert after.completed == {key(0): END, key(1): 0}
    done = transitions.answer(after, "a", checkpoint.number, {}).checkpoint(checkpoint.number)
    assert done is not None
    assert done.positions[key(1)] == 0
    assert reader_step(after, view, lambda _: None) == after


def test_a_finished_segment_stays_with_its_reader_while_another_one_completes() -> None:
    stream = MemoryStream.of(2)
    stream.append(key(0).segment_id, 3)
    stream.append(key(1).segment_id, 3)
    state = joined(begun(stream), "a", "b")
    state = step(state, stream, "a")
    state = step(state, stream, "b")
    (mine,), (other,) = state.owned_by("a"), state.owned_by("b")
    stream.scale([0, 1], [(0.0, 1.0)])
    number = state.readers["b"].number
    held = {other: (state.assigned[other].number, 3)}
    state = transitions.record_offsets(state, "b", number, held)
    state = step(state, stream, "a", {mine: 3})
    assert list(state.owned_by("b")) == [other]
    assert state.future == {key(2, 1): {other.segment_id}}
    state = step(state, stream, "b", {other: 3})
    assert not state.future


def test_a_heartbeat_of_an_earlier_joining_records_nothing() -> None:
    stream = MemoryStream.of(1)
    stream.append(key(0).segment_id, 3)
    state = step(joined(begun(stream), "a"), stream, "a")
    number = state.readers["a"].number
    held = {key(0): (state.assigned[key(0)].number, 2)}
    assert record_heartbeat(state, "a", Heartbeat(number - 1, held)) is state
    assert record_heartbeat(state, "a", None) is state
    assert record_heartbeat(state, "b", Heartbeat(number, held)) is state
    assert record_heartbeat(state, "a", Heartbeat(number, held)).assigned[key(0)].offset == 2
