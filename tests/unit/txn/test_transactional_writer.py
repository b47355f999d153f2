from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream import lifecycle
from pravega_spark.errors import (
    ForkedProcess,
    InvalidConfiguration,
    InvalidInput,
    InvalidName,
    NoSuchStream,
    NoSuchTransaction,
    ObjectClosed,
    PravegaSparkError,
    StaleIdentity,
    StoreError,
    StreamSealed,
    TxnFailed,
    WriterFenced,
)
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import all_events, make_stream, reopen
from tests.harness.spy_store import Spy
from tests.harness.transaction_world import LEASE_MS, World, begun, results_of_child, written

OPEN, PREPARED = TransactionStatus.OPEN, TransactionStatus.PREPARED
COMMITTING, COMMITTED = TransactionStatus.COMMITTING, TransactionStatus.COMMITTED
ABORTED = TransactionStatus.ABORTED


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def writers() -> Iterator[Callable[..., TransactionalWriter]]:
    made: list[TransactionalWriter] = []

    def make(*arguments: Any, **options: Any) -> TransactionalWriter:
        made.append(TransactionalWriter(*arguments, **options))
        return made[-1]

    yield make
    for writer in made:
        writer.close()


# -------------------------------------------------------------------------------------- begin


def test_writer_begins_transactions_and_closes(world: World) -> None:
    with TransactionalWriter(world.stream) as writer:
        assert (writer.writer_id, writer.last_note) == (None, None)
        with writer.begin_transaction() as one, writer.begin_transaction(lease=10) as two:
            one.write_event(b"x", "a")
            two.write_event(b"y", "a")
        assert (one.lease_ms, two.lease_ms) == (60_000, 10_000)
    with pytest.raises(ObjectClosed, match="s/t was closed; create a new one"):
        writer.begin_transaction()
    with pytest.raises(ObjectClosed):
        writer.get_transaction(one.id)
    writer.close()
    assert world.events() == [b"y", b"x"]
    assert world.commits("OPEN WRITER") == []


@pytest.mark.parametrize("lease", ["9 s", 601, "soon", None, -1])
def test_lease_out_of_bounds_begins_no_transaction(world: World, lease: Any) -> None:
    with (
        TransactionalWriter(world.stream) as writer,
        pytest.raises(InvalidConfiguration, match="lease"),
    ):
        writer.begin_transaction(lease)
    assert world.process().view().transactions == {}


def test_maximum_execution_time_is_a_thousand_leases_a_day_or_as_given(world: World) -> None:
    limits = {}
    with TransactionalWriter(world.stream) as writer:
        for lease, limit in (("10 s", None), ("600 s", None), ("10 s", "10 s"), ("10 s", "9 days")):
            begun_at = world.runtime.now_ms()
            txn = writer.begin_transaction(lease, max_execution=limit)
            opened = world.process().view().transactions[txn.id]
            limits[lease, limit] = opened.limit_ms - begun_at
        for wrong in ("9 s", "x", -1):
            with pytest.raises(InvalidConfiguration, match="max_execution"):
                writer.begin_transaction("10 s", max_execution=wrong)
    assert limits == {
        ("10 s", None): 10_000_000,
        ("600 s", None): 86_400_000,
        ("10 s", "10 s"): 10_000,
        ("10 s", "9 days"): 9 * 86_400_000,
    }


def test_writer_is_refused_on_a_stream_that_accepts_no_events(world: World) -> None:
    with pytest.raises(InvalidName):
        TransactionalWriter(world.stream, "no_underscores")
    with TransactionalWriter(world.stream, "w") as writer:
        other = world.process()
        written(other, [("a", b"x")]).prepare()
        with pytest.raises(PravegaSparkError):
            lifecycle.seal(other, sweeper.end_all_transactions)
        for call in (writer.begin_transaction, lambda: TransactionalWriter(world.stream, "w")):
            with pytest.raises(StreamSealed, match="s/t"):
                call()
        for info in list(other.view().transactions):
            Transaction(other, info).abort()
        lifecycle.seal(other, sweeper.end_all_transactions)
        lifecycle.delete(other)
        with pytest.raises(NoSuchStream):
            writer.begin_transaction()
        lifecycle.create(other, 2, StreamConfiguration())
        with pytest.raises(StaleIdentity, match="Open it again"):
            writer.begin_transaction()


