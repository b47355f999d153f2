"""What a root says of maintenance when it is set up, marked again, restored or copied."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.config.root_settings import SettingOrigin
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.state.maintenance_table import JOB, MaintenanceTable, entry_of
from pravega_spark.engine.state.settings_table import SettingsTable
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.root_marker import MARKER_KEY
from pravega_spark.engine.stream.overdue_maintenance import DEFAULT_KINDS
from pravega_spark.errors import InvalidConfiguration, StoreReadOnly
from pravega_spark.maintenance import shares as shares_module
from pravega_spark.maintenance.auto import VARIABLE
from pravega_spark.maintenance.shares import MaintenanceShares
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.values.limits import AUTO_WAKE_SECONDS
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy

KEPT = StreamConfiguration(retention=RetentionPolicy.by_size(1))
SCALED = StreamConfiguration(scaling=ScalingPolicy.by_event_rate(2, 4, 1))
RETENTION, SWEEPING = MaintenanceKind.RETENTION, MaintenanceKind.SWEEPING


@pytest.fixture(autouse=True)
def real_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)


def said(manager: StreamManager) -> tuple[str, str]:
    settings = manager.settings()
    return settings.maintain, settings.origin("maintain").value


def shares_of(store: Store, clock: FakeRuntime) -> MaintenanceShares:
    made = MaintenanceShares(store, clock, is_asked=lambda: False)
    made._record.table.log.maintain = None
    return made


def wake_until_idle(shares: MaintenanceShares, clock: FakeRuntime) -> None:
    while (pause := shares.wake_up()) < AUTO_WAKE_SECONDS / 2:
        clock.sleep(pause)


def kinds_done(store: Store, clock: FakeRuntime) -> set[MaintenanceKind]:
    entries = MaintenanceTable(store, clock).entries().values()
    return {entry.kind for entry in entries if entry.last is not None}


# ---------------------------------------------------------------------------------- at the set-up


def test_a_new_root_says_auto_and_nobody_has_chosen_it(store: Spy) -> None:
    manager = manager_over(store)
    manager.create_scope("s")
    assert said(manager) == ("auto", "set-up")
    assert manager.settings().summary() == "", "nobody gave anything"
    manager.create_scope("t")
    assert len(store.list("_settings/_delta_log")) == 1


def test_a_setting_before_the_first_scope_sets_the_root_up_too(store: Spy) -> None:
    manager = manager_over(store)
    manager.update_settings(grace="2 hours")
    assert said(manager) == ("auto", "set-up"), "another setting is no choice of this one"
    other = manager_over(Spy(MemoryStore()))
    other.update_settings(maintain="off")
    other.create_scope("s")
    assert said(other) == ("off", "root")


@pytest.mark.parametrize("choice", ["auto", "off", None])
def test_a_choice_stays_and_counts_as_one(store: Spy, choice: str | None) -> None:
    manager = manager_over(store)
    manager.create_scope("s")
    manager.update_settings(maintain=choice)
    manager.create_scope("t")
    assert said(manager) == ((choice or "off"), "root" if choice else "default")


def test_a_set_up_that_was_killed_is_done_by_the_next(store: Spy) -> None:
    with at_failpoint("root.set_up", kill), pytest.raises(Killed):
        manager_over(store).create_scope("s")
    assert store.exists(MARKER_KEY)
    assert not manager_over(store).scope_exists("s")
    manager_over(store).create_scope("s")
    assert said(manager_over(store)) == ("auto", "set-up")


def test_of_two_that_set_up_a_root_the_slower_one_changes_nothing(
    store: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = manager_over(store), manager_over(store)
    set_up = SettingsTable.set_up

    def late(table: SettingsTable, name: str, value: Any) -> None:
        monkeypatch.setattr(SettingsTable, "set_up", set_up)
        quick.create_scope("s")
        quick.update_settings(maintain=None)
        set_up(table, name, value)

    monkeypatch.setattr(SettingsTable, "set_up", late)
    assert not slow.create_scope("s")
    assert said(slow) == said(quick) == ("off", "default")


def test_a_root_whose_lost_marker_is_written_again_stays_as_it_was(
    store: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "off")  # as an earlier version
        manager_over(store).create_scope("s")
    store.delete([MARKER_KEY])
    manager = manager_over(Spy(store.inner))
    manager.create_scope("t")
    assert store.exists(MARKER_KEY)
    assert said(manager) == ("off", "default")


def test_a_deleted_scope_is_a_scope_that_the_root_has_had(
    store: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "off")
        manager_over(store).create_scope("s")
        manager_over(store).delete_scope("s")
    manager_over(store).create_scope("t")
    assert said(manager_over(store)) == ("off", "default")


# ------------------------------------------------------------------------------ copies, restores


def copied(root: Path, to: Path) -> StreamManager:
    shutil.copytree(root, to)
    return StreamManager(to, maintain="off")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path / "root", maintain="off")
    manager.create_scope("s")
    manager.create_stream("s/t", KEPT)
    with manager.create_writer("s/t") as writer:
        writer.write_events([b"first", b"last"], routing_key="k")
    return tmp_path / "root"


@pytest.mark.parametrize("restore", [StreamManager.restore, lambda m: m.restore_stream("s/t")])
def test_a_restored_root_is_off_until_somebody_says_otherwise(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, restore: Callable[[Any], object]
) -> None:
    copy = copied(root, tmp_path / "copy")
    assert said(copy) == ("auto", "set-up"), "a copy by other means behaves as its original"
    restore(copy)
    assert said(copy) == ("off", "root")
    assert "was restored, so the applications that use it do not maintain it" in caplog.text
    copy.create_scope("new")
    assert said(copy) == ("off", "root")
    copy.update_settings(maintain="auto")
    assert said(copy) == ("auto", "root")


def test_a_restore_that_is_killed_before_its_end_has_turned_maintenance_off(
    root: Path, tmp_path: Path
) -> None:
    copy = copied(root, tmp_path / "copy")
    with at_failpoint("restore.marker", kill), pytest.raises(Killed):
        copy.restore()
    assert said(StreamManager(tmp_path / "copy", maintain="off")) == ("off", "root")


def test_a_backup_takes_neither_the_setting_nor_that_nobody_chose_it(
    root: Path, tmp_path: Path
) -> None:
    source = StreamManager(root, maintain="off")
    source.backup(tmp_path / "copy")
    source.backup(tmp_path / "copy", update=True)
    copy = StreamManager(tmp_path / "copy", maintain="off")
    assert said(copy) == ("off", "default")
    copy.create_scope("new")
    copy.update_settings(maintain="auto")
    assert said(copy) == ("auto", "root"), "who gives it in the copy chooses it"


# ----------------------------------------------------------------------------- what is done of it


def test_by_the_set_up_all_kinds_but_compaction_are_done(store: Spy, clock: FakeRuntime) -> None:
    manager = manager_over(store, clock)
    manager.create_scope("s")
    manager.create_stream("s/t", KEPT)
    shares = shares_of(store, clock)
    wake_until_idle(shares, clock)
    assert kinds_done(store, clock) == set(DEFAULT_KINDS)
    assert {*MaintenanceKind} - {*DEFAULT_KINDS} == {MaintenanceKind.COMPACTION}
    manager.update_settings(maintain="auto")
    clock.sleep(301)
    wake_until_idle(shares, clock)
    assert kinds_done(store, clock) == set(MaintenanceKind)


def test_a_stream_that_is_off_is_left_to_jobs(store: Spy, clock: FakeRuntime) -> None:
    manager = manager_over(store, clock)
    manager.create_scope("s")
    off = StreamConfiguration(retention=RetentionPolicy.by_size(1), settings={"maintain": "off"})
    for name, configuration in (("s/off", off), ("s/on", KEPT)):
        manager.create_stream(name, configuration)
        with manager.create_writer(name) as writer:
            for data in (b"first", b"last"):
                writer.write_event(data, "k").result()
    wake_until_idle(shares_of(store, clock), clock)
    events = [[e.data for e in manager.read(name)] for name in ("s/off", "s/on")]
    assert events == [[b"first", b"last"], [b"last"]]
    manager.maintain()
    assert [e.data for e in manager.read("s/off")] == [b"last"], "no hint said that it was done"
    manager.update_stream("s/off", settings={"maintain": None})
    with manager.create_writer("s/off") as writer:
        for data in (b"third", b"fourth"):
            writer.write_event(data, "k").result()
    clock.sleep(2 * 3_600)
    wake_until_idle(shares_of(store, clock), clock)
    assert [e.data for e in manager.read("s/off")] == [b"fourth"]
    with pytest.raises(InvalidConfiguration, match="maintain must be 'off', got 'auto'"):
        manager.update_stream("s/on", settings={"maintain": "auto"})


def no_right(store: Spy, *operations: str) -> None:
    def refuse(operation: str, key: str) -> None:
        if operation in operations:
            raise StoreReadOnly(f"{operation} of {key} is not allowed")

    store.hook = refuse


def test_without_the_right_to_write_it_says_so_once_and_writes_nothing(
    store: Spy, clock: FakeRuntime
) -> None:
    manager_over(store, clock).create_scope("s")
    reader = Spy(store.inner)
    no_right(reader, "put", "put_if_absent", "delete")
    with pytest.raises(StoreReadOnly):  # which ends the thread, with a line at INFO
        shares_of(reader, clock).wake_up()
    assert store.list("_maintenance") == []


def test_without_the_right_to_delete_sweeps_are_left_to_others(
    store: Spy, clock: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    manager = manager_over(store, clock)
    manager.update_settings(retain="0 s", grace="1 minute")
    manager.create_scope("s")
    manager.create_stream("s/t", KEPT)
    with manager.create_writer("s/t") as writer:
        for data in (b"first", b"last"):
            writer.write_event(data, "k").result()
    manager.truncate_stream("s/t", manager.tail("s/t"))
    clock.sleep(3_600)
    humble = Spy(store.inner)
    no_right(humble, "delete")
    shares = shares_of(humble, clock)
    wake_until_idle(shares, clock)
    clock.sleep(3_600)
    wake_until_idle(shares, clock)
    entry = entry_of(MaintenanceTable(store, clock).entries(), SWEEPING)
    assert (entry.claim, entry.last, entry.progress) == (None, None, None)
    assert kinds_done(store, clock) == {*DEFAULT_KINDS} - {SWEEPING}
    told = [r for r in caplog.records if "having no right to it" in r.getMessage()]
    assert [(r.levelno, "sweeping" in r.getMessage()) for r in told] == [(logging.INFO, True)]
    assert not [r for r in caplog.records if r.levelno > logging.INFO]
    wake_until_idle(shares_of(store, clock), clock)
    assert kinds_done(store, clock) == set(DEFAULT_KINDS), "another process is not kept from it"


def test_a_half_made_group_that_cannot_be_repaired_is_a_failure_of_the_run(
    store: Spy, clock: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager_over(store, clock).create_scope("s")
    found = {"s/g": "CorruptLog: its log is lost"}
    monkeypatch.setattr(shares_module, "repair_changing_groups", lambda *_: found)
    wake_until_idle(shares_of(store, clock), clock)
    run = entry_of(MaintenanceTable(store, clock).entries(), RETENTION).last
    assert run is not None
    assert (run.failed, dict(run.failures)) == (1, {"reader group s/g": found["s/g"]})


# ------------------------------------------------------------------------------- what nobody does


@pytest.fixture
def store_now() -> Spy:
    """Dated by the system's clock, as are managers without a runtime of the test."""
    return Spy(MemoryStore(clock_ms=SYSTEM.now_ms))


