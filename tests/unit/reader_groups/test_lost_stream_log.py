"""The log of a stream, or its whole folder, is away for a moment while a group reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.errors import CorruptLog
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.reader_group import ReaderGroup
from tests.harness.folder_state import move, remove, wait_for_maintenance
from tests.harness.roots import manager_at


def group_at(root: Path) -> ReaderGroup:
    return manager_at(root).reader_group("s/g")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root whose group has read 4 of 12 events of each of two streams."""
    root = tmp_path / "root"
    manager = StreamManager(root)
    manager.create_scope("s")
    for name in ("s/t", "s/u"):
        manager.create_stream(name)
        with manager.create_writer(name) as writer:
            writer.write_events([name.encode()] * 12)
    group = manager.create_reader_group("s/g", ["s/t", "s/u"], retention="automatic")
    with group.create_reader("first") as reader:
        for _ in range(8):
            assert reader.read_next_event(1).event is not None
    return root


def read_one(group: ReaderGroup) -> object:
    with group.create_reader("during") as reader:
        return [reader.read_next_event(0) for _ in range(20)]


@pytest.mark.parametrize("part", ["t/events/_delta_log", "t"])
@pytest.mark.parametrize("call", [read_one, ReaderGroup.lag], ids=["read", "lag"])
def test_group_goes_on_when_the_log_of_a_stream_was_away(
    root: Path, tmp_path: Path, part: str, call: Callable[[ReaderGroup], object]
) -> None:
    before = group_at(root).stream_cuts()
    move(root / "s" / part, tmp_path / "away")
    for _ in range(2):
        with pytest.raises(CorruptLog, match=r"s/t has lost its log.*Put its folder back"):
            call(group_at(root))
    assert not (root / "s" / part).exists()
    (tmp_path / "away").rename(root / "s" / part)
    group = group_at(root)
    assert group.stream_cuts()["s/t"] == before["s/t"]
    with group.create_reader("after") as reader:
        left = [event.data for event in iter(lambda: reader.read_next_event(0).event, None)]
    assert left.count(b"s/t") == 12 - sum(before["s/t"].positions.values())


@pytest.mark.parametrize("part", ["t/events/_delta_log", "t"])
def test_stream_that_is_lost_for_good_can_be_removed_from_the_group(root: Path, part: str) -> None:
    remove(root / "s" / part)
    group = group_at(root)
    group.update(remove=["s/t"])
    with group.create_reader("after") as reader:
        left = [event.data for event in iter(lambda: reader.read_next_event(0).event, None)]
    assert set(left) == {b"s/u"}


CHANGES: dict[str, Callable[[ReaderGroup], object]] = {
    "add": lambda group: group.update(add=["s/v"]),
    "refresh": lambda group: group.update(refresh="7 s"),
    "reset": lambda group: group.reset(),
}


@pytest.mark.medium
@pytest.mark.parametrize("part", ["t/events/_delta_log", "t"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_change_of_a_group_is_noted_that_cannot_reach_a_lost_stream(
    root: Path, tmp_path: Path, part: str, change: Callable[[ReaderGroup], object]
) -> None:
    manager_at(root).create_stream("s/v")
    wait_for_maintenance()
    move(root / "s" / part, tmp_path / "away")
    noted = {file for file in root.rglob("*") if file.is_file()}
    with pytest.raises(CorruptLog, match=r"s/t has lost its log"):
        change(group_at(root))
    wait_for_maintenance()
    assert {file for file in root.rglob("*") if file.is_file()} == noted
    (tmp_path / "away").rename(root / "s" / part)
    change(group_at(root))


@pytest.mark.parametrize("part", ["t/events/_delta_log", "t"])
def test_group_over_a_lost_stream_can_be_deleted(root: Path, part: str) -> None:
    remove(root / "s" / part)
    assert manager_at(root).delete_reader_group("s/g")
    assert manager_at(root).list_reader_groups("s") == []
