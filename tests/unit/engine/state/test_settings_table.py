"""The root's table of settings: concurrent changes, costs, damage, and a root without it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow.parquet as pq
import pytest

from pravega_spark.config.root_settings import (
    SETTING_NAMES,
    EffectiveSettings,
    parse_changes,
    rule_of,
)
from pravega_spark.config.setting_rules import DurationRule
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.state.settings_table import SETTINGS_TABLE, SettingsTable, open_settings
from pravega_spark.engine.state.state_table import TableChange
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import (
    CorruptChunk,
    CorruptLog,
    Damaged,
    InvalidConfiguration,
    RootChanged,
    StoreReadOnly,
)
from pravega_spark.manager import StreamManager, manager_over, root_of
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized
from tests.harness.warm_children import FORKED

HOUR = 3_600_000
DURATIONS = tuple(name for name in SETTING_NAMES if isinstance(rule_of(name), DurationRule))


def table(store: MemoryStore | Spy) -> SettingsTable:
    """The table as another process has it."""
    made = SettingsTable(store, FakeRuntime())
    made.table.log.maintain = None
    return made


def test_changes_of_one_process_are_read_by_the_others() -> None:
    store = MemoryStore()
    reader, writer = table(store), table(store)
    assert reader.read() == {}
    assert writer.update(parse_changes({"grace": "2 hours"})) == {"grace": 2 * HOUR}
    assert reader.read() == {"grace": 2 * HOUR}
    writer.update(parse_changes({"grace": None, "expire": "never"}))
    assert reader.read() == {"expire": None} == table(store).read()
    writer.update(parse_changes({"expire": None}))
    assert reader.read() == {} == table(store).read()


def test_change_of_nothing_writes_no_commit() -> None:
    spy = Spy()
    changed = table(spy)
    changed.update(parse_changes({"grace": "2 hours"}))
    changed.update(parse_changes({"grace": 7_200, "retain": None}))
    changed.update(parse_changes({}))
    assert spy.count("put_if_absent", SETTINGS_TABLE) == 1


def test_concurrent_changes_of_different_settings_lose_nothing() -> None:
    store = MemoryStore(clock_ms=FakeRuntime().now_ms)
    values = {name: 2 * HOUR + n * 1_000 for n, name in enumerate(DURATIONS)}
    start = threading.Barrier(len(values))

    def change(name: str, value: int) -> None:
        changes = parse_changes({name: value / 1_000})
        start.wait()
        table(store).update(changes)

    threads = [threading.Thread(target=change, args=item) for item in values.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table(store).read() == values


def test_known_table_is_read_by_one_call_and_so_is_an_absent_one() -> None:
    spy = Spy()
    reader = table(spy)
    reader.read()
    spy.calls.clear()
    assert reader.read() == {}
    assert len(spy.calls) == 1
    table(spy).update(parse_changes({"grace": "2 hours"}))
    assert reader.read() == {"grace": 2 * HOUR}
    spy.calls.clear()
    assert reader.read() == {"grace": 2 * HOUR}
    assert len(spy.calls) == 1


def test_settings_of_a_newer_version_are_kept() -> None:
    store = MemoryStore()
    changed = table(store)
    changed.update(parse_changes({"grace": "2 hours"}))
    newer = {"name": "colour", "value": '"blue"'}
    changed.table.change(
        lambda state: (TableChange("NEWER", {**state.rows, "colour": newer}), None)
    )
    assert changed.update(parse_changes({"grace": "3 hours"})) == {"grace": 3 * HOUR}
    assert table(store).table.read().rows["colour"] == newer


@pytest.mark.parametrize("value", ["null", '"2 hours"', "{", "-1", "1000", None])
def test_value_that_cannot_be_read_is_an_error_until_it_is_set_again(value: str | None) -> None:
    store = MemoryStore()
    row = {"name": "grace", "value": value}
    table(store).table.change(lambda state: (TableChange("DAMAGE", {"grace": row}), None))
    with pytest.raises(CorruptLog, match=r"_settings: .*update_settings"):
        table(store).read()
    assert table(store).update(parse_changes({"grace": "3 hours"})) == {"grace": 3 * HOUR}
    assert table(store).read() == {"grace": 3 * HOUR}


# ------------------------------------------------------------------------------ on a disk


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path / "root")
    manager.update_settings(grace="2 hours")
    manager.update_settings(retain="3 days")
    return tmp_path / "root"


def test_root_may_get_its_settings_before_its_first_scope(root: Path) -> None:
    manager = StreamManager(root)
    assert manager.settings().text("grace") == "2 hours"
    assert manager.list_scopes() == []
    assert manager.create_scope("s")
    assert StreamManager(root).settings() == manager.settings()


def test_root_without_the_table_has_all_defaults(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    assert manager.settings() == EffectiveSettings()
    manager.create_scope("s")
    assert manager.settings() == EffectiveSettings()
    assert not (tmp_path / SETTINGS_TABLE).exists()


def test_refused_change_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration):
        StreamManager(tmp_path / "root").update_settings(grace="1 s")
    assert not (tmp_path / "root").exists()


def test_settings_of_a_root_that_was_removed_are_not_the_defaults(root: Path) -> None:
    manager = StreamManager(root)
    manager.settings()
    root.rename(root.parent / "moved")
    with pytest.raises(RootChanged):
        manager.settings()


def test_absent_settings_of_a_root_that_was_removed_are_an_error(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    for _ in range(2):
        manager.settings()
    (tmp_path / "root").rename(tmp_path / "moved")
    with pytest.raises(RootChanged):
        manager.settings()


def commit(root: Path, version: int) -> Path:
    return root / SETTINGS_TABLE / "_delta_log" / f"{version:020d}.json"


def test_damaged_settings_are_an_error_and_never_the_defaults(root: Path) -> None:
    commit(root, 1).write_bytes(commit(root, 1).read_bytes()[:-40])
    with pytest.raises(CorruptLog, match="_settings"):
        SettingsTable(LocalStore(str(root))).read()


def test_settings_whose_first_commit_is_lost_are_an_error(root: Path) -> None:
    commit(root, 0).unlink()
    with pytest.raises(Damaged, match="_settings"):
        SettingsTable(LocalStore(str(root))).read()


def test_lost_or_torn_rows_are_an_error(root: Path) -> None:
    rows = sorted((root / SETTINGS_TABLE / "data").rglob("*.parquet"))
    (newest,) = [path for path in rows if pq.read_table(path).num_rows == 2]
    data = newest.read_bytes()
    newest.write_bytes(data[:-30])
    with pytest.raises(CorruptChunk, match="_settings"):
        SettingsTable(LocalStore(str(root))).read()
    newest.unlink()
    with pytest.raises(CorruptChunk, match="_settings"):
        SettingsTable(LocalStore(str(root))).read()


def in_a_file(folder: Path) -> None:
    rmtree(folder, ignore_errors=True)
    folder.write_text("x")


@pytest.mark.parametrize(
    "lose", [lambda folder: rmtree(folder / "_delta_log"), in_a_file], ids=["no log", "a file"]
)
def test_settings_that_lost_their_log_are_not_the_defaults(
    root: Path, lose: Callable[[Path], None]
) -> None:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/t")
    known = SettingsTable(LocalStore(str(root)))
    known.read()
    lose(root / SETTINGS_TABLE)
    for call in (
        lambda table: table.read(),
        lambda table: table.update(parse_changes({"grace": "3 hours"})),
    ):
        with pytest.raises(
            CorruptLog, match=r"_settings: .* or delete it, so that the defaults hold"
        ):
            call(SettingsTable(LocalStore(str(root))))
    known.table.log.forget()
    with pytest.raises(CorruptLog, match="_settings"):
        known.read()
    with pytest.raises(CorruptLog, match="lost its log while"), known.table.log.files():
        pass
    in_a_file(root / SETTINGS_TABLE)
    (root / SETTINGS_TABLE).unlink()
    later = SettingsTable(LocalStore(str(root)))
    assert later.read() == {}
    assert later.update(parse_changes({"grace": "3 hours"})) == {"grace": 3 * HOUR}


def test_first_change_of_another_process_is_no_damage_until_it_is_old(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    with at_failpoint("commit.before", kill), pytest.raises(Killed):
        SettingsTable(LocalStore(str(tmp_path))).update(parse_changes({"grace": "3 hours"}))
    assert SettingsTable(LocalStore(str(tmp_path))).read() == {}
    (staged,) = (tmp_path / SETTINGS_TABLE).rglob("*.parquet")
    os.utime(staged, (time.time() - 120,) * 2)
    with pytest.raises(CorruptLog, match="settings has lost its log"):
        SettingsTable(LocalStore(str(tmp_path))).read()
    os.utime(staged)
    assert StreamManager(tmp_path).update_settings(grace="3 hours").grace_ms == 3 * HOUR


def test_root_that_cannot_be_written_shows_its_settings(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalStore, key: str, *arguments: object, **options: object) -> None:
        raise StoreReadOnly(f"{key}: read-only")

    for name in ("put", "put_if_absent", "delete"):
        monkeypatch.setattr(LocalStore, name, refuse)
    manager = StreamManager(root)
    assert manager.settings().text("grace") == "2 hours"
    with pytest.raises(StoreReadOnly):
        manager.update_settings(grace="3 hours")
    assert manager.settings().text("grace") == "2 hours"


def _set(root: str, names: tuple[str, ...], start: Any) -> None:
    """Change settings in turn, as a process of its own."""
    manager = StreamManager(root)
    start.wait()
    for value in range(2, 10):
        for name in names:
            manager.update_settings(**{name: f"{value} hours"})


def test_processes_that_change_different_settings_lose_nothing(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    groups = (DURATIONS[:3], DURATIONS[3:6], DURATIONS[6:9])
    start = FORKED.Barrier(len(groups))
    processes = [FORKED.Process(target=_set, args=(str(tmp_path), g, start)) for g in groups]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    found = manager.settings()
    assert {found.text(name) for group in groups for name in group} == {"9 hours"}


def test_process_keeps_the_table_of_a_root_open(root: Path) -> None:
    store = root_of(StreamManager(root)).store
    assert open_settings(store) is open_settings(store)
    assert open_settings(store, FakeRuntime()) is not open_settings(store, SYSTEM)
    other = MemoryStore()
    assert open_settings(other) is not open_settings(MemoryStore())


# ------------------------------------------------------------------------------- size


@pytest.mark.long
@pytest.mark.parametrize("sweep", ["sweep_scope", "table"])
def test_files_of_the_table_do_not_grow_with_the_changes(sweep: str) -> None:
    """Its log is bounded as every log is: by the distance of two checkpoints."""

    def files_after(changes: int) -> int:
        runtime = FakeRuntime()
        store = memory(runtime)
        manager = manager_over(store, runtime)
        manager.create_scope("s")
        for number in range(changes):
            grace = 3_600 + number
            settings = manager.update_settings(grace=grace, retain="2 hours")
            wait_for_maintenance()
            runtime.sleep(600)
            if number % 6 == 5:
                if sweep == "sweep_scope":
                    manager.sweep_scope("s")
                else:
                    open_settings(store, runtime).sweep(settings)
        assert manager.settings().grace_ms == (3_600 + changes - 1) * 1_000
        return len(store.list(f"{SETTINGS_TABLE}/data"))

    few, many = files_after(60), files_after(sized(200, 600))
    assert few < 30
    assert many <= few + 12, "two hours of changes"
