"""A joint writer with an id: opening it ends what older writers of the id have left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.errors import InvalidName, TxnFailed, WriterFenced
from pravega_spark.manager import StreamManager
from pravega_spark.txn import joint
from pravega_spark.txn.joint import JointTransaction, JointWriter, open_joint_writer
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter, begin_part
from tests.harness.failpoints import at_failpoint
from tests.harness.joint_world import JointWorld
from tests.harness.processing_world import OUT, ProcessingWorld
from tests.harness.simulated_kills import Killed, kill

A, B = "s/a", "s/b"
Open = Callable[..., JointWriter]


@pytest.fixture
def world() -> JointWorld:
    return JointWorld(A, B)


@pytest.fixture
def opened(world: JointWorld) -> Iterator[Open]:
    """Opens joint writers, each in a process of its own."""
    made: list[JointWriter] = []

    def open_writer(writer_id: str | None = "w", *names: str) -> JointWriter:
        process = world.process()
        writers = {
            name: TransactionalWriter(process.stream(name), writer_id) for name in names or (A, B)
        }
        made.append(open_joint_writer(process.decisions, writers, process.positions))
        return made[-1]

    yield open_writer
    for writer in made:
        writer.close()


def written(writer: JointWriter, event: bytes = b"1") -> JointTransaction:
    txn = writer.begin_transaction()
    for name in writer.streams:
        txn.write_event(name, event, "key")
    return txn


def killed_commit(txn: JointTransaction, point: str) -> None:
    with at_failpoint(point, kill), pytest.raises(Killed):
        txn.commit()


def check_ended(world: JointWorld, events: list[bytes]) -> None:
    assert world.events(A) == world.events(B) == events
    assert world.open_parts(A) == world.open_parts(B) == []


@pytest.mark.parametrize(
    ("point", "events"),
    [
        ("joint.prepared", []),
        ("joint.decided", [b"1"]),
        ("joint.closed", [b"1"]),
        ("joint.carried-out", [b"1"]),
    ],
)
def test_opening_ends_what_a_killed_writer_of_the_id_left(
    world: JointWorld, opened: Open, point: str, events: list[bytes]
) -> None:
    killed_commit(written(opened()), point)
    newer = opened()
    check_ended(world, events)
    written(newer, b"2").commit()
    check_ended(world, [*events, b"2"])
    newer.close()
    assert not [r for r in world.process().decisions.read().values() if r.order is None]


def test_a_decision_that_an_opening_carries_out_leaves_no_record(
    world: JointWorld, opened: Open
) -> None:
    killed_commit(written(opened()), "joint.decided")
    assert len(world.process().decisions.read()) == 1
    opened().close()
    assert world.process().decisions.read() == {}


def test_a_decision_is_carried_out_in_the_writers_own_streams_and_its_record_stays(
    world: JointWorld, opened: Open
) -> None:
    killed_commit(written(opened()), "joint.decided")
    opened("w", B).close()
    assert (world.events(A), world.events(B)) == ([], [b"1"])
    assert len(world.process().decisions.read()) == 1
    opened().close()
    check_ended(world, [b"1"])


def test_a_writer_of_one_stream_ends_parts_of_its_id_as_well(
    world: JointWorld, opened: Open
) -> None:
    txn = written(opened())
    stream = world.process().stream(A)
    hung = at_failpoint("joint.prepared", lambda: TransactionalWriter(stream, "w").close())
    with hung, pytest.raises(WriterFenced):
        txn.commit()
    check_ended(world, [])


# --------------------------------------------------------------------------- writers that hang


def test_a_writer_that_hung_before_its_begin_is_fenced(world: JointWorld, opened: Open) -> None:
    older = opened()
    opened()
    with pytest.raises(WriterFenced):
        older.begin_transaction()
    assert world.process().decisions.read() == {}


def test_a_writer_that_hung_between_the_begins_of_its_parts_is_fenced(
    world: JointWorld, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = opened()
    last = older._writers[B]

    def hang(writer: TransactionalWriter, limits: tuple[int, int], token: str) -> Transaction:
        if writer is last:
            opened()
        return begin_part(writer, limits, token)

    monkeypatch.setattr(joint, "begin_part", hang)
    with pytest.raises(WriterFenced):
        older.begin_transaction()
    check_ended(world, [])
    assert world.process().decisions.read() == {}


@pytest.mark.parametrize("flushed", [False, True])
def test_a_transaction_that_hung_before_its_commit_is_fenced(
    world: JointWorld, opened: Open, flushed: bool
) -> None:
    txn = written(opened())
    if flushed:
        txn.flush()
    newer = opened()
    txn.write_event(A, b"late", "key")
    with pytest.raises(TxnFailed):
        txn.flush()
    with pytest.raises(WriterFenced, match=r"'w'.*session 1 was fenced by session 2") as fenced:
        txn.commit()
    assert (fenced.value.session, fenced.value.newer_session) == (1, 2)
    assert txn.status is TransactionStatus.ABORTED
    written(newer, b"2").commit()
    check_ended(world, [b"2"])


def test_a_commit_that_hung_while_it_prepared_is_fenced(world: JointWorld, opened: Open) -> None:
    txn = written(opened())
    with at_failpoint("joint.prepared", opened, own=True) as hung, pytest.raises(WriterFenced):
        txn.commit()
    assert hung.hits == 1
    assert txn.status is TransactionStatus.ABORTED
    with pytest.raises(WriterFenced):
        txn.commit()
    check_ended(world, [])


def test_a_commit_that_hung_after_its_decision_succeeds_and_is_there_once(
    world: JointWorld, opened: Open
) -> None:
    txn = written(opened())
    seen: list[list[bytes]] = []

    def hang() -> None:
        opened()
        seen.extend([world.events(A), world.events(B)])

    with at_failpoint("joint.decided", hang):
        txn.commit()
    assert seen == [[b"1"], [b"1"]], "who opens sees what was decided"
    assert txn.status is TransactionStatus.COMMITTED
    check_ended(world, [b"1"])


def test_opening_acknowledges_the_positions_that_an_older_writer_decided() -> None:
    world = ProcessingWorld()
    reader = world.processor("a")

    def open_writer() -> JointWriter:
        process = world.joint()
        writers = {OUT: TransactionalWriter(process.stream(OUT), "w")}
        return open_joint_writer(process.decisions, writers, process.positions)

    with open_writer() as writer:
        txn = writer.begin_transaction(readers=[reader.reader])
        reader.read(txn, 2)
        killed_commit(txn, "joint.decided")
        assert (world.offset(), world.processed()) == (0, [])
        with open_writer():
            assert (world.offset(), world.processed()) == (2, world.events[:2])
    assert world.joint().decisions.read() == {}


def test_status_of_a_transaction_tells_that_its_writer_was_fenced(
    world: JointWorld, opened: Open
) -> None:
    first, second = written(opened()), written(opened("w2"))
    opened()
    assert first.status is TransactionStatus.ABORTED
    stream = world.process().stream(A)
    TransactionalWriter(stream, "w2").close()  # in one of the streams only
    assert second.status is TransactionStatus.ABORTED


# ---------------------------------------------------------------------------------- its streams


def test_names_that_are_no_names_are_refused_with_the_value(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    for wrong in (b"s/out2", None, 7, ["s/out2"]):
        with pytest.raises(InvalidName, match=re.escape(repr(wrong))):
            manager.create_joint_writer(["s/out", wrong])  # type: ignore[list-item]


def test_a_stream_that_is_named_twice_takes_part_once(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in (A, B):
        manager.create_stream(name)
    with manager.create_joint_writer([B, A, B]) as writer:
        assert writer.streams == (A, B)


# ------------------------------------------------------------------------------ other writers


@pytest.mark.parametrize("other", ["other", None])
def test_transactions_of_other_writers_are_not_disturbed(
    world: JointWorld, opened: Open, other: str | None
) -> None:
    txn, decided = written(opened(other)), written(opened(other and f"{other}-2"), b"2")
    killed_commit(decided, "joint.decided")
    with at_failpoint("joint.prepared", opened):
        txn.commit()
    assert world.events(A) == world.events(B) == [b"2", b"1"]


def test_opening_does_not_look_at_records_of_other_ids(world: JointWorld, opened: Open) -> None:
    """An opening reads the decision log only if its id has left parts."""
    for number in range(3):
        killed_commit(written(opened(f"other-{number}")), "joint.prepared")
    process = world.process(faulty=True)
    world.store.calls.clear()
    TransactionalWriter(process.stream(A), "w").close()
    assert world.store.calls
    assert not [call for call in world.store.calls if "_transactions" in str(call)]
