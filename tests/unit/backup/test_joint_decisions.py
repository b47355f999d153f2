"""Copies of a root whose joint transaction is decided, and carried out in part or not at all."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.transaction import ReaderTransaction
from pravega_spark.txn import settlement

STREAMS = ("s/x", "s/y")


class Died(BaseException):
    """The process that commits ends here."""


def die_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Let a process die after so many steps of carrying a decision out."""
    count = itertools.count()
    for owner in (settlement, ReaderTransaction):
        step = owner.carry_out

        def counted(*given: object, step=step, **named: object) -> object:  # type: ignore[no-untyped-def]
            if next(count) >= steps:
                raise Died
            return step(*given, **named)

        monkeypatch.setattr(owner, "carry_out", counted)


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    for stream in ("s/in", *STREAMS):
        manager.create_stream(stream)
    with manager.create_writer("s/in") as writer:
        for number in range(3):
            writer.write_event(b"%d" % number)
    return manager


def commit_and_die(manager: StreamManager, steps: int) -> None:
    """Process one event of a group into both streams, and die after the decision."""
    group = manager.create_reader_group("s/g", ["s/in"], acknowledge="transaction")
    reader = group.create_reader("reader")
    with pytest.MonkeyPatch.context() as patch:
        writer = manager.create_joint_writer(list(STREAMS), writer_id="w")
        txn = writer.begin_transaction(readers=[reader])
        event = reader.read_next_event(timeout=5).event
        assert event is not None
        for stream in STREAMS:
            txn.write_event(stream, event.data)
        die_after(patch, steps)
        with pytest.raises(Died):
            txn.commit()


def seen(manager: StreamManager) -> tuple[int, int, int]:
    """The outputs of both streams, and the events that the group has still to read."""
    x, y = (len(list(manager.read(stream))) for stream in STREAMS)
    return x, y, manager.reader_group("s/g").lag().events


@pytest.mark.parametrize("steps", range(3))
@pytest.mark.parametrize("how", ["backup", "restore"])
def test_a_copy_has_all_of_a_decided_transaction_however_much_was_carried_out(
    manager: StreamManager, tmp_path: Path, steps: int, how: str
) -> None:
    commit_and_die(manager, steps)
    target = tmp_path / "copy"
    if how == "backup":
        assert manager.backup(target).transactions == {}
        assert seen(StreamManager(target)) == (1, 1, 2)
    else:
        shutil.copytree(tmp_path / "root", target)
        result = StreamManager(target).restore()
        assert [table.transactions for table in result.tables if table.transactions] == []
        copy = StreamManager(target)
        assert [len(list(copy.read(stream))) for stream in STREAMS] == [1, 1]


@pytest.mark.parametrize("steps", range(3))
@pytest.mark.parametrize("name", STREAMS)
def test_a_restore_of_one_stream_carries_out_what_is_decided(
    manager: StreamManager, tmp_path: Path, steps: int, name: str
) -> None:
    commit_and_die(manager, steps)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    done = StreamManager(tmp_path / "copy").restore_stream(name)
    assert (done.transactions, done.torn) == ((), ())
    copy = StreamManager(tmp_path / "copy")
    assert [len(list(copy.read(stream))) for stream in STREAMS] == [1, 1]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("lost", ["transactions", "newest"])
def test_a_restore_names_a_decided_transaction_of_which_a_stream_lacks_its_part(
    manager: StreamManager, tmp_path: Path, whole: bool, lost: str
) -> None:
    commit_and_die(manager, 0)
    target = tmp_path / "copy"
    shutil.copytree(tmp_path / "root", target)
    if lost == "transactions":  # the part is open, and its manifests are not there
        shutil.rmtree(target / "s/y/transactions")
    else:  # the commit that began the part cannot be read
        max((target / "s/y/events/_delta_log").glob("0*.json")).write_bytes(b"{")
    opened = StreamManager(target)
    token = next(iter(StreamManager(target).list_transactions("s/x"))).transaction_id[8:]
    if whole:
        done = opened.restore().streams
    else:
        done = {name: opened.restore_stream(name) for name in STREAMS}
    assert (done["s/x"].torn, done["s/y"].torn) == ((), (token,))
    copy = StreamManager(target)
    assert [len(list(copy.read(stream))) for stream in STREAMS] == [1, 0]
    assert copy.restore_stream("s/y").torn == (token,), "the same report"


def test_a_restore_names_a_transaction_of_a_life_that_the_copy_does_not_reach(
    manager: StreamManager, tmp_path: Path
) -> None:
    manager.restore()
    manager = StreamManager(tmp_path / "root")
    commit_and_die(manager, 0)
    (part,) = manager.list_transactions("s/x")
    target = tmp_path / "copy"
    shutil.copytree(tmp_path / "root", target)
    log = target / "s/y/events/_delta_log"
    for commit in sorted(log.glob("0*.json"))[1:]:  # those since the restore are among them
        commit.unlink()
    opened = StreamManager(target)
    for _ in range(2):
        done = opened.restore().streams
        assert (done["s/x"].torn, done["s/y"].torn) == ((), (part.transaction_id[8:],))


def test_a_restore_brings_back_the_decisions_of_the_root(
    manager: StreamManager, tmp_path: Path
) -> None:
    commit_and_die(manager, 2)
    target = tmp_path / "copy"
    shutil.copytree(tmp_path / "root", target)
    max((target / "_transactions/_delta_log").glob("0*.json")).write_bytes(b"{")
    assert StreamManager(target).restore().failed == {}
    copy = StreamManager(target)
    with copy.create_joint_writer(list(STREAMS)).begin_transaction() as txn:
        for stream in STREAMS:
            txn.write_event(stream, b"new")
        txn.commit()
    assert [list(copy.read(stream))[-1].data for stream in STREAMS] == [b"new", b"new"]