@pytest.fixture
def off(store_now: Spy) -> StreamManager:
    manager = manager_over(store_now)
    manager.create_scope("s")
    manager.update_settings(maintain="off")
    return manager


def test_a_policy_that_nobody_carries_out_is_said_when_it_is_given(
    off: StreamManager, caplog: pytest.LogCaptureFixture
) -> None:
    off.create_stream("s/plain")
    assert caplog.text == ""
    off.create_stream("s/kept", KEPT)
    off.create_stream("s/also", KEPT)
    off.create_stream("s/scaled", SCALED)
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(":")[0] for text in told] == [
        "the policy of stream s/kept has no effect",
        "the policy of stream s/scaled has no effect",
    ]
    assert "retention never ran" in told[0]
    assert "update_settings(maintain='auto')" in told[0]


def test_a_group_that_holds_data_says_that_nobody_truncates(
    off: StreamManager, caplog: pytest.LogCaptureFixture
) -> None:
    off.create_stream("s/t")
    off.create_reader_group("s/plain", ["s/t"])
    assert caplog.text == ""
    assert isinstance(
        off.create_reader_group("s/holds", ["s/t"], retention="automatic"), ReaderGroup
    )
    assert "the retention of reader group s/holds has no effect" in caplog.text


@pytest.mark.parametrize("by", ["setting", "job"])
def test_nothing_is_said_where_somebody_maintains(
    store_now: Spy, off: StreamManager, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    if by == "setting":
        off.update_settings(maintain="auto")
    else:
        record = MaintenanceTable(store_now)
        record.finish_now(RETENTION, ("s",), JOB, store_now.time_ms(), 1)
    off.create_stream("s/kept", KEPT)
    off.create_reader_group("s/holds", ["s/kept"], retention="automatic")
    assert "has no effect" not in caplog.text


def test_settings_that_cannot_be_read_stop_no_creation(store_now: Spy, off: StreamManager) -> None:
    newest = max(e.key for e in store_now.list("_settings/_delta_log"))
    store_now.put(newest, b"garbage")
    assert manager_over(Spy(store_now.inner)).create_stream("s/kept", KEPT)


def test_the_origin_of_the_set_up_is_a_public_name() -> None:
    assert SettingOrigin("set-up") is SettingOrigin.SET_UP
