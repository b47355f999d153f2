"""Restores of copies, intact or not, that a backup, cp, tar or a snapshot made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pravega_spark.backup.restore import RestoredTable
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.state.due_hints import DUE_FOLDER
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.writing.identity import NumberedBatch
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
from tests.harness.backup_world import (
    World,
    copy_objects,
    events_in,
    manager_of,
    numbers,
    stream_of,
)
from tests.harness.drawn_lives import DRAWN
from tests.harness.failpoints import at_failpoint
from tests.harness.late_requests import requests_to
from tests.harness.releases import run_release
from tests.harness.simulated_kills import Killed, kill, kill_at_visit
from tests.harness.small_streams import write
from tests.harness.small_tables import clean


def is_data(key: str) -> bool:
    return "/data/" in key


def torn(world: World, commits: int) -> Store:
    """Copy the data, let the stream grow by some commits, and copy the rest, as ``tar`` does."""
    target = copy_objects(world.store, wanted=is_data)
    world.grow(commits)
    return copy_objects(world.store, target, lambda key: not is_data(key))


def test_tar_of_a_live_root_is_restored_to_its_newest_intact_version() -> None:
    world = World()
    version = world.stream.view().version
    copy = torn(world, 3)
    opened = manager_of(copy)
    with pytest.raises((DataLoss, FileNotFoundError, PravegaSparkError)):
        list(opened.read("s/t"))
    done = opened.restore_stream("s/t")
    assert (done.version, done.dropped_versions, done.dropped_events) == (version, 3, 6)
    assert (done.unreadable_versions, (done.life or 0) > DRAWN) == (0, True)
    assert events_in(copy) == numbers(10)
    fresh = manager_of(copy)
    with fresh.create_writer("s/t") as writer:
        writer.write_event(b"new")
    assert events_in(copy) == [*numbers(10), b"new"]
    assert fresh.list_streams("s") == ["s/t"]
    assert fresh.update_stream("s/t", fresh.stream_info("s/t").configuration) is False


def test_stream_whose_newest_file_was_cut_is_restored_to_the_version_before() -> None:
    world = World()
    copy = copy_objects(world.store)
    files = [entry.key for entry in copy.list("s/t/events/data")]
    world.grow(1)
    copy = copy_objects(world.store)
    (newest,) = {entry.key for entry in copy.list("s/t/events/data")}.difference(files)
    copy.put(newest, copy.get(newest)[:-1])
    done = manager_of(copy).restore_stream("s/t")
    assert (done.dropped_versions, done.dropped_events) == (1, 2)
    assert events_in(copy) == numbers(10)


def test_restored_stream_is_maintained_again_although_its_versions_went_back() -> None:
    world = World()
    key = f"{DUE_FOLDER}/s/streams-1-0.json"
    world.store.put(key, b"hints of later versions")
    copy = torn(world, 3)
    copy.put(key, b"hints of later versions")
    manager_of(copy).restore_stream("s/t")
    assert not copy.exists(key)
    copy.put(key, b"hints of later versions")
    manager_of(copy).restore()
    assert not copy.exists(key)


def test_log_with_a_missing_or_torn_commit_is_restored_to_the_version_before() -> None:
    for damage in (b"", b'{"commitInfo":{"engineInfo":"pravega_spark/0.1.0"'):
        world = World(commits=9)
        copy = copy_objects(world.store)
        key = world.stream.log.reader.key(6)
        copy.put(key, damage) if damage else copy.delete([key])
        with pytest.raises(CorruptLog):
            events_in(copy)
        done = manager_of(copy).restore_stream("s/t")
        assert (done.version, done.dropped_versions) == (5, 4)
        assert (done.dropped_events, done.unreadable_versions) == (6, 1)
        assert events_in(copy) == numbers(10)


def test_state_file_after_a_missing_commit_saves_the_later_versions() -> None:
    world = World(commits=9)
    checkpoint.maintain(world.stream.log.reader, 7, checkpoint=True)
    copy = copy_objects(
        world.store, wanted=lambda key: not key.endswith("_delta_log/" + "3".zfill(20) + ".json")
    )
    done = manager_of(copy).restore_stream("s/t")
    assert (done.version, done.dropped_versions) == (9, 0)
    assert events_in(copy) == numbers(18)


def test_copy_without_an_intact_version_is_reported_and_unchanged() -> None:
    world = World()
    copy = copy_objects(world.store, wanted=lambda key: not key.endswith("0" * 20 + ".json"))
    before = [(e.key, e.size) for e in copy.list("")]
    with pytest.raises(CorruptLog, match="no version has all of its commits and files"):
        manager_of(copy).restore_stream("s/t")
    assert [(e.key, e.size) for e in copy.list("")] == before
    with pytest.raises(NoSuchStream, match="no copy of stream s/none"):
        manager_of(copy).restore_stream("s/none")


def test_copy_of_a_cleaned_log_is_restored() -> None:
    world = World(commits=60)
    clean(world.stream.log, world.runtime, 40)
    copy = torn(world, 2)
    done = manager_of(copy).restore_stream("s/t")
    assert done.dropped_versions == 2
    assert events_in(copy) == numbers(120)


def test_identities_of_the_life_before_are_refused_with_advice() -> None:
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
    with pytest.raises(StaleIdentity, match=r"restored from a copy.*Open it again"):
        opened.fetch_event(pointer)
    with pytest.raises(StaleIdentity, match="restored from a copy"):
        writer.write_event(b"late").result()
    assert events_in(copy) == numbers(10)


def test_process_that_knew_dropped_versions_reads_the_log_again() -> None:
    world = World()
    copy = torn(world, 3)
    stream = stream_of(copy)
    assert stream.view().segment(0).next_offset == 16
    manager_of(copy).restore_stream("s/t")
    assert stream.view().segment(0).next_offset == 10
    write(stream, [(None, b"new")])
    assert events_in(copy) == [*numbers(10), b"new"]


def test_writer_with_an_id_continues_after_its_last_event_in_the_copy() -> None:
    world = World(commits=0)
    with world.manager.create_writer("s/t", "bank") as writer:
        writer.write_events([b"0", b"1"])
    target = copy_objects(world.store, wanted=is_data)
    with world.manager.create_writer("s/t", "bank") as writer:
        writer.write_events([b"2", b"3"])
    copy = copy_objects(world.store, target, lambda key: not is_data(key))
    done = manager_of(copy).restore_stream("s/t")
    assert done.dropped_events == 2
    with manager_of(copy).create_writer("s/t", "bank") as writer:
        assert writer.last_event_number == 2
        writer.write_events([b"2", b"3"])
    assert events_in(copy) == numbers(4)


def test_query_whose_batches_were_dropped_is_refused_until_it_writes_them_again() -> None:
    world = World(commits=0)
    for n in range(3):
        write(world.stream, [(None, b"%d" % n)], NumberedBatch("spark.q", n))
    target = copy_objects(world.store, wanted=is_data)
    write(world.stream, [(None, b"3")], NumberedBatch("spark.q", 3))
    write(world.stream, [(None, b"x")], NumberedBatch("spark.young", 0))
    copy = copy_objects(world.store, target, lambda key: not is_data(key))
    manager_of(copy).restore_stream("s/t")
    stream = stream_of(copy)
    with pytest.raises(StaleIdentity, match=r"holds its batches up to 2, and this is batch 4"):
        write(stream, [(None, b"4")], NumberedBatch("spark.q", 4))
    with pytest.raises(StaleIdentity, match=r"another checkpoint"):
        write(stream, [(None, b"y")], NumberedBatch("spark.young", 1))
    assert write(stream, [(None, b"2")], NumberedBatch("spark.q", 2)).duplicate
    write(stream, [(None, b"3")], NumberedBatch("spark.q", 3))
    write(stream, [(None, b"7")], NumberedBatch("spark.q", 7))
    assert events_in(copy) == [b"0", b"1", b"2", b"3", b"7"]


def test_open_transactions_are_aborted_and_subscribers_keep_their_data() -> None:
    world = World()
    txn = world.manager.create_transactional_writer("s/t").begin_transaction()
    group = world.manager.create_reader_group("s/g", ["s/t"], retention="manual")
    group.publish({"s/t": "s/t@1:0#0=4"})
    copy = torn(world, 1)
    done = manager_of(copy).restore()
    assert done.streams["s/t"].transactions == (txn.id,)
    (held,) = manager_of(copy).list_subscribers("s/t")
    assert held.cut is not None
    assert (held.cut.life, dict(held.cut)) == (done.streams["s/t"].life, {0: 4})


def test_root_is_restored_with_its_index_and_opens() -> None:
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


def test_table_that_cannot_be_restored_is_reported_and_the_others_are_restored() -> None:
    world = World()
    world.manager.create_stream("s/damaged")
    copy = MemoryStore()
    with at_failpoint("backup.marker", kill), pytest.raises(Killed):
        world.manager.backup(copy.url)
    copy.delete([e.key for e in copy.list("s/damaged/events/_delta_log")])
    copy.put("s/damaged/events/_delta_log/" + "1".zfill(20) + ".json", b"")
    done = manager_of(copy).restore()
    assert list(done.failed) == ["s/damaged/events"]
    with pytest.raises(StoreRefused, match="is an incomplete copy"):
        events_in(copy)
    copy.delete([e.key for e in copy.list("s/damaged")])
    assert manager_of(copy).restore().failed == {}
    assert events_in(copy) == numbers(10)
    assert manager_of(copy).create_scope("other")


@pytest.mark.parametrize("point", ["backup.files", "backup.log", "backup.table", "backup.marker"])
def test_restore_opens_the_complete_tables_of_a_killed_backup(point: str) -> None:
    world, copy = World(), MemoryStore()
    failpoints.register(point, kill_at_visit(1 if point == "backup.marker" else 2))
    try:
        with pytest.raises(Killed):
            world.manager.backup(copy.url)
    finally:
        failpoints.register(point, None)
    done = manager_of(copy).restore()
    opened = manager_of(copy)
    if point in ("backup.files", "backup.log"):
        assert list(done.failed) == ["s/t/events"]
        copy.delete([e.key for e in copy.list("s/t/events")])
        assert manager_of(copy).restore().missing == ("s/t",)
        assert manager_of(copy).list_streams("s") == []
        return
    assert done.failed == {}
    assert [event.data for event in opened.read("s/t")] == numbers(10)
    assert opened.create_scope("other")


STEPS = ["planned", "cleared", "replaced", "last", "row", "marker"]


@pytest.mark.parametrize("step", STEPS)
def test_restore_killed_anywhere_is_finished_by_a_repetition_with_the_same_report(
    step: str,
) -> None:
    world = World()
    copy = torn(world, 4)
    is_root = step == "marker"

    def restore() -> RestoredTable:
        opened = manager_of(copy)
        return opened.restore().streams["s/t"] if is_root else opened.restore_stream("s/t")

    with at_failpoint(f"restore.{step}", kill), pytest.raises(Killed):
        restore()
    done = manager_of(copy).restore_stream("s/t")
    assert (done.version, done.dropped_versions, done.dropped_events) == (5, 4, 8)
    again = restore()
    assert again.life != done.life  # this may be a copy of the restored root
    assert replace(again, life=done.life) == done
    assert events_in(copy) == numbers(10)


@pytest.mark.parametrize("step", STEPS)
def test_requests_of_killed_restores_that_land_after_the_last_one_change_nothing(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    world = World()
    copy = torn(world, 4)
    written = requests_to(copy, monkeypatch, "put", "put_if_absent")
    deleted = requests_to(copy, monkeypatch, "delete")
    with at_failpoint(f"restore.{step}", kill), pytest.raises(Killed):
        manager_of(copy).restore_stream("s/t") if step == "row" else manager_of(copy).restore()
    of_killed = len(written)
    assert not manager_of(copy).restore().failed
    with manager_of(copy).create_writer("s/t") as writer:
        writer.write_events([b"new"]).result()
    for request in [*reversed(written[:of_killed]), *deleted]:
        request()
    opened = manager_of(copy)
    assert [event.data for event in opened.read("s/t")] == [*numbers(10), b"new"]
    with opened.create_writer("s/t") as writer:
        writer.write_events([b"newer"]).result()
    assert opened.list_streams("s") == ["s/t"]
    assert opened.restore_stream("s/t").dropped_versions == 0
    assert events_in(copy) == [*numbers(10), b"new", b"newer"]


def without_the_last_file(root: Path) -> None:
    """Make a stream of four events, the file of the last of which is gone."""
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/t")
    files = set[Path]()
    with manager.create_writer("s/t") as writer:
        for n in range(4):
            writer.write_events([b"%d" % n]).result()
            # Not by their times: two files may have the same.
            (newest,) = set((root / "s/t/events/data").rglob("*.parquet")) - files
            files.add(newest)
    newest.unlink()


@pytest.mark.parametrize("step", ["planned", "cleared", "replaced"])
def test_stream_that_a_killed_restore_has_left_is_opened_by_nobody(
    tmp_path: Path, step: str
) -> None:
    without_the_last_file(tmp_path)
    known = StreamManager(tmp_path)
    assert known.stream_info("s/t").events == 4
    with at_failpoint(f"restore.{step}", kill), pytest.raises(Killed):
        StreamManager(tmp_path).restore_stream("s/t")
    for opened in (known, StreamManager(tmp_path)):
        with pytest.raises(CorruptLog, match="a restore of it has begun and not ended"):
            list(opened.read("s/t"))
        with pytest.raises(CorruptLog, match="call it again"):
            opened.seal_stream("s/t")
    with pytest.raises(DeltaError, match="pravega-restoring"):
        DeltaTable(tmp_path / "s/t/events").to_pyarrow_dataset()
    done = StreamManager(tmp_path).restore_stream("s/t")
    assert (done.dropped_versions, done.dropped_events) == (1, 1)
    for opened in (known, StreamManager(tmp_path)):
        assert [event.data for event in opened.read("s/t")] == numbers(3)
    assert DeltaTable(tmp_path / "s/t/events").protocol().min_reader_version == 1


RELEASE_IS_KILLED = """
import os, sys
import pravega_spark
from pravega_spark.engine import failpoints
failpoints.install(lambda name: os._exit(0) if name == sys.argv[2] else None)
pravega_spark.StreamManager(sys.argv[1]).restore()
sys.exit("the failpoint was not reached")
"""


@pytest.mark.medium
@pytest.mark.parametrize("step", ["planned", "aside", "closed", "replaced", "last", "opened"])
def test_restore_of_the_previous_release_that_was_killed_is_finished(
    tmp_path: Path, step: str
) -> None:
    without_the_last_file(tmp_path)
    run_release("0.1.0", RELEASE_IS_KILLED, tmp_path, f"restore.{step}")
    done = StreamManager(tmp_path).restore()
    assert not done.failed
    assert done.streams["s/t"].dropped_events == 1
    assert [event.data for event in StreamManager(tmp_path).read("s/t")] == numbers(3)
    left = {path.name for path in (tmp_path / "s/t/events/_pravega").iterdir()}
    assert left.isdisjoint({"restore.json", "first.json"})


def test_restored_stream_with_new_events_begins_another_life_when_restored_again() -> None:
    world = World()
    copy = torn(world, 1)
    done = manager_of(copy).restore_stream("s/t")
    with manager_of(copy).create_writer("s/t") as writer:
        writer.write_event(b"new")
    again = manager_of(copy).restore_stream("s/t")
    assert (again.life != done.life, again.dropped_versions) == (True, 0)
    assert events_in(copy) == [*numbers(10), b"new"]


def test_empty_sealed_and_deleted_streams_are_restored() -> None:
    world = World(commits=0)
    for name in ("s/sealed", "s/deleted"):
        world.manager.create_stream(name)
        world.manager.seal_stream(name)
    world.manager.delete_stream("s/deleted")
    copy = copy_objects(world.store)
    done = manager_of(copy).restore()
    opened = manager_of(copy)
    assert done.streams["s/deleted"].life is None
    assert opened.list_streams("s") == ["s/sealed", "s/t"]
    assert opened.stream_info("s/sealed").state == "SEALED"
    assert opened.stream_info("s/t").events == 0
    assert opened.create_stream("s/deleted")


def test_group_of_a_restored_stream_is_refused_until_it_is_reset() -> None:
    world = World()
    group = world.manager.create_reader_group("s/g", ["s/t"], retention="automatic")
    with group.create_reader("r") as reader:
        assert reader.read_next_event(timeout=0).event is not None
    copy = torn(world, 2)
    manager_of(copy).restore()
    opened = manager_of(copy).reader_group("s/g")
    with (
        opened.create_reader("r") as reader,
        pytest.raises(NoSuchStream, match=r"s/t was deleted.*Update the.*restored from a copy"),
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
def test_restore_of_what_is_no_root_raises_and_creates_nothing(tmp_path: Path, inside: str) -> None:
    root = tmp_path / "root"
    if inside:
        (root / inside).parent.mkdir(parents=True)
        (root / inside).touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(NoSuchScope, match="there is nothing to restore under"):
        StreamManager(root).restore()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("step", ["planned", "replaced", "last", "marker"])
def test_killed_restore_of_a_root_is_finished_with_the_same_report_of_streams_and_groups(
    step: str,
) -> None:
    world = World()
    world.manager.create_reader_group("s/g", ["s/t"])
    copy = torn(world, 2)
    expected = manager_of(copy_objects(copy)).restore()
    with at_failpoint(f"restore.{step}", kill), pytest.raises(Killed):
        manager_of(copy).restore()
    again = manager_of(copy).restore()
    found = {table.path: table for table in again.tables}
    for table in expected.tables:
        if table.path == "s/_scope":
            assert found[table.path].version >= table.version
        else:
            assert replace(found[table.path], life=table.life) == table


def test_settings_are_restored_to_their_newest_intact_version() -> None:
    world = World()
    world.manager.update_settings(grace="3 days")
    world.manager.update_settings(grace="4 days")
    copy = copy_objects(world.store)
    key = "_settings/_delta_log/" + "1".zfill(20) + ".json"
    copy.put(key, copy.get(key)[:-30])
    with pytest.raises(CorruptLog, match="_settings"):
        manager_of(copy).settings()
    done = manager_of(copy).restore()
    assert {t.path: t.dropped_versions for t in done.tables}["_settings"] == 1
    assert manager_of(copy).settings().text("grace") == "3 days"
    manager_of(copy).update_settings(grace="5 days")
    assert manager_of(copy).settings().text("grace") == "5 days"


def test_root_whose_settings_cannot_be_restored_is_not_opened() -> None:
    world, partial = World(), MemoryStore()
    world.manager.update_settings(grace="3 days")
    with at_failpoint("backup.marker", kill), pytest.raises(Killed):
        world.manager.backup(partial.url)
    copy = copy_objects(partial, wanted=lambda key: not key.startswith("_settings/data/"))
    done = manager_of(copy).restore()
    assert list(done.failed) == ["_settings"]
    with pytest.raises(StoreRefused):
        manager_of(copy).sweep_stream("s/t")
