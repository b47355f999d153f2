"""A finished backup that is brought up to date: what it takes, and what it is meanwhile."""

from __future__ import annotations

import pytest

from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.model import StreamCut
from tests.harness.backup_world import World, manager_of
from tests.harness.failpoints import at_failpoint
from tests.harness.simulated_kills import Killed, kill_at_visit
from tests.harness.small_streams import scale

POINTS = (
    *("backup.pinned", "backup.file", "backup.files", "backup.led-up", "backup.prepared"),
    *("backup.applied", "backup.changed", "backup.marker"),
)
STRINGS = KeyValueTableConfiguration("string")


def objects(store: Store) -> dict[str, bytes]:
    return {entry.key: store.get(entry.key) for entry in store.list("")}


def change(world: World) -> None:
    """Grow, split and truncate a stream; delete one; create a stream, a group and a scope."""
    world.grow(3)
    scale(world.stream, [0], [(0, 0.5), (0.5, 1)])
    world.grow(2)
    manager = world.manager
    manager.truncate_stream("s/t", StreamCut("s/t", 1, {0: 4}))
    manager.seal_stream("s/gone")
    manager.delete_stream("s/gone")
    manager.create_stream("s/new")
    manager.create_reader_group("s/g", ["s/t"])
    manager.create_scope("z")
    manager.create_stream("z/t")
    table = manager.key_value_table("s/k")
    table.put("a", b"2").result()
    table.put("b", b"3").result()


def world_with_objects() -> World:
    world = World()
    world.manager.create_stream("s/gone")
    world.manager.create_stream("s/same")
    world.manager.create_key_value_table("s/k", STRINGS)
    world.manager.key_value_table("s/k").put("a", b"1").result()
    return world


def state(store: Store) -> tuple[object, ...]:
    manager = manager_of(store)
    scopes = manager.list_scopes()
    streams = [name for scope in scopes for name in manager.list_streams(scope)]
    entries = {str(e.key): e.value for e in manager.key_value_table("s/k").entries()}
    events = {name: [event.data for event in manager.read(name)] for name in streams}
    groups = [name for scope in scopes for name in manager.list_reader_groups(scope)]
    return scopes, events, groups, entries


def test_copy_becomes_what_a_new_one_would_be() -> None:
    world, copy, other = world_with_objects(), MemoryStore(), MemoryStore()
    world.manager.backup(copy.url, update=True)  # there is none yet
    change(world)
    done = world.manager.backup(copy.url, update=True)
    fresh = world.manager.backup(other.url)
    assert state(copy) == state(other) == state(world.store)
    assert done.versions.keys() == fresh.versions.keys()
    assert (done.files, done.size_bytes) == (fresh.files, fresh.size_bytes)
    data = [entry.key for entry in copy.list("") if "/data/" in entry.key]
    assert len(data) == done.files, "files that the source has lost are deleted"
    assert not [entry.key for entry in copy.list("") if "gone" in entry.key]


def test_unchanged_root_costs_no_commit_and_no_copy() -> None:
    world, copy = world_with_objects(), MemoryStore()
    first = world.manager.backup(copy.url)
    before, held = objects(world.store), objects(copy)
    second = world.manager.backup(copy.url, update=True)
    assert objects(world.store) == before
    changed = {key for key, data in objects(copy).items() if held.get(key) != data}
    assert changed == {"_pravega_spark.json"}
    assert (second.versions, second.files, second.size_bytes) == (
        first.versions,
        first.files,
        first.size_bytes,
    )


@pytest.mark.parametrize("point", POINTS)
def test_copy_is_open_whatever_kills_its_update(point: str) -> None:
    """It is the old one until the first table is changed, and each table is old or new then."""
    world, copy = world_with_objects(), MemoryStore()
    world.manager.backup(copy.url)
    before, visits = state(copy), 0
    change(world)
    after = state(world.store)
    is_killed = True
    while is_killed:
        visits += 1
        with at_failpoint(point, kill_at_visit(visits)):
            try:
                world.manager.backup(copy.url, update=True)
                is_killed = False
            except Killed:
                found = state(copy)
        if is_killed and point in ("backup.changed", "backup.marker"):
            assert found == after
        elif is_killed and point != "backup.applied":
            assert found == before
    assert visits > 1, "the point was never reached"
    assert state(copy) == after
    restored = manager_of(copy).restore()
    assert not restored.failed
    assert not restored.missing
    assert state(copy)[1] == after[1]
