from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream import lifecycle
from pravega_spark.errors import (
    EventTooLarge,
    ForkedProcess,
    InvalidInput,
    NoSuchStream,
    NoSuchTransaction,
    PingFailed,
    StaleIdentity,
    StoreError,
    StreamSealed,
    TxnFailed,
)
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction, add_staged, keep_alive
from pravega_spark.values.limits import MAX_EVENT_BYTES
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import events_of, make_stream, reopen, scale
from tests.harness.spy_store import Spy
from tests.harness.transaction_world import (
    LEASE_MS,
    World,
    begun,
    decide_abort,
    drive_to,
    recorded_transactions,
    results_of_child,
    written,
)

OPEN, PREPARED = TransactionStatus.OPEN, TransactionStatus.PREPARED
COMMITTING, COMMITTED = TransactionStatus.COMMITTING, TransactionStatus.COMMITTED
ABORTING, ABORTED = TransactionStatus.ABORTING, TransactionStatus.ABORTED


@pytest.fixture
def world() -> World:
    return World()


# ------------------------------------------------------------------------------------ lifecycle


def test_commit_makes_all_events_visible_in_one_version(world: World) -> None:
    txn = begun(world.stream)
    for n in range(20):
        txn.write_event(b"%02d" % n, f"k{n}")
        if n % 7 == 0:
            txn.flush()
    assert world.events() == []
    txn.commit()

    (commit,) = world.commits("COMMIT TRANSACTION")
    assert sorted(world.events()) == [b"%02d" % n for n in range(20)]
    assert {add.partition["segment_id"] for add in commit.adds} == {"0", "1"}
    assert txn.status is COMMITTED
    assert not txn.is_open


def test_aborted_events_are_never_visible_and_their_files_are_deleted(world: World) -> None:
    txn = written(world.stream, [("a", b"x"), ("b", b"y")])
    txn.write_event(b"z", "c")
    assert world.chunks(txn) > 0
    txn.abort()
    assert txn.status is ABORTED
    sweeper.delete_remains(world.stream)
    assert world.events() == []
    assert world.chunks(txn) == 0
    assert world.folder(txn) == []


def test_transaction_without_events_commits_and_aborts(world: World) -> None:
    begun(world.stream).commit()
    begun(world.stream).abort()
    assert len(world.commits("COMMIT TRANSACTION")) == 1
    assert len(world.commits("ABORT TRANSACTION")) == 1


def test_events_of_one_transaction_are_contiguous_in_each_segment_and_in_order(
    world: World,
) -> None:
    one, two = begun(world.stream), begun(world.process())
    for n in range(12):
        one.write_event(b"1 %02d" % n, f"k{n % 4}")
        two.write_event(b"2 %02d" % n, f"k{n % 4}")
        if n % 3 == 0:
            one.flush()
            two.flush()
    two.commit()
    one.commit()
    for segment_id in (0, 1):
        found = events_of(world.process(), segment_id)
        assert [event[:1] for _, event in found] == sorted([e[:1] for _, e in found], reverse=True)
        for key in {key for key, _ in found}:
            for name in (b"1", b"2"):
                mine = [event for k, event in found if k == key and event[:1] == name]
                assert mine == sorted(mine)


def test_events_without_a_key_share_one_segment_by_the_id(world: World) -> None:
    homes = set()
    for _ in range(16):
        txn = begun(world.stream)
        txn.write_events([b"a", b"b", b"c"])
        txn.flush()
        txn.write_event(b"d")
        txn.commit()
        (segment,) = {
            add.partition["segment_id"] for add in world.commits("COMMIT TRANSACTION")[-1].adds
        }
        homes.add(segment)
    assert homes == {"0", "1"}
    assert all(key is None for s in (0, 1) for key, _ in events_of(world.process(), s))


BUFFER = "pravega_spark.txn.transaction"


