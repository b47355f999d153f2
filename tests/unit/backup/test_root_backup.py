"""Backups: what they copy while writers, scales and sweeps go on, and how copies open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.backup.copy import TableCopier, UnfinishedCopy
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import Pin, VersionAges, pin, pins, release, release_expired
from pravega_spark.engine.state.settings_table import SettingsTable
from pravega_spark.engine.state.state_table import TableChange
from pravega_spark.engine.store import PutOutcome, Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.stream.stream_sweep import sweep_deleted_stream, sweep_stream
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.errors import (
    CorruptLog,
    DataLoss,
    IllegalState,
    InvalidInput,
    InvalidName,
    NoSuchScope,
    NoSuchStream,
    StoreRefused,
    TooBusy,
    TxnFailed,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS
from pravega_spark.values.segments import StreamCut
from tests.harness import failpoints
from tests.harness.backup_world import (
    World,
    events_in,
    manager_of,
    numbers,
    stream_of,
)
from tests.harness.failpoints import at_each_visit, at_failpoint
from tests.harness.late_requests import requests_to
from tests.harness.simulated_kills import Killed, kill, kill_at_visit
from tests.harness.small_streams import all_events, scale, write
from tests.harness.small_tables import clean, versions

HOUR_MS = 3_600_000


def reopen(store: Store) -> MemoryStore:
    """Return a new store of the same objects, as another process opens the URL."""
    return MemoryStore.named(store.url.removeprefix("memory://"))


def held_pins(log: Log) -> list[Pin]:
    """Return the pins of a log's newest version."""
    snapshot = log.refresh()
    assert snapshot is not None
    return list(pins(snapshot))


def sweep_all(world: World, store: Store | None = None) -> None:
    """Sweep the world's stream, or its copy, until no unreferenced file is left."""
    store = store or world.store
    for _ in range(3):
        sweep_stream(
            stream_of(store, runtime=world.runtime), grace_ms=0, retain_ms=0, completed_ms=0
        )
        world.runtime.sleep(CLEANUP_WAIT_SECONDS + 1)


def sweep_deleted(world: World) -> None:
    """Sweep a deleted stream down to the newest version of its log."""
    for _ in range(2):
        stream = stream_of(world.store, runtime=world.runtime)
        sweep_deleted_stream(stream, grace_ms=0, retain_ms=0, now=VersionAges.read(stream.log).now)
        world.runtime.sleep(CLEANUP_WAIT_SECONDS + 1)


def test_copy_is_an_independent_root_with_streams_and_groups() -> None:
    world, copy = World(), MemoryStore()
    world.manager.create_stream("s/empty")
    world.manager.create_stream("s/sealed")
    world.manager.seal_stream("s/sealed")
    world.manager.create_reader_group("s/g", ["s/t"])
    world.manager.truncate_stream("s/t", StreamCut("s/t", 1, {0: 3}))
    done = world.manager.backup(copy.url)
    opened = manager_of(copy)
    assert opened.list_streams("s") == ["s/empty", "s/sealed", "s/t"]
    assert opened.list_reader_groups("s") == ["s/g"]
    assert [event.data for event in opened.read("s/t")] == numbers(10)[3:]
    assert (
        done.versions["s/t"] == world.stream.view().version - 2
    )  # two later commits set and release the pin
    assert (done.files, done.transactions) == (6, {})  # of the stream, the scope and the group
    assert opened.stream_info("s/sealed").state == "SEALED"
    with opened.create_writer("s/t") as writer:
        writer.write_event(b"new")
    assert events_in(copy)[-1] == b"new"
    assert not held_pins(world.stream.log)
    assert opened.create_scope("other")


def copier_to(copy: Store, world: World) -> TableCopier:
    """Return what copies tables of a world to an empty store."""
    given = world.store, copy, "b", "", world.runtime, lambda: None
    held = UnfinishedCopy(*given, is_open=False, is_continued=False)
    return TableCopier(copy, "b", HOUR_MS, bool, held)


def test_requests_to_delete_that_land_after_a_backup_take_nothing_of_it_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, copy = World(), MemoryStore()
    asked = requests_to(copy, monkeypatch, "delete")
    world.manager.backup(copy.url)
    for request in list(asked):
        request()
    assert events_in(copy) == numbers(10)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["", "s/t"])
