"""What a living process has decided becomes visible, in the background or at close."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.store.retries import Retries
from pravega_spark.engine.stream import lifecycle
from pravega_spark.errors import (
    CommitUnknown,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from pravega_spark.txn import sweeper
from pravega_spark.txn.joint import JointWriter
from pravega_spark.txn.owed import owed_commits
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values.limits import DECIDED_RETRY_SECONDS, DECIDED_SECONDS
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.joint_world import JointWorld
from tests.harness.transaction_world import World, begun, session, written

LOG = "s/t/events/_delta_log/*"
PROMISED_SECONDS = 5.0
A, B = "s/a", "s/b"


@pytest.fixture
def world() -> World:
    return World()


def interrupt() -> None:
    raise KeyboardInterrupt


def one(world: World, event: bytes = b"1") -> Transaction:
    return written(world.stream, [("a", event)])


@pytest.mark.parametrize("opened", ["begun here", "by its id"])
def test_commit_without_wait_is_visible_within_the_promised_time(world: World, opened: str) -> None:
    txn = one(world)
    if opened == "by its id":
        txn = Transaction(world.stream, txn.id)
    txn.commit(wait=False)
    assert world.events() == []
    world.runtime.run_later(PROMISED_SECONDS)
    assert world.events() == [b"1"]
    assert txn.status is TransactionStatus.COMMITTED


def test_decisions_of_a_second_share_one_commit(world: World) -> None:
    several = [one(world, b"%d" % n) for n in range(3)]
    for txn in several:
        txn.commit(wait=False)
    world.runtime.run_later(PROMISED_SECONDS)
    assert world.events() == [b"0", b"1", b"2"]
    assert len(world.commits("COMMIT TRANSACTION")) == 1


def test_nothing_is_called_for_a_decision_that_another_commit_has_made_visible(
    world: World,
) -> None:
    first, second = one(world, b"1"), one(world, b"2")
    first.commit(wait=False)
    second.commit()
    calls = world.calls(lambda: world.runtime.run_later(10 * PROMISED_SECONDS))
    assert (world.events(), calls) == ([b"1", b"2"], [])


def test_background_costs_the_calls_of_one_commit(world: World) -> None:
    one(world).commit(wait=False)
    calls = world.calls(lambda: world.runtime.run_later(PROMISED_SECONDS))
    assert [operation for operation, _ in calls if "put" in operation] == ["put_if_absent"]
    assert {kind for _, kind in calls} == {"log"}


@pytest.mark.parametrize("point", ["txn.decided", "commit.before"])
def test_interrupted_commit_that_was_decided_becomes_visible(world: World, point: str) -> None:
    txn = one(world)
    with at_failpoint(point, interrupt), pytest.raises(KeyboardInterrupt):
        txn.commit()
    world.runtime.run_later(PROMISED_SECONDS)
    assert world.events() == [b"1"]


def test_commit_whose_log_is_out_of_reach_becomes_visible_when_it_is_back(world: World) -> None:
    txn = one(world)
    world.store.rules.add(Rule(StoreError("down"), "put_if_absent", LOG))
    with pytest.raises(StoreError, match="down"):
        txn.commit()
    world.runtime.run_later(10 * PROMISED_SECONDS)
    assert world.events() == []
    world.store.rules.clear()
    world.runtime.run_later(DECIDED_RETRY_SECONDS)
    assert world.events() == [b"1"]


def told_that_it_is_committed(kind: type[StoreError], commit: Callable[[], None]) -> None:
    """Who gets StoreFull may write the events again, since nothing of them is committed."""
    with pytest.raises(StoreError, match=r"is committed, and not visible yet.*no space") as told:
        commit()
    assert not isinstance(told.value, kind)


@pytest.mark.parametrize("kind", [StoreFull, StoreReadOnly])
def test_decided_commit_does_not_say_that_nothing_was_committed(
    world: World, kind: type[StoreError]
) -> None:
    txn = one(world)
    world.store.rules.add(Rule(kind("no space"), "put_if_absent", LOG))
    told_that_it_is_committed(kind, txn.commit)
    told_that_it_is_committed(kind, txn.commit)
    world.store.rules.clear()
    txn.commit()
    assert world.events() == [b"1"]


@pytest.mark.parametrize("kind", [StoreFull, StoreReadOnly])
def test_commit_that_was_not_decided_says_that_nothing_was_committed(
    world: World, kind: type[StoreError]
) -> None:
    txn = one(world)
    world.store.rules.add(Rule(kind("no space"), "put_if_absent", "s/t/transactions/*"))
    with pytest.raises(kind):
        txn.commit()
    world.store.rules.clear()
    txn.abort()
    world.runtime.run_later(10 * PROMISED_SECONDS)
    assert world.events() == []


@pytest.mark.parametrize(("fault", "events"), [(Fault.DELAY, [b"1"]), (Fault.LOSE_REQUEST, [])])
def test_decision_that_may_be_stored_is_found_out(
    world: World, fault: Fault, events: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.commit.COMMIT_DEADLINE_SECONDS", 0.01)
    txn = one(world)
    world.store.rules.add(Rule(fault, "put_if_absent", "s/t/transactions/*"))
    with pytest.raises(CommitUnknown):
        txn.commit()
    world.store.rules.clear()
    world.store.deliver()
    world.runtime.run_later(PROMISED_SECONDS)
    assert world.events() == events


def test_decided_abort_ends_the_transaction(world: World) -> None:
    txn = one(world)
    with at_failpoint("txn.decided", interrupt), pytest.raises(KeyboardInterrupt):
        txn.abort()
    world.runtime.run_later(PROMISED_SECONDS)
    assert not world.process().view().transactions


@pytest.mark.parametrize("is_created_again", [False, True])
def test_life_that_has_ended_owes_nothing(
    world: World, caplog: pytest.LogCaptureFixture, is_created_again: bool
) -> None:
    one(world).commit(wait=False)
    other = world.process()
    configuration = other.view().record.configuration
    lifecycle.seal(other, sweeper.end_all_transactions)
    lifecycle.delete(other)
    if is_created_again:
        assert lifecycle.create(other, 2, configuration)
    with caplog.at_level(logging.WARNING):
        world.runtime.run_later(PROMISED_SECONDS)
    assert not caplog.records


# --------------------------------------------------------------------------------------- close


@pytest.mark.parametrize("writer_id", [None, "w"])
def test_close_makes_visible_what_was_decided(world: World, writer_id: str | None) -> None:
    with TransactionalWriter(world.stream, writer_id) as writer:
        txn = writer.begin_transaction()
        txn.write_event(b"1")
        txn.commit(wait=False)
        by_id = one(world, b"2")
        by_id.commit(wait=False)
        assert world.events() == []
    assert sorted(world.events()) == [b"1", b"2"]


def test_close_does_not_fail_for_it_and_the_process_goes_on_trying(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    writer = TransactionalWriter(world.stream)
    txn = writer.begin_transaction()
    txn.write_event(b"1")
    txn.commit(wait=False)
    world.store.rules.add(Rule(StoreError("down"), "put_if_absent", LOG))
    with caplog.at_level(logging.WARNING):
        writer.close()
        world.runtime.run_later(PROMISED_SECONDS)
    assert ["1 decided transactions are not visible yet" in m for m in caplog.messages] == [True]
    world.store.rules.clear()
    world.runtime.run_later(PROMISED_SECONDS)
    assert world.events() == [b"1"]


def test_note_of_a_commit_that_close_makes_visible_is_the_last(world: World) -> None:
    with TransactionalWriter(world.stream, "w") as writer:
        txn = writer.begin_transaction()
        txn.write_event(b"1")
        txn.commit("line 1", wait=False)
    assert TransactionalWriter(world.process(), "w").last_note == "line 1"


def test_process_that_ends_before_says_what_is_not_visible(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one(world).commit(wait=False)
    owed = owed_commits(world.stream)
    owed.report_exit(3.0)
    assert "ends with 1 decided transactions that are not visible after 3 s" in caplog.text
    world.runtime.run_later(PROMISED_SECONDS)
    caplog.clear()
    owed.report_exit(3.0)
    assert not caplog.records


def test_forked_child_owes_nothing(world: World) -> None:
    one(world).commit(wait=False)
    owed_commits(world.stream).reset_after_fork()
    world.runtime.run_later(PROMISED_SECONDS)
    assert world.events() == []


# --------------------------------------------------------------------------------------- joint


@pytest.fixture
def streams() -> JointWorld:
    return JointWorld(A, B)


def fail_in_one_stream(world: JointWorld, commit: Callable[[], None]) -> None:
    world.store.rules.add(Rule(Fault.REFUSE, "put_if_absent", "s/b/events/_delta_log/*"))
    with pytest.raises(Exception, match="s/b"):
        commit()
    world.store.rules.clear()


def prepared(world: JointWorld):  # type: ignore[no-untyped-def]
    process = world.process(faulty=True)
    txn = process.written({A: b"1", B: b"1"})
    for part in txn._parts.values():
        part.prepare()
    return process, txn


def test_joint_commit_that_failed_in_one_stream_becomes_visible(streams: JointWorld) -> None:
    process, txn = prepared(streams)
    fail_in_one_stream(streams, txn.commit)
    assert (streams.events(A), streams.events(B)) == ([b"1"], [])
    streams.runtime.run_later(PROMISED_SECONDS)
    assert (streams.events(A), streams.events(B)) == ([b"1"], [b"1"])
    process.decisions.remove_finished()
    assert process.decisions.read() == {}


@pytest.mark.parametrize("kind", [StoreFull, StoreReadOnly])
def test_decided_joint_commit_does_not_say_that_nothing_was_committed(
    streams: JointWorld, kind: type[StoreError]
) -> None:
    _, txn = prepared(streams)
    streams.store.rules.add(Rule(kind("no space"), "put_if_absent", "s/b/events/_delta_log/*"))
    told_that_it_is_committed(kind, txn.commit)
    streams.store.rules.clear()
    txn.commit()
    assert (streams.events(A), streams.events(B)) == ([b"1"], [b"1"])


def test_joint_commit_that_failed_in_one_stream_is_visible_after_close(
    streams: JointWorld,
) -> None:
    process, txn = prepared(streams)
    fail_in_one_stream(streams, txn.commit)
    writers = {name: TransactionalWriter(process.stream(name)) for name in (A, B)}
    JointWriter(process.decisions, writers, process.positions).close()
    assert streams.events(B) == [b"1"]
    assert streams.process().decisions.read() == {}


@pytest.mark.parametrize("point", ["joint.decided", "joint.closed"])
def test_interrupted_joint_commit_becomes_visible(streams: JointWorld, point: str) -> None:
    txn = streams.process().written({A: b"1", B: b"1"})
    with at_failpoint(point, interrupt), contextlib.suppress(KeyboardInterrupt):
        txn.commit()
    streams.runtime.run_later(PROMISED_SECONDS)
    assert (streams.events(A), streams.events(B)) == ([b"1"], [b"1"])


def test_joint_transaction_that_was_not_decided_stays_open(streams: JointWorld) -> None:
    _, txn = prepared(streams)
    streams.store.rules.add(Rule(Fault.REFUSE, "put_if_absent", "_transactions/_delta_log/*"))
    with pytest.raises(StoreError):
        txn.commit()
    streams.store.rules.clear()
    streams.runtime.run_later(PROMISED_SECONDS)
    assert txn.status is TransactionStatus.OPEN
    assert (streams.events(A), streams.events(B)) == ([], [])


def test_pause_leaves_room_in_the_promise() -> None:
    assert DECIDED_SECONDS + DECIDED_RETRY_SECONDS <= PROMISED_SECONDS


def test_session_writers_decision_is_owed_without_its_writer(world: World) -> None:
    txn = begun(world.stream, writer=session(world.stream))
    txn.write_event(b"1")
    txn.commit("note", wait=False)
    world.runtime.run_later(PROMISED_SECONDS)
    assert world.events() == [b"1"]


def test_end_of_a_process_waits_briefly_and_once_for_a_storage_that_does_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decisions are final: a command need not wait for them as for events of its writers."""
    monkeypatch.setattr("pravega_spark.txn.owed.BACKGROUND_EXIT_SECONDS", 0.02)
    one(world).commit(wait=False)
    owed = owed_commits(world.stream)
    down = Retries(world.stream.store.url, 60.0)
    asked = threading.Event()

    def refuse() -> None:
        asked.set()
        raise StoreUnavailable("connection refused", url=down.url)

    def call() -> None:
        with contextlib.suppress(StoreUnavailable):
            down.call(refuse)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert asked.wait(30)
    owed.begin_exit(close=False)
    began = time.monotonic()
    assert not owed.wait_exit(began + 600)
    owed.begin_exit(close=True)
    assert not owed.wait_exit(began + 600)
    assert time.monotonic() - began < 300
    down.seconds = 0.0
    thread.join()


def test_end_of_a_process_waits_for_a_storage_that_answers_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pravega_spark.txn.owed.BACKGROUND_EXIT_SECONDS", 0.01)
    one(world).commit(wait=False)
    owed = owed_commits(world.stream)
    owed.begin_exit(close=False)
    threading.Timer(0.2, world.runtime.run_later, (PROMISED_SECONDS,)).start()
    assert owed.wait_exit(time.monotonic() + 600)
    assert world.events() == [b"1"]
