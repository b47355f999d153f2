"""The committer: what one commit holds, its cost, and the commit order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import CorruptLog, StoreError
from pravega_spark.txn import commit as txn_commit
from pravega_spark.txn import sweeper
from pravega_spark.txn.manifests import announced_transactions, announcement_key
from pravega_spark.txn.transaction import Transaction
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import all_events, events_of, make_stream, reopen, scale
from tests.harness.small_tables import commit as commit_body
from tests.harness.spy_store import Spy
from tests.harness.transaction_world import (
    World,
    begun,
    decide_abort,
    recorded_transactions,
    session,
    written,
)


@pytest.fixture
def world() -> World:
    return World()


# ------------------------------------------------------------------------------------ the cost


def test_single_commit_of_any_size_is_a_read_a_manifest_and_a_commit(world: World) -> None:
    txn = begun(world.stream)
    for n in range(30):
        txn.write_event(b"%d" % n, f"k{n}")
        txn.flush()
    assert world.calls(txn.commit) == [
        ("get", "log"),  # nothing is new
        ("put_if_absent", "manifest"),  # decided
        ("put_if_absent", "log"),  # committed
    ]


def test_closing_manifest_holds_the_last_write(world: World) -> None:
    txn = begun(world.stream)
    txn.write_event(b"x", "a")
    assert world.calls(txn.commit) == [
        ("get", "log"),
        ("put", "chunk"),
        ("put_if_absent", "manifest"),
        ("put_if_absent", "log"),
    ]


def test_each_other_open_transaction_costs_one_read(world: World) -> None:
    others = [written(world.process(), [("a", b"x")]) for _ in range(5)]
    txn = written(world.stream, [("a", b"y")])
    world.stream.view()
    txn_commit.next_commit_order(world.stream, world.stream.view(), txn._id)
    calls = world.calls(txn.commit)
    assert [call for call in calls if call[0] != "get_many"] == [
        ("get", "log"),
        ("put_if_absent", "manifest"),
        ("put_if_absent", "log"),
    ]
    assert calls.count(("get_many", "manifest")) == len(others)


def commit_calls(several: int) -> list[list[tuple[str, str]]]:
    """Return the calls of commits among open transactions: two of one process, one of another."""
    world = World()
    for _ in range(several):
        begun(world.process())
    txns = [begun(world.stream) for _ in range(2)]
    new = Transaction(reopen(world.stream, world.store), begun(world.process()).id)
    return [world.calls(txn.commit) for txn in (*txns, new)]


@pytest.mark.medium
def test_cost_of_a_commit_does_not_depend_on_the_number_of_open_transactions() -> None:
    few, many = commit_calls(20), commit_calls(200)
    assert few == many
    for calls in many:
        assert calls.count(("get_many", "manifest")) <= txn_commit.ALWAYS_READ
        assert len(calls) <= txn_commit.ALWAYS_READ + 9  # another process lists them


def crowd(world: World) -> list[Transaction]:
    """Begin enough transactions that later ones must be announced."""
    return [begun(world.process()) for _ in range(txn_commit.ALWAYS_READ)]


def test_one_of_many_puts_an_announcement_that_is_deleted_afterwards(world: World) -> None:
    crowd(world)
    txn = begun(world.stream)
    with (
        at_failpoint("txn.deciding", lambda: seen.append(announced_transactions(txn._stream))),
        at_failpoint("txn.committed", lambda: seen.append(announced_transactions(txn._stream))),
    ):
        seen: list[set[str]] = []
        txn.commit()
    assert seen == [{txn.id}, {txn.id}]
    sweeper.sweep_transactions(world.process())
    assert announced_transactions(world.process()) == set()


def test_oldest_of_many_needs_no_announcement(world: World) -> None:
    oldest = crowd(world)[-1]
    begun(world.process())
    oldest.commit(wait=False)
    assert announced_transactions(world.process()) == set()
    begun(world.stream).commit()
    (commit,) = world.commits("COMMIT TRANSACTION")
    assert recorded_transactions(commit)[0]["id"] == oldest.id


def test_process_that_knows_all_decisions_lists_no_announcements(world: World) -> None:
    waiting = [*crowd(world), *(begun(world.stream) for _ in range(3))]
    for name in [txn.id for txn in waiting]:
        Transaction(world.stream, name).commit(wait=False)
    last = begun(world.stream)
    assert "list" not in {call for call, _ in world.calls(last.commit)}


@pytest.mark.parametrize("late", [False, True], ids=["new process", "process that knows it open"])
def test_among_many_no_commit_overtakes_an_earlier_decision(world: World, late: bool) -> None:
    crowd(world)
    txns = {name: written(world.process(), [("a", name.encode())]) for name in ("1", "2", "3")}
    if late:
        begun(world.stream).commit()  # which reads the open ones
    txns["2"].commit(wait=False)
    txns["1"].commit(wait=False)
    Transaction(world.stream, txns["3"].id).commit()
    assert world.events() == [b"2", b"1", b"3"]


def test_decision_of_a_crashed_process_is_committed_by_the_next_commit(
    world: World,
) -> None:
    crowd(world)
    crashed = written(world.process(), [("a", b"1")])

    with at_failpoint("txn.decided", kill), pytest.raises(Killed):
        crashed.commit()
    written(world.stream, [("a", b"2")]).commit()
    assert world.events() == [b"1", b"2"]


def test_every_commit_reads_transactions_of_older_versions_of_the_package(world: World) -> None:
    """They have no version, and their processes do not announce them."""
    crowd(world)
    old = written(world.process(), [("a", b"1")])
    opened = world.process().view().transactions[old.id]
    record = json.dumps(json.loads(opened.encode())[:-1])
    domains: dict[str, str | None] = {f"{OPEN_PREFIX}{old.id}": record}
    commit_body(world.process().log, lambda snapshot: Body("TEST", domains=domains))
    old.commit(wait=False)
    world.store.inner.delete([announcement_key(world.stream, old.id)])
    assert announced_transactions(world.process()) == set()
    written(world.stream, [("a", b"2")]).commit()
    assert world.events() == [b"1", b"2"]


def test_rolling_commit_reads_and_writes_no_chunk(world: World) -> None:
    txn = written(world.stream, [(f"k{n}", b"%d" % n) for n in range(20)])
    scale(world.stream, [0, 1], [(0, 0.25), (0.25, 0.75), (0.75, 1)])
    assert "chunk" not in {kind for _, kind in world.calls(txn.commit)}
    assert len(world.events()) == 20


def test_begin_flush_and_abort_make_only_the_necessary_calls(world: World) -> None:
    world.stream.view()
    txn: list[Transaction] = []
    assert world.calls(lambda: txn.append(begun(world.stream))) == [
        ("get", "log"),  # by the test itself: the life
        ("put_if_absent", "log"),
    ]
    txn[0].write_event(b"x", "a")
    assert world.calls(txn[0].flush) == [
        ("put", "chunk"),
        ("put_if_absent", "manifest"),
        ("get", "log"),  # still open: the manifest counts
    ]
    assert world.calls(txn[0].abort) == [
        ("get", "log"),
        ("put_if_absent", "manifest"),
        ("put_if_absent", "log"),
    ]


# ----------------------------------------------------------------------- one commit for many


def test_one_commit_ends_all_decided_transactions_committed_and_aborted(world: World) -> None:
    waiting = [written(world.process(), [("a", b"%d" % n)]) for n in range(5)]
    dropped = written(world.process(), [("a", b"dropped")])
    for txn in waiting:
        txn.commit(wait=False)
    decide_abort(world.process(), dropped.id)
    last = written(world.stream, [("a", b"last")])
    last.commit()

    (commit,) = world.commits("COMMIT TRANSACTION")
    assert [entry["id"] for entry in recorded_transactions(commit)] == [
        txn.id for txn in (*waiting, last)
    ]
    assert world.events() == [b"0", b"1", b"2", b"3", b"4", b"last"]
    assert dropped.status is TransactionStatus.ABORTED
    assert world.commits("ABORT TRANSACTION") == []


def test_threads_that_decide_during_a_commit_share_the_next_one() -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM, 2)
    several = [written(stream, [("a", b"%d" % n)]) for n in range(8)]
    all_decide, log_is_busy = threading.Barrier(len(several) + 1), threading.Event()

    def hook(operation: str, key: str) -> None:
        if "/transactions/" in key and operation == "put_if_absent":
            all_decide.wait(60)
            log_is_busy.wait(60)

    store.hook = hook
    threads = [threading.Thread(target=txn.commit) for txn in several]
    for thread in threads:
        thread.start()
    all_decide.wait(60)  # each of them has read the log, for which it takes the lock, too
    with stream.log._lock:
        log_is_busy.set()
        deadline = time.monotonic() + 60
        while len(txn_commit.known_decisions(stream)._closed) < len(several):
            assert time.monotonic() < deadline
    for thread in threads:
        thread.join()
    store.hook = None
    commits = reopen(stream).log.reader.span(-1, reopen(stream).view().version)
    (committed,) = [c for c in commits if c.operation == "COMMIT TRANSACTION"]
    assert len(recorded_transactions(committed)) == len(several)
    assert len(all_events(reopen(stream))) == len(several)


def test_lost_race_reads_no_manifest_and_leaves_newer_decisions_to_others(world: World) -> None:
    """A committer that reads manifests after each lost race would lose the next one as well."""
    txn = written(world.stream, [("a", b"x")])
    other = written(world.process(), [("a", b"y")])

    def decide_another(operation: str, key: str) -> None:
        if operation == "put_if_absent" and "/_delta_log/" in key:
            world.store.hook = None
            other.commit(wait=False)
            begun(world.process())  # takes the version

    world.store.hook = decide_another
    calls = world.calls(txn.commit)
    assert ("get_many", "manifest") not in calls[calls.index(("put_if_absent", "log")) :]
    assert world.events() == [b"x"]
    begun(world.process()).commit()
    assert world.events() == [b"x", b"y"]


def test_commit_with_a_lost_answer_is_not_repeated(world: World) -> None:
    for fault in (Fault.LOSE_ANSWER, Fault.RESEND, Fault.LOSE_REQUEST, Fault.DELAY):
        txn = written(world.stream, [("a", fault.value.encode())])
        world.store.rules.add(Rule(fault, "put_if_absent", "*", nth=1))
        world.store.rules.add(Rule(fault, "put_if_absent", "*/_delta_log/*", nth=1))
        txn.commit()
        world.store.rules.clear()
        world.store.deliver()
    assert len(world.commits("COMMIT TRANSACTION")) == 4
    assert len(world.events()) == 4


# ------------------------------------------------------------------------------------ the order


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_commits_become_visible_in_the_order_of_the_decisions_in_every_segment(
    world: World, order: tuple[int, ...]
) -> None:
    """Whatever the clocks of the processes are, and however old their snapshots."""
    processes = [world.process() for _ in range(3)]
    for process in processes:
        process.view()
    keys = [f"k{n}" for n in range(8)]
    several = [
        written(process, [(key, b"%d" % n) for key in keys]) for n, process in enumerate(processes)
    ]
    for step, n in enumerate(order):
        world.runtime.wall_ms -= 3_600_000 * step
        several[n].commit(wait=False)
    sweeper.sweep_transactions(world.process())

    for segment_id in (0, 1):
        found = [event for _, event in events_of(world.process(), segment_id)]
        assert found == sorted(found, key=lambda event: order.index(int(event)))
        assert set(found) == {b"0", b"1", b"2"}
    (commit,) = world.commits("COMMIT TRANSACTION")
    assert [entry["id"] for entry in recorded_transactions(commit)] == [
        several[n].id for n in order
    ]


def test_commit_does_not_overtake_an_earlier_decision_of_another_process(world: World) -> None:
    """The process finds the other's closing manifest by reading, without any message."""
    first = written(world.process(), [("a", b"1")])
    first.commit(wait=False)
    second = written(world.stream, [("a", b"2")])
    second.commit()
    assert world.events() == [b"1", b"2"]


