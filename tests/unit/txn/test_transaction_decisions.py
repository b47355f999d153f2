"""What is decided about a transaction is decided once, whoever asks, repeats or is killed.

``_add_chunks`` is what the tasks of Spark call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.chunk_paths import chunk_folder
from pravega_spark.engine.chunks.chunk import StagedChunk, encode_events
from pravega_spark.engine.chunks.routing import Router
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.stage import RoutedEvents, stage_routed
from pravega_spark.errors import (
    CommitUnknown,
    InvalidInput,
    StoreError,
    StoreFull,
    TxnFailed,
)
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.txn import sweeper
from pravega_spark.txn.manifests import PLAIN_WRITE, Manifest
from pravega_spark.txn.transaction import Transaction, add_staged
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.transaction_world import (
    World,
    begun,
    decide_abort,
    drive_to,
    written,
)

COMMITTING, COMMITTED = TransactionStatus.COMMITTING, TransactionStatus.COMMITTED
ABORTED = TransactionStatus.ABORTED

MANIFESTS = "*/transactions/*"
"""Keys of manifests."""


@pytest.fixture
def world() -> World:
    return World()


def numbered(writer: str | None, number: int) -> Manifest:
    return replace(PLAIN_WRITE, writer=writer, number=number)


# ---------------------------------------------------------------------------- no event is lost


@pytest.mark.parametrize("last", ["flush", "commit", "decide", "prepare"])
@pytest.mark.parametrize("keys", ["*/data/t-*", MANIFESTS])
@pytest.mark.parametrize("fault", [Fault.REFUSE, StoreFull("full")], ids=str)
def test_events_survive_a_failed_call(world: World, last: str, keys: str, fault: Any) -> None:
    txn = begun(world.stream)
    txn.write_event(b"x", "a")
    call: dict[str, Callable[[], None]] = {
        "flush": txn.flush,
        "commit": txn.commit,
        "decide": lambda: txn.commit(wait=False),
        "prepare": txn.prepare,
    }
    world.store.rules.add(Rule(fault, "put*", keys))
    with pytest.raises(StoreError):
        call[last]()
    with pytest.raises(StoreError):
        call[last]()
    world.store.rules.clear()
    call[last]()
    txn.commit()
    assert world.events() == [b"x"]


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("last", ["flush", "commit", "decide"])
def test_events_of_a_manifest_with_an_unknown_outcome_enter_once(
    world: World, last: str, lands: bool
) -> None:
    txn = written(world.stream, [("a", b"w")])
    txn.write_event(b"x", "a")
    call: dict[str, Callable[[], None]] = {
        "flush": txn.flush,
        "commit": txn.commit,
        "decide": lambda: txn.commit(wait=False),
    }
    world.store.rules.add(
        Rule(Fault.LOSE_ANSWER if lands else Fault.DELAY, "put_if_absent", MANIFESTS),
        Rule(StoreError("down"), "get", MANIFESTS),
    )
    with pytest.raises(CommitUnknown, match=f"manifest 1 of transaction {txn.id} .*call again"):
        call[last]()
    world.store.rules.clear()
    if last == "flush":
        txn.write_event(b"y", "a")
    call[last]()
    world.store.deliver()
    txn.commit()
    sweeper.sweep_transactions(world.process())
    assert world.events() == [b"w", b"x", b"y"][: 3 if last == "flush" else 2]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("lands", [True, False])
def test_events_of_a_flush_with_an_unknown_outcome_are_committed_once(
    world: World, lands: bool, wait: bool
) -> None:
    txn = begun(world.stream)
    txn.write_event(b"x", "a")
    world.store.rules.add(
        Rule(Fault.LOSE_ANSWER if lands else Fault.DELAY, "put_if_absent", MANIFESTS),
        Rule(StoreError("down"), "get", MANIFESTS),
    )
    with pytest.raises(CommitUnknown):
        txn.flush()
    world.store.rules.clear()
    txn.write_event(b"y", "a")
    txn.commit(wait=wait)
    world.store.deliver()
    sweeper.sweep_transactions(world.process())
    assert world.events() == [b"x", b"y"]


@pytest.mark.parametrize("lands", [True, False])
def test_unknown_commit_that_another_process_finished_is_found(world: World, lands: bool) -> None:
    txn = begun(world.stream)
    txn.write_event(b"x", "a")
    world.store.rules.add(
        Rule(Fault.LOSE_ANSWER if lands else Fault.LOSE_REQUEST, "put_if_absent", MANIFESTS),
        Rule(StoreError("down"), "get", MANIFESTS),
    )
    with pytest.raises(CommitUnknown):
        txn.commit()
    world.store.rules.clear()
    drive_to(COMMITTED, world.process(), txn.id, delete_remains=True)
    if lands:
        txn.commit()
        assert world.events() == [b"x"]
    else:
        with pytest.raises(TxnFailed, match="without 1 events of this one, which were not"):
            txn.commit()
        assert world.events() == []


def test_events_written_after_an_unknown_commit_do_not_count_as_committed(
    world: World,
) -> None:
    txn = begun(world.stream)
    txn.write_event(b"x", "a")
    world.store.rules.add(
        Rule(Fault.LOSE_ANSWER, "put_if_absent", MANIFESTS),
        Rule(StoreError("down"), "get", MANIFESTS),
    )
    with pytest.raises(CommitUnknown):
        txn.commit()
    world.store.rules.clear()
    txn.write_event(b"y", "a")
    drive_to(COMMITTED, world.process(), txn.id, delete_remains=True)
    with pytest.raises(
        TxnFailed, match="without 1 events of this one, which were not flushed before"
    ):
        txn.commit()
    assert world.events() == [b"x"]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("known", ["nothing", "the decision", "the outcome"])
def test_unflushed_events_miss_the_commit_of_another_process_and_raise(
    world: World, known: str, wait: bool
) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.write_event(b"y", "a")
    txn.write_event(b"z", "a")
    Transaction(world.process(), txn.id).commit(wait=False)
    if known != "nothing":
        assert txn.status is COMMITTING
    if known == "the outcome":
        sweeper.sweep_transactions(world.process())
    for _ in range(2):
        with pytest.raises(TxnFailed, match=r"without 2 events of this one.* Write them in an"):
            txn.commit(wait=wait)
    sweeper.sweep_transactions(world.process())
    assert world.events() == [b"x"]


def test_with_block_raises_if_another_process_aborted(world: World) -> None:
    txn = begun(world.stream)

    def block() -> None:
        with txn:
            txn.write_event(b"x", "a")
            decide_abort(world.process(), txn.id)
            sweeper.sweep_transactions(world.process())
            assert txn.status is ABORTED

    with pytest.raises(TxnFailed, match="was aborted"):
        block()
    assert world.events() == []


# ------------------------------------------------------------------------ writes of other tasks


def staged_for(txn: Transaction, stream: StreamLog, *events: bytes) -> list[StagedChunk]:
    """Stage chunks in a transaction's folder, as a task of a job does."""
    router = Router(stream.view().epoch(txn.epoch).segments)
    table = encode_events(["a"] * len(events), [1] * len(events), events)
    routed = RoutedEvents(router.segment_ids, router.segment_indexes(table.column("routing_key")))
    return stage_routed(stream, chunk_folder(txn.id), table, routed)


