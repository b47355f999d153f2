"""What a dead process has decided becomes visible where another appends, or reads in a group."""

from __future__ import annotations

import logging

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import StoreError, StoreReadOnly
from pravega_spark.manager import StreamManager, manager_over, root_of
from pravega_spark.reader_groups.query_member import QueryMember
from pravega_spark.reader_groups.settlement import GroupPositions
from pravega_spark.txn import lifecycle
from pravega_spark.txn.decision_log import DecisionLog
from pravega_spark.txn.joint import JointTransaction
from pravega_spark.txn.open_look import look_at
from pravega_spark.txn.transaction import Transaction
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.joint_world import JointWorld
from tests.harness.killed_processes import wait_until
from tests.harness.roots import KeptRoot
from tests.harness.small_streams import write
from tests.harness.spy_store import Spy
from tests.harness.transaction_world import (
    LEASE_MS,
    World,
    begun,
    kill_commit,
    killed_after_deciding,
    written,
)

LEASE_SECONDS = LEASE_MS / 1_000
PROMISED_SECONDS = LEASE_SECONDS + 5.0
A, B = "s/a", "s/b"


@pytest.fixture
def world() -> World:
    return World()


def appending(world: World, *, spied: bool = False) -> StreamLog:
    """Return the stream of another process, which appends to it."""
    stream = StreamLog(world.store if spied else world.store.inner, "s/t", world.runtime)
    stream.log.maintain = None
    look_at(stream)
    return stream


def append(stream: StreamLog) -> None:
    write(stream, [("other", b"appended")])


def killed(world: World, event: bytes = b"1") -> Transaction:
    """Return a transaction whose process was killed after it had decided to commit it."""
    txn = written(world.process(), [("a", event)])
    kill_commit(world.runtime, txn.commit, "txn.decided")
    return txn


def appended(world: World) -> list[bytes]:
    return [event for event in world.events() if event != b"appended"]


def test_decision_of_a_killed_process_is_visible_after_a_lease_where_another_appends(
    world: World,
) -> None:
    killed(world)
    stream = appending(world)
    append(stream)
    world.runtime.run_later(LEASE_SECONDS - 1)
    assert appended(world) == []
    world.runtime.run_later(6)
    assert appended(world) == [b"1"]


def test_kill_just_after_a_look_is_seen_by_the_next_one(world: World) -> None:
    txn = written(world.process(), [("a", b"1")])
    stream = appending(world)
    append(stream)
    world.runtime.run_later(PROMISED_SECONDS)
    kill_commit(world.runtime, txn.commit, "txn.decided")
    append(stream)
    world.runtime.run_later(PROMISED_SECONDS)
    assert appended(world) == [b"1"]


def test_several_decisions_keep_their_order(world: World) -> None:
    several = [written(world.process(), [("a", b"%d" % n)]) for n in range(20)]
    for txn in reversed(several):
        kill_commit(world.runtime, txn.commit, "txn.decided")
    append(appending(world))
    world.runtime.run_later(PROMISED_SECONDS)
    assert appended(world) == [b"%d" % n for n in reversed(range(20))]


def test_look_costs_one_listing_and_a_read_of_new_manifests_and_decides_nothing(
    world: World,
) -> None:
    several = [written(world.process(), [("a", b"x")]) for _ in range(3)]
    empty = begun(world.process())
    stream = appending(world, spied=True)
    append(stream)

    def look() -> None:
        world.runtime.run_later(PROMISED_SECONDS)

    calls = world.calls(look)
    assert calls == [("list", "s/t/transactions"), *[("get_many", "manifest")] * 3]
    assert world.calls(lambda: append(stream)).count(("list", "s/t/transactions")) == 0
    assert world.calls(look) == [("list", "s/t/transactions")]
    for txn in (*several, empty):
        assert Transaction(world.process(), txn.id).status is TransactionStatus.OPEN


def test_process_that_appends_no_more_looks_once(world: World) -> None:
    written(world.process(), [("a", b"x")])
    stream = appending(world, spied=True)
    append(stream)
    calls = world.calls(lambda: world.runtime.run_later(10 * PROMISED_SECONDS))
    assert calls.count(("list", "s/t/transactions")) == 1


