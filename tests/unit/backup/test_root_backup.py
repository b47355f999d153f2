"""Backups: what is copied, while everybody goes on, and what a copy is good for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.backup.table_copy import copy_table
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.log.version_pins import pin, pins, release, release_expired
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.stream.stream_sweep import sweep_deleted_stream, sweep_stream
from pravega_spark.errors import (
    CorruptLog,
    DataLoss,
    IllegalState,
    InvalidInput,
    InvalidName,
    NoSuchScope,
    NoSuchStream,
    StoreRefused,
    TxnFailed,
)
from pravega_spark.limits import CLEANUP_WAIT_SECONDS
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamCut
from tests.harness import failpoints
from tests.harness.backup_world import World, manager_of, stream_of
from tests.harness.engine import all_events, clean, scale, versions, write
from tests.harness.failpoints import at_failpoint

HOUR_MS = 3_600_000


def events(store: Store, stream: str = "s/t") -> list[bytes]:
    return [event for _, event in all_events(stream_of(store, stream))]


def opened_again(store: MemoryStore) -> MemoryStore:
    """Return a store of the same objects, as whoever opens the URL now gets it."""
    return MemoryStore.named(store.url.removeprefix("memory://"))


def numbers(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def sweep_all(world: World) -> None:
    """Sweep with no patience at all, as often as it takes for everything to be deleted."""
    sweep_all_of(world.store, world)


def sweep_all_of(store: Store, world: World) -> None:
    for _ in range(3):
        sweep_stream(
            stream_of(store, runtime=world.runtime), grace_ms=0, retain_ms=0, completed_ms=0
        )
        world.runtime.sleep(CLEANUP_WAIT_SECONDS + 1)


def sweep_the_deleted(world: World) -> None:
    """Sweep a deleted stream down to the newest version of its log."""
    for _ in range(2):
        stream = stream_of(world.store, runtime=world.runtime)
        sweep_deleted_stream(stream, grace_ms=0, retain_ms=0, now=VersionAges.read(stream.log).now)
        world.runtime.sleep(CLEANUP_WAIT_SECONDS + 1)


def test_a_copy_is_a_root_of_its_own_with_streams_groups_and_tags() -> None:
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
    assert done.versions["s/t"] == world.stream.view().version - 2  # pinned, and released
    assert (done.files, done.transactions) == (6, {})  # the stream's, rows of scope and group
    assert opened.stream_info("s/sealed").state == "SEALED"
    with opened.create_writer("s/t") as writer:
        writer.write_event(b"new")
    assert events(copy)[-1] == b"new"
    assert list(pins(world.stream.log.refresh())) == []  # type: ignore[arg-type]
    assert opened.create_scope("other")


def test_an_event_that_is_written_during_a_backup_is_there_or_comes_after_it() -> None:
    world, copy = World(), MemoryStore()
    for place in ("backup.pinned", "backup.file", "backup.files", "backup.log"):
        with at_failpoint(place, lambda: world.grow(2)) as reached:
            world.manager.backup(MemoryStore().url, "s/t")
        assert reached.hits
    with at_failpoint("backup.files", lambda: scale(world.stream, [0], [(0, 0.5), (0.5, 1)])):
        done = world.manager.backup(copy.url, "s/t")
    copied = events(copy)
    assert copied == numbers(10 + 4 * 4)
    assert stream_of(copy).view().version == done.versions["s/t"] + 1
    assert stream_of(copy).view().active.number == 0


def test_sweeps_delete_nothing_that_a_backup_is_copying() -> None:
    world, copy = World(commits=40), MemoryStore()
    clean(world.stream.log, world.runtime, 20)

    def hurry() -> None:
        world.manager.truncate_stream("s/t", "latest")
        world.grow(3)
        sweep_all(world)

    with at_failpoint("backup.file", hurry) as reached:
        world.manager.backup(copy.url, "s/t")
    assert reached.hits
    assert events(copy) == numbers(80)
    sweep_all(world)
    assert len(world.store.list("s/t/events/data")) == 3


@pytest.mark.parametrize("place", ["backup.pinned", "backup.file", "backup.files"])
def test_a_sweep_keeps_the_commits_that_a_backup_is_copying(place: str) -> None:
    world, copy = World(commits=20), MemoryStore()
    log = world.stream.log
    clean(log, world.runtime, 5)
    world.grow(10)

    def clean_up() -> None:
        """Let two checkpoints lie below the pinned version, and one above it."""
        world.grow(1)
        checkpointing.maintain(log.reader, world.stream.view().version, checkpoint=True)
        sweep_all(world)

    with at_failpoint(place, clean_up) as reached:
        world.manager.backup(copy.url, "s/t")
    assert reached.hits
    assert events(copy) == numbers(60)
    copied = versions(stream_of(copy).log)
    assert copied == [0, *range(5, copied[-1] + 1)]
    assert versions(log)[:2] == [0, 5]
    sweep_all(world)
    assert versions(log)[1] > 5
    sweep_all_of(copy, world)
    assert events(copy) == numbers(60)


def test_without_the_pin_the_same_sweeps_make_the_backup_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("garbage", "sweep"):
        monkeypatch.setattr(f"pravega_spark.engine.log.{module}.is_pinned", lambda snapshot: False)
    world = World(commits=10)

    def hurry() -> None:
        world.manager.truncate_stream("s/t", "latest")
        sweep_all(world)

    with at_failpoint("backup.file", hurry), pytest.raises(DataLoss, match="cannot be backed up"):
        world.manager.backup(MemoryStore().url, "s/t")


def test_a_pin_of_a_backup_that_died_expires_late_and_not_early() -> None:
    world = World()
    log = world.stream.log
    pin(log, "dead", keep_ms=24 * HOUR_MS)
    world.manager.truncate_stream("s/t", "latest")
    sweep_all(world)
    snapshot = log.refresh()
    assert snapshot is not None
    assert snapshot.cleanup == 0
    assert len(world.store.list("s/t/events/data")) == 5
    world.runtime.sleep(12 * 3_600)
    clock, now_ms = world.store._clock_ms, world.runtime.now_ms()  # type: ignore[attr-defined]
    world.store._clock_ms = lambda: now_ms  # type: ignore[attr-defined]
    world.runtime.sleep(24 * 3_600)
    release_expired(log, VersionAges.read(log))  # this host's clock is ahead of the storage's
    assert list(pins(log.refresh()))  # type: ignore[arg-type]
    world.store._clock_ms = clock  # type: ignore[attr-defined]
    sweep_all(world)
    assert not list(pins(log.refresh()))  # type: ignore[arg-type]
    assert world.store.list("s/t/events/data") == []


def test_a_pin_that_is_set_after_a_sweep_chose_its_mark_holds_the_mark() -> None:
    world = World(commits=20)
    log = world.stream.log
    clean(log, world.runtime, 5)
    with at_failpoint("sweep.history", lambda: pin(log, "late", keep_ms=10**12)) as reached:
        sweep_all(world)
    assert reached.hits
    assert log.refresh().cleanup == 5  # type: ignore[union-attr]


def test_an_idle_table_is_left_alone_while_a_version_of_it_is_pinned() -> None:
    world = World()
    clean(world.stream.log, world.runtime, 2)
    pin(world.stream.log, "dead", keep_ms=10**12)
    sweep_all(world)
    before = world.stream.view().version
    sweep_all(world)
    assert world.stream.view().version == before


def test_open_transactions_are_aborted_in_the_copy_and_told() -> None:
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
    assert (len(events(world.store)), len(events(copy))) == (11, 10)


def test_one_scope_or_one_stream_can_be_copied() -> None:
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


def test_a_target_that_holds_anything_else_or_lies_in_the_root_is_refused() -> None:
    world, copy = World(), MemoryStore()
    world.manager.backup(copy.url)
    with pytest.raises(IllegalState, match="holds a root, or a backup that is whole"):
        world.manager.backup(copy.url)
    full = MemoryStore()
    full.put("some/file", b"1")
    with pytest.raises(IllegalState, match="is not empty"):
        world.manager.backup(full.url)
    for inside in (world.store.url, f"{world.store.url}/below"):
        with pytest.raises(InvalidInput, match="lie in each other"):
            world.manager.backup(inside)
    half = MemoryStore()
    with at_failpoint("backup.pinned", _die), pytest.raises(_Death):
        world.manager.backup(half.url)
    with pytest.raises(IllegalState, match=r"a backup of .* that is not whole"):
        World().manager.backup(half.url)


def test_a_stream_that_is_deleted_during_its_backup_is_deleted_in_the_copy() -> None:
    world, copy = World(), MemoryStore()

    def end() -> None:
        world.manager.seal_stream("s/t")
        world.manager.delete_stream("s/t")

    def when_at_the_stream() -> None:
        if any(pins(world.stream.log.refresh())):  # type: ignore[arg-type]
            failpoints.register("backup.file", None)
            end()

    failpoints.register("backup.file", when_at_the_stream)
    try:
        done = world.manager.backup(copy.url)
    finally:
        failpoints.register("backup.file", None)
    assert done.versions == {}
    opened = manager_of(copy)
    assert not opened.stream_exists("s/t")
    assert opened.list_streams("s") == []
    assert opened.create_stream("s/t")


PLACES_OF_END = ["backup.pinned", "backup.file", "backup.files", "backup.log"]


@pytest.mark.parametrize("is_swept", [False, True])
@pytest.mark.parametrize("place", PLACES_OF_END)
def test_a_stream_whose_life_ends_during_its_backup_is_copied_as_it_was_or_as_it_is(
    place: str, is_swept: bool
) -> None:
    world, copy = World(), MemoryStore()

    def end() -> None:
        failpoints.register(place, None)
        world.manager.seal_stream("s/t")
        world.manager.delete_stream("s/t")
        if is_swept:
            sweep_the_deleted(world)
        world.manager.create_stream("s/t")
        write(world.stream, [(None, b"new")])

    with at_failpoint(place, end):
        done = world.manager.backup(copy.url, "s/t")
    is_old = place == "backup.log" or (place == "backup.files" and not is_swept)
    view = stream_of(copy).view()
    assert view.life == (1 if is_old else 2)
    assert events(copy) == (numbers(10) if is_old else [b"new"])
    assert done.versions["s/t"] == view.version - 1
    assert not list(pins(world.stream.log.refresh()))  # type: ignore[arg-type]


def test_a_deleted_stream_whose_log_is_cut_during_its_backup_is_copied_all_the_same() -> None:
    world, copy = World(), MemoryStore()
    world.manager.seal_stream("s/t")
    world.manager.delete_stream("s/t")
    world.runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    log = stream_of(world.store).log

    def cut() -> None:
        failpoints.register("backup.files", None)
        sweep_the_deleted(world)

    failpoints.register("backup.files", cut)
    try:
        done = copy_table(log, copy, "b", keep_ms=HOUR_MS, check=lambda: None, has_group=bool)
    finally:
        failpoints.register("backup.files", None)
    assert done.is_deleted
    assert versions(log) == [0, done.version]
    assert stream_of(copy).log.refresh().version == done.version  # type: ignore[union-attr]


def test_a_pin_that_expires_while_the_backup_copies_is_what_its_error_tells() -> None:
    world = World()

    def dawdle() -> None:
        world.runtime.sleep(7_200)
        world.manager.truncate_stream("s/t", "latest")
        sweep_all(world)

    with (
        at_failpoint("backup.file", dawdle),
        pytest.raises(IllegalState, match=r"s/t/events: the pin of version 5 expired after 3600 s"),
    ):
        world.manager.backup(MemoryStore().url, "s/t", keep="1h")


def test_damage_ends_a_backup_also_of_a_deleted_stream() -> None:
    world = World()
    world.manager.seal_stream("s/t")
    world.manager.delete_stream("s/t")
    log = stream_of(world.store).log
    head = log.refresh()
    assert head is not None
    world.store.delete([log.reader.key(head.version)])
    with pytest.raises(CorruptLog):
        copy_table(log, MemoryStore(), "b", keep_ms=HOUR_MS, check=lambda: None, has_group=bool)


def test_a_run_releases_its_own_pin_and_not_that_of_the_run_that_took_its_target() -> None:
    log = World().stream.log
    first = pin(log, "same", keep_ms=HOUR_MS)
    second = pin(log, "same", keep_ms=HOUR_MS)
    release(log, first)
    assert list(pins(log.refresh())) == [second]  # type: ignore[arg-type]
    release(log, second)
    assert list(pins(log.refresh())) == []  # type: ignore[arg-type]


class _Death(BaseException):
    """Nothing handles it, as nothing handles a kill."""


def _die() -> None:
    raise _Death


PLACES = [
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


def dying(nth: int) -> Callable[[], None]:
    left = [nth]

    def die() -> None:
        left[0] -= 1
        if left[0] == 0:
            _die()

    return die


@pytest.mark.parametrize(("place", "nth"), PLACES)
def test_killed_anywhere_the_copy_does_not_open_and_a_repetition_finishes_it(
    place: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, copy = World(commits=8), MemoryStore()
    checkpointing.maintain(world.stream.log.reader, 5, checkpoint=True)
    world.manager.create_reader_group("s/g", ["s/t"])
    with monkeypatch.context() as patched:
        patched.setattr("pravega_spark.backup.table_copy.release", lambda *_: None)  # killed
        failpoints.register(place, dying(nth))
        try:
            with pytest.raises(_Death):
                world.manager.backup(copy.url)
        finally:
            failpoints.register(place, None)
    with pytest.raises(StoreRefused, match=r"not whole: repeat the backup, or open .*restore\(\)"):
        manager_of(copy).create_scope("other")
    world.grow(3)
    done = world.manager.backup(copy.url)
    assert events(copy) == numbers(22)
    assert done.files == len(copy.list("s/t/events/data")) + 2
    assert not list(pins(stream_of(copy).log.refresh()))  # type: ignore[arg-type]
    assert not list(pins(world.stream.log.refresh()))  # type: ignore[arg-type]
    assert manager_of(copy).reader_group("s/g").configuration.streams.keys() == {"s/t"}


def test_a_table_that_is_half_copied_is_refused_by_every_open() -> None:
    world, copy = World(commits=8), MemoryStore()
    with at_failpoint("backup.log", _die), pytest.raises(_Death):
        world.manager.backup(copy.url, "s/t")
    with pytest.raises(StoreRefused, match="is not whole"):
        manager_of(copy).tail("s/t")
    copy.delete([MARKER_KEY])
    with pytest.raises(CorruptLog, match="version 0 is missing"):
        manager_of(opened_again(copy)).tail("s/t")


def test_two_runs_to_one_target_do_not_mix() -> None:
    world, copy = World(), MemoryStore()

    def another() -> None:
        failpoints.register("backup.log", None)
        world.grow(1)
        manager_of(world.store, world.runtime).backup(copy.url)

    with (
        at_failpoint("backup.log", another),
        pytest.raises(IllegalState, match="another run has taken up the backup"),
    ):
        world.manager.backup(copy.url)
    assert events(copy) == numbers(12)


def test_a_writer_of_its_own_id_goes_on_in_the_copy() -> None:
    world, copy = World(commits=0), MemoryStore()
    with world.manager.create_writer("s/t", "bank") as writer:
        writer.write_events([b"1", b"2"])
    world.manager.backup(copy.url)
    with manager_of(copy).create_writer("s/t", "bank") as writer:
        assert writer.last_event_number == 2


def test_a_copy_of_many_chunks_whose_log_was_cleaned() -> None:
    world, copy = World(commits=0), MemoryStore()
    for _ in range(600):
        world.grow(1)
    clean(world.stream.log, world.runtime, 400)
    world.manager.backup(copy.url, "s/t")
    opened = stream_of(copy)
    assert len(all_events(opened)) == 1_200
    sweep_stream(opened, grace_ms=0, retain_ms=0, completed_ms=0)
    assert len(all_events(stream_of(copy))) == 1_200


def test_what_an_earlier_attempt_left_of_another_root_of_that_name_is_not_taken_over() -> None:
    world, copy = World(commits=20), MemoryStore()
    with at_failpoint("backup.log", _die), pytest.raises(_Death):
        world.manager.backup(copy.url, "s/t")
    world.store.delete([entry.key for entry in world.store.list("")])
    again = World.__new__(World)
    again.runtime, again.store = world.runtime, opened_again(world.store)
    again.manager = manager_of(again.store, world.runtime)
    again.manager.create_scope("s")
    again.manager.create_stream("s/t")
    again.manager.backup(copy.url, "s/t")
    assert events(copy) == []


@pytest.mark.parametrize("made", ["nothing", "no scope", "no marker"])
def test_what_is_no_root_gives_no_empty_backup(made: str) -> None:
    source, copy = MemoryStore(), MemoryStore()
    manager = manager_of(source)
    if made != "nothing":
        manager.create_scope("s")
    if made == "no scope":
        manager.delete_scope("s")
    if made == "no marker":
        source.delete([MARKER_KEY])
        manager = manager_of(opened_again(source))
    with pytest.raises(NoSuchScope, match="nothing was copied"):
        manager.backup(copy.url)
    assert copy.list("") == []


def held(manager: StreamManager, stream: str = "s/t") -> list[str]:
    return [subscriber.group for subscriber in manager.list_subscribers(stream)]


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
    assert [held(copy) for copy in copies] == [[], ["s/g"], ["other/g", "s/g"]]
    assert held(world.manager) == ["other/g", "s/g"]
    assert copies[0].truncate_stream("s/t", "latest")
    for copy in copies:  # no generation of the source is in the way of a group that begins here
        copy.create_scope("other")
        copy.create_reader_group("other/gone", ["s/t"], retention="automatic")
        assert "other/gone" in held(copy)


def test_groups_of_all_scopes_are_copied_before_any_stream() -> None:
    world = World()
    world.manager.create_scope("z")
    world.manager.create_reader_group("z/g", ["s/t"])
    paths = [table.path for table in world.manager.backup(MemoryStore().url).tables]
    assert paths.index("z/_reader_groups/g") < paths.index("s/t/events")


def test_hidden_files_in_a_target_do_not_count(tmp_path: Path) -> None:
    world = World()
    (tmp_path / ".DS_Store").touch()
    world.manager.backup(tmp_path)
    assert StreamManager(tmp_path).list_streams("s") == ["s/t"]


@pytest.mark.parametrize("target", [None, 5, b"x", "\ud800"])
def test_target_that_is_no_path_is_named(target: Any) -> None:
    with pytest.raises(InvalidInput, match=r"root.*got|is no root") as raised:
        World().manager.backup(target)
    assert repr(target) in str(raised.value)


@pytest.mark.parametrize("name", [None, 5, b"s"])
def test_name_that_is_no_text_is_named(name: Any) -> None:
    copy = MemoryStore()
    with pytest.raises(InvalidInput, match=f"a backup is of a scope.*got {name!r}"):
        World().manager.backup(copy.url, name)
    assert copy.list("") == []