@pytest.mark.parametrize(
    ("first", "point"),
    [
        *(("", point) for point in ("pinned", "file", "files", "log", "table", "marker")),
        *(("marker", point) for point in ("pinned", "leading", "led-up", "prepared", "applied")),
    ],
)
def test_requests_of_killed_backups_that_land_after_the_last_one_change_nothing(
    monkeypatch: pytest.MonkeyPatch, first: str, point: str, name: str
) -> None:
    world, copy = World(), MemoryStore()
    written = requests_to(copy, monkeypatch, "put", "put_if_absent")
    deleted = requests_to(copy, monkeypatch, "delete")
    if first:
        with at_failpoint(f"backup.{first}", kill), pytest.raises(Killed):
            world.manager.backup(copy.url, name)
    visits, of_killed, is_killed = 0, 0, True
    while is_killed:
        visits, of_killed = visits + 1, len(written)
        world.grow(2)
        with at_each_visit(f"backup.{point}", kill_at_visit(visits)):
            try:
                world.manager.backup(copy.url, name)
                is_killed = False
            except Killed:
                pass
    assert visits > 1, "the point was never reached"
    copied = events_in(copy)
    assert copied == events_in(world.store)
    for request in [*reversed(written[:of_killed]), *deleted]:
        request()
    assert events_in(copy) == copied
    world.grow(1)
    world.manager.backup(copy.url, name, update=True)
    assert events_in(copy) == events_in(world.store)
    assert not manager_of(copy).restore().failed
    assert events_in(copy) == events_in(world.store)


def live_files(store: Store) -> set[str]:
    stream = stream_of(store)
    stream.view()
    with stream.log.files() as files:
        return {add.path for add in files.all()}


@pytest.mark.medium
@pytest.mark.parametrize("is_update", [False, True])
@pytest.mark.parametrize("nth", range(1, 9))
@pytest.mark.parametrize("table", ["s/t/events", "_settings"])
def test_last_commit_of_a_killed_run_lands_amid_the_next_one(
    monkeypatch: pytest.MonkeyPatch, table: str, nth: int, *, is_update: bool
) -> None:
    world, copy, held, seen = World(), MemoryStore(), list[Callable[[], object]](), 0
    world.manager.update_settings(maintain="auto")
    if is_update:
        world.manager.backup(copy.url)
        world.grow(3)
        world.manager.update_settings(retain="3 days")
        world.manager.truncate_stream("s/t", StreamCut("s/t", 1, {0: 3}))
    create, folder = MemoryStore.put_if_absent, f"{table}/_delta_log/"
    kind = b"SET SETTINGS" if table == "_settings" else b"BACKUP"

    def sent(store: MemoryStore, key: str, data: bytes, **options: Any) -> PutOutcome:
        nonlocal seen
        if store.url == copy.url and key.startswith(folder):
            is_last = kind in data and (b'"add"' in data or not is_update or kind != b"BACKUP")
            if is_last and not held:
                held.append(lambda: create(store, key, data, **options))
                raise Killed
            seen += bool(held)
            if seen == nth:
                held[0]()
        return create(store, key, data, **options)

    monkeypatch.setattr(MemoryStore, "put_if_absent", sent)
    with pytest.raises(Killed):
        world.manager.backup(copy.url, update=is_update)
    world.grow(3)
    world.manager.truncate_stream("s/t", StreamCut("s/t", 1, {0: 14}))
    world.manager.update_settings(retain="4 days")
    seen = 0
    try:
        world.manager.backup(copy.url, update=is_update)
    except TooBusy:
        world.manager.backup(copy.url, update=is_update)
    held[0]()
    assert events_in(copy) == events_in(world.store)
    assert live_files(copy) == live_files(world.store)
    assert manager_of(copy).settings().summary() == "retain=4 days (root)"
    world.manager.backup(copy.url, update=True)


