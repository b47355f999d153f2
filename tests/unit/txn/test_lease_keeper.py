"""One thread keeps the leases of all transactions of a writer.

The keeper has no face of its own: whether it still keeps a lease is in what is due to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import (
    StoreError,
)
from pravega_spark.txn import leases
from pravega_spark.txn import writer as txn_writer
from pravega_spark.txn.transaction import Transaction, keep_alive
from pravega_spark.txn.writer import LeaseKeeper, TransactionalWriter
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import make_stream, reopen
from tests.harness.spy_store import Spy
from tests.harness.transaction_world import World, begun

COMMITTED = TransactionStatus.COMMITTED


@pytest.fixture
def world() -> World:
    return World()


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.005)


class Pinged:
    """A writer on the system's clocks whose transactions are pinged every few milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(txn_writer, "FIRST_PING_SECONDS", 0.01)
        monkeypatch.setattr(leases, "ping_interval_seconds", lambda lease_ms: 0.01)
        self.store = Spy()
        self.stream = make_stream(self.store, SYSTEM, 2)
        self.writer = TransactionalWriter(self.stream)

    def pings(self, txn: Transaction) -> int:
        return self.store.count("put", f"{txn.id}/lease.json")


@pytest.fixture
def pinged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pinged]:
    pinged = Pinged(monkeypatch)
    yield pinged
    pinged.writer.close()


def test_writer_keeps_its_transactions_alive_until_they_end(pinged: Pinged) -> None:
    one, two = (pinged.writer.begin_transaction() for _ in range(2))
    until(lambda: pinged.pings(one) > 3 and pinged.pings(two) > 3)
    one.commit()
    done = pinged.pings(one)
    until(lambda: pinged.pings(two) > 10)
    assert pinged.pings(one) <= done + 1  # one may have been in flight
    assert len(pinged.writer._leases._due) == 1


@pytest.mark.parametrize("end", ["commit", "decide", "abort", "elsewhere", "prepare"])
def test_pings_stop_once_the_end_is_known(pinged: Pinged, end: str) -> None:
    txn, other = (pinged.writer.begin_transaction() for _ in range(2))
    until(lambda: pinged.pings(txn) > 1)
    calls: dict[str, Callable[[], object]] = {
        "commit": txn.commit,
        "decide": lambda: txn.commit(wait=False),
        "abort": txn.abort,
        "elsewhere": Transaction(pinged.stream, txn.id).commit,
        "prepare": txn.prepare,
    }
    calls[end]()
    until(lambda: pinged.writer._leases._due.get(txn.id, float("inf")) == float("inf"))
    done = pinged.pings(txn)
    more = pinged.pings(other)
    until(lambda: pinged.pings(other) > more + 3)
    assert pinged.pings(txn) <= done + 1


def test_transaction_opened_by_id_is_kept_alive(pinged: Pinged) -> None:
    txn = begun(reopen(pinged.stream))
    pinged.writer.get_transaction(txn.id)
    until(lambda: pinged.pings(txn) > 1)


@pytest.mark.parametrize("error", [StoreError("down"), RuntimeError("a bug")], ids=repr)
def test_failed_ping_is_retried_and_does_not_stop_others(
    pinged: Pinged, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (pinged.writer.begin_transaction() for _ in range(2))
    with caplog.at_level(logging.WARNING):
        pinged.store.rules.add(Rule(error, "put", f"*{one.id}/lease.json"))
        until(lambda: pinged.pings(one) > 3 and pinged.pings(two) > 3)
        pinged.store.rules.clear()
        tried = pinged.pings(one)
        until(lambda: pinged.pings(one) > tried + 1)
    assert f"the lease of <Transaction {one.id} of s/t" in caplog.text


@pytest.mark.parametrize("lease_ms", [10_000, 600_000])
def test_ping_that_failed_is_sent_again_after_a_second(world: World, lease_ms: int) -> None:
    """Leases run again after an outage, and judges give each only one more."""
    txn, keeper = begun(world.stream, lease_ms=lease_ms), LeaseKeeper(world.stream)
    regular = leases.ping_interval_seconds(lease_ms)
    assert keeper._ping(txn) == regular > 1
    world.store.rules.add(Rule(StoreError("down"), "put", "*/lease.json"))
    assert [keeper._ping(txn) for _ in range(2)] == [1, 1]
    world.store.rules.clear()
    assert keeper._ping(txn) == regular


def test_transaction_that_ends_during_its_ping_does_not_stop_other_pings(
    pinged: Pinged, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (pinged.writer.begin_transaction() for _ in range(2))

    def ending(transaction: Transaction) -> bool:
        kept = keep_alive(transaction)
        if transaction is one:
            one.commit()
        return kept

    monkeypatch.setattr(txn_writer, "keep_alive", ending)
    until(lambda: one.status is COMMITTED)
    before = pinged.pings(two)
    until(lambda: pinged.pings(two) > before + 3)


def test_closed_writer_stops_its_pings_and_its_thread(pinged: Pinged) -> None:
    txn = pinged.writer.begin_transaction()
    until(lambda: pinged.pings(txn) > 0)
    thread = pinged.writer._leases._thread
    assert thread is not None
    pinged.writer.close()
    assert not thread.is_alive()
    txn.write_event(b"x", "a")
    txn.commit()


@pytest.mark.parametrize("end", ["commit", "prepare"])
def test_thread_ends_without_a_lease_to_keep_and_the_next_transaction_has_another(
    pinged: Pinged, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(txn_writer, "_IDLE_SECONDS", 0.01)
    first = pinged.writer.begin_transaction()
    thread = pinged.writer._leases._thread
    assert thread is not None
    getattr(first, end)()
    thread.join(30)
    assert not thread.is_alive()
    second = pinged.writer.begin_transaction()
    until(lambda: pinged.pings(second) > 3)


def test_short_transaction_writes_no_lease(world: World) -> None:
    with TransactionalWriter(world.stream) as writer:
        writer.begin_transaction().commit()
        writer.begin_transaction().abort()
    assert world.store.count("put", "lease.json") == 0


def test_handle_that_never_reached_the_user_keeps_no_lease(pinged: Pinged) -> None:
    """As after an interrupt between the registration of the handle and the user's assignment."""
    lost = pinged.writer.begin_transaction()._id
    other = pinged.writer.begin_transaction()
    until(lambda: lost not in pinged.writer._leases._due)
    done = pinged.store.count("put", f"{lost}/lease.json")
    more = pinged.pings(other)
    until(lambda: pinged.pings(other) > more + 3)
    assert pinged.store.count("put", f"{lost}/lease.json") == done


def test_transaction_whose_id_was_read_is_kept_alive_without_its_handle(
    pinged: Pinged,
) -> None:
    name = pinged.writer.begin_transaction().id
    until(lambda: pinged.store.count("put", f"{name}/lease.json") > 3)
    Transaction(pinged.stream, name).commit()
    until(lambda: pinged.writer._leases._due.get(name, float("inf")) == float("inf"))