def small_buffer(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    for name, limit in {"TRANSACTION_BATCH_EVENTS": 10, **limits}.items():
        monkeypatch.setattr(f"{BUFFER}.{name}", limit)


@pytest.mark.medium
def test_large_transaction_makes_full_chunks_without_a_manifest_before_the_flush(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{BUFFER}.TRANSACTION_BATCH_BYTES", 2 * MAX_EVENT_BYTES)
    txn = begun(world.stream)
    for n in range(20):
        txn.write_event(bytes([n]) * MAX_EVENT_BYTES, "k")
    assert world.folder(txn) == []
    txn.commit()
    assert [(event[0], len(event)) for event in world.events()] == [
        (n, MAX_EVENT_BYTES) for n in range(20)
    ]
    commit = world.commits("COMMIT TRANSACTION")[0]
    assert [int((add.tags or {})["rows"]) for add in commit.adds] == [8, 8, 4]


@pytest.mark.parametrize("limit", [1, 1_000, 1 << 20])
def test_events_stay_in_order_whatever_the_buffer_stages_early(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    small_buffer(monkeypatch, TRANSACTION_BUFFER_BYTES=limit, CHUNK_EVENTS=60)
    txn = begun(world.stream)
    keys = [None, *(f"k{n}" for n in range(7))]
    written_events = [(keys[n % 8], b"%03d" % n) for n in range(400)]
    for n, (key, event) in enumerate(written_events):
        txn.write_event(event, key)
        if n == 205:
            txn.flush()
    txn.commit()
    found = [pair for s in (0, 1) for pair in events_of(world.process(), s)]
    for key in keys:
        ours = [event for k, event in written_events if k == key]
        assert [event for k, event in found if k == key] == ours
    rows = [int((add.tags or {})["rows"]) for add in world.commits("COMMIT TRANSACTION")[0].adds]
    assert len(rows) < 20 or limit < 1_000


def test_failed_staging_loses_no_event_and_repeats_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_buffer(monkeypatch, TRANSACTION_BUFFER_BYTES=1_500, CHUNK_EVENTS=30)
    txn = begun(world.stream)
    failed = 0
    for n in range(200):
        event, key = b"%03d" % n, f"k{n % 5}"
        world.store.rules.add(Rule(StoreError("the disk is full"), "put*", "*/data/*"))
        try:
            txn.write_event(event, key)
        except StoreError:
            failed += 1
            world.store.rules.clear()
            txn.write_event(event, key)
        world.store.rules.clear()
    assert failed > 3
    txn.commit()
    assert sorted(world.events()) == [b"%03d" % n for n in range(200)]


def test_writer_of_a_large_transaction_notices_its_end_before_the_flush(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_buffer(monkeypatch, TRANSACTION_BUFFER_BYTES=1)
    txn = begun(world.stream)
    decide_abort(world.process(), txn.id)
    for _ in range(10):
        txn.write_event(b"x", "k")
    with pytest.raises(TxnFailed, match="ABORTING"):
        txn.write_event(b"y", "k")


def test_iterator_of_events_is_staged_while_it_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_buffer(monkeypatch, CHUNK_EVENTS=30)
    txn = begun(world.stream)
    staged: list[int] = []

    def numbers() -> Iterator[bytes]:
        for n in range(200):
            staged.append(world.chunks(txn))
            yield b"%03d" % n

    txn.write_event(b"first", "k")
    txn.write_events(numbers(), "k")
    txn.write_event(b"last", "k")
    assert (staged[0], staged[-1]) == (0, 6)
    assert world.folder(txn) == []
    txn.commit()
    assert world.events() == [b"first", *(b"%03d" % n for n in range(200)), b"last"]


@pytest.mark.parametrize("limit", [1, 1_000, 1 << 20])
@pytest.mark.parametrize("size", [5, 25, 100])
def test_writes_of_many_events_keep_the_order_of_their_keys(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int, size: int
) -> None:
    small_buffer(monkeypatch, TRANSACTION_BUFFER_BYTES=limit, CHUNK_EVENTS=60)
    txn = begun(world.stream)
    expected: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    for n in range(12):
        for key, events in expected.items():
            several = [b"%s %d %03d" % (key.encode(), n, i) for i in range(size)]
            txn.write_events(several, key)
            txn.write_event(b"single", key)
            events += [*several, b"single"]
    txn.commit()
    found = [pair for s in (0, 1) for pair in events_of(world.process(), s)]
    for key, events in expected.items():
        assert [event for k, event in found if k == key] == events


@pytest.mark.parametrize("failure", ["event", "iterator", "storage", "storage at the end"])
def test_failed_write_of_many_events_adds_none_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    small_buffer(monkeypatch, CHUNK_EVENTS=30)
    txn = begun(world.stream)
    txn.write_event(b"before", "k")
    full = Rule(StoreError("the disk is full"), "put*", "*/data/*")

    def numbers() -> Iterator[Any]:
        for n in range(100):
            if n == 50 and failure == "storage":
                world.store.rules.add(full)
            yield 7 if failure == "event" and n == 70 else b"%03d" % n
        if failure == "iterator":
            raise RuntimeError("the source is closed")
        if failure == "storage at the end":  # when the older event is staged
            world.store.rules.add(full)

    with pytest.raises((InvalidInput, RuntimeError, StoreError)):
        txn.write_events(numbers(), "k")
    world.store.rules.clear()
    txn.write_event(b"after", "k")
    txn.commit()
    assert world.events() == [b"before", b"after"]


@pytest.mark.parametrize("call", [Transaction.flush, Transaction.prepare])
def test_call_after_another_process_ended_it_reports_the_final_status(
    world: World, call: Callable[[Transaction], None]
) -> None:
    for end, status in ((Transaction.commit, COMMITTED), (Transaction.abort, ABORTED)):
        txn = begun(world.stream)
        txn.write_events([b"x", b"y"])
        end(Transaction(world.process(), txn.id))
        for _ in range(2):
            with pytest.raises(TxnFailed) as failed:
                call(txn)
            assert failed.value.status is status
            left = "without 2 events of this one"
            assert (left in str(failed.value)) is (status is COMMITTED)
        with pytest.raises(TxnFailed, match=r"was committed by another|was aborted"):
            txn.write_event(b"z")
        empty = Transaction(world.process(), txn.id)
        with pytest.raises(TxnFailed, match=r"was (committed|aborted .*) at version \d+") as failed:
            empty.write_event(b"z")
        assert failed.value.status is status


# --------------------------------------------------------------------------- calls after the end

ANSWERS: dict[TransactionStatus, tuple[TransactionStatus | str, TransactionStatus | str]] = {
    OPEN: (COMMITTED, ABORTED),
    PREPARED: (COMMITTED, ABORTED),
    COMMITTING: (COMMITTED, "is already COMMITTING; that is final"),
    COMMITTED: (COMMITTED, r"was committed at version \d+; that is final. Begin another"),
    ABORTING: ("is already ABORTING; that is final", ABORTED),
    ABORTED: (r"was aborted \(the application asked for it\) at version \d+", ABORTED),
}


@pytest.mark.parametrize("fresh", [False, True], ids=["same handle", "by id"])
@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
@pytest.mark.parametrize("call", ["commit", "abort"])
@pytest.mark.parametrize("state", ANSWERS, ids=lambda state: state.value)
def test_every_call_in_every_state(
    world: World, state: TransactionStatus, call: str, deleted: bool, fresh: bool
) -> None:
    txn = written(world.stream, [("a", b"x"), ("b", b"y")])
    drive_to(state, world.stream, txn.id, delete_remains=deleted)
    if fresh:
        txn = Transaction(world.process(), txn.id)
    expected = ANSWERS[state][call == "abort"]

    for _ in range(2):  # a second call has the same result
        if isinstance(expected, str):
            with pytest.raises(TxnFailed, match=f"{txn.id} of stream s/t {expected}"):
                getattr(txn, call)()
        else:
            getattr(txn, call)()
            assert txn.status is expected
    sweeper.sweep_transactions(world.process())
    visible = txn.status is COMMITTED
    assert sorted(world.events()) == ([b"x", b"y"] if visible else [])
    assert visible is (state in (COMMITTING, COMMITTED) or expected is COMMITTED)


LATE = [
    (state, call)
    for state in TransactionStatus
    for call in ("flush", "prepare", "commit")
    if state is not OPEN and (state, call) != (PREPARED, "prepare")
]


@pytest.mark.parametrize(("state", "call"), LATE)
@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
def test_events_after_the_end_are_refused_by_the_call_that_makes_them_durable(
    world: World, state: TransactionStatus, call: str, deleted: bool
) -> None:
    txn = written(world.stream, [("a", b"x")])
    drive_to(state, world.stream, txn.id, delete_remains=deleted)
    if call != "prepare":
        txn.write_event(b"late", "a")
    for _ in range(2):
        with pytest.raises(TxnFailed, match=f"transaction {txn.id} of stream s/t"):
            getattr(txn, call)()
    sweeper.sweep_transactions(world.process())
    assert b"late" not in world.events()


@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
@pytest.mark.parametrize("state", TransactionStatus, ids=lambda state: state.value)
def test_status_is_the_same_in_every_process(
    world: World, state: TransactionStatus, deleted: bool
) -> None:
    txn = written(world.stream, [("a", b"x")])
    drive_to(state, world.stream, txn.id, delete_remains=deleted)
    assert Transaction(world.process(), txn.id).status is state
    assert txn.status is state
    assert txn.is_open is (state not in (COMMITTED, ABORTED))
    assert txn.status.value in repr(txn) or txn.is_open


@pytest.mark.parametrize("between", range(4))
def test_status_never_goes_back_if_the_end_comes_during_the_call(
    world: World, between: int
) -> None:
    """It ends, and its remains are deleted, before any one call of the storage."""
    txn = written(world.stream, [("a", b"x")])
    seen = Transaction(reopen(world.stream), txn.id)
    Transaction(world.process(), txn.id).commit(wait=False)
    calls = 0

    def end(operation: str, key: str) -> None:
        nonlocal calls
        calls += 1
        if calls == between + 1:
            drive_to(COMMITTED, world.process(), txn.id, delete_remains=True)

    world.store.hook = end
    assert seen.status in (COMMITTING, COMMITTED)
    world.store.hook = None


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("aborted", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_closing_manifest_after_the_end_decides_nothing_and_raises(
    world: World, late: bool, aborted: bool, wait: bool
) -> None:
    """The process stalls before its manifest; another one ends it and deletes the folder."""
    txn = written(world.stream, [("a", b"x")])
    if late:
        txn.write_event(b"y", "a")
    state = ABORTED if aborted else COMMITTED

    def end() -> None:
        drive_to(state, world.process(), txn.id, delete_remains=True)

    with at_failpoint("txn.deciding", end):
        if aborted or late:
            with pytest.raises(TxnFailed, match="was aborted" if aborted else "without 1 events"):
                txn.commit(wait=wait)
        else:
            txn.commit(wait=wait)
    assert txn.status is state
    assert world.events() == ([] if aborted else [b"x"])
    sweeper.delete_remains(world.stream)
    assert world.folder(txn) == []


def test_abort_after_a_commit_raises(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    end = lambda: drive_to(COMMITTED, world.process(), txn.id, delete_remains=True)  # noqa: E731
    with at_failpoint("txn.deciding", end), pytest.raises(TxnFailed, match="was committed"):
        txn.abort()
    assert world.events() == [b"x"]


# -------------------------------------------------------------------------- in other processes


def test_processes_write_into_one_transaction_by_its_id_and_any_may_commit(world: World) -> None:
    txn = begun(world.stream)
    other = Transaction(world.process(), txn.id)
    assert (other.epoch, other.lease_ms) == (0, LEASE_MS)
    txn.write_event(b"x", "a")
    other.write_event(b"y", "b")
    txn.flush()
    other.commit()
    assert sorted(world.events()) == [b"x", b"y"]
    assert txn.status is COMMITTED
    txn.commit()


def test_unknown_id_and_ids_of_other_streams_are_refused(world: World) -> None:
    stranger = begun(make_stream(name="s/other"))
    for name in (stranger.id, "0" * 32):
        with pytest.raises(NoSuchTransaction, match=rf"s/t \(life 1\) has no transaction {name}"):
            Transaction(world.stream, name)


@pytest.mark.parametrize("name", ["", "x", "0" * 31 + "/", "../" * 10, None, 7, ["a"], b"0" * 32])
def test_malformed_id_is_refused_before_any_storage_call(world: World, name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"digits, such as Transaction\.id returns"):
        assert not world.calls(lambda: Transaction(world.stream, name))


def test_id_and_handle_of_an_earlier_life_change_nothing(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    calls = (txn.commit, txn.abort, txn.flush, txn.prepare)
    txn.write_event(b"y", "a")
    stream = world.process()
    lifecycle.seal(stream, sweeper.end_all_transactions)
    lifecycle.delete(stream)
    for call in calls:
        with pytest.raises(NoSuchStream, match="was deleted"):
            call()
    lifecycle.create(stream, 2, StreamConfiguration())
    for call in calls:
        with pytest.raises(StaleIdentity, match=r"is in life 2.*life 1. Open it again"):
            call()
    with pytest.raises(NoSuchTransaction, match=r"life 2\) has no transaction"):
        Transaction(world.process(), txn.id)
    sweeper.sweep_transactions(stream)
    assert world.folder(txn) == []
    assert world.events() == []


def test_id_names_the_epoch_that_routes_its_events(world: World) -> None:
    early = begun(world.stream)
    scale(world.stream, [0], [(0, 0.25), (0.25, 0.5)])
    late = begun(world.stream)
    assert (early.epoch, late.epoch) == (0, 1)
    assert (early.id[:8], late.id[:8]) == ("00000000", "00000001")
    early.write_event(b"x", "a")
    early.flush()
    assert {chunk.segment_id for chunk in early._manifests.chunks} <= {0, 1}


# ------------------------------------------------------------------------------ wait=False


def test_commit_without_wait_is_decided_and_the_next_commit_makes_it_visible(world: World) -> None:
    first, second = (written(world.stream, [("a", event)]) for event in (b"1", b"2"))
    first.commit(wait=False)
    assert (first.status, world.events()) == (COMMITTING, [])
    with pytest.raises(TxnFailed, match="is COMMITTING and accepts no more events"):
        first.write_event(b"late")
    Transaction(world.process(), second.id).commit()
    assert world.events() == [b"1", b"2"]
    assert first.status is COMMITTED
    assert len(world.commits("COMMIT TRANSACTION")) == 1


def test_sweep_and_seal_make_a_commit_without_wait_visible(world: World) -> None:
    first = written(world.stream, [("a", b"1")])
    first.commit(wait=False)
    assert sweeper.sweep_transactions(world.process()).committed == [first.id]
    second = written(world.stream, [("a", b"2")])
    second.commit(wait=False)
    lifecycle.seal(world.process(), sweeper.end_all_transactions)
    assert world.events() == [b"1", b"2"]


def test_second_commit_waits_after_one_without_wait(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.commit(wait=False)
    txn.commit()
    assert world.events() == [b"x"]


# ------------------------------------------------------------------------------------ prepared


def test_prepared_transaction_accepts_no_events_and_any_process_decides_it(world: World) -> None:
    txn = begun(world.stream)
    other = Transaction(world.process(), txn.id)
    other.write_event(b"late", "a")
    txn.write_event(b"x", "a")
    txn.prepare()
    txn.prepare()
    assert (txn.status, world.events()) == (PREPARED, [])
    with pytest.raises(TxnFailed, match="is PREPARED and accepts no more events"):
        txn.write_event(b"late", "a")
    with pytest.raises(TxnFailed, match="is PREPARED and accepts no more events"):
        other.flush()
    with pytest.raises(TxnFailed, match="was prepared and accepts no more events"):
        other.commit()
    Transaction(world.process(), txn.id).commit()
    assert world.events() == [b"x"]
    with pytest.raises(TxnFailed, match="was committed"):
        txn.prepare()


def test_end_of_a_block_leaves_a_prepared_transaction_undecided(
    world: World,
) -> None:
    with begun(world.stream) as txn:
        txn.write_event(b"x", "a")
        txn.prepare()
    assert txn.status is PREPARED
    other = begun(world.stream)
    with pytest.raises(RuntimeError, match="boom"):
        broken(other, other.prepare)
    assert other.status is PREPARED


# ----------------------------------------------------------------------- with blocks and pings


def broken(txn: Transaction, first: Callable[[], object]) -> None:
    """Run a block that acts and then raises."""
    with txn:
        first()
        raise RuntimeError("boom")


def test_with_block_commits_at_its_end_and_aborts_if_it_raises(world: World) -> None:
    with begun(world.stream) as done:
        done.write_event(b"x", "a")
    dropped = begun(world.stream)
    with pytest.raises(RuntimeError, match="boom"):
        broken(dropped, lambda: dropped.write_event(b"y", "a"))
    with begun(world.stream) as undone:
        undone.write_event(b"z", "a")
        undone.abort()
    with begun(world.stream) as early:
        early.write_event(b"w", "a")
        early.commit(wait=False)
    several = (done, dropped, undone, early)
    assert [txn.status for txn in several] == [COMMITTED, ABORTED, ABORTED, COMMITTING]
    assert world.events() == [b"x"]


def test_error_of_a_block_propagates_even_if_the_abort_fails(world: World) -> None:
    txn = begun(world.stream)
    with pytest.raises(RuntimeError, match="boom"):
        broken(txn, lambda: world.store.rules.add(Rule(StoreError("down"))))


@pytest.mark.parametrize("state", [s for s in TransactionStatus if s is not OPEN])
def test_ping_of_a_transaction_that_is_not_open_fails_with_its_status(
    world: World, state: TransactionStatus
) -> None:
    txn = begun(world.stream)
    txn.ping()
    assert world.folder(txn) == ["lease.json"]
    drive_to(state, world.stream, txn.id, delete_remains=False)
    with pytest.raises(PingFailed, match=f"is {state.value}: it has no lease"):
        txn.ping()


def test_ping_beyond_the_maximum_execution_time_fails_at_any_wall_clock(
    world: World,
) -> None:
    txn = begun(world.stream, execution_ms=3 * LEASE_MS)
    assert keep_alive(txn)
    world.runtime.wall_ms += 10 * LEASE_MS  # the clock jumps while two minutes pass
    world.runtime.elapsed += 2 * LEASE_MS / 1_000
    txn.ping()
    assert keep_alive(txn)
    world.runtime.wall_ms -= 20 * LEASE_MS
    world.runtime.elapsed += 1
    assert not keep_alive(txn)
    with pytest.raises(PingFailed, match=r"maximum execution time before another lease of 60 s"):
        txn.ping()
    txn.commit()


def test_keep_alive_reads_the_age_once_and_stops_once_the_end_is_known(world: World) -> None:
    txn = begun(world.stream)
    assert ("time_ms", "") in world.calls(lambda: keep_alive(txn))
    assert world.calls(lambda: keep_alive(txn)) == [("put", "manifest")]
    other = Transaction(world.stream, txn.id)
    other.commit()
    assert world.calls(lambda: not keep_alive(txn) or 1 / 0) == []


# ----------------------------------------------------------------------------------- bad input


def test_bad_input_names_the_stream_and_changes_nothing(world: World) -> None:
    txn = begun(world.stream)
    with pytest.raises(InvalidInput, match="an event for stream s/t must be bytes or str, not int"):
        txn.write_event(7)
    with pytest.raises(InvalidInput, match="routing key must be a str or None, not int"):
        txn.write_event(b"x", 7)  # type: ignore[arg-type]
    with pytest.raises(EventTooLarge, match="s/t is larger than"):
        txn.write_events([b"x", bytes(MAX_EVENT_BYTES + 1)])
    with pytest.raises(InvalidInput, match="lone surrogates"):
        txn.write_events(["x", "\ud800"])
    with pytest.raises(InvalidInput, match=r"on stream s/t needs a writer with a writer_id"):
        txn.commit(note="n")
    for bad in (datetime(2026, 1, 1), "2026-01-01", 5.0):
        with pytest.raises(InvalidInput, match="datetime with a time zone"):
            txn.commit(timestamp=bad)  # type: ignore[arg-type]
    txn.commit()
    assert world.events() == []


def test_serializer_encodes_the_events(world: World) -> None:
    txn = begun(world.stream, serializer=lambda value: str(value).encode())
    txn.write_events([1, 2], "a")
    txn.commit()
    assert world.events() == [b"1", b"2"]


def test_handle_cannot_be_pickled(world: World) -> None:
    with pytest.raises(TypeError, match="pass its id"):
        pickle.dumps(begun(world.stream))


def test_commit_stores_the_timestamp(world: World) -> None:
    begun(world.stream).commit(timestamp=datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=timezone.utc))
    begun(world.stream).commit(timestamp=datetime(1970, 1, 1, tzinfo=timezone.utc))
    begun(world.stream).commit(timestamp=1_001)
    begun(world.stream).commit()
    found = [
        recorded_transactions(commit)[0].get("timestamp")
        for commit in world.commits("COMMIT TRANSACTION")
    ]
    assert found == [1_000_005, 0, 1_001_000, None]


# --------------------------------------------------------------------------------------- sealing


def test_stream_being_sealed_refuses_begins_and_accepts_commits(
    world: World,
) -> None:
    open_one, prepared = (written(world.stream, [("a", event)]) for event in (b"1", b"2"))
    prepared.prepare()

    def during() -> None:
        other = world.process()
        with pytest.raises(StreamSealed, match="s/t was sealed"):
            begun(other)
        Transaction(other, open_one.id).commit()
        Transaction(other, prepared.id).commit()

    with at_failpoint("seal.sealing", during):
        assert lifecycle.seal(world.process(), sweeper.end_all_transactions)
    assert world.events() == [b"1", b"2"]


# ----------------------------------------------------------------------------- threads and forks


def test_threads_share_one_handle(world: World) -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM, 2)
    txn = begun(stream)

    def run(name: int) -> None:
        for n in range(50):
            txn.write_event(b"%d %03d" % (name, n), f"k{name}")
            if n % 20 == 0:
                txn.flush()

    threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    txn.commit()
    found = [event for s in (0, 1) for _, event in events_of(reopen(stream), s)]
    for name in range(4):
        assert [e for e in found if e.startswith(b"%d " % name)] == [
            b"%d %03d" % (name, n) for n in range(50)
        ]
    assert len(found) == 200


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_is_refused_promptly_even_if_the_lock_was_held(world: World) -> None:
    txn = begun(world.stream)
    calls: list[Callable[[], object]] = [
        lambda: txn.write_event(b"x"),
        txn.flush,
        txn.commit,
        txn.abort,
        txn.prepare,
        txn.ping,
        lambda: add_staged(txn, []),
        lambda: txn.status,
    ]

    def child(results: Any) -> None:
        for call in calls:
            try:
                call()
                results.put("no error")
            except Exception as error:
                results.put(type(error).__name__)
        results.put(keep_alive(txn))

    found = results_of_child(child, len(calls) + 1, txn._lock)
    assert found == [ForkedProcess.__name__] * len(calls) + [False]
