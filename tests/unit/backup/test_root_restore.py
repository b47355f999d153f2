"""Restores: copies that backup, cp, tar or a snapshot made, whole or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.writing.append import NumberedBatch
from pravega_spark.errors import (
    CorruptLog,
    DataLoss,
    InvalidStreamCut,
    NoSuchScope,
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
    StoreRefused,
)
from pravega_spark.manager import StreamManager
from tests.harness import failpoints
from tests.harness.backup_world import World, manager_of, stream_of
from tests.harness.engine import all_events, clean, write
from tests.harness.failpoints import at_failpoint
from tests.unit.backup.test_root_backup import _Death, _die, dying


def events(store: Store, stream: str = "s/t") -> list[bytes]:
    return [event for _, event in all_events(stream_of(store, stream))]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def copied(
    source: Store,
    target: Store | None = None,
    wanted: Callable[[str], bool] = lambda key: True,
) -> Store:
    """Copy objects as they are, as ``cp`` or ``tar`` does."""
    target = MemoryStore() if target is None else target
    for entry in source.list(""):
        if wanted(entry.key):
            target.put(entry.key, source.get(entry.key))
    return target


def is_data(key: str) -> bool:
    return "/data/" in key


def torn(world: World, commits: int) -> Store:
    """A copy as by ``tar``: the data first, then so many commits, then the logs."""
    target = copied(world.store, wanted=is_data)
    world.grow(commits)
    return copied(world.store, target, lambda key: not is_data(key))


def test_a_live_tar_is_restored_to_the_newest_version_that_is_whole() -> None:
    world = World()
    version = world.stream.view().version
    copy = torn(world, 3)
    opened = manager_of(copy)
    with pytest.raises((DataLoss, FileNotFoundError, PravegaSparkError)):
        list(opened.read("s/t"))
    done = opened.restore_stream("s/t")
    assert (done.version, done.dropped_versions, done.dropped_events) == (version, 3, 6)
    assert (done.unreadable_versions, done.life) == (0, 2)
    assert events(copy) == numbers(10)
    fresh = manager_of(copy)
    with fresh.create_writer("s/t") as writer:
        writer.write_event(b"new")
    assert events(copy) == [*numbers(10), b"new"]
    assert fresh.list_streams("s") == ["s/t"]
    assert fresh.update_stream("s/t", fresh.stream_info("s/t").configuration) is False


def test_a_log_with_a_gap_or_a_torn_commit_goes_back_before_it() -> None:
    for damage in (b"", b'{"commitInfo":{"engineInfo":"pravega_spark/0.1.0"'):
        world = World(commits=9)
        copy = copied(world.store)
        key = world.stream.log.reader.key(6)
        copy.put(key, damage) if damage else copy.delete([key])
        with pytest.raises(CorruptLog):
            events(copy)
        done = manager_of(copy).restore_stream("s/t")
        assert (done.version, done.dropped_versions) == (5, 4)
        assert (done.dropped_events, done.unreadable_versions) == (6, 1)
        assert events(copy) == numbers(10)


def test_a_state_file_behind_the_gap_keeps_what_came_after_it() -> None:
    world = World(commits=9)
    checkpointing.maintain(world.stream.log.reader, 7, checkpoint=True)
    copy = copied(
        world.store, wanted=lambda key: not key.endswith("_delta_log/" + "3".zfill(20) + ".json")
    )
    done = manager_of(copy).restore_stream("s/t")
    assert (done.version, done.dropped_versions) == (9, 0)
    assert events(copy) == numbers(18)


def test_nothing_whole_is_told_and_changes_nothing() -> None:
    world = World()
    copy = copied(world.store, wanted=lambda key: not key.endswith("0" * 20 + ".json"))
    before = [(e.key, e.size) for e in copy.list("")]
    with pytest.raises(CorruptLog, match="no version whose commits and files are all there"):
        manager_of(copy).restore_stream("s/t")
    assert [(e.key, e.size) for e in copy.list("")] == before
    with pytest.raises(NoSuchStream, match="no stream s/none"):
        manager_of(copy).restore_stream("s/none")


def test_after_a_clean_up_and_a_sweep_of_the_source() -> None:
    world = World(commits=60)
    clean(world.stream.log, world.runtime, 40)
    copy = torn(world, 2)
    done = manager_of(copy).restore_stream("s/t")
    assert done.dropped_versions == 2
    assert events(copy) == numbers(120)


def test_what_belongs_to_the_life_before_is_refused_with_the_way_on() -> None:
    world = World()
    cut, pointer_text = world.manager.tail("s/t"), "s/t@1:0#0=3"
    pointer = next(iter(world.manager.read("s/t"))).pointer
    copy = torn(world, 2)
    old = manager_of(copy)
    old.create_reader_group("s/g", ["s/t"])
    writer = old.create_writer("s/t")
    old.restore_stream("s/t")
    opened = manager_of(copy)
    with pytest.raises(InvalidStreamCut, match="restored from a copy"):
        list(opened.read("s/t", cut))
    with pytest.raises(InvalidStreamCut, match="restored from a copy"):
        opened.truncate_stream("s/t", pointer_text)
    with pytest.raises(StaleIdentity, match=r"restored from a copy.*Open it anew"):
        opened.fetch_event(pointer)
    with pytest.raises(StaleIdentity, match="restored from a copy"):
        writer.write_event(b"late").result()
    assert events(copy) == numbers(10)


def test_a_process_that_knew_what_was_dropped_reads_the_log_again() -> None:
    world = World()
    copy = torn(world, 3)
    stream = stream_of(copy)
    assert stream.view().segment(0).next_offset == 16
    manager_of(copy).restore_stream("s/t")
    assert stream.view().segment(0).next_offset == 10
    write(stream, [(None, b"new")])
    assert events(copy) == [*numbers(10), b"new"]


def test_a_writers_own_id_goes_on_where_the_copy_has_it() -> None:
    world = World(commits=0)
    with world.manager.create_writer("s/t", "bank") as writer:
        writer.write_events([b"0", b"1"])
    target = copied(world.store, wanted=is_data)
    with world.manager.create_writer("s/t", "bank") as writer:
        writer.write_events([b"2", b"3"])
    copy = copied(world.store, target, lambda key: not is_data(key))
    done = manager_of(copy).restore_stream("s/t")
    assert done.dropped_events == 2
    with manager_of(copy).create_writer("s/t", "bank") as writer:
        assert writer.last_event_number == 2
        writer.write_events([b"2", b"3"])
    assert events(copy) == numbers(4)


def test_a_query_whose_batches_were_dropped_is_refused_and_one_that_follows_is_not() -> None:
    world = World(commits=0)
    for n in range(3):
        write(world.stream, [(None, b"%d" % n)], NumberedBatch("spark.q", n))
    target = copied(world.store, wanted=is_data)
    write(world.stream, [(None, b"3")], NumberedBatch("spark.q", 3))
    write(world.stream, [(None, b"x")], NumberedBatch("spark.young", 0))
    copy = copied(world.store, target, lambda key: not is_data(key))
    manager_of(copy).restore_stream("s/t")
    stream = stream_of(copy)
    with pytest.raises(StaleIdentity, match=r"holds its batches up to 2, and this is batch 4"):
        write(stream, [(None, b"4")], NumberedBatch("spark.q", 4))
    with pytest.raises(StaleIdentity, match=r"another checkpoint"):
        write(stream, [(None, b"y")], NumberedBatch("spark.young", 1))
    assert write(stream, [(None, b"2")], NumberedBatch("spark.q", 2)).duplicate
    write(stream, [(None, b"3")], NumberedBatch("spark.q", 3))
    write(stream, [(None, b"7")], NumberedBatch("spark.q", 7))
    assert events(copy) == [b"0", b"1", b"2", b"3", b"7"]


def test_open_transactions_are_aborted_and_subscribers_hold_what_they_held() -> None:
    world = World()
    txn = world.manager.create_transactional_writer("s/t").begin_transaction()
    group = world.manager.create_reader_group("s/g", ["s/t"], retention="manual")
    group.publish({"s/t": "s/t@1:0#0=4"})
    copy = torn(world, 1)
    done = manager_of(copy).restore()
    assert done.streams["s/t"].transactions == (txn.id,)
    (held,) = manager_of(copy).list_subscribers("s/t")
    assert held.cut is not None
    assert (held.cut.life, dict(held.cut)) == (2, {0: 4})


def test_a_whole_root_is_restored_with_its_index_and_may_be_opened() -> None:
    world = World()
    world.manager.create_stream("s/late")
    copy = torn(world, 2)
    copy.delete(e.key for e in copy.list("s/_scope"))
    copy.delete(["_pravega_spark.json"])
    done = manager_of(copy).restore()
    assert (sorted(done.streams), done.failed) == (["s/late", "s/t"], {})
    opened = manager_of(copy)
    assert opened.list_streams("s") == ["s/late", "s/t"]
    assert opened.create_scope("other")


def test_what_cannot_be_restored_is_named_and_the_rest_is_done() -> None:
    world = World()
    world.manager.create_stream("s/gone")
    copy = MemoryStore()
    with at_failpoint("backup.marker", _die), pytest.raises(_Death):
        world.manager.backup(copy.url)
    copy.delete([e.key for e in copy.list("s/gone/events/_delta_log")])
    copy.put("s/gone/events/_delta_log/" + "1".zfill(20) + ".json", b"")
    done = manager_of(copy).restore()
    assert list(done.failed) == ["s/gone/events"]
    with pytest.raises(StoreRefused, match="is not whole"):
        events(copy)
    copy.delete([e.key for e in copy.list("s/gone")])
    assert manager_of(copy).restore().failed == {}
    assert events(copy) == numbers(10)
    assert manager_of(copy).create_scope("other")


@pytest.mark.parametrize("place", ["backup.files", "backup.log", "backup.table", "backup.marker"])
def test_of_a_backup_that_was_killed_the_tables_are_opened_that_are_whole(place: str) -> None:
    world, copy = World(), MemoryStore()
    failpoints.register(place, dying(1 if place == "backup.marker" else 2))
    try:
        with pytest.raises(_Death):
            world.manager.backup(copy.url)
    finally:
        failpoints.register(place, None)
    done = manager_of(copy).restore()
    opened = manager_of(copy)
    if place in ("backup.files", "backup.log"):
        assert list(done.failed) == ["s/t/events"]
        copy.delete([e.key for e in copy.list("s/t/events")])
        assert manager_of(copy).restore().missing == ("s/t",)
        assert manager_of(copy).list_streams("s") == []
        return
    assert done.failed == {}
    assert [event.data for event in opened.read("s/t")] == numbers(10)
    assert opened.create_scope("other")


PLACES = ["planned", "aside", "closed", "cleared", "replaced", "last", "opened", "row", "marker"]


@pytest.mark.parametrize("place", PLACES)
def test_killed_anywhere_a_repetition_finishes_the_restore_with_the_same_report(
    place: str,
) -> None:
    world = World()
    copy = torn(world, 4)
    whole = place == "marker"

    def restore() -> object:
        opened = manager_of(copy)
        return opened.restore().streams["s/t"] if whole else opened.restore_stream("s/t")

    with at_failpoint(f"restore.{place}", _die), pytest.raises(_Death):
        restore()
    done = manager_of(copy).restore_stream("s/t")
    assert (done.version, done.dropped_versions, done.dropped_events, done.life) == (5, 4, 8, 2)
    assert restore() == done
    assert events(copy) == numbers(10)
    assert not copy.exists("s/t/events/_pravega/restore.json")
    assert not copy.exists("s/t/events/_pravega/first.json")


def test_a_restored_stream_that_went_on_begins_another_life_when_restored_again() -> None:
    world = World()
    copy = torn(world, 1)
    manager_of(copy).restore_stream("s/t")
    with manager_of(copy).create_writer("s/t") as writer:
        writer.write_event(b"new")
    done = manager_of(copy).restore_stream("s/t")
    assert (done.life, done.dropped_versions) == (3, 0)
    assert events(copy) == [*numbers(10), b"new"]


def test_empty_sealed_and_deleted_streams() -> None:
    world = World(commits=0)
    for name in ("s/sealed", "s/deleted"):
        world.manager.create_stream(name)
        world.manager.seal_stream(name)
    world.manager.delete_stream("s/deleted")
    copy = copied(world.store)
    done = manager_of(copy).restore()
    opened = manager_of(copy)
    assert done.streams["s/deleted"].life is None
    assert opened.list_streams("s") == ["s/sealed", "s/t"]
    assert opened.stream_info("s/sealed").state == "SEALED"
    assert opened.stream_info("s/t").events == 0
    assert opened.create_stream("s/deleted")


def test_a_group_is_refused_until_it_is_reset() -> None:
    world = World()
    group = world.manager.create_reader_group("s/g", ["s/t"], retention="automatic")
    with group.create_reader("r") as reader:
        assert reader.read_next_event(timeout=0).event is not None
    copy = torn(world, 2)
    manager_of(copy).restore()
    opened = manager_of(copy).reader_group("s/g")
    with (
        opened.create_reader("r") as reader,
        pytest.raises(NoSuchStream, match=r"s/t was deleted.*Reset.*restored from a copy"),
    ):
        reader.read_next_event(timeout=0)
    opened.reset({"s/t": "earliest"})
    with opened.create_reader("r") as reader:
        event = reader.read_next_event(timeout=0).event
        assert event is not None
        assert event.data == b"0"
    (held,) = manager_of(copy).list_subscribers("s/t")
    assert held.generation > 0


@pytest.mark.parametrize("inside", ["", "photos/may/1.jpg", "not_a_scope/x"])
def test_root_that_never_was_is_not_restored_and_nothing_is_made(
    tmp_path: Path, inside: str
) -> None:
    root = tmp_path / "root"
    if inside:
        (root / inside).parent.mkdir(parents=True)
        (root / inside).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NoSuchScope, match="there is nothing to be restored under"):
        StreamManager(root).restore()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["planned", "replaced", "last", "marker"])
def test_restore_of_a_root_that_was_killed_is_finished_with_the_same_report_of_streams_and_groups(
    place: str,
) -> None:
    world = World()
    world.manager.create_reader_group("s/g", ["s/t"])
    copy = torn(world, 2)
    whole = manager_of(copied(copy)).restore()
    with at_failpoint(f"restore.{place}", _die), pytest.raises(_Death):
        manager_of(copy).restore()
    again = manager_of(copy).restore()
    found = {table.path: table for table in again.tables}
    for table in whole.tables:
        if table.path == "s/_scope":
            assert found[table.path].version >= table.version
        else:
            assert found[table.path] == table