def test_transaction_is_opened_by_its_id_in_any_state(world: World) -> None:
    txn = written(world.process(), [("a", b"x")])
    with TransactionalWriter(world.stream) as writer:
        assert writer.get_transaction(txn.id).status is OPEN
        txn.commit()
        assert writer.get_transaction(txn.id).status is COMMITTED
        with pytest.raises(NoSuchTransaction):
            writer.get_transaction("0" * 32)
        with pytest.raises(InvalidInput, match="32 hexadecimal digits"):
            writer.get_transaction("x")


# --------------------------------------------------------------------------- sessions and notes


def test_next_writer_reads_the_note_of_the_last_commit(world: World, writers: Any) -> None:
    first = writers(world.stream, "w")
    assert (first.writer_id, first.last_note) == ("w", None)
    txn = first.begin_transaction()
    txn.write_event(b"x", "a")
    txn.commit("line 1")
    assert first.last_note == "line 1"
    with first.begin_transaction() as quiet:
        quiet.write_event(b"y", "a")
    first.begin_transaction().abort()
    second = writers(world.process(), "w")
    assert second.last_note == "line 1"
    assert EventStreamWriter(world.process(), "w").last_note == "line 1"


def test_next_writer_reads_the_note_of_a_commit_that_was_only_decided(
    world: World, writers: Any
) -> None:
    txn = writers(world.stream, "w").begin_transaction()
    txn.write_event(b"x", "a")
    txn.commit("line 1", wait=False)
    assert writers(world.process(), "w").last_note == "line 1"
    assert world.events() == [b"x"]


def test_newer_writer_aborts_open_transactions_of_the_older_but_not_prepared_ones(
    world: World, writers: Any
) -> None:
    old = writers(world.stream, "w")
    lost, kept = old.begin_transaction(), old.begin_transaction()
    for txn in (lost, kept):
        txn.write_event(b"x", "a")
        txn.flush()
    kept.prepare()
    theirs = begun(world.process())
    others = writers(world.process(), "v").begin_transaction()
    new = writers(world.process(), "w")
    mine = new.begin_transaction()

    assert [t.status for t in (lost, kept, theirs, others, mine)] == [
        ABORTED,
        PREPARED,
        OPEN,
        OPEN,
        OPEN,
    ]
    with pytest.raises(WriterFenced, match="session 1 was fenced by session 2; this writer must"):
        old.begin_transaction()
    with pytest.raises(TxnFailed, match=r"was aborted \(a newer session of writer w was opened\)"):
        lost.commit("late")
    new.get_transaction(kept.id).commit("kept")
    assert new.last_note == "kept"


def test_commit_decided_while_the_newer_writer_opens_counts_with_its_note(
    world: World, writers: Any
) -> None:
    txn = writers(world.stream, "w").begin_transaction()
    txn.write_event(b"x", "a")
    with at_failpoint("txn.deciding", lambda: txn.commit("line 1", wait=False)):
        new = writers(world.process(), "w")
    assert new.last_note == "line 1"
    assert world.events() == [b"x"]


def test_crashed_newer_writer_leaves_the_aborts_to_the_next_writer(
    world: World, writers: Any
) -> None:
    txn = writers(world.stream, "w").begin_transaction()
    txn.write_event(b"x", "a")
    txn.flush()

    with at_failpoint("txn.deciding", kill), pytest.raises(Killed):
        writers(world.process(), "w")
    writers(world.process(), "w")
    assert txn.status is ABORTED


def test_note_must_be_text_and_needs_a_writer_id(world: World, writers: Any) -> None:
    txn = writers(world.stream).begin_transaction()
    with pytest.raises(InvalidInput, match=r"stream s/t needs a writer with a writer_id"):
        txn.commit("note")
    named = writers(world.stream, "w").begin_transaction()
    with pytest.raises(InvalidInput, match="a note must be a str"):
        named.commit(7)
    assert (txn.status, named.status) == (OPEN, OPEN)


# --------------------------------------------------------------------------- remains and sweeps


def test_remains_are_deleted_after_many_transactions_and_at_close(world: World) -> None:
    writer = TransactionalWriter(world.stream)
    for n in range(64 + 6):
        with writer.begin_transaction() as txn:
            txn.write_event(b"%d" % n, "a")
    assert len(world.store.inner.folders("s/t/transactions")) == 6
    writer.close()
    assert world.store.inner.folders("s/t/transactions") == []
    assert len(world.events()) == 70


def test_remains_of_a_decided_transaction_stay_until_it_is_committed(world: World) -> None:
    writer = TransactionalWriter(world.stream)
    decided = writer.begin_transaction()
    decided.write_event(b"x", "a")
    decided.commit(wait=False)
    writer._delete_remains()
    assert world.folder(decided)
    begun(world.process()).commit()  # commits it, and deletes no remains
    writer.begin_transaction().abort()
    assert (world.events(), len(world.folder(decided))) == ([b"x"], 1)
    writer.close()
    assert world.folder(decided) == []


