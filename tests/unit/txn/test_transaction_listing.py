from __future__ import annotations

import pytest

from pravega_spark.config.descriptions import TransactionInfo, TransactionStatus
from pravega_spark.txn import lifecycle
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.transaction_world import World, begun, drive_to, session, written


@pytest.fixture
def world() -> World:
    return World()


def test_open_transactions_are_listed_with_status_and_size_oldest_first(world: World) -> None:
    writer = session(world.stream)
    states = [s for s in TransactionStatus if s not in (TransactionStatus.COMMITTED,)][:4]
    several = []
    for state in states:
        txn = begun(world.stream, writer=writer if state is TransactionStatus.OPEN else None)
        txn.write_event(b"xx", "a")
        txn.write_event(b"y", "b")
        txn.flush()
        drive_to(state, world.stream, txn.id, delete_remains=False)
        several.append(txn)
        world.runtime.sleep(1)
    stream = world.process()
    found = lifecycle.open_transactions(stream, stream.view())
    assert [info.transaction_id for info in found] == [txn.id for txn in several]
    assert [info.status for info in found] == states
    assert {(info.events, info.size_bytes, info.ended_ms, info.version) for info in found} == {
        (2, 3, 0, 0)
    }
    assert [info.writer_id for info in found] == ["w", None, None, None]


def test_transaction_that_ends_during_the_listing_is_not_listed_as_open(world: World) -> None:
    txn, other = (written(world.stream, [("a", b"x")]) for _ in range(2))
    stream = world.process()
    view = stream.view()
    drive_to(TransactionStatus.COMMITTED, world.stream, txn.id, delete_remains=True)
    assert [info.transaction_id for info in lifecycle.open_transactions(stream, view)] == [other.id]


def test_completed_transactions_are_listed_newest_first(world: World) -> None:
    assert isinstance(world.stream.runtime, FakeRuntime)
    committed = written(world.stream, [("a", b"xx")])
    committed.commit()
    world.runtime.sleep(5)
    aborted = written(world.stream, [("a", b"y")])
    aborted.abort()
    begun(world.stream)
    newest, oldest = lifecycle.completed_transactions(world.process().view())
    start = committed._opened.created_ms if committed._opened else 0
    assert oldest == TransactionInfo(
        committed.id, TransactionStatus.COMMITTED, start, start, 2, 1, 2
    )
    assert (newest.transaction_id, newest.status, newest.events, newest.reason) == (
        aborted.id,
        TransactionStatus.ABORTED,
        0,
        "the application asked for it",
    )
    assert newest.ended_ms == start + 5_000
