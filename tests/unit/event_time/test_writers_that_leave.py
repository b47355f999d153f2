"""Transactional and joint writers that close: they leave, once what they began has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest

from pravega_spark.config.descriptions import WriterMark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import TimeNote, mark_of, noted_changes
from pravega_spark.errors import WriterFenced
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from tests.harness.fake_runtime import FakeRuntime, manager_of

S = "s/t"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def at(time: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time)


@pytest.fixture
def manager() -> Iterator[StreamManager]:
    made = manager_of(FakeRuntime())
    made.create_scope("s")
    made.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
    yield made
    made.close()


def view_of(manager: StreamManager) -> StreamView:
    return root_of(manager).stream(S).view()


def marks(manager: StreamManager, stream: str = S) -> dict[str, tuple[int, bool]]:
    found = manager.event_time(stream).marks()
    return {mark.writer_id: (mark.time_us // 1_000, mark.is_alive) for mark in found}


def lower(manager: StreamManager) -> int | None:
    found = manager.event_time(S).watermark()
    return None if found is None else found.lower_us // 1_000


def written(writer: TransactionalWriter, event: bytes = b"e") -> Transaction:
    transaction = writer.begin_transaction()
    transaction.write_event(event, "k")
    transaction.flush()
    return transaction


def test_a_closed_transactional_writer_no_longer_holds_the_watermark(
    manager: StreamManager,
) -> None:
    time = manager.event_time(S)
    with manager.create_transactional_writer(S, "tx") as writer:
        written(writer).commit(timestamp=at(5))
        time.note("job", 9)
        assert lower(manager) == 5
    assert marks(manager)["tx"] == (5, False)
    assert lower(manager) == 9
    version = view_of(manager).version
    writer.close()
    assert view_of(manager).version == version, "it leaves once"


def test_a_writer_without_times_leaves_without_a_commit(manager: StreamManager) -> None:
    for name in ("tx", None):
        with manager.create_transactional_writer(S, name) as writer:
            with writer.begin_transaction() as transaction:
                transaction.write_event(b"1")
            version = view_of(manager).version
        assert view_of(manager).version == version


def abort(transaction: Transaction) -> None:
    transaction.abort()


def commit(transaction: Transaction) -> None:
    transaction.commit()


def commit_later(transaction: Transaction) -> None:
    transaction.commit(timestamp=at(6))


@pytest.mark.parametrize("end", [abort, commit, commit_later])
def test_open_transactions_of_a_closed_writer_hold_the_watermark(
    manager: StreamManager, end: Callable[[Transaction], None]
) -> None:
    time = manager.event_time(S)
    writer = manager.create_transactional_writer(S, "tx")
    written(writer).commit(timestamp=at(5))
    first, last = written(writer, b"first"), written(writer, b"last")
    first.prepare()
    last.prepare()
    time.note("job", 9)
    writer.close()
    assert marks(manager)["tx"] == (5, True)
    time.update()
    assert time.update().held_by[0].writer_id == "tx"
    stored = mark_of(view_of(manager), "tx")
    assert stored is not None
    assert not stored.is_alive
    end(manager.transaction(S, first.id))
    assert marks(manager)["tx"][1]
    noted = 6 if end is commit_later else 5
    assert lower(manager) == noted
    end(manager.transaction(S, last.id))
    assert marks(manager)["tx"] == (noted, False)
    found = time.update().watermark
    assert found is not None
    assert found.lower_us == 9_000
    read = {event.data for event in manager.read(S, "earliest", found.cut)}
    assert read == ({b"e"} if end is abort else {b"e", b"first", b"last"})
    assert marks(manager) == {"job": (9, True)}


def test_a_commit_that_nobody_waited_for_leaves_with_its_writer(manager: StreamManager) -> None:
    with manager.create_transactional_writer(S, "tx") as writer:
        written(writer).commit(timestamp=at(5), wait=False)
    assert marks(manager) == {"tx": (5, False)}


def test_a_writer_that_another_process_noted_for_leaves(manager: StreamManager) -> None:
    other = StreamManager(root_of(manager).store.url, runtime=root_of(manager).runtime)
    with manager.create_transactional_writer(S, "tx") as writer:
        transaction = written(writer)
        other.transaction(S, transaction.id).commit(timestamp=at(5))
    assert marks(manager) == {"tx": (5, False)}
    other.close()


def test_a_fenced_writer_does_not_leave_for_its_successor(manager: StreamManager) -> None:
    old = manager.create_transactional_writer(S, "tx")
    written(old).commit(timestamp=at(5))
    new = manager.create_transactional_writer(S, "tx")
    old.close()
    assert marks(manager) == {"tx": (5, True)}
    written(new).commit(timestamp=at(7))
    new.close()
    assert marks(manager) == {"tx": (7, False)}


def test_a_successor_counts_from_its_first_note_on(manager: StreamManager) -> None:
    """Its own transactions do not revive the mark that an older session left."""
    old = manager.create_transactional_writer(S, "tx")
    written(old).commit(timestamp=at(5))
    prepared = written(old)
    prepared.prepare()
    old.close()
    new = manager.create_transactional_writer(S, "tx")
    own = written(new)
    manager.transaction(S, prepared.id).commit()
    assert marks(manager) == {"tx": (5, False)}, "only what began before the close counts"
    own.commit(timestamp=at(8))
    assert marks(manager) == {"tx": (8, True)}
    new.close()


@pytest.mark.parametrize("end", ["seal", "delete"])
def test_a_writer_of_an_ended_stream_closes(manager: StreamManager, end: str) -> None:
    writer = manager.create_transactional_writer(S, "tx")
    written(writer).commit(timestamp=at(5))
    manager.seal_stream(S)
    if end == "delete":
        manager.delete_stream(S)
    writer.close()


def test_a_sweep_ends_the_last_transaction_of_a_writer_that_left(manager: StreamManager) -> None:
    runtime = root_of(manager).runtime
    assert isinstance(runtime, FakeRuntime)
    with manager.create_transactional_writer(S, "tx") as writer:
        written(writer).commit(timestamp=at(5))
        abandoned = written(writer)._id
    manager.event_time(S).note("job", 9)
    assert lower(manager) == 5
    for _ in range(4):  # a lease is watched for its whole length
        manager.sweep_transactions(S)
        runtime.sleep(600.0)
    assert abandoned in {one.transaction_id for one in manager.list_completed_transactions(S)}
    assert lower(manager) == 9


def test_two_notes_of_one_commit_are_by_the_later_transaction(manager: StreamManager) -> None:
    """One of a session that left, and one of its successor: the successor is there."""
    with manager.create_writer(S, "tx") as leaving:
        leaving.note_time(5)
    view = view_of(manager)
    left = mark_of(view, "tx")
    assert isinstance(left, WriterMark)
    assert not left.is_alive
    old = TimeNote("tx", 6_000, began=left.version - 1)
    new = TimeNote("tx", None, began=left.version + 1)
    for note, is_alive in ((old, False), (new, True), (new.after(old), True)):
        text = noted_changes(view, [note], dict(view.tail))["pravega.mark.tx"]
        assert text is not None
        assert ("true" in text) == is_alive


# ---------------------------------------------------------------------------------- joint writers


def test_a_joint_writer_with_an_id_notes_fences_and_leaves(manager: StreamManager) -> None:
    manager.create_stream("s/u")
    with manager.create_joint_writer([S, "s/u"], "joint") as writer:
        assert writer.writer_id == "joint"
        with writer.begin_transaction() as transaction:
            transaction.write_event(S, b"1", "k")
            transaction.commit(timestamp=at(5))
        for stream in (S, "s/u"):
            assert marks(manager, stream) == {"joint": (5, True)}
        newer = manager.create_joint_writer([S, "s/u"], "joint")
        with pytest.raises(WriterFenced):
            writer.begin_transaction()
    for stream in (S, "s/u"):
        assert marks(manager, stream) == {"joint": (5, True)}, "the fenced one leaves nothing"
    newer.close()
    for stream in (S, "s/u"):
        assert marks(manager, stream) == {"joint": (5, False)}


def test_a_joint_writer_without_an_id_notes_nothing(manager: StreamManager) -> None:
    with manager.create_joint_writer([S]) as writer, writer.begin_transaction() as transaction:
        assert writer.writer_id is None
        transaction.write_event(S, b"1")
        transaction.commit(timestamp=at(5))
    assert marks(manager) == {}