def test_process_that_appends_all_the_time_looks_once_a_lease(world: World) -> None:
    written(world.process(), [("a", b"x")])
    stream = appending(world, spied=True)

    def three_leases() -> None:
        for _ in range(30):
            append(stream)
            world.runtime.run_later(LEASE_SECONDS / 10)

    assert world.calls(three_leases).count(("list", "s/t/transactions")) == 2


def test_nothing_is_called_or_waits_where_no_transaction_is_open_for_its_lease(
    world: World,
) -> None:
    stream = appending(world, spied=True)
    append(stream)
    assert world.runtime._later == []
    written(world.process(), [("a", b"x")]).commit()
    for _ in range(20):  # each is open for less than its lease
        txn = written(world.process(), [("a", b"x")])
        append(stream)
        calls = world.calls(lambda: world.runtime.run_later(LEASE_SECONDS / 3))
        assert calls == []
        txn.commit()


def test_append_makes_no_call_more_while_a_transaction_is_open(world: World) -> None:
    stream = appending(world, spied=True)
    append(stream)
    alone = world.calls(lambda: append(stream))
    opened = written(world.process(), [("a", b"x")])
    append(stream)
    assert world.calls(lambda: append(stream)) == alone
    opened.abort()


def test_process_that_may_only_read_commits_nothing_and_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    killed(world)
    stream = appending(world, spied=True)
    append(stream)
    world.store.rules.add(Rule(StoreReadOnly("no right"), "put*"))
    with caplog.at_level(logging.INFO):
        world.runtime.run_later(PROMISED_SECONDS)
        append(world.process())
        stream.view()
        world.runtime.run_later(PROMISED_SECONDS)
    said = [m for m in caplog.messages if "may not carry out transactions of s/t" in m]
    assert (appended(world), len(said)) == ([], 1)
    assert world.runtime._later == []


def test_storage_that_fails_is_looked_at_again(world: World) -> None:
    killed(world)
    stream = appending(world, spied=True)
    append(stream)
    world.store.rules.add(Rule(StoreError("down"), "list", "s/t/transactions*"))
    world.runtime.run_later(PROMISED_SECONDS)
    world.store.rules.clear()
    world.runtime.run_later(PROMISED_SECONDS)
    assert appended(world) == [b"1"]


# --------------------------------------------------------------------------------------- joint


def test_joint_transaction_is_visible_in_each_stream_to_which_somebody_appends() -> None:
    world = JointWorld(A, B)
    txn = world.process().written({A: b"1", B: b"1"})
    kill_commit(world.runtime, txn.commit, "joint.decided")
    for name in (A, B):
        stream = world.process().stream(name)
        look_at(stream)
        append(stream)
        world.runtime.run_later(PROMISED_SECONDS)
        assert b"1" in world.events(name)


@pytest.mark.parametrize("point", ["joint.prepared", "joint.closed"])
def test_look_ends_no_joint_transaction_that_is_undecided_and_finishes_a_decided_one(
    point: str,
) -> None:
    world = JointWorld(A, B)
    txn = world.process().written({A: b"1", B: b"1"})
    kill_commit(world.runtime, txn.commit, point)
    streams = [world.process().stream(name) for name in (A, B)]  # in use: looks go on
    for stream in streams:
        look_at(stream)
        append(stream)
    world.runtime.run_later(PROMISED_SECONDS)
    is_decided = point == "joint.closed"
    assert [b"1" in world.events(name) for name in (A, B)] == [is_decided] * 2
    expected = TransactionStatus.COMMITTED if is_decided else TransactionStatus.OPEN
    assert world.process().open(txn.id).status is expected


# --------------------------------------------------------------------------------- the entries


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> StreamManager:
    """Return a manager of the system's runtime, whose processes look often."""
    monkeypatch.setattr("pravega_spark.txn.open_look.OPEN_LOOK_SECONDS", 0.02)
    manager = manager_over(Spy())
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration())
    return manager


