"""A stream's folder that is away for a moment: nothing is written in its place, and nothing lost.

Who made the folder again would put data into it that is gone once the real one is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.errors import CorruptLog, Damaged, PravegaSparkError, StoreError
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager, manager_over
from tests.harness.folder_state import move, wait_for_maintenance

S, OTHER, TABLE = "s/t", "s/other", "s/_kv_tables/table"
PARTS = ["", "/events"]
Call = Callable[[Any], object]
CALLS: dict[str, Call] = {
    "flush": lambda txn: txn.flush(),
    "prepare": lambda txn: txn.prepare(),
    "commit": lambda txn: txn.commit(),
}
JOINT_CALLS = [("flush", False), ("commit", False), ("commit", True)]


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    for name in (S, OTHER):
        made.create_stream(name)
    with made.create_writer(S) as writer:
        writer.write_event(b"before")
    return made


@contextmanager
def away(tmp_path: Path, name: str) -> Iterator[None]:
    """Move a folder away during the block; nothing may be in its place at the end."""
    folder, elsewhere = tmp_path / "root" / name, tmp_path / "away"
    move(folder, elsewhere)
    yield
    assert not folder.exists(), sorted(folder.rglob("*"))
    elsewhere.rename(folder)


def events(root: Path, name: str = S) -> list[bytes]:
    """What another process reads."""
    reader = manager_over(LocalStore(str(root)))
    return [event.data for event in reader.read(name)]


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("part", PARTS)
def test_transaction_is_committed_with_its_data(
    manager: StreamManager, tmp_path: Path, part: str, call: str, is_flushed: bool
) -> None:
    with manager.create_transactional_writer(S) as writer:
        txn = writer.begin_transaction()
        txn.write_event(b"first")
        if is_flushed:
            txn.flush()
        txn.write_event(b"second")
        with away(tmp_path, S + part), pytest.raises((StoreError, CorruptLog)):
            CALLS[call](txn)
        CALLS[call](txn)
        txn.commit()
    assert events(tmp_path / "root") == [b"before", b"first", b"second"]


@pytest.mark.parametrize(
    ("part", "call", "is_flushed"),
    [
        *[(part, call, flushed) for part in PARTS for call, flushed in JOINT_CALLS],
        ("/transactions", "commit", True),
    ],
)
def test_joint_transaction_is_not_decided_without_a_part(
    manager: StreamManager, tmp_path: Path, part: str, call: str, is_flushed: bool
) -> None:
    with manager.create_joint_writer([S, OTHER]) as writer:
        txn = writer.begin_transaction()
        for name in (S, OTHER):
            txn.write_event(name, b"joint")
        if is_flushed:
            txn.flush()
        with away(tmp_path, S + part):
            with pytest.raises((StoreError, CorruptLog)):
                CALLS[call](txn)
            assert events(tmp_path / "root", OTHER) == []
        assert txn.status is TransactionStatus.OPEN
        CALLS[call](txn)
        txn.commit()
    assert events(tmp_path / "root") == [b"before", b"joint"]
    assert events(tmp_path / "root", OTHER) == [b"joint"]


@pytest.mark.parametrize("part", PARTS)
def test_transaction_of_another_process_is_written_to(
    manager: StreamManager, tmp_path: Path, part: str
) -> None:
    with manager.create_transactional_writer(S) as writer:
        name = writer.begin_transaction().id
        other = manager_over(LocalStore(str(tmp_path / "root")))
        txn = other.transaction(S, name)
        txn.write_event(b"other")
        with away(tmp_path, S + part), pytest.raises(StoreError):
            txn.flush()
        txn.flush()
        other.transaction(S, name).commit()
    assert events(tmp_path / "root") == [b"before", b"other"]


@pytest.mark.parametrize("part", PARTS)
def test_writers_leave_nothing_in_its_place(
    manager: StreamManager, tmp_path: Path, part: str
) -> None:
    """Their batches fail, since a commit needs the one before it, and others write on."""
    manager.create_stream("s/bytes")
    byte_writer = manager.create_byte_writer("s/bytes")
    writers = [manager.create_writer(S), manager.create_writer(S, large_events=True)]
    wait_for_maintenance()  # of the new stream
    with away(tmp_path, S + part):
        for writer, data in zip(writers, (b"lost", b"L" * (9 << 20)), strict=True):
            with pytest.raises((StoreError, CorruptLog)):
                writer.write_event(data).result(30)
    with away(tmp_path, "s/bytes" + part):
        byte_writer.write(b"lost")
        with pytest.raises(StoreError, match="does not exist any more"):
            byte_writer.flush()
    opened: list[Any] = [byte_writer, *writers]
    for one in opened:
        try:
            one.close()
        except PravegaSparkError:
            continue
    with manager.create_writer(S) as writer:
        writer.write_event(b"after")
    assert events(tmp_path / "root") == [b"before", b"after"]


@pytest.mark.parametrize("part", PARTS)
def test_table_goes_on_once_its_folder_is_back(
    manager: StreamManager, tmp_path: Path, part: str
) -> None:
    configuration = KeyValueTableConfiguration(key_type="string")
    manager.create_key_value_table("s/table", configuration)
    table = manager.key_value_table("s/table")
    table.put("key", b"before").result(30)
    with away(tmp_path, TABLE + part), pytest.raises((StoreError, Damaged)):
        table.put("key", b"lost").result(30)
    table.put("other", b"after").result(30)
    fresh: Any = StreamManager(tmp_path / "root").key_value_table("s/table")
    assert [fresh.get(key).value for key in ("key", "other")] == [b"before", b"after"]


def test_mount_point_without_its_disk_is_not_written_to(
    manager: StreamManager, tmp_path: Path
) -> None:
    """The stream's own folder is there, and empty."""
    with manager.create_joint_writer([S, OTHER]) as writer:
        txn = writer.begin_transaction()
        txn.write_event(OTHER, b"joint")
        folder = tmp_path / "root" / S
        move(folder, tmp_path / "away")
        folder.mkdir()
        with pytest.raises(CorruptLog):
            txn.commit()
        folder.rmdir()
        (tmp_path / "away").rename(folder)
        txn.commit()
    assert events(tmp_path / "root", OTHER) == [b"joint"]


@pytest.mark.medium
def test_stream_that_was_deleted_by_hand_is_created_by_a_new_process(
    manager: StreamManager, tmp_path: Path
) -> None:
    """Nobody expects the folder of a log that the reader has not found."""
    move(tmp_path / "root" / S, tmp_path / "away")
    other = manager_over(LocalStore(str(tmp_path / "root")))
    other.create_stream(S)
    assert events(tmp_path / "root") == []