def test_staged_chunks_enter_once_however_often_they_are_added(world: World) -> None:
    txn = begun(world.stream)
    chunks = staged_for(txn, world.stream, b"x", b"y")
    assert add_staged(txn, chunks)
    assert not add_staged(txn, chunks)
    assert not add_staged(Transaction(world.process(), txn.id), chunks)
    txn.commit()
    assert not add_staged(txn, chunks)
    assert world.events() == [b"x", b"y"]


def test_numbered_write_enters_once_and_each_writer_counts_alone(world: World) -> None:
    txn = begun(world.stream)
    other = Transaction(world.process(), txn.id)
    assert add_staged(txn, staged_for(txn, world.stream, b"1"), numbered("q", 1))
    assert not add_staged(other, staged_for(txn, world.stream, b"1 again"), numbered("q", 1))
    assert add_staged(other, [], numbered("q", 2))
    assert not add_staged(txn, staged_for(txn, world.stream, b"2 again"), numbered("q", 2))
    assert add_staged(other, staged_for(txn, world.stream, b"r"), numbered("r", 0))
    assert not add_staged(txn, staged_for(txn, world.stream, b"r again"), numbered("r", 0))
    txn.commit()
    assert not add_staged(other, staged_for(txn, world.stream, b"late"), numbered("q", 1))
    assert world.events() == [b"1", b"r"]