def wait_for_event(manager: StreamManager) -> None:
    wait_until(lambda: b"1" in [event.data for event in manager.read("s/t")])


@pytest.mark.medium
def test_writer_carries_it_out(manager: StreamManager) -> None:
    killed_after_deciding(root_of(manager).store, b"1")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"appended").result(60)
        wait_for_event(manager)


@pytest.mark.medium
def test_transactional_writer_carries_out_parts_of_joint_transactions(
    manager: StreamManager,
) -> None:
    """A commit of a transaction finds decisions of its stream, and no others."""
    manager.create_stream("s/u", StreamConfiguration())
    runtime, decisions = FakeRuntime(), DecisionLog(root_of(manager).store, FakeRuntime())
    token, names = runtime.token(), ("s/t", "s/u")
    record = decisions.begin(token, dict.fromkeys(names, 1), 10_000)
    parts = {}
    for name in names:
        stream = StreamLog(decisions.store, name, runtime)
        opened = lifecycle.begin(stream, 1, lease_ms=100, execution_ms=10_000, joint_token=token)
        parts[name] = Transaction(stream, opened.transaction_id)
        parts[name].write_event(b"1")
    positions = GroupPositions(decisions.store, runtime)
    joint = JointTransaction(decisions, record, parts, runtime, positions)
    kill_commit(runtime, joint.commit, "joint.decided")
    with manager.create_transactional_writer("s/t") as writer, writer.begin_transaction():
        wait_for_event(manager)


@pytest.mark.medium
def test_byte_writer_carries_it_out(manager: StreamManager) -> None:
    killed_after_deciding(root_of(manager).store, b"1")
    with manager.create_byte_writer("s/t") as writer:
        writer.write(b"appended")
        writer.flush()
        wait_for_event(manager)


@pytest.mark.medium
def test_reader_of_a_group_carries_it_out_although_nobody_appends(manager: StreamManager) -> None:
    with manager.create_reader_group("s/g", ["s/t"]).create_reader("r") as reader:
        assert reader.read_next_event(timeout=0.1).event is None
        killed_after_deciding(root_of(manager).store, b"1")
        assert (found := reader.read_next_event(timeout=60).event) is not None
        assert found.data == b"1"


@pytest.mark.medium
def test_reader_of_a_group_looks_again_although_nobody_appends(manager: StreamManager) -> None:
    runtime = FakeRuntime()
    with manager.create_reader_group("s/g", ["s/t"]).create_reader("r") as reader:
        txn = begun(StreamLog(root_of(manager).store, "s/t", runtime), lease_ms=100)
        txn.write_event(b"1")
        txn.flush()
        spy = root_of(manager).store
        assert isinstance(spy, Spy)
        assert reader.read_next_event(timeout=0.1).event is None
        wait_until(lambda: spy.count("list", "s/t/transactions") > 0)
        kill_commit(runtime, txn.commit, "txn.decided")
        assert (found := reader.read_next_event(timeout=60).event) is not None
        assert found.data == b"1"


@pytest.mark.medium
def test_query_that_is_a_groups_reader_carries_it_out(manager: StreamManager) -> None:
    member = QueryMember(manager.create_reader_group("s/g", ["s/t"])._lifecycle)
    killed_after_deciding(root_of(manager).store, b"1")
    wait_for_event(manager)
    member.leave()


def test_closed_reader_looks_no_more() -> None:
    spy, runtime = Spy(), FakeRuntime()
    manager = manager_over(spy, runtime)
    manager._root = KeptRoot(spy, runtime)
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration())
    group = manager.create_reader_group("s/g", ["s/t"])
    begun(StreamLog(spy.inner, "s/t", runtime))

    def looks() -> int:
        """Return how often it looks in ten leases."""
        spy.calls.clear()
        for _ in range(10):
            runtime.run_later(PROMISED_SECONDS)
        return spy.count("list", "s/t/transactions")

    with group.create_reader("r") as reader:
        reader.read_next_event(timeout=0)
        assert looks() >= 5
    assert looks() <= 1  # the one that it had begun to wait for
