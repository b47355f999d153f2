"""Transactions acknowledge events: each is in the output once, whoever dies when."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    ObjectClosed,
    ReinitializationRequired,
    StoreError,
    TruncatedData,
    TxnFailed,
)
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.state import GroupState, SegmentKey
from pravega_spark.reader_groups.table import GroupCodec
from pravega_spark.txn.joint import JointTransaction, JointWriter
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.processing_world import IN, OUT, READER_LEASE, ProcessingWorld, Processor
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import scale

COMMITTED, ABORTED = TransactionStatus.COMMITTED, TransactionStatus.ABORTED


@pytest.fixture
def world() -> ProcessingWorld:
    return ProcessingWorld()


@pytest.fixture
def a(world: ProcessingWorld) -> Processor:
    return world.processor("a")


# ---------------------------------------------------------------------------- commits and aborts


def test_commit_acknowledges_what_was_handed_out(world: ProcessingWorld, a: Processor) -> None:
    a.process(4)
    assert (world.processed(), world.offset()) == ([b"0", b"1", b"2", b"3"], 4)
    a.process_all()
    a.reader.close()
    assert (world.processed(), world.offset()) == (world.events, 10)


def test_abort_hands_the_events_out_again(world: ProcessingWorld, a: Processor) -> None:
    a.process(2)
    txn = a.begin(3)
    txn.abort()
    assert (world.offset(), txn.status) == (2, ABORTED)
    with pytest.raises(InvalidInput), a.joint.begin(OUT, readers=[a.reader]) as txn:
        a.read(txn, 4, to="s/other")
    a.process_all()
    assert (world.processed(), world.offset()) == (world.events, 10)


def test_events_that_were_handed_out_before_the_begin_belong_to_the_transaction(
    world: ProcessingWorld, a: Processor
) -> None:
    first = a.reader.read_next_event(0).event
    assert first is not None
    txn = a.begin()
    txn.write_event(OUT, first.data)
    a.read(txn, 2)
    txn.commit()
    assert world.offset() == 3
    a.process_all()
    assert world.processed() == world.events


def test_rewind_hands_out_again_what_no_transaction_has(
    world: ProcessingWorld, a: Processor
) -> None:
    a.process(1)
    assert [a.reader.read_next_event(0).position.offsets for _ in range(3)]
    a.reader.rewind()
    event = a.reader.read_next_event(0).event
    assert event is not None
    assert event.data == b"1"


def test_closing_and_heartbeats_acknowledge_nothing(world: ProcessingWorld, a: Processor) -> None:
    for _ in range(5):
        assert a.reader.read_next_event(0).event
        world.runtime.sleep(READER_LEASE / 3)
    a.reader.close()
    assert world.offset() == 0
    world.processor("b").process_all()
    assert world.processed() == world.events


# ------------------------------------------------------------ every step against every other verb

POINTS = (
    "positions.prepared",
    "joint.prepared",
    "joint.decided",
    "joint.closed",
    "joint.carried-out",
)


def take_over(world: ProcessingWorld) -> None:
    for _ in range(3):
        world.runtime.sleep(READER_LEASE + 1)
        world.group().expire_readers()
    assert world.group().online_readers() == []


def set_offline(world: ProcessingWorld) -> None:
    assert world.group().reader_offline("a")


def reset(world: ProcessingWorld) -> None:
    world.group().reset({})


def update(world: ProcessingWorld) -> None:
    world.group().update(refresh="1 s")


def sweep(world: ProcessingWorld) -> None:
    world.joint().sweep()


VERBS = [take_over, set_offline, reset, update, sweep]


@pytest.mark.medium
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("point", POINTS)
def test_verb_after_a_kill_at_any_step_loses_and_repeats_nothing(
    world: ProcessingWorld, a: Processor, point: str, verb: Callable[[ProcessingWorld], None]
) -> None:
    a.process(2)
    txn = a.begin(3)
    with at_failpoint(point, kill), pytest.raises(Killed):
        txn.commit()
    verb(world)
    is_decided = POINTS.index(point) >= POINTS.index("joint.decided")
    if verb is not sweep:
        assert world.group().state().prepared == {}
    if verb is not sweep or is_decided:
        assert world.offset() == (5 if is_decided else 2)
    world.finish()
    assert (world.processed(), world.offset()) == (world.events, 10)
    world.joint().sweep()
    assert world.joint().decisions.read() == {}


@pytest.mark.medium
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("point", POINTS)
def test_verb_amid_any_step_of_a_commit_loses_and_repeats_nothing(
    world: ProcessingWorld, a: Processor, point: str, verb: Callable[[ProcessingWorld], None]
) -> None:
    a.process(2)
    txn = a.begin(3)
    with at_failpoint(point, lambda: verb(world)), contextlib.suppress(TxnFailed):
        txn.commit()
    is_decided = POINTS.index(point) >= POINTS.index("joint.decided")
    assert txn.status is (COMMITTED if is_decided or verb is sweep else ABORTED)
    world.finish()
    assert (world.processed(), world.offset()) == (world.events, 10)


@pytest.mark.parametrize("point", POINTS)
def test_deletion_settles_first(world: ProcessingWorld, a: Processor, point: str) -> None:
    txn = a.begin(3)
    with at_failpoint(point, kill), pytest.raises(Killed):
        txn.commit()
    group = world.group()
    assert group.delete()
    assert group.sync.local.state.prepared == {}
    world.settle()
    is_decided = POINTS.index(point) >= POINTS.index("joint.decided")
    assert len(world.processed()) == (3 if is_decided else 0)
    world.created(streams=[IN], acknowledge="transaction")
    assert world.offset() == 0


def test_killed_settlement_is_settled_by_the_next(world: ProcessingWorld, a: Processor) -> None:
    with at_failpoint("joint.decided", kill), pytest.raises(Killed):
        a.begin(3).commit()
    with at_failpoint("positions.settling", kill), pytest.raises(Killed):
        set_offline(world)
    assert world.group().online_readers() == ["a"]
    set_offline(world)
    assert world.offset() == 3


# ------------------------------------------------------------------------------- lost ownership


@pytest.mark.parametrize("verb", [take_over, set_offline, reset, update])
def test_reader_that_has_lost_its_segments_commits_nothing(
    world: ProcessingWorld, a: Processor, verb: Callable[[ProcessingWorld], None]
) -> None:
    txn = a.begin(3)
    verb(world)
    with pytest.raises(TxnFailed, match=r"cannot acknowledge.*reader a .*no longer in") as caught:
        txn.commit()
    assert caught.value.status is ABORTED
    assert ".." not in str(caught.value)
    assert (world.processed(), world.offset(), txn.status) == ([], 0, ABORTED)
    with pytest.raises(ReinitializationRequired):
        a.reader.read_next_event(0)


def test_reader_of_the_same_name_does_not_inherit_the_transaction(
    world: ProcessingWorld, a: Processor
) -> None:
    txn = a.begin(3)
    take_over(world)
    again = world.processor("a")
    with pytest.raises(TxnFailed):
        txn.commit()
    again.process_all()
    assert world.processed() == world.events


def test_transaction_whose_part_expired_goes_back(world: ProcessingWorld, a: Processor) -> None:
    txn = a.begin(3)
    world.settle()
    a.reader.keep_alive()
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.commit()
    assert (world.processed(), world.offset()) == ([], 0)
    a.process_all()
    assert world.processed() == world.events


# ---------------------------------------------------------------------------- several processes


def test_other_process_commits_only_what_the_reader_has_prepared(
    world: ProcessingWorld, a: Processor
) -> None:
    txn = a.begin(3)
    txn.flush()
    other = world.joint().open(txn.id)
    with pytest.raises(IllegalState, match=r"events that a of s/g handed out.*Commit it there"):
        other.commit()
    with at_failpoint("joint.prepared", kill), pytest.raises(Killed):
        txn.commit()
    other.commit()
    assert (len(world.processed()), world.offset(), other.status) == (3, 3, COMMITTED)
    txn.commit()
    a.process_all()
    assert world.processed() == world.events


def test_abort_of_another_process_makes_the_reader_go_back(
    world: ProcessingWorld, a: Processor
) -> None:
    txn = a.begin(3)
    world.joint().open(txn.id).abort()
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.commit()
    a.process_all()
    assert world.processed() == world.events


def test_old_handle_that_is_committed_again_acknowledges_nothing_of_a_later_transaction(
    world: ProcessingWorld, a: Processor
) -> None:
    txn = a.begin(3)
    with at_failpoint("joint.decided", kill), pytest.raises(Killed):
        txn.commit()
    later = a.begin(2)
    with at_failpoint("joint.prepared", kill), pytest.raises(Killed):
        later.commit()
    txn.commit()
    later.abort()
    assert (len(world.processed()), world.offset()) == (3, 3)
    a.process_all()
    assert world.processed() == world.events


@pytest.mark.parametrize("is_prepared", [False, True])
@pytest.mark.parametrize("way", ["begin", "rewind"])
def test_reader_without_the_handle_of_an_aborted_transaction_goes_back(
    world: ProcessingWorld, a: Processor, way: str, is_prepared: bool
) -> None:
    a.process(2)
    txn = a.begin(3)
    if is_prepared:
        with at_failpoint("joint.prepared", kill), pytest.raises(Killed):
            txn.commit()
    for refused in (a.begin, a.reader.rewind):
        with pytest.raises(IllegalState, match=f"has not ended.*joint_transaction.'{txn.id}'"):
            refused()
    world.joint().open(txn.id).abort()
    if is_prepared:
        with pytest.raises(IllegalState, match=r"hands out nothing.*rewind"):
            a.reader.read_next_event(0)
    if way == "rewind":
        a.reader.rewind()
        event = a.reader.read_next_event(0).event
        assert event is not None
        assert event.data == b"2"
        a.reader.rewind()
    a.process(3)
    assert (len(world.processed()), world.offset()) == (5, 5)
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.commit()
    a.process_all()
    assert world.processed() == world.events


def test_reader_goes_on_after_a_commit_of_another_process(
    world: ProcessingWorld, a: Processor
) -> None:
    txn = a.begin(3)
    with at_failpoint("joint.prepared", kill), pytest.raises(Killed):
        txn.commit()
    other = world.joint()
    other.open(txn.id).commit()
    other.decisions.remove_finished()
    assert other.decisions.read() == {}
    a.process(1)
    assert (world.processed(), world.offset()) == ([b"0", b"1", b"2", b"3"], 4)


def test_positions_left_by_an_abort_give_way_to_the_next_transaction(
    world: ProcessingWorld, a: Processor
) -> None:
    txn = a.begin(3)
    abort = world.joint().open(txn.id).abort
    with at_failpoint("joint.prepared", abort), pytest.raises(TxnFailed):
        txn.commit()
    assert set(world.group().state().prepared) == {"a"}
    a.process(4)
    assert (world.group().state().prepared, world.offset()) == ({}, 4)


def test_two_readers_of_one_transaction(world: ProcessingWorld) -> None:
    world = ProcessingWorld(segments=2)
    a = world.processor("a")
    a.reader.read_next_event(0)
    b = world.processor("b")
    a.reader.rewind()
    for _ in range(3):
        world.runtime.sleep(3.1)
        for one in (a, b):
            one.reader.read_next_event(0)
            one.reader.rewind()
    assert world.group().distribution() == {"a": 1, "b": 1, None: 0}
    txn = a.joint.begin(OUT, readers=[a.reader, b.reader])
    assert a.read(txn) + b.read(txn) == 10
    txn.commit()
    assert world.processed() == world.events
    assert world.group().state().prepared == {}
    assert not a.read(a.begin()) + b.read(b.begin())


def test_commit_that_fails_after_its_decision_is_finished_by_the_next_call(
    world: ProcessingWorld, a: Processor
) -> None:
    def fail() -> None:
        raise StoreError("no answer")

    txn = a.begin(3)
    with at_failpoint("joint.decided", fail), pytest.raises(StoreError):
        txn.commit()
    assert txn.status is TransactionStatus.COMMITTING
    with pytest.raises(IllegalState, match=r"hands out nothing while.*is being committed"):
        a.reader.read_next_event(0)
    txn.commit()
    assert world.offset() == 3
    a.process_all()
    assert world.processed() == world.events


@pytest.mark.parametrize("end", ["old handle", "other process", "sweep"])
def test_begin_after_a_decision_that_was_not_carried_out_acknowledges_it(
    world: ProcessingWorld, a: Processor, end: str
) -> None:
    txn = a.begin(3)
    with at_failpoint("joint.decided", kill), pytest.raises(Killed):
        txn.commit()
    later = a.begin(2)
    assert world.offset() == 3
    if end == "old handle":
        txn.commit()
    elif end == "other process":
        world.joint().open(txn.id).commit()
    else:
        world.joint().sweep()
    assert (world.offset(), len(world.processed())) == (3, 3), "the later one is not decided"
    later.commit()
    assert world.offset() == 5
    a.process_all()
    assert world.processed() == world.events


# -------------------------------------------------------------------------------------- refusals


def test_only_readers_of_groups_that_transactions_acknowledge_take_part(
    world: ProcessingWorld, a: Processor
) -> None:
    world.group("s/other").create(world.created_configuration())
    reader = world.group("s/other").create_reader("x")
    with pytest.raises(IllegalState, match=r"acknowledge='next'.*acknowledge='transaction'"):
        a.joint.begin(OUT, readers=[reader])
    with pytest.raises(IllegalState, match="acknowledge='next'"):
        reader.rewind()
    writer = JointWriter(a.joint.decisions, {}, a.joint.positions)
    for wrong in ("a", None, a.group):
        with pytest.raises(InvalidInput, match="is not a reader of a group"):
            writer.begin_transaction(readers=[wrong])
    elsewhere = ProcessingWorld()
    if elsewhere.store.url != world.store.url:
        with pytest.raises(InvalidInput, match="one root decides"):
            writer.begin_transaction(readers=[elsewhere.processor("y").reader])


def open_writer(a: Processor) -> JointWriter:
    writers = {OUT: TransactionalWriter(a.joint.stream(OUT))}
    return JointWriter(a.joint.decisions, writers, a.joint.positions)


@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_reader_that_cannot_take_part_is_refused_on_a_root_without_decisions(
    world: ProcessingWorld, a: Processor, acknowledge: str
) -> None:
    other = world.group("s/other")
    other.create(ReaderGroupConfiguration([IN], acknowledge=acknowledge))
    with open_writer(a) as writer:
        for readers in ([other.create_reader("x")], [a.reader, other.create_reader("y")]):
            with pytest.raises(IllegalState, match=f"acknowledge='{acknowledge}'"):
                writer.begin_transaction(readers=readers)
    assert a.joint.decisions.log.refresh() is None
    a.process_all()
    assert world.processed() == world.events


def test_reader_that_is_given_twice_is_refused(world: ProcessingWorld, a: Processor) -> None:
    with open_writer(a) as writer:
        for _ in range(2):
            with pytest.raises(IllegalState, match=r"reader a of .* is given twice"):
                writer.begin_transaction(readers=[a.reader, a.reader])
            a.process(1)
    assert world.processed() == [b"0", b"1"]


def test_closed_reader_is_refused_at_the_begin(world: ProcessingWorld, a: Processor) -> None:
    a.process(1)
    a.reader.close()
    with open_writer(a) as writer, pytest.raises(ObjectClosed, match="reader a was closed"):
        writer.begin_transaction(readers=[a.reader])
    world.processor("b").process_all()
    assert world.processed() == world.events


def test_verbs_that_would_move_positions_are_refused(world: ProcessingWorld, a: Processor) -> None:
    txn = a.begin(2)
    position = a.reader.position
    with pytest.raises(IllegalState, match="only transactions acknowledge"):
        a.reader.close_at(position)
    with pytest.raises(IllegalState, match="only transactions acknowledge"):
        a.group.reader_offline("a", position)
    with pytest.raises(IllegalState, match="commit your transaction"):
        next(iter(a.reader))
    with pytest.raises(IllegalState, match="abort it, and the reader goes back"):
        a.reader.rewind()
    with pytest.raises(IllegalState, match="takes part in joint transaction"):
        a.joint.begin(OUT, readers=[a.reader])
    with pytest.raises(IllegalState, match="a streaming query has none"):
        transitions.join(world.group().state(), "streaming-query", None, exclusive=True)
    txn.commit()
    assert world.offset() == 2


def test_failed_begin_unties_the_reader(world: ProcessingWorld, a: Processor) -> None:
    class Failing:
        _life = 1

        def _check_usable(self) -> None: ...

        def _begin(self, *_: object) -> JointTransaction:
            raise StoreError("no answer")

    writer = JointWriter(a.joint.decisions, {OUT: Failing()}, a.joint.positions)  # type: ignore[dict-item]
    with pytest.raises(StoreError):
        writer.begin_transaction(readers=[a.reader])
    assert a.joint.decisions.read() == {}
    a.process_all()
    assert world.processed() == world.events


# ------------------------------------------------- checkpoints, successors, shares and retention


def test_checkpoint_shows_no_marker_and_has_what_is_acknowledged(
    world: ProcessingWorld, a: Processor
) -> None:
    a.process(2)
    txn = a.begin(3)
    pending = world.group().initiate_checkpoint("nightly")
    world.runtime.sleep(3.1)
    assert a.read(txn, 1) == 1
    assert pending.result(timeout=0).stream_cuts[IN].positions == {0: 2}
    cuts = world.group().generate_stream_cuts()
    world.runtime.sleep(3.1)
    assert a.read(txn, 1) == 1
    assert cuts.result(timeout=0).stream_cuts[IN].positions == {0: 2}
    txn.commit()
    a.process_all()
    assert world.processed() == world.events


def test_automatic_checkpoints_have_what_is_acknowledged(world: ProcessingWorld) -> None:
    world.group().update(checkpoint_interval="10 s", retention="automatic")
    a = world.processor("a")
    txn = a.begin(3)
    for _ in range(4):
        world.runtime.sleep(READER_LEASE / 2)
        a.read(txn, 1)
    state = world.group().state()
    assert state.last_checkpoint is None or state.cuts_of(state.last_checkpoint.positions)[
        IN
    ].positions == {0: 0}
    txn.commit()
    for _ in range(4):
        world.runtime.sleep(READER_LEASE / 2)
        a.reader.keep_alive()
        a.begin().commit()
        a.reader.read_next_event(0)
        a.reader.rewind()
    last = world.group().last_checkpoint()
    assert last is not None
    assert last.stream_cuts[IN].positions == {0: 7}


def test_successors_follow_when_their_predecessors_are_acknowledged(
    world: ProcessingWorld, a: Processor
) -> None:
    scale(world.streams[IN], [0], [(0.0, 0.5), (0.5, 1.0)])
    later = world.write(6, IN)
    lifecycle.seal(world.streams[IN])
    txn = a.begin()
    assert a.read(txn) == 10
    assert a.reader.read_next_event(None) == (None, a.reader.position, None, False), "no wait"
    txn.commit()
    a.process_all()
    assert world.processed() == sorted([*world.events, *later])
    assert a.reader.read_next_event(0).is_completed


def test_reader_that_always_has_a_transaction_releases_segments_after_commits() -> None:
    world = ProcessingWorld(segments=4, events=60)
    a = world.processor("a")
    a.process(5)
    b = world.processor("b")
    for _ in range(8):
        for one in (a, b):
            txn = one.begin(2)
            world.runtime.sleep(1.7)  # the state is refreshed amid transactions
            one.read(txn, 1)
            txn.commit()
    assert world.group().distribution() == {"a": 2, "b": 2, None: 0}
    a.process_all()
    b.process_all()
    assert world.processed() == world.events


def test_truncation_of_what_a_transaction_has_prepared(
    world: ProcessingWorld, a: Processor
) -> None:
    a.process(1)
    txn = a.begin(3)

    def move_to_the_head() -> None:
        truncate(world.streams[IN], StreamCut(IN, 1, {0: 6}))
        view, group = world.streams[IN].view(), world.group()
        group.state()

        def found(state: GroupState) -> GroupState:
            owners = state.assigned
            after, lost = segments.move_to_head(state, view)
            return transitions.add_lost(after, lost, owners, "a")

        group.sync.apply("READ", found)

    with at_failpoint("joint.prepared", move_to_the_head):
        txn.commit()
    assert world.offset() == 6
    with pytest.raises(TruncatedData):
        a.reader.read_next_event(0)
    a.process_all()
    assert world.processed() == [b"0", b"1", b"2", b"3", b"6", b"7", b"8", b"9"]


def test_prepared_positions_are_rows_that_are_read_again(
    world: ProcessingWorld, a: Processor
) -> None:
    txn = a.begin(3)
    with at_failpoint("joint.prepared", kill), pytest.raises(Killed):
        txn.commit()
    group = world.group()
    state = group.state()
    assert state.prepared["a"].offsets == {SegmentKey(IN, 0): 3}
    rows = GroupCodec().encode(state)
    assert GroupCodec().decode(rows) == state
    assert rows["prepared/a"]["value"] == '{"s/in":{"0#0":3}}'


def test_segment_that_the_reader_lost_to_a_truncation_is_not_acknowledged(
    world: ProcessingWorld, a: Processor
) -> None:
    scale(world.streams[IN], [0], [(0.0, 1.0)])
    later = world.write(2, IN)
    txn = a.begin(3)
    truncate(world.streams[IN], world.streams[IN].view().tail)
    world.write(1, IN)
    view, group = world.streams[IN].view(), world.group()
    group.state()
    group.sync.apply("READ", lambda state: segments.move_to_head(state, view)[0])
    with pytest.raises(TxnFailed, match=r"cannot acknowledge.*it lost s/in/0#0"):
        txn.commit()
    assert (world.processed(), txn.status, len(later)) == ([], ABORTED, 2)


def test_commit_whose_positions_are_not_recorded_is_not_done(
    world: ProcessingWorld, a: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(transaction: str) -> None:
        raise StoreError(f"no answer for {transaction}")

    txn = a.begin(3)
    with monkeypatch.context() as patched:
        patched.setattr(a.reader.participant, "carry_out", fail)
        with pytest.raises(StoreError):
            txn.commit()
    assert (world.processed(), world.offset()) == ([b"0", b"1", b"2"], 0)
    assert txn.status is TransactionStatus.COMMITTING
    txn.commit()
    assert (world.offset(), txn.status) == (3, COMMITTED)
    a.process_all()
    assert world.processed() == world.events