@pytest.mark.parametrize(
    "wrong",
    [{"path": "data/v0/x"}, {"rows": 0}, {"segment_id": 2}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_chunk_that_no_commit_could_append_is_refused(world: World, wrong: dict[str, Any]) -> None:
    """It would block the commits of all transactions of the stream."""
    txn = begun(world.stream)
    chunks = [replace(chunk, **wrong) for chunk in staged_for(txn, world.stream, b"x")]
    with pytest.raises(
        InvalidInput, match=f"does not belong to transaction {txn.id}, whose chunks are"
    ):
        add_staged(txn, chunks)
    assert world.folder(txn) == []


def test_repeated_write_into_a_transaction_being_aborted_raises(
    world: World,
) -> None:
    txn = begun(world.stream)
    chunks = staged_for(txn, world.stream, b"x")
    add_staged(txn, chunks, numbered("q", 1))
    decide_abort(world.process(), txn.id)
    for writer, number in ((None, 0), ("q", 1)):
        other = Transaction(world.process(), txn.id)
        with pytest.raises(TxnFailed, match="is ABORTING and accepts no more events"):
            add_staged(other, chunks, numbered(writer, number))


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
def test_write_that_missed_the_commit_is_never_reported_as_entered(
    world: World, end: str, deleted: bool
) -> None:
    """The process stalls with staged chunks while another one ends the transaction."""
    txn = written(world.stream, [("a", b"x")])
    chunks = staged_for(txn, world.stream, b"late")
    state = COMMITTED if end == "commit" else ABORTED

    def finish() -> None:
        drive_to(state, world.process(), txn.id, delete_remains=deleted)

    with at_failpoint("txn.staged", finish), pytest.raises(TxnFailed, match=txn.id):
        add_staged(txn, chunks)
    with pytest.raises(TxnFailed, match=txn.id):
        add_staged(txn, chunks)
    assert world.events() == ([b"x"] if end == "commit" else [])


@pytest.mark.parametrize("deleted", [False, True], ids=["", "deleted"])
def test_write_in_the_commit_is_never_reported_as_missing(world: World, deleted: bool) -> None:
    """The manifest is put; before its writer reads the log, another process commits."""
    txn = begun(world.stream)
    txn.write_event(b"x", "a")

    def finish(operation: str, key: str) -> None:
        if operation == "get" and "/_delta_log/" in key:
            world.store.hook = None
            drive_to(COMMITTED, world.process(), txn.id, delete_remains=deleted)

    world.store.hook = finish
    txn.flush()
    assert world.events() == [b"x"]
    txn.commit()
    assert world.events() == [b"x"]


def test_write_into_an_aborted_transaction_raises(world: World) -> None:
    txn = begun(world.stream)
    txn.write_event(b"x", "a")

    def finish(operation: str, key: str) -> None:
        if operation == "get" and "/_delta_log/" in key:
            world.store.hook = None
            drive_to(ABORTED, world.process(), txn.id, delete_remains=True)

    world.store.hook = finish
    with pytest.raises(TxnFailed, match="was aborted"):
        txn.flush()


def test_deleted_commit_makes_the_outcome_of_late_writes_unknown(world: World) -> None:
    txn = begun(world.stream)
    chunks = staged_for(txn, world.stream, b"x")
    drive_to(COMMITTED, world.stream, txn.id, delete_remains=True)
    assert txn.status is COMMITTED
    version = world.process().view().version
    with EventStreamWriter(world.process()) as writer:
        writer.write_event(b"later")
    world.store.inner.delete([world.stream.log.reader.key(version)])
    with pytest.raises(CommitUnknown, match="no longer holds, so it is unknown whether 1 events"):
        add_staged(txn, chunks)