def test_copy_holds_the_events_up_to_its_version_during_concurrent_writes() -> None:
    world, copy = World(), MemoryStore()
    for point in ("backup.pinned", "backup.file", "backup.files", "backup.log"):
        with at_failpoint(point, lambda: world.grow(2)) as reached:
            world.manager.backup(MemoryStore().url, "s/t")
        assert reached.hits
    with at_failpoint("backup.files", lambda: scale(world.stream, [0], [(0, 0.5), (0.5, 1)])):
        done = world.manager.backup(copy.url, "s/t")
    copied = events_in(copy)
    assert copied == numbers(10 + 4 * 4)
    assert stream_of(copy).view().version == done.versions["s/t"] + 1
    assert stream_of(copy).view().active.number == 0


def test_sweep_keeps_the_files_that_a_backup_is_copying() -> None:
    world, copy = World(commits=40), MemoryStore()
    clean(world.stream.log, world.runtime, 20)

    def truncate_and_sweep() -> None:
        world.manager.truncate_stream("s/t", "latest")
        world.grow(3)
        sweep_all(world)

    with at_failpoint("backup.file", truncate_and_sweep) as reached:
        world.manager.backup(copy.url, "s/t")
    assert reached.hits
    assert events_in(copy) == numbers(80)
    sweep_all(world)
    assert len(world.store.list("s/t/events/data")) == 3


@pytest.mark.parametrize("point", ["backup.pinned", "backup.file", "backup.files"])
def test_sweep_keeps_the_commits_that_a_backup_is_copying(point: str) -> None:
    world, copy = World(commits=20), MemoryStore()
    log = world.stream.log
    clean(log, world.runtime, 5)
    world.grow(10)

    def clean_up() -> None:
        """Write a checkpoint above the pinned version, so that a clean-up would pass the pin."""
        world.grow(1)
        checkpoint.maintain(log.reader, world.stream.view().version, checkpoint=True)
        sweep_all(world)

    with at_failpoint(point, clean_up) as reached:
        world.manager.backup(copy.url, "s/t")
    assert reached.hits
    assert events_in(copy) == numbers(60)
    copied = versions(stream_of(copy).log)
    assert copied == [0, *range(5, copied[-1] + 1)]
    assert versions(log)[:2] == [0, 5]
    sweep_all(world)
    assert versions(log)[1] > 5
    sweep_all(world, copy)
    assert events_in(copy) == numbers(60)


def test_without_a_pin_the_same_sweep_makes_the_backup_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("retained", "sweep"):
        monkeypatch.setattr(f"pravega_spark.engine.log.{module}.is_pinned", lambda snapshot: False)
    monkeypatch.setattr("pravega_spark.engine.log.sweep._held", lambda snapshot, ages: [])
    world = World(commits=10)

    def truncate_and_sweep() -> None:
        world.manager.truncate_stream("s/t", "latest")
        sweep_all(world)

    with (
        at_failpoint("backup.file", truncate_and_sweep),
        pytest.raises(DataLoss, match=r"parquet does not exist, so the table cannot be backed up"),
    ):
        world.manager.backup(MemoryStore().url, "s/t")


def test_pin_of_a_killed_backup_expires_by_the_storages_clock_never_early() -> None:
    world = World()
    log = world.stream.log
    pin(log, "killed", keep_ms=24 * HOUR_MS)
    world.manager.truncate_stream("s/t", "latest")
    sweep_all(world)
    snapshot = log.refresh()
    assert snapshot is not None
    assert snapshot.retention_mark == snapshot.commit_deletion_mark == 0
    assert len(world.store.list("s/t/events/data")) == 5
    world.runtime.sleep(12 * 3_600)
    assert isinstance(world.store, MemoryStore)
    clock, now_ms = world.store._clock_ms, world.runtime.now_ms()
    world.store._clock_ms = lambda: now_ms
    world.runtime.sleep(24 * 3_600)
    release_expired(log, VersionAges.read(log))  # the host's clock is ahead of the storage's
    assert held_pins(log)
    world.store._clock_ms = clock
    sweep_all(world)
    assert not held_pins(log)
    assert world.store.list("s/t/events/data") == []


def test_pin_set_after_a_sweep_chose_its_marks_stops_them() -> None:
    world = World(commits=20)
    log = world.stream.log
    clean(log, world.runtime, 5)
    with at_failpoint("sweep.history", lambda: pin(log, "late", keep_ms=10**12)) as reached:
        sweep_all(world)
    assert reached.hits
    snapshot = log.refresh()
    assert snapshot is not None
    assert snapshot.retention_mark == snapshot.commit_deletion_mark == 5


