"""Backups of roots that lack something that they list, and scopes that have lost their index."""

from __future__ import annotations

import pytest

from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptLog
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from tests.harness.backup_world import World, events_in, manager_of, numbers

FOLDERS = ("s/t", "s/_kv_tables/k", "s/_reader_groups/g")


@pytest.fixture
def world() -> World:
    world = World()
    world.manager.create_key_value_table("s/k", KeyValueTableConfiguration("string"))
    world.manager.create_reader_group("s/g", ["s/t"])
    return world


def lose(world: World, part: str) -> None:
    world.store.delete([e.key for e in world.store.list("") if e.key.startswith(f"{part}/")])


@pytest.mark.parametrize("folder", FOLDERS)
def test_backup_raises_if_something_is_left_of_an_object_without_its_log(
    world: World, folder: str
) -> None:
    copy = MemoryStore()
    world.store.put(f"{folder}/stray", b"1")
    lose(world, f"{folder}/_delta_log" if "group" in folder else f"{folder}/events")
    with pytest.raises(CorruptLog, match=f"{folder} has lost its log"):
        manager_of(world.store).backup(copy.url)
    if folder == "s/t":
        with pytest.raises(CorruptLog, match=f"{folder} has lost its log"):
            manager_of(world.store).backup(copy.url, folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_backup_names_what_is_listed_and_has_no_object(
    world: World, folder: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert world.manager.backup(MemoryStore().url).missing == ()
    lose(world, folder)
    assert manager_of(world.store).backup(MemoryStore().url).missing == (folder,)
    assert f"{folder} is listed but has no object" in caplog.text


def test_scope_without_its_index_is_never_taken_for_none() -> None:
    world = World()
    lose(world, "s/_scope")
    manager = manager_of(world.store)
    for call in (
        lambda: manager.create_scope("s"),
        lambda: manager.list_streams("s"),
        lambda: manager.create_stream("s/u"),
        lambda: manager.backup(MemoryStore().url),
        lambda: manager.backup(MemoryStore().url, "s"),
    ):
        with pytest.raises(CorruptLog, match=r"s/_scope: scope s has lost its log"):
            call()
    assert events_in(world.store) == numbers(10)
    assert manager.create_scope("other")
