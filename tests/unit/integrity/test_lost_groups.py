"""What ``fsck`` and the next process say of a reader group without a folder."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pravega_spark.cli import main
from pravega_spark.manager import StreamManager
from tests.harness.failpoints import at_failpoint
from tests.harness.folder_state import remove
from tests.harness.roots import manager_at
from tests.harness.simulated_kills import Killed, kill
from tests.unit.integrity.test_stream_integrity import fsck

GROUP = "s/_reader_groups/g"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/t")
    return root


@pytest.mark.parametrize(
    ("way", "shows"),
    [
        ("holds data", "its subscription to stream s/t"),
        ("created again", "its row in the index of its scope"),
        ("in a transaction", "joint transaction"),
    ],
)
def test_group_without_a_folder_is_damage_if_anything_shows_that_it_existed(
    root: Path, capsys: pytest.CaptureFixture[str], way: str, shows: str
) -> None:
    manager = StreamManager(root)
    if way == "holds data":
        manager.create_reader_group("s/g", ["s/t"], retention="manual")
    elif way == "created again":
        for _ in range(2):
            manager.delete_reader_group("s/g")
            manager.create_reader_group("s/g", ["s/t"])
    else:
        group = manager.create_reader_group("s/g", ["s/t"], acknowledge="transaction")
        reader = group.create_reader("r")
        manager.create_joint_writer(["s/t"]).begin_transaction(readers=[reader])
    assert fsck(root, capsys) == (0, "")
    remove(root / GROUP)
    status, error = fsck(root, capsys)
    assert status == 1
    assert error.startswith(f"s/g (reader group): {GROUP}: all of its objects are lost: {shows}")
    assert error.count("\n") == 1
    assert main(["fsck", "s/g", "--root", str(root)]) == 1
    assert main(["fsck", "s/t", "--root", str(root)]) == 0


def test_group_that_nothing_names_is_said_and_begun_again_with_a_warning(
    root: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    manager_at(root).create_reader_group("s/g", {"s/t": "latest"})
    manager_at(root).reader_group("s/g").stream_cuts()
    assert not caplog.records
    remove(root / GROUP)
    status, error = fsck(root, capsys)
    assert status == 0
    assert f"s/g (reader group): {GROUP}: the index lists it, it has no object" in error
    with caplog.at_level(logging.WARNING):
        manager_at(root).reader_group("s/g").stream_cuts()
    (record,) = caplog.records
    assert "reader group s/g is in the index of its scope and had no log" in record.getMessage()
    assert fsck(root, capsys) == (0, "")


def test_killed_creation_of_a_group_that_holds_data_is_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with at_failpoint("group.create.row", kill), pytest.raises(Killed):
        manager_at(root).create_reader_group("s/g", ["s/t"], retention="manual")
    status, error = fsck(root, capsys)
    assert status == 0
    assert "its creation was killed" in error