class OneByOne(Spy):
    """A store that serves a batch of reads one by one, as parallel requests may be served."""

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        return [super(OneByOne, self).get_many([key])[0] for key in keys]


def test_decision_made_during_a_read_is_found_by_the_next_read(world: World) -> None:
    """A reader that meets a decision must read again the transactions that it read before it."""
    several = {txn.id: txn for txn in (written(world.process(), [("a", b"x")]) for _ in range(2))}
    store = OneByOne(world.store.inner)
    passed: list[str] = []

    def between(operation: str, key: str) -> None:
        if operation == "get_many" and key.endswith("/00000001.json"):
            passed.append(key.split("/")[-2])
            if len(passed) == 2:
                store.hook = None
                for transaction_id in passed:
                    several[transaction_id].commit(wait=False)

    store.hook = between
    stream = reopen(world.stream, store)
    txn_commit.find_and_commit_decided(stream, stream.view(), several.keys())
    (commit,) = world.commits("COMMIT TRANSACTION")
    assert [entry["id"] for entry in recorded_transactions(commit)] == passed


def test_read_that_failed_halfway_commits_no_decision(world: World) -> None:
    """A process reads the second decision but not the first, fails, and aborts its own."""
    several = {txn.id: txn for txn in (written(world.process(), [("a", b"x")]) for _ in range(2))}
    own = written(world.stream, [("a", b"own")])
    store = OneByOne(world.store.inner)
    handle = Transaction(reopen(world.stream, store), own.id)
    passed: list[str] = []

    def between(operation: str, key: str) -> None:
        if operation == "get_many" and key.endswith("/00000001.json"):
            passed.append(key.split("/")[-2])
            if len(passed) == 2:
                for transaction_id in passed:
                    several[transaction_id].commit(wait=False)
            elif len(passed) > 2:
                raise StoreError("down")

    store.hook = between
    with pytest.raises(StoreError, match="down"):
        handle.commit()
    store.hook = None
    handle.abort()
    assert len(world.commits("COMMIT TRANSACTION")) == 0
    sweeper.sweep_transactions(world.process())
    (commit,) = world.commits("COMMIT TRANSACTION")
    assert [entry["id"] for entry in recorded_transactions(commit)] == passed[:2]