def test_sweep_commits_nothing_to_an_idle_table_with_a_pin() -> None:
    world = World()
    clean(world.stream.log, world.runtime, 2)
    pin(world.stream.log, "killed", keep_ms=10**12)
    sweep_all(world)
    before = world.stream.view().version
    sweep_all(world)
    assert world.stream.view().version == before


def test_open_transactions_are_aborted_in_the_copy_and_reported() -> None:
    world, copy = World(), MemoryStore()
    writer = world.manager.create_transactional_writer("s/t")
    txn = writer.begin_transaction()
    txn.write_event(b"staged")
    txn.flush()
    done = world.manager.backup(copy.url)
    assert done.transactions == {"s/t": (txn.id,)}
    taken = manager_of(copy).transaction("s/t", txn.id)
    with pytest.raises(TxnFailed):
        taken.commit()
    assert manager_of(copy).seal_stream("s/t")
    txn.commit()
    assert (len(events_in(world.store)), len(events_in(copy))) == (11, 10)


def test_backup_of_one_scope_or_one_stream() -> None:
    world, scope, stream = World(), MemoryStore(), MemoryStore()
    world.manager.create_scope("other")
    world.manager.create_stream("other/x")
    world.manager.backup(scope.url, "s")
    world.manager.backup(stream.url, "other/x")
    assert manager_of(scope).list_scopes() == ["s"]
    assert manager_of(stream).list_streams("other") == ["other/x"]
    for name, error in (("none", NoSuchScope), ("s/none", NoSuchStream), ("a/b/c", InvalidName)):
        with pytest.raises(error):
            world.manager.backup(MemoryStore().url, name)


def test_target_that_holds_anything_else_or_overlaps_the_root_is_refused() -> None:
    world, copy = World(), MemoryStore()
    world.manager.backup(copy.url)
    with pytest.raises(IllegalState, match=r"holds a complete backup, .* pass update=True"):
        world.manager.backup(copy.url)
    full = MemoryStore()
    full.put("some/file", b"1")
    with pytest.raises(IllegalState, match="is not empty"):
        world.manager.backup(full.url)
    for inside in (world.store.url, f"{world.store.url}/below"):
        with pytest.raises(InvalidInput, match="overlap"):
            world.manager.backup(inside)
    half = MemoryStore()
    with at_failpoint("backup.pinned", kill), pytest.raises(Killed):
        world.manager.backup(half.url)
    with pytest.raises(IllegalState, match="holds an incomplete backup of"):
        World().manager.backup(half.url)


def test_stream_deleted_during_its_backup_is_deleted_in_the_copy() -> None:
    world, copy = World(), MemoryStore()

    def delete_when_copied() -> None:
        if held_pins(world.stream.log):  # else the backup is at another table
            failpoints.register("backup.file", None)
            world.manager.seal_stream("s/t")
            world.manager.delete_stream("s/t")

    failpoints.register("backup.file", delete_when_copied)
    try:
        done = world.manager.backup(copy.url)
    finally:
        failpoints.register("backup.file", None)
    assert done.versions == {}
    opened = manager_of(copy)
    assert not opened.stream_exists("s/t")
    assert opened.list_streams("s") == []
    assert opened.create_stream("s/t")


@pytest.mark.parametrize("is_swept", [False, True])
@pytest.mark.parametrize("point", ["backup.pinned", "backup.file", "backup.files", "backup.log"])
def test_stream_created_again_during_its_backup_is_copied_in_its_old_or_its_new_life(
    point: str, is_swept: bool
) -> None:
    world, copy = World(), MemoryStore()

    def create_again() -> None:
        failpoints.register(point, None)
        world.manager.seal_stream("s/t")
        world.manager.delete_stream("s/t")
        if is_swept:
            sweep_deleted(world)
        world.manager.create_stream("s/t")
        write(world.stream, [(None, b"new")])

    with at_failpoint(point, create_again):
        done = world.manager.backup(copy.url, "s/t")
    is_old = point == "backup.log" or (point == "backup.files" and not is_swept)
    view = stream_of(copy).view()
    assert (view.life == 1) is is_old
    assert events_in(copy) == (numbers(10) if is_old else [b"new"])
    assert done.versions["s/t"] == view.version - 1
    assert not held_pins(world.stream.log)


