"""A group's folder is removed, moved or created again while its readers run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.errors import CorruptLog, RootChanged, StoreError
from tests.harness.folder_state import move
from tests.harness.group_world import OpenGroup, World
from tests.harness.roots import manager_at

FOLDER = "s/_reader_groups/g"


def test_reader_of_a_lost_group_reads_until_its_lease_ends_and_creates_nothing() -> None:
    world = World()
    world.write(9_000)
    reader = world.created().create_reader("a", lease="30 s")
    reader.read_next_event(0)
    world.store.delete([entry.key for entry in world.store.list(FOLDER)])
    for _ in range(4):
        world.runtime.sleep(7)
        assert reader.read_next_event(0).event is not None
    with pytest.raises(StoreError, match="the group's folder was removed, moved or unmounted"):
        reader.keep_alive()
    world.runtime.sleep(7)
    with pytest.raises(StoreError, match=f"{FOLDER}.*folder was removed, moved or unmounted"):
        reader.read_next_event(0)
    with pytest.raises(StoreError, match=f"{FOLDER}.*folder was removed, moved or unmounted"):
        reader.close()
    assert world.store.list(FOLDER) == [], "no heartbeat and no staged file creates the folder"


def test_group_whose_folder_was_moved_away_and_back_continues(tmp_path: Path) -> None:
    manager = manager_at(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t")
    group = manager.create_reader_group("s/g", ["s/t"])
    reader = group.create_reader("a")
    reader.read_next_event(0)
    folder = tmp_path / "root" / FOLDER
    move(folder, tmp_path / "away")
    with pytest.raises(StoreError, match="removed, moved or unmounted"):
        reader.keep_alive()
    assert not folder.exists()
    (tmp_path / "away").rename(folder)
    reader.keep_alive()
    reader.close()
    assert group.online_readers() == []


@pytest.mark.parametrize("updates", range(5))
def test_reader_of_a_lost_group_changes_no_group_that_has_its_name(
    tmp_path: Path, updates: int
) -> None:
    manager = manager_at(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        writer.write_events([b"1", b"2", b"3"])
    options: Any = {"acknowledge": "checkpoint", "checkpoint_interval": None}
    reader = manager.create_reader_group("s/g", ["s/t"], **options).create_reader("zombie")
    for _ in range(3):
        reader.read_next_event(0)
    hint = tmp_path / "root" / FOLDER / "_pravega/latest.json"
    while not hint.exists():  # written in the background, which would begin the folder again
        time.sleep(0.01)
    move(tmp_path / "root" / FOLDER, tmp_path / "away")
    group = manager_at(tmp_path / "root").create_reader_group("s/g", ["s/t"], **options)
    for number in range(updates):
        group.update(refresh=f"{number + 1} s")
    before = group.configuration, group.generation, group.stream_cuts()
    with pytest.raises((RootChanged, StoreError), match=FOLDER):
        reader.close()
    assert (group.configuration, group.generation, group.stream_cuts()) == before


def test_group_that_has_lost_its_log_is_damaged_and_not_created_again() -> None:
    world = World()
    world.write(3)
    reader = world.created().create_reader("a")
    reader.read_next_event(0)
    lost = [e.key for e in world.store.list(FOLDER) if "/_leases/" not in e.key]
    world.store.delete(lost)
    before = [entry.key for entry in world.store.list(FOLDER)]
    for call in (OpenGroup.stream_cuts, OpenGroup.reset, OpenGroup.delete):
        with pytest.raises(CorruptLog, match=f"has lost its log: {FOLDER}/_leases/a.json exists"):
            call(world.group())
    assert [entry.key for entry in world.store.list(FOLDER)] == before
    world.store.delete(before)
    assert str(world.group().stream_cuts()["s/t"]) == "s/t@1:0#0=0", "the advice of the error"