def test_thread_with_an_older_view_forgets_no_newer_decision(world: World) -> None:
    old = world.stream.view()
    first = written(world.process(), [("a", b"1")])
    first.commit(wait=False)
    second = written(world.stream, [("a", b"2")])
    view = world.stream.view()
    txn_commit.next_commit_order(world.stream, view, second.id)
    with at_failpoint(
        "txn.decided", lambda: txn_commit.next_commit_order(world.stream, old, second.id)
    ):
        second.commit()
    assert world.events() == [b"1", b"2"]


# ------------------------------------------------------------------------------- what it records


def test_history_records_each_transaction_and_the_totals(world: World) -> None:
    one = written(world.stream, [("a", b"xx"), ("b", b"y")])
    one.commit(wait=False)
    written(world.stream, [("a", b"z")]).commit()
    (commit,) = world.commits("COMMIT TRANSACTION")
    first, second = recorded_transactions(commit)
    assert sum(first["rowsBySegment"].values()) == 2
    assert sum(first["bytesBySegment"].values()) == 3
    assert list(second["rowsBySegment"].values()) == [1]
    assert commit.info["operationMetrics"]["numOutputRows"] in (3, "3")
    assert commit.info["operationParameters"]["rolled"] == "false"
    view = world.process().view()
    outcome = view.outcome(one.id)
    assert outcome is not None
    assert (outcome.committed, outcome.version, outcome.events, outcome.size_bytes) == (
        True,
        commit.version,
        2,
        3,
    )
    assert not view.transactions


def test_commit_stores_the_note_and_a_later_note_replaces_it(world: World) -> None:
    writer = session(world.stream)
    one, two = (begun(world.stream, writer=writer) for _ in range(2))
    two.commit("two", wait=False)
    one.commit("one")
    begun(world.stream, writer=writer).commit()
    known = world.process().view().writer("w")
    assert known is not None
    assert (known.note, known.session, known.last) == ("one", 1, 0)


def test_empty_note_is_a_note(world: World) -> None:
    writer = session(world.stream)
    begun(world.stream, writer=writer).commit("one")
    begun(world.stream, writer=writer).commit("", wait=False)
    sweeper.sweep_transactions(world.process())
    known = world.process().view().writer("w")
    assert known is not None
    assert known.note == ""


def test_damaged_manifest_stops_commits_and_is_named_for_the_restore(world: World) -> None:
    broken = written(world.process(), [("a", b"x")])
    name = f"s/t/transactions/{broken.id}/00000000.json"
    world.store.inner.put(name, world.store.inner.get(name).replace(b"write", b"wrote"))
    with pytest.raises(CorruptLog, match=f"manifest 0 of transaction {broken.id} .* restore it"):
        written(world.stream, [("a", b"y")]).commit()