def test_deleted_stream_whose_log_is_cut_during_its_backup_is_copied() -> None:
    world, copy = World(), MemoryStore()
    world.manager.seal_stream("s/t")
    world.manager.delete_stream("s/t")
    world.runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    log = stream_of(world.store).log

    def sweep() -> None:
        failpoints.register("backup.files", None)
        sweep_deleted(world)

    failpoints.register("backup.files", sweep)
    try:
        done = copier_to(copy, world).copy(log)
    finally:
        failpoints.register("backup.files", None)
    assert done.is_deleted
    assert versions(log) == [0, done.version]
    snapshot = stream_of(copy).log.refresh()
    assert snapshot is not None
    assert snapshot.version == done.version + 1  # its last commit says of what it is a copy


def test_error_of_a_backup_whose_pin_expired_names_the_pin() -> None:
    world = World()

    def outlast_the_pin() -> None:
        world.runtime.sleep(7_200)
        world.manager.truncate_stream("s/t", "latest")
        sweep_all(world)

    with (
        at_failpoint("backup.file", outlast_the_pin),
        pytest.raises(IllegalState, match=r"s/t/events: the pin of version 5 expired after 3600 s"),
    ):
        world.manager.backup(MemoryStore().url, "s/t", keep="1h")


def test_damage_ends_a_backup_even_of_a_deleted_stream() -> None:
    world = World()
    world.manager.seal_stream("s/t")
    world.manager.delete_stream("s/t")
    log = stream_of(world.store).log
    head = log.refresh()
    assert head is not None
    world.store.delete([log.reader.key(head.version)])
    with pytest.raises(CorruptLog):
        copier_to(MemoryStore(), world).copy(log)


def test_a_file_of_the_source_that_was_cut_ends_the_backup_with_its_name() -> None:
    world = World()
    (cut, *_) = [e for e in world.store.list("s/t/events/data") if e.key.endswith(".parquet")]
    world.store.put(cut.key, world.store.get(cut.key)[:-1])
    with pytest.raises(DataLoss, match=f"{cut.key.rpartition('/')[2]} has {cut.size - 1} bytes"):
        copier_to(MemoryStore(), world).copy(world.stream.log)


def test_run_releases_only_its_own_pin() -> None:
    log = World().stream.log
    first = pin(log, "same", keep_ms=HOUR_MS)
    second = pin(log, "same", keep_ms=HOUR_MS)
    release(log, first)
    assert held_pins(log) == [second]
    release(log, second)
    assert held_pins(log) == []


VISITS = [
    ("backup.pinned", 1),
    ("backup.pinned", 3),
    ("backup.file", 4),
    ("backup.files", 3),
    ("backup.log", 2),
    ("backup.log", 3),
    ("backup.table", 1),
    ("backup.table", 3),
    ("backup.marker", 1),
]