def test_failed_deletion_of_remains_fails_no_commit(world: World) -> None:
    writer = TransactionalWriter(world.stream)
    world.store.rules.add(Rule(Fault.REFUSE, "delete"))
    for n in range(65):
        with writer.begin_transaction() as txn:
            txn.write_event(b"%d" % n, "a")
    writer.close()
    assert len(world.events()) == 65


def test_writer_sweeps_transactions_of_others_from_time_to_time(world: World, writers: Any) -> None:
    writer = writers(world.stream)
    lost, done = (written(world.process(), [("a", b"%d" % n)]) for n in range(2))
    done.commit(wait=False)
    lost.ping()
    writer.begin_transaction()
    assert done.status is COMMITTING
    world.runtime.sleep(31)
    writer.begin_transaction()
    assert (done.status, lost.status) == (COMMITTED, OPEN)
    for _ in range(2):
        world.runtime.sleep(LEASE_MS / 1_000 + 1)
        writer.begin_transaction()
    assert lost.status is ABORTED


def test_busy_writer_aborts_those_of_dead_writers_after_one_lease(
    world: World, writers: Any
) -> None:
    """It sweeps seldom, but its own transactions show that the storage answers."""
    writer = writers(world.stream)
    kept = written(world.process(), [("a", b"x")])

    def work() -> None:
        world.runtime.sleep(11)
        kept.ping()
        writer.begin_transaction().abort()

    for _ in range(9):
        work()
    lost = written(world.process(), [("a", b"x")])
    lost.ping()
    began = world.runtime.monotonic()
    while lost.status is OPEN:
        work()
        assert world.runtime.monotonic() - began <= LEASE_MS / 1_000 + 33 + 11
    assert (kept.status, lost.status) == (OPEN, ABORTED)
    assert world.runtime.monotonic() - began > LEASE_MS / 1_000


def test_writer_without_others_does_not_sweep(world: World, writers: Any) -> None:
    writer = writers(world.stream)
    txn = writer.begin_transaction()
    world.runtime.sleep(31)
    writer.begin_transaction()
    assert txn.is_open
    assert world.store.count("list", "/transactions") == 0


def test_failed_sweep_fails_no_begin(world: World, writers: Any) -> None:
    writer = writers(world.stream)
    written(world.process(), [("a", b"x")])
    world.runtime.sleep(31)
    world.store.rules.add(Rule(StoreError("down"), "time_ms"))
    assert writer.begin_transaction().status is OPEN


# ----------------------------------------------------------------------------- threads and forks


def test_threads_share_one_writer() -> None:
    stream = make_stream(Spy(), SYSTEM, 2)
    with TransactionalWriter(stream, "w") as writer:

        def run(name: int) -> None:
            for n in range(12):
                with writer.begin_transaction() as txn:
                    txn.write_event(b"%d %02d" % (name, n), f"k{name}")
                    txn.write_event(b"%d %02d" % (name, n), f"l{name}")

        threads = [threading.Thread(target=run, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = all_events(reopen(stream))
    for name in range(6):
        for key in (f"k{name}", f"l{name}"):
            mine = [event for k, event in found if k == key]
            assert mine == [b"%d %02d" % (name, n) for n in range(12)]


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_cannot_use_the_writer_and_may_close_it(world: World) -> None:
    writer = TransactionalWriter(world.stream, "w")
    txn = writer.begin_transaction()

    def child(results: Any) -> None:
        calls: list[Callable[[], object]] = [
            writer.begin_transaction,
            lambda: writer.get_transaction(txn.id),
        ]
        for call in calls:
            try:
                call()
            except Exception as error:
                results.put(type(error).__name__)
        writer.close()
        results.put("closed")

    found = results_of_child(child, 3, writer._leases._changed)
    assert found == [ForkedProcess.__name__, ForkedProcess.__name__, "closed"]
    txn.commit()
    writer.close()


def test_writer_cannot_be_pickled(world: World, writers: Any) -> None:
    with pytest.raises(TypeError, match="create it where it is used"):
        pickle.dumps(writers(world.stream))


def test_serializer_of_the_writer_encodes_every_transaction(world: World) -> None:
    with TransactionalWriter(world.stream, serializer=lambda n: b"%d" % n) as writer:
        with writer.begin_transaction() as txn:
            txn.write_event(5, "a")
        other = begun(world.stream)
        writer.get_transaction(other.id).write_event(6, "a")
    assert world.events() == [b"5"]
