"""Joint transactions: over several streams all or nothing, whoever dies when, in one order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    InvalidInput,
    NoSuchTransaction,
    TxnFailed,
)
from pravega_spark.txn import settlement, sweeper
from pravega_spark.values.limits import MAX_LEASE_MS
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.joint_world import JointProcess, JointWorld
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import write
from tests.harness.transaction_world import LEASE_MS, written

A, B, C = "s/a", "s/b", "s/c"
BOTH = {A: b"1", B: b"1"}
COMMITTED, ABORTED = TransactionStatus.COMMITTED, TransactionStatus.ABORTED


@pytest.fixture
def world() -> JointWorld:
    return JointWorld(A, B, C)


def settle_by_root(world: JointWorld) -> None:
    world.process().sweep()


def settle_by_streams(world: JointWorld) -> None:
    for name in (B, A):
        sweeper.sweep_transactions(world.process().stream(name), prepared_limit_ms=10**12)


def seal(world: JointWorld, name: str) -> None:
    stream = world.process().stream(name)
    lifecycle.seal(stream, sweeper.end_all_transactions, life=stream.view().life)


def killed_commit(world: JointWorld, point: str, events: dict[str, bytes]) -> str:
    """Commit a transaction in a process that dies at a failpoint; return its id."""
    txn = world.process().written(events)
    with at_failpoint(point, kill), pytest.raises(Killed):
        txn.commit()
    return txn.id


# ------------------------------------------------------------------------------------ all or none


def test_commit_shows_the_events_of_all_streams(world: JointWorld) -> None:
    txn = world.process().written(BOTH)
    assert (txn.status, world.events(A)) == (TransactionStatus.OPEN, [])
    txn.commit()
    txn.commit()  # does nothing
    assert (txn.status, world.events(A), world.events(B)) == (COMMITTED, [b"1"], [b"1"])
    assert world.open_parts(A) == world.open_parts(B) == []


def test_abort_shows_none(world: JointWorld) -> None:
    txn = world.process().written(BOTH)
    txn.flush()
    txn.abort()
    txn.abort()  # does nothing
    assert (txn.status, world.events(A), world.events(B)) == (ABORTED, [], [])
    assert world.open_parts(A) == world.open_parts(B) == []
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.commit()
    done = world.process().written(BOTH)
    done.commit()
    with pytest.raises(TxnFailed, match="was committed"):
        done.abort()


def test_nothing_is_accepted_after_an_abort_that_one_stream_has_not_seen(
    world: JointWorld,
) -> None:
    txn = world.process(faulty=True).written(BOTH)
    world.store.rules.add(Rule(Fault.REFUSE, "put*", "s/b/*"))
    txn.abort()
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.write_event(B, b"late")
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.write_events(A, [b"late"])


def test_stream_that_does_not_take_part_is_refused(world: JointWorld) -> None:
    txn = world.process().begin(A, B)
    with pytest.raises(InvalidInput, match=r"'s/c' is not one of the streams.*s/a, s/b"):
        txn.write_event(C, b"x")


def test_part_cannot_be_decided_alone(world: JointWorld) -> None:
    process = world.process()
    txn = process.written(BOTH)
    part = txn._parts[A]
    for decide in (part.commit, part.abort):
        with pytest.raises(IllegalState, match=f"joint_transaction.'{txn.id}'"):
            decide()
    txn.commit()
    assert world.events(A) == [b"1"]


@pytest.mark.parametrize("settle", [settle_by_root, settle_by_streams])
@pytest.mark.parametrize("point", ["joint.decided", "joint.closed", "joint.carried-out"])
def test_whoever_comes_next_carries_a_decision_out(
    world: JointWorld, point: str, settle: Callable[[JointWorld], None]
) -> None:
    killed_commit(world, point, BOTH)
    settle(world)
    assert (world.events(A), world.events(B)) == ([b"1"], [b"1"])
    assert world.open_parts(A) == world.open_parts(B) == []


def test_prepared_transaction_expires_with_its_lease_by_an_abort_in_the_decision_log(
    world: JointWorld,
) -> None:
    token = killed_commit(world, "joint.prepared", BOTH)
    settle_by_streams(world)  # too early; the leases begin
    assert world.process().open(token).status is TransactionStatus.OPEN

    for _ in range(2):  # after the lease, a last one
        world.runtime.sleep(LEASE_MS / 1_000 + 1)
        settle_by_streams(world)
    assert world.outcomes(A) == world.outcomes(B) == {token: False}
    with pytest.raises(NoSuchTransaction):
        world.process().open(token)


def test_root_drops_a_record_whose_parts_cannot_live_any_more(world: JointWorld) -> None:
    token = killed_commit(world, "joint.prepared", BOTH)
    world.runtime.sleep(100 * LEASE_MS / 1_000)
    assert world.process().sweep() == 0  # too early
    world.runtime.sleep(MAX_LEASE_MS / 1_000 + 60)
    assert world.process().sweep() == 1
    settle_by_streams(world)
    assert world.outcomes(A) == world.outcomes(B) == {token: False}


def test_decided_transaction_cannot_be_aborted(world: JointWorld) -> None:
    token = killed_commit(world, "joint.decided", BOTH)
    with pytest.raises(TxnFailed, match="was committed; that is final") as refused:
        world.process().open(token).abort()
    assert refused.value.status is TransactionStatus.COMMITTING
    world.process().sweep()
    assert world.outcomes(A) == world.outcomes(B) == {token: True}


def test_view_from_before_the_end_aborts_nothing(world: JointWorld) -> None:
    process, late = world.process(), world.process()
    txn = process.written(BOTH)
    view = late.stream(A).view()
    txn.commit()
    process.decisions.remove_finished()
    settlement.settle(late.stream(A), view, reasons={txn._parts[A].id: "it is old"})
    assert world.outcomes(A) == {txn.id: True}


def test_abort_on_a_root_without_decisions_does_nothing(world: JointWorld) -> None:
    assert world.process().decisions.abort("0" * 24, "a begin failed") is None
    assert world.process().decisions.log.refresh() is None


def test_sweep_keeps_a_decision_until_every_stream_has_it(world: JointWorld) -> None:
    token = killed_commit(world, "joint.decided", BOTH)
    world.store.rules.add(Rule(Fault.REFUSE, "put_if_absent", "s/b/events/_delta_log/*"))
    sweeping = world.process(faulty=True)
    assert sweeping.sweep() == 0
    assert world.events(A) == [b"1"]
    world.store.rules.clear()
    assert sweeping.sweep() == 1
    assert world.outcomes(B) == {token: True}


def test_sweep_keeps_a_decision_for_a_stream_whose_log_is_away(world: JointWorld) -> None:
    token = killed_commit(world, "joint.decided", BOTH)
    store = world.store.inner
    log = {e.key: store.get(e.key) for e in store.list("s/b/events") if "/data/" not in e.key}
    store.delete(list(log))
    assert world.process().sweep() == 0
    for key, stored in log.items():
        store.put(key, stored)
    assert world.process().sweep() == 1
    assert world.outcomes(B) == {token: True}


def test_part_whose_lease_ran_out_aborts_the_whole(world: JointWorld) -> None:
    txn = world.process().written(BOTH)
    txn.flush()
    txn._parts[A].ping()
    for _ in range(3):
        world.runtime.sleep(LEASE_MS / 1_000 + 1)
        txn._parts[B].ping()
        sweeper.sweep_transactions(world.process().stream(A), prepared_limit_ms=10**12)
    assert txn.status is world.process().open(txn.id).status is TransactionStatus.ABORTING
    with pytest.raises(TxnFailed):
        txn.flush()
    with pytest.raises(TxnFailed, match="lease"):
        txn.commit()
    assert txn.status is ABORTED
    assert world.outcomes(A) == world.outcomes(B) == {txn.id: False}


def test_begin_that_fails_in_one_stream_leaves_nothing_in_the_others(world: JointWorld) -> None:
    process = world.process()
    process.begin(A, B).abort()
    seal(world, B)
    with pytest.raises(IllegalState):
        process.begin(A, B)
    # In this process of the tests the record stays, as after a kill; nothing can commit it.
    (token,) = process.decisions.read()
    opened = world.process().open(token)
    assert opened.status is TransactionStatus.ABORTING
    with pytest.raises(TxnFailed, match="begin failed on s/b"):
        opened.commit()
    assert world.outcomes(A)[token] is False


# --------------------------------------------------------------------------- the life of a stream


def test_sealing_a_stream_aborts_what_is_undecided(world: JointWorld) -> None:
    process = world.process()
    open_one, prepared = process.written(BOTH), process.written(BOTH)
    with at_failpoint("joint.prepared", lambda: seal(world, A)), pytest.raises(TxnFailed):
        prepared.commit()
    with pytest.raises(TxnFailed):
        open_one.commit()
    assert (world.events(A), world.events(B)) == ([], [])
    assert world.outcomes(B) == {open_one.id: False, prepared.id: False}


@pytest.mark.parametrize("point", ["joint.decided", "joint.closed"])
def test_sealing_and_deletion_carry_out_what_is_decided(world: JointWorld, point: str) -> None:
    txn = world.process().written(BOTH)

    def seal_and_delete() -> None:
        seal(world, A)
        assert world.events(A) == [b"1"]
        stream = world.process().stream(A)
        lifecycle.delete(stream, life=stream.view().life)
        lifecycle.create(stream, 2, StreamConfiguration())

    with at_failpoint(point, seal_and_delete):
        txn.commit()
    assert txn.status is COMMITTED
    assert (world.events(A), world.events(B)) == ([], [b"1"])  # the next life of A has nothing
    world.process().sweep()
    assert world.process().decisions.read() == {}


# -------------------------------------------------------------------------------------- one order


@pytest.mark.parametrize("first", [A, B])
@pytest.mark.parametrize("settle", ["commit", "stream", "root"])
def test_streams_in_common_have_one_order(world: JointWorld, first: str, settle: str) -> None:
    tokens = [killed_commit(world, "joint.decided", {A: b"%d" % n, B: b"%d" % n}) for n in range(3)]
    assert len(set(tokens)) == 3
    process = world.process()
    if settle == "commit":
        last = {first: b"3", C: b"3"}
        process.written(last).commit()  # it shares one stream with them
        assert world.events(first) == [b"0", b"1", b"2", b"3"]
    elif settle == "stream":
        # The last decided one is found first.
        record = process.decisions.find(tokens[-1])
        assert record is not None
        settlement.carry_out(process.stream(first), process.decisions, record)
        assert world.events(first) == [b"0", b"1", b"2"]
    world.process().sweep()
    for name in (A, B):
        assert world.events(name)[:3] == [b"0", b"1", b"2"]


def test_two_processes_that_carry_out_in_turns_keep_the_order(world: JointWorld) -> None:
    for n in range(2):
        killed_commit(world, "joint.decided", {A: b"%d" % n, B: b"%d" % n})
    for point in ("joint.closed", "txn.deciding", "txn.decided", "commit.before"):
        with at_failpoint(point, lambda: world.process().sweep()):
            world.process().sweep()
    assert world.events(A) == world.events(B) == [b"0", b"1"]


def test_other_transactions_and_appends_go_between(world: JointWorld) -> None:
    killed_commit(world, "joint.decided", BOTH)
    stream = world.process().stream(A)
    write(stream, [("key", b"append")])
    written(stream, [("key", b"alone")]).commit()
    world.process().sweep()
    assert world.events(A) == [b"append", b"alone", b"1"]
    assert world.events(B) == [b"1"]


# -------------------------------------------------------------------------------- unknown answers


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST])
def test_unknown_answer_to_the_decision_is_found_out_by_the_next_call(
    world: JointWorld, fault: Fault
) -> None:
    txn = world.process(faulty=True).written(BOTH)
    txn.flush()
    for part in txn._parts.values():
        part.prepare()
    world.store.rules.add(Rule(fault, "put_if_absent", "_transactions/_delta_log/*"))
    if fault is Fault.LOSE_REQUEST:
        with pytest.raises(CommitUnknown):
            txn.commit()
        world.store.rules.clear()
    txn.commit()
    assert (world.events(A), world.events(B)) == ([b"1"], [b"1"])


def test_storage_that_fails_in_one_stream_leaves_the_rest_to_the_next_call(
    world: JointWorld,
) -> None:
    txn = world.process(faulty=True).written(BOTH)
    world.store.rules.add(Rule(Fault.REFUSE, "put_if_absent", "s/b/events/_delta_log/*"))
    txn._parts[A].prepare()
    txn._parts[B].prepare()
    with pytest.raises(Exception, match="s/b"):
        txn.commit()
    assert (world.events(A), txn.status) == ([b"1"], TransactionStatus.COMMITTING)
    world.store.rules.clear()
    txn.commit()
    assert (world.events(B), txn.status) == ([b"1"], COMMITTED)


# ---------------------------------------------------------------------------------- other handles


def test_another_process_commits_by_the_id(world: JointWorld) -> None:
    txn = world.process().written(BOTH)
    txn.flush()
    other = world.process().open(txn.id)
    other.write_event(B, b"2", "key")
    other.commit()
    assert (world.events(A), world.events(B)) == ([b"1"], [b"1", b"2"])
    assert txn.status is COMMITTED
    txn.commit()


def test_events_that_another_process_left_out_of_its_commit_are_reported(
    world: JointWorld,
) -> None:
    txn = world.process().written(BOTH)
    txn.flush()
    txn.write_event(A, b"late", "key")
    world.process().open(txn.id).commit()
    with pytest.raises(TxnFailed, match="without 1 events"):
        txn.commit()
    assert world.events(A) == [b"1"]


def test_records_go_when_all_streams_have_the_outcome(world: JointWorld) -> None:
    process = world.process()
    for n in range(20):
        txn = process.written({A: b"%d" % n, B: b"%d" % n})
        txn.abort() if n % 3 == 0 else txn.commit()
        assert len(process.decisions.read()) <= 1
    process.decisions.remove_finished()
    assert world.process().decisions.read() == {}
    assert world.events(A) == [b"%d" % n for n in range(20) if n % 3]


def test_decision_cannot_be_made_after_the_record_went(world: JointWorld) -> None:
    process: JointProcess = world.process()
    txn = process.written(BOTH)
    for part in txn._parts.values():
        part.prepare()
    other = world.process()
    assert other.decisions.abort(txn.id, "it took too long") is None
    for name in (A, B):
        sweeper.sweep_transactions(other.stream(name), prepared_limit_ms=10**12)
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.commit()
    assert (world.events(A), world.events(B)) == ([], [])