@pytest.mark.parametrize(("point", "nth"), VISITS)
def test_copy_of_a_backup_killed_anywhere_is_refused_until_a_repetition_finishes_it(
    point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, copy = World(commits=8), MemoryStore()
    checkpoint.maintain(world.stream.log.reader, 5, checkpoint=True)
    world.manager.create_reader_group("s/g", ["s/t"])
    with monkeypatch.context() as patched:
        patched.setattr("pravega_spark.backup.copy.release", lambda *_: None)
        failpoints.register(point, kill_at_visit(nth))
        try:
            with pytest.raises(Killed):
                world.manager.backup(copy.url)
        finally:
            failpoints.register(point, None)
    with pytest.raises(
        StoreRefused, match=r"incomplete copy .*repeat the backup, or open .*restore\(\)"
    ):
        manager_of(copy).create_scope("other")
    world.grow(3)
    done = world.manager.backup(copy.url)
    assert events_in(copy) == numbers(22)
    assert done.files == len(copy.list("s/t/events/data")) + 2
    assert not held_pins(stream_of(copy).log)
    assert not held_pins(world.stream.log)
    assert manager_of(copy).reader_group("s/g").configuration.streams.keys() == {"s/t"}


def test_incomplete_copy_of_a_table_is_refused_even_without_the_root_marker() -> None:
    world, copy = World(commits=8), MemoryStore()
    with at_failpoint("backup.log", kill), pytest.raises(Killed):
        world.manager.backup(copy.url, "s/t")
    with pytest.raises(StoreRefused, match="is an incomplete copy"):
        manager_of(copy).tail("s/t")
    copy.delete([MARKER_KEY])
    with pytest.raises(CorruptLog, match="version 0 of the log is missing"):
        manager_of(reopen(copy)).tail("s/t")


def test_run_whose_target_another_run_took_over_ends_and_harms_nothing() -> None:
    world, copy = World(), MemoryStore()

    def other_run() -> None:
        failpoints.register("backup.log", None)
        world.grow(1)
        manager_of(world.store, world.runtime).backup(copy.url)

    with (
        at_failpoint("backup.log", other_run),
        pytest.raises(TooBusy, match="another run has taken over the backup"),
    ):
        world.manager.backup(copy.url)
    assert events_in(copy) == numbers(12)


def test_writer_with_an_id_continues_in_the_copy() -> None:
    world, copy = World(commits=0), MemoryStore()
    with world.manager.create_writer("s/t", "bank") as writer:
        writer.write_events([b"1", b"2"])
    world.manager.backup(copy.url)
    with manager_of(copy).create_writer("s/t", "bank") as writer:
        assert writer.last_event_number == 2


@pytest.mark.medium
def test_copy_of_many_chunks_after_a_clean_up_of_the_log() -> None:
    world, copy = World(commits=0), MemoryStore()
    for _ in range(600):
        world.grow(1)
    clean(world.stream.log, world.runtime, 400)
    world.manager.backup(copy.url, "s/t")
    opened = stream_of(copy)
    assert len(all_events(opened)) == 1_200
    sweep_stream(opened, grace_ms=0, retain_ms=0, completed_ms=0)
    assert len(all_events(stream_of(copy))) == 1_200


@pytest.mark.parametrize("point", ["backup.files", "backup.log", "backup.table", "backup.marker"])
def test_copy_of_an_earlier_root_at_the_same_url_is_not_completed(point: str) -> None:
    world, copy = World(commits=20), MemoryStore()
    with at_failpoint(point, kill), pytest.raises(Killed):
        world.manager.backup(copy.url, "s/t")
    world.store.delete([entry.key for entry in world.store.list("")])
    again = World(30, reopen(world.store))
    if point == "backup.files":  # it holds files alone, which the new root does not name
        again.manager.backup(copy.url, "s/t")
        assert events_in(copy) == numbers(60)
        return
    with pytest.raises(IllegalState, match="s/t/events is another table than the one that was"):
        again.manager.backup(copy.url, "s/t")


def test_files_of_a_stream_that_the_source_has_lost_are_deleted_and_no_files_of_others() -> None:
    world, copy = World(), MemoryStore()
    world.manager.create_stream("s/a")
    with world.manager.create_writer("s/a") as writer:
        writer.write_event(b"x").result()
    with at_each_visit("backup.files", kill_at_visit(2)), pytest.raises(Killed):
        world.manager.backup(copy.url)
    assert copy.list("s/a/events/data")
    foreign = ("readme.txt", "photos/may/1.jpg", "s/notes.txt", "s/a/data/notes.txt")
    for key in foreign:
        copy.put(key, b"own")
    world.store.delete([entry.key for entry in world.store.list("s/a")])
    assert manager_of(world.store).backup(copy.url).missing == ("s/a",)
    assert copy.list("s/a/events") == []
    assert [copy.get(key) for key in foreign] == [b"own"] * 4


def test_copy_of_a_part_of_a_table_that_the_source_has_lost_is_not_completed() -> None:
    world, copy = World(), MemoryStore()
    world.manager.create_stream("s/a")
    with at_each_visit("backup.log", kill_at_visit(2)), pytest.raises(Killed):
        world.manager.backup(copy.url)
    world.store.delete([entry.key for entry in world.store.list("s/a")])
    with pytest.raises(IllegalState, match=r"s/a/events holds a part of a table that the source"):
        manager_of(world.store).backup(copy.url)


@pytest.mark.parametrize("made", ["nothing", "no scope", "no marker"])
def test_backup_of_an_empty_or_unmarked_root_is_refused(made: str) -> None:
    source, copy = MemoryStore(), MemoryStore()
    manager = manager_of(source)
    if made != "nothing":
        manager.create_scope("s")
    if made == "no scope":
        manager.delete_scope("s")
    if made == "no marker":
        source.delete([MARKER_KEY])
        manager = manager_of(reopen(source))
    with pytest.raises(NoSuchScope, match="nothing was copied"):
        manager.backup(copy.url)
    assert copy.list("") == []


def holders(manager: StreamManager, stream: str = "s/t") -> list[str]:
    return [subscriber.name for subscriber in manager.list_subscribers(stream)]


def test_group_that_is_not_copied_holds_nothing_in_the_copy_and_is_reported() -> None:
    world = World()
    world.manager.create_scope("other")
    for group in ("s/g", "other/g", "other/gone"):
        world.manager.create_reader_group(group, ["s/t"], retention="automatic")
    world.manager.delete_reader_group("other/gone")
    stream, scope, root = MemoryStore(), MemoryStore(), MemoryStore()
    lone = world.manager.backup(stream.url, "s/t")
    half = world.manager.backup(scope.url, "s")
    full = world.manager.backup(root.url)
    assert lone.subscribers == {"s/t": ("other/g", "s/g")}
    assert half.subscribers == {"s/t": ("other/g",)}
    assert full.subscribers == {}
    copies = [manager_of(store) for store in (stream, scope, root)]
    assert [holders(copy) for copy in copies] == [[], ["s/g"], ["other/g", "s/g"]]
    assert holders(world.manager) == ["other/g", "s/g"]
    assert copies[0].truncate_stream("s/t", "latest")
    for copy in copies:  # the source's generations do not stop a new group
        copy.create_scope("other")
        copy.create_reader_group("other/gone", ["s/t"], retention="automatic")
        assert "other/gone" in holders(copy)


def test_groups_of_all_scopes_are_copied_before_any_stream() -> None:
    world = World()
    world.manager.create_scope("z")
    world.manager.create_reader_group("z/g", ["s/t"])
    paths = [table.path for table in world.manager.backup(MemoryStore().url).tables]
    assert paths.index("z/_reader_groups/g") < paths.index("s/t/events")


def test_target_with_only_hidden_files_counts_as_empty(tmp_path: Path) -> None:
    world = World()
    (tmp_path / ".DS_Store").touch()
    world.manager.backup(tmp_path)
    assert StreamManager(tmp_path).list_streams("s") == ["s/t"]


@pytest.mark.parametrize("target", [None, 5, b"x", "\ud800"])
def test_error_names_a_target_that_is_no_path(target: Any) -> None:
    with pytest.raises(InvalidInput, match=r"root.*got|is not a valid root") as raised:
        World().manager.backup(target)
    assert repr(target) in str(raised.value)


@pytest.mark.parametrize("name", [None, 5, b"s"])
def test_error_names_a_name_that_is_no_text(name: Any) -> None:
    copy = MemoryStore()
    with pytest.raises(InvalidInput, match=f"a backup is of a scope.*got {name!r}"):
        World().manager.backup(copy.url, name)
    assert copy.list("") == []


@pytest.mark.parametrize("name", ["", "s", "s/t"])
def test_every_copy_has_the_settings_of_the_root(name: str) -> None:
    world, copy = World(), MemoryStore()
    world.manager.update_settings(grace="3 days", expire="30 days")
    world.manager.update_stream("s/t", settings={"retain": "5 days"})
    world.manager.backup(copy.url, name)
    opened = manager_of(copy)
    assert opened.settings() == world.manager.settings()
    assert opened.stream_settings("s/t").text("retain") == "5 days"
    opened.update_settings(grace="2 days")
    assert world.manager.settings().text("grace") == "3 days"


@pytest.mark.parametrize("name", ["", "s", "s/t"])
def test_copy_does_not_maintain_itself(name: str) -> None:
    world, copy = World(), MemoryStore()
    world.manager.update_settings(maintain="auto", grace="3 days")
    with at_failpoint("backup.marker", kill), pytest.raises(Killed):
        world.manager.backup(copy.url, name)
    world.manager.backup(copy.url, name)
    settings = manager_of(copy).settings()
    assert settings.summary() == "grace=3 days (root)"
    assert world.manager.settings().maintain == "auto"
    assert manager_of(copy).update_settings(maintain="auto").maintain == "auto"


def test_damaged_setting_is_copied_as_it_is() -> None:
    world, copy = World(), MemoryStore()
    world.manager.update_settings(maintain="auto")
    damaged = {"name": "grace", "value": "-1"}
    SettingsTable(world.store, world.runtime).table.change(
        lambda state: (TableChange("DAMAGE", {**state.rows, "grace": damaged}), None)
    )
    world.manager.backup(copy.url)
    with pytest.raises(CorruptLog, match="grace"):
        manager_of(copy).settings()
    assert manager_of(copy).update_settings(grace="3 days").summary() == "grace=3 days (root)"


def test_copy_without_settings_has_none() -> None:
    world, copy = World(), MemoryStore()
    done = world.manager.backup(copy.url)
    assert "_settings" not in {table.path for table in done.tables}
    assert manager_of(copy).settings() == world.manager.settings()


@pytest.mark.parametrize("name", ["", "s"])
def test_a_backup_that_is_run_again_removes_what_was_deleted_since(name: str) -> None:
    world, copy = World(), MemoryStore()
    source = world.manager
    source.create_stream("s/gone")
    source.create_key_value_table("s/gone", KeyValueTableConfiguration("string"))
    source.create_reader_group("s/gone", ["s/t"])
    if not name:
        source.create_scope("gone")
        source.create_stream("gone/t")
    with at_failpoint("backup.marker", kill), pytest.raises(Killed):
        source.backup(copy.url, name)
    source.delete_reader_group("s/gone")
    source.seal_stream("s/gone")
    source.delete_stream("s/gone")
    source.delete_key_value_table("s/gone")
    if not name:
        source.delete_scope("gone", recursive=True)
    done = source.backup(copy.url, name)
    assert done.versions.keys() == {"s/t"}
    assert [e.key for e in copy.list("") if "gone/events/data" in e.key] == []
    for _ in range(2):
        opened = manager_of(copy)
        assert opened.list_scopes() == ["s"]
        assert opened.list_streams("s") == ["s/t"]
        assert opened.list_key_value_tables("s") == opened.list_reader_groups("s") == []
        assert not opened.stream_exists("s/gone")
        assert events_in(copy) == numbers(10)
        opened.restore()


def test_a_backup_that_is_run_again_copies_a_file_again_that_was_cut() -> None:
    world, copy = World(), MemoryStore()
    with at_failpoint("backup.marker", kill), pytest.raises(Killed):
        world.manager.backup(copy.url)
    (cut, *_) = [e.key for e in copy.list("s/t/events/data") if e.key.endswith(".parquet")]
    copy.put(cut, copy.get(cut)[:-1])
    world.manager.backup(copy.url)
    assert copy.get(cut) == world.store.get(cut)
    assert events_in(copy) == numbers(10)


def test_a_backup_of_one_stream_that_is_run_again_keeps_its_scope() -> None:
    world, copy = World(), MemoryStore()
    with at_failpoint("backup.marker", kill), pytest.raises(Killed):
        world.manager.backup(copy.url, "s/t")
    world.manager.backup(copy.url, "s/t")
    assert manager_of(copy).list_streams("s") == ["s/t"]
    assert events_in(copy) == numbers(10)


def test_a_copy_has_no_archived_record_that_is_newer_than_its_version() -> None:
    world, copy = World(0), MemoryStore()

    def written_and_archived(last: int, note: str) -> None:
        known = open_session(world.stream, 1, "w")
        batch = SessionBatch("w", known.session, known.last, last, note)
        write(world.stream, [(None, b"w")], batch)
        for _ in range(2):
            write(world.stream, [(None, b"x")])
            world.runtime.sleep(10 * 3_600)
        write(world.stream, [(None, b"x")])
        world.manager.sweep_stream("s/t", grace="1 h", retain="1 h", keep_records="1 h")
        assert world.stream.view().writer("w") is None

    written_and_archived(1, "first")
    with at_failpoint("backup.files", lambda: written_and_archived(5, "later")):
        world.manager.backup(copy.url, "s/t", keep="30 days")
    found = open_session(stream_of(copy), 1, "w")
    assert (found.last, found.note) == (1, "first")
    assert events_in(copy).count(b"w") == 1
