from __future__ import annotations

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.errors import IllegalState, StoreError, StreamSealed, TxnFailed
from pravega_spark.txn import commit, sweeper
from pravega_spark.txn.sweeper import TransactionSweepResult
from pravega_spark.txn.transaction import Transaction
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import write
from tests.harness.transaction_world import (
    World,
    begun,
    decide_abort,
    drive_to,
    written,
)

ENDED = [TransactionStatus.COMMITTED, TransactionStatus.ABORTED]


@pytest.fixture
def world() -> World:
    return World()


def state(world: World) -> StreamState:
    return world.process().view().record.state


# --------------------------------------------------------------------------------------- sweeps


def test_sweep_does_all_that_is_due_and_reports_it(world: World) -> None:
    kept, done, dropped, lost = (written(world.process(), [("a", b"%d" % n)]) for n in range(4))
    done.commit(wait=False)
    decide_abort(world.process(), dropped.id)
    for txn in (kept, lost):
        txn.ping()
    world.run_out()
    kept.ping()
    assert sweeper.sweep_transactions(world.stream) == TransactionSweepResult(
        [done.id],
        {dropped.id: "decided elsewhere", lost.id: "its lease of 60 s ran out"},
        open=1,
        cleared=3,
    )
    assert sweeper.sweep_transactions(world.stream) == TransactionSweepResult(open=1)
    assert (world.events(), kept.status) == ([b"1"], TransactionStatus.OPEN)
    assert [world.chunks(txn) for txn in (kept, done, dropped, lost)] == [1, 1, 0, 0]


def test_sweep_of_a_stream_without_transactions_commits_nothing(world: World) -> None:
    version = world.process().view().version
    assert sweeper.sweep_transactions(world.stream) == TransactionSweepResult()
    assert world.process().view().version == version


def test_sweep_of_a_stream_that_was_just_read_asks_only_for_remains(world: World) -> None:
    view = world.stream.view()
    world.store.calls.clear()
    assert sweeper.sweep_transactions(world.stream, view=view) == TransactionSweepResult()
    assert [operation for operation, _ in world.store.calls] == ["folders", "list"]
    opened = written(world.process(), [("a", b"x")])
    opened.commit(wait=False)
    assert sweeper.sweep_transactions(world.stream, view=world.stream.view()).committed


def test_concurrent_sweeps_are_harmless(world: World) -> None:
    done, lost = written(world.process(), [("a", b"x")]), written(world.process(), [("a", b"y")])
    done.commit(wait=False)
    lost.ping()
    world.run_out()
    for point in (
        "txn.deciding",
        "txn.decided",
        "commit.before",
        "txn.committed",
        "txn.deleting-remains",
    ):
        with at_failpoint(point, lambda: sweeper.sweep_transactions(world.process())):
            tended = sweeper.sweep_transactions(world.stream)
    assert world.events() == [b"x"]
    assert lost.status is TransactionStatus.ABORTED
    assert tended.open == 0


def test_crash_anywhere_in_a_sweep_is_finished_by_the_next(world: World) -> None:
    done, lost = written(world.process(), [("a", b"x")]), written(world.process(), [("a", b"y")])
    done.commit(wait=False)
    lost.ping()
    world.run_out()
    for point in (
        "txn.deciding",
        "txn.decided",
        "commit.before",
        "txn.committed",
        "txn.deleting-remains",
    ):
        with at_failpoint(point, kill), pytest.raises(Killed):
            sweeper.sweep_transactions(world.process())
    sweeper.sweep_transactions(world.process())
    assert world.events() == [b"x"]
    assert world.store.inner.folders("s/t/transactions") == []


# --------------------------------------------------------------------------------------- remains


@pytest.mark.parametrize("ended", ENDED, ids=lambda state: state.value)
def test_remains_of_ended_transactions_are_deleted_and_open_ones_stay(
    world: World, ended: TransactionStatus
) -> None:
    kept, gone = (written(world.stream, [("a", b"x")]) for _ in range(2))
    drive_to(ended, world.stream, gone.id, delete_remains=False)
    assert sweeper.delete_remains(world.stream) == 1
    assert (len(world.folder(kept)), world.folder(gone)) == (1, [])
    assert world.chunks(gone) == (ended is TransactionStatus.COMMITTED)
    kept.commit()


def test_transaction_that_begins_during_the_listing_is_spared(world: World) -> None:
    """An older snapshot of the log would show such a transaction as ended."""
    begun(world.stream).commit()
    late: list[Transaction] = []

    def begin(operation: str, key: str) -> None:
        if operation == "folders":
            world.store.hook = None
            late.append(written(world.process(), [("a", b"x")]))

    world.store.hook = begin
    sweeper.sweep_transactions(world.stream)
    (txn,) = late
    assert len(world.folder(txn)) == 1
    txn.commit()
    assert world.events() == [b"x"]


def test_folder_that_is_no_transaction_is_spared(world: World) -> None:
    world.store.inner.put("s/t/transactions/of the user/notes.txt", b"x")
    begun(world.stream).abort()
    sweeper.sweep_transactions(world.stream)
    assert world.store.inner.exists("s/t/transactions/of the user/notes.txt")


