"""A finished backup that is brought up to date: what it takes, and what it is meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import IllegalState, NoSuchStream
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import StreamCut
from tests.harness.backup_world import World, events_in, manager_of, numbers, stream_of
from tests.harness.failpoints import at_each_visit, register
from tests.harness.simulated_kills import Killed, kill_at_visit
from tests.harness.small_streams import scale

POINTS = (
    *("backup.pinned", "backup.file", "backup.files", "backup.leading", "backup.led-up"),
    *("backup.prepared", "backup.applied", "backup.changed", "backup.marker"),
)
STRINGS = KeyValueTableConfiguration("string")


def objects(store: Store) -> dict[str, bytes]:
    """Return all objects but what the background may write at any time."""
    keys = [entry.key for entry in store.list("")]
    return {key: store.get(key) for key in keys if "/_pravega/" not in key}


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


@pytest.mark.medium
def test_copy_becomes_what_a_new_one_would_be() -> None:
    world, copy, other = world_with_objects(), MemoryStore(), MemoryStore()
    world.manager.backup(copy.url, update=True)  # there is none yet
    change(world)
    done = world.manager.backup(copy.url, update=True)
    fresh = world.manager.backup(other.url)
    assert state(copy) == state(other) == state(world.store)
    assert done.versions.keys() == fresh.versions.keys()
    assert (done.files, done.size_bytes) == (fresh.files, fresh.size_bytes)
    assert not [entry.key for entry in copy.list("") if "gone/events/data" in entry.key]
    world.grow(1)
    world.manager.create_stream("s/newer")
    assert world.manager.backup(copy.url, update=True).versions.keys() == {
        *done.versions,
        "s/newer",
    }
    assert state(copy) == state(world.store)


def test_copy_keeps_the_files_of_one_version_before() -> None:
    """So a restore of a copy that lost a file goes back to it."""
    world, copy = World(), MemoryStore()
    counts = []
    for head in (2, 4, 6, 8):
        world.manager.truncate_stream("s/t", StreamCut("s/t", 1, {0: head}))
        world.grow(1)
        world.manager.backup(copy.url, update=True)
        counts.append(len([e for e in copy.list("s/t/events/data") if e.key.endswith("parquet")]))
    assert counts[1:] == [6, 6, 6]
    held = {entry.key for entry in copy.list("s/t/events/data")}
    live = {f"s/t/events/{add.path}" for add in _live(copy)}
    copy.delete([max(live)])
    assert live < held
    done = manager_of(copy).restore()
    assert not done.failed
    assert events_in(copy) == numbers(16)[6:]


def test_changed_copies_are_refused_and_stay_as_they_are() -> None:
    world = World()
    world.manager.update_settings(maintain="auto", retain="2h")

    def refused(change: Callable[[StreamManager, Store], object], match: str) -> None:
        copy = MemoryStore()
        world.manager.backup(copy.url)
        world.manager.backup(copy.url, update=True)
        change(manager_of(copy), copy)
        before = objects(copy)
        world.grow(1)
        with pytest.raises(IllegalState, match=match):
            world.manager.backup(copy.url, update=True)
        assert objects(copy) == before

    def write_event(manager: StreamManager, _: Store) -> None:
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"own").result()

    refused(write_event, "s/t/events: the copy was written to")
    refused(lambda manager, _: manager.create_scope("own"), "own/_scope: the copy was written to")
    refused(lambda manager, _: manager.create_stream("s/own"), "s/_scope: the copy was written to")
    refused(lambda manager, _: manager.update_settings(retain="1h"), "_settings: the copy was writ")
    refused(lambda manager, _: manager.restore(), "that was restored since")


def test_another_source_or_name_is_refused() -> None:
    world, copy = World(), MemoryStore()
    world.manager.backup(copy.url)
    for manager, name in ((World().manager, ""), (world.manager, "s"), (world.manager, "s/t")):
        with pytest.raises(IllegalState, match=r"holds a backup of memory://.*, so it cannot"):
            manager.backup(copy.url, name, update=True)


def test_stream_whose_log_was_replaced_is_refused() -> None:
    world, copy = World(), MemoryStore()
    world.manager.backup(copy.url)
    world.store.delete(entry.key for entry in world.store.list("s/t/events"))
    again = World()
    for entry in again.store.list("s/t/events"):
        world.store.put(entry.key, again.store.get(entry.key))
    with pytest.raises(IllegalState, match="is another table than the one that was copied"):
        manager_of(world.store).backup(copy.url, update=True)
    assert events_in(copy) == numbers(10)


@pytest.mark.parametrize("name", ["s", "s/t"])
def test_copy_of_a_part_follows_it(name: str) -> None:
    world, copy = World(), MemoryStore()
    world.manager.create_stream("s/other")
    world.manager.create_scope("z")
    for commits in (1, 0, 3):
        world.grow(commits)
        world.manager.backup(copy.url, name, update=True)
        assert events_in(copy) == events_in(world.store)
    world.manager.seal_stream("s/t")
    world.manager.delete_stream("s/t")
    world.manager.create_stream("s/t")
    with world.manager.create_writer("s/t") as writer:
        writer.write_events(numbers(2))
    world.manager.backup(copy.url, name, update=True)
    opened = manager_of(copy)
    assert [event.data for event in opened.read("s/t")] == numbers(2)
    assert opened.list_scopes() == ["s"]
    assert opened.list_streams("s") == (["s/t"] if "/" in name else ["s/other", "s/t"])


def test_settings_follow_without_those_that_truncate() -> None:
    world, copy = World(), MemoryStore()
    world.manager.update_settings(maintain="auto", retain="2h")
    for retain in ("2h", "3h", "3h", "4h"):
        world.manager.update_settings(retain=retain)
        world.manager.backup(copy.url, update=True)
        found = manager_of(copy).settings()
        assert (found.maintain, found.retain_ms) == ("off", int(retain[0]) * 3_600_000)


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


@pytest.mark.medium
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
        with at_each_visit(point, kill_at_visit(visits)):
            try:
                world.manager.backup(copy.url, update=True)
                is_killed = False
            except Killed:
                found = state(copy)
        if is_killed and point in ("backup.changed", "backup.marker"):
            assert found == after
        elif is_killed and point not in ("backup.leading", "backup.applied"):
            assert found == before
    assert visits > 1, "the point was never reached"
    assert state(copy) == after
    restored = manager_of(copy).restore()
    assert not restored.failed
    assert not restored.missing
    assert state(copy)[1] == after[1]


def _live(store: Store) -> list[Add]:
    stream = stream_of(store)
    stream.view()
    with stream.log.files() as files:
        return list(files.all())


@pytest.mark.medium
@pytest.mark.parametrize("is_read", [False, True])
def test_one_process_follows_objects_that_are_deleted_and_created_again(
    tmp_path: Path, *, is_read: bool
) -> None:
    manager, copy = StreamManager(tmp_path / "root"), tmp_path / "copy"
    manager.create_scope("s")
    manager.create_stream("s/other")
    opened: StreamManager | None = None
    for round_ in range(3):
        manager.create_stream("s/t")
        manager.create_reader_group("s/g", ["s/t"])
        manager.create_key_value_table("s/k", KeyValueTableConfiguration("string"))
        manager.key_value_table("s/k").put("a", b"%d" % round_).result()
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"%d" % round_).result()
        manager.backup(copy, update=True)
        opened = opened or StreamManager(copy)
        if is_read:
            assert [event.data for event in opened.read("s/t")] == [b"%d" % round_]
            entry = opened.key_value_table("s/k").get("a")
            assert entry is not None
            assert bytes(entry.value) == b"%d" % round_
        manager.delete_reader_group("s/g")
        manager.seal_stream("s/t")
        manager.delete_stream("s/t")
        manager.delete_key_value_table("s/k")
        manager.backup(copy, update=True)
        assert opened.list_streams("s") == ["s/other"]
        assert opened.list_reader_groups("s") == []
        assert not opened.stream_exists("s/t")
        with pytest.raises(NoSuchStream):
            list(opened.read("s/t"))


def test_copy_that_was_read_after_a_stream_was_deleted_amid_the_backup_follows() -> None:
    world, copy = World(), MemoryStore()
    world.manager.create_stream("s/gone")

    def delete() -> None:
        register("backup.files", None)
        world.manager.seal_stream("s/gone")
        world.manager.delete_stream("s/gone")

    register("backup.files", delete)
    world.manager.backup(copy.url)
    for _ in range(3):
        with pytest.raises(NoSuchStream):  # which takes it out of the index
            list(manager_of(copy).read("s/gone"))
        world.grow(1)
        world.manager.backup(copy.url, update=True)
        assert manager_of(copy).list_streams("s") == ["s/t"]
        assert events_in(copy) == events_in(world.store)