def test_failed_deletion_is_finished_by_the_next_sweep(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.abort()
    world.store.rules.add(Rule(Fault.LOSE_REQUEST, "delete"))
    with pytest.raises(StoreError):
        sweeper.delete_remains(world.stream)
    assert world.chunks(txn) == 1
    assert sweeper.delete_remains(world.process()) == 1
    assert world.chunks(txn) == 0


# --------------------------------------------------------------------------------------- sealing


def test_seal_aborts_open_transactions_and_commits_decided_ones(world: World) -> None:
    done, lost = (written(world.process(), [("a", event)]) for event in (b"x", b"y"))
    done.commit(wait=False)
    assert lifecycle.seal(world.stream, sweeper.end_all_transactions)
    assert not lifecycle.seal(world.process(), sweeper.end_all_transactions)
    assert state(world) is StreamState.SEALED
    assert world.events() == [b"x"]
    with pytest.raises(TxnFailed, match=r"aborted \(the stream was sealed\)"):
        lost.commit()
    done.commit()
    assert world.store.inner.folders("s/t/transactions") == []
    assert [c.operation for c in world.commits("BEGIN SEAL STREAM")] == ["BEGIN SEAL STREAM"]


def test_stream_without_open_transactions_is_sealed_by_one_commit(world: World) -> None:
    begun(world.stream).commit()
    version = world.process().view().version
    assert lifecycle.seal(world.stream, sweeper.end_all_transactions)
    assert world.process().view().version == version + 1


def test_stream_being_sealed_accepts_decided_transactions_and_nothing_new(
    world: World,
) -> None:
    txn = written(world.process(), [("a", b"x")])

    def during() -> None:
        other = world.process()
        assert other.view().record.state is StreamState.SEALING
        with pytest.raises(StreamSealed, match=r"s/t was sealed at 20\d\d-"):
            write(other, [("a", b"late")])
        with pytest.raises(StreamSealed, match="s/t was sealed"):
            begun(other)
        with pytest.raises(IllegalState, match=r"is being sealed .* cannot be updated before"):
            lifecycle.update(other, StreamConfiguration())
        txn.commit()

    with at_failpoint("seal.sealing", during):
        lifecycle.seal(world.stream, sweeper.end_all_transactions)
    assert world.events() == [b"x"]


def test_seal_is_refused_while_a_transaction_is_prepared(world: World) -> None:
    one, two, three = (written(world.process(), [("a", b"%d" % n)]) for n in range(3))
    for txn in (one, two):
        txn.prepare()
    match = r"s/t is being sealed and has prepared transactions \(count: 2\): \w+, \w+\. Commit"
    with pytest.raises(IllegalState, match=match):
        lifecycle.seal(world.stream, sweeper.end_all_transactions)
    assert (state(world), three.status) == (StreamState.SEALING, TransactionStatus.ABORTED)
    sweeper.sweep_transactions(world.process())
    one.commit()
    with pytest.raises(IllegalState, match=rf"\(count: 1\): {two.id}"):
        lifecycle.seal(world.process(), sweeper.end_all_transactions)
    two.abort()
    assert lifecycle.seal(world.process(), sweeper.end_all_transactions)
    assert (state(world), world.events()) == (StreamState.SEALED, [b"0"])


def test_crashed_seal_is_finished_by_the_next(world: World) -> None:
    done, lost = (written(world.process(), [("a", event)]) for event in (b"x", b"y"))
    done.commit(wait=False)

    for point in ("seal.sealing", "txn.decided", "txn.committed"):
        with at_failpoint(point, kill), pytest.raises(Killed):
            lifecycle.seal(world.process(), sweeper.end_all_transactions)
        assert state(world) is StreamState.SEALING
    assert lifecycle.seal(world.process(), sweeper.end_all_transactions)
    assert world.events() == [b"x"]
    assert lost.status is TransactionStatus.ABORTED
    assert sweeper.sweep_transactions(world.process()).cleared == 2


def test_concurrent_seals_both_see_the_stream_sealed(world: World) -> None:
    written(world.process(), [("a", b"x")])
    other = world.process()
    with at_failpoint("seal.sealing", lambda: lifecycle.seal(other, sweeper.end_all_transactions)):
        assert lifecycle.seal(world.stream, sweeper.end_all_transactions)
    assert state(world) is StreamState.SEALED


def test_lifecycle_alone_does_not_seal_a_stream_with_open_transactions(world: World) -> None:
    begun(world.stream)
    with pytest.raises(IllegalState, match=r"s/t has open transactions.*StreamManager\.seal_str"):
        lifecycle.seal(world.stream)


def test_stream_sealed_with_transactions_can_be_deleted_and_created_again(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.commit()
    lifecycle.seal(world.stream, sweeper.end_all_transactions)
    lifecycle.delete(world.stream)
    assert world.chunks(txn) == 0
    lifecycle.create(world.stream, 2, StreamConfiguration())
    assert commit.commit_decided(world.process()).transactions == {}
    again = written(world.process(), [("a", b"y")])
    again.commit()
    assert world.events() == [b"y"]
