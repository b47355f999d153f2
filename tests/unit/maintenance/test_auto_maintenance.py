"""``maintain="auto"`` with real threads and processes: who maintains, and when that ends."""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.config.root_settings import SettingOrigin
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.state.maintenance_table import MaintenanceTable, entry_of
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.overdue_maintenance import DEFAULT_KINDS
from pravega_spark.errors import InvalidConfiguration, StoreReadOnly
from pravega_spark.maintenance import auto, shares
from pravega_spark.maintenance.auto import VARIABLE, AutoMaintenance
from pravega_spark.maintenance.shares import SharePace
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.values.limits import AUTO_FIRST_SECONDS
from tests.harness.spy_store import Spy

pytestmark = pytest.mark.slow

RETENTION = MaintenanceKind.RETENTION
ONE_BYTE = StreamConfiguration(retention=RetentionPolicy.by_size(1))
FAST = SharePace(wake_seconds=0.05)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Wake-ups follow each other at once, and nothing of a test goes on after it."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(auto, "AUTO_FIRST_SECONDS", 0.05)
    monkeypatch.setattr(shares, "PACE", FAST)
    yield
    roots = auto._roots
    roots.stop_all()
    roots.reset()
    wait_until(lambda: not threads())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t", ONE_BYTE)
    return tmp_path / "root"


def wait_until(holds: Callable[[], object], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("pravega-maintenance")]


def finished(root: Path | str) -> set[MaintenanceKind]:
    infos = StreamManager(root).maintenance()
    return {info.kind for info in infos if info.finished_ms is not None}


def test_an_open_writer_is_enough_for_retention_and_all_kinds(root: Path) -> None:
    StreamManager(root).update_settings(retention_interval="1 s")
    writer = StreamManager(root, maintain="auto").create_writer("s/t")
    gc.collect()
    with writer:
        for data in (b"first", b"last"):
            writer.write_event(data, "k").result()
        wait_until(lambda: len(finished(root)) == len(MaintenanceKind))
        reader = StreamManager(root, maintain="off")
        wait_until(lambda: [event.data for event in reader.read("s/t")] == [b"last"])
    wait_until(lambda: not threads())


def test_a_process_has_one_thread_for_a_root_however_many_are_open(
    root: Path, tmp_path: Path
) -> None:
    manager = StreamManager(root, maintain="auto")
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(manager.create_writer("s/t"))
            stack.enter_context(StreamManager(root, maintain="auto").create_writer("s/t"))
        assert len(threads()) == 1
        other = StreamManager(tmp_path / "other", maintain="auto")
        assert len(threads()) == 2
        other.close()
        wait_until(lambda: len(threads()) == 1)
    assert len(threads()) == 1, "the manager is open"
    manager.close()
    wait_until(lambda: not threads())
    assert manager.stream_exists("s/t"), "all verbs work"


@pytest.mark.parametrize("kind", ["writer", "transactions", "reader", "group", "manager"])
def test_what_is_open_maintains_and_what_was_closed_or_collected_does_not(
    root: Path, kind: str
) -> None:
    manager = StreamManager(root, maintain="auto")
    opened: Any = manager
    if kind == "writer":
        opened = manager.create_writer("s/t")
    elif kind == "transactions":
        opened = manager.create_transactional_writer("s/t")
    elif kind == "reader":
        opened = manager.create_reader("s/t")
    elif kind == "group":
        opened = manager.create_reader_group("s/g", ["s/t"]).create_reader("r")
    if kind != "manager":
        manager.close()
    time.sleep(0.3)
    assert len(threads()) == 1
    if hasattr(opened, "close"):
        opened.close()
    else:
        del opened
    wait_until(lambda: not threads())


def test_a_new_root_is_maintained_by_what_is_open_but_for_compaction(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "AUTO_SETTINGS_SECONDS", 0.0)
    manager = StreamManager(root)
    settings = manager.settings()
    assert (settings.maintain, settings.origin("maintain")) == ("auto", SettingOrigin.SET_UP)
    assert not threads(), "nothing was opened"
    with manager.create_writer("s/t"):
        assert len(threads()) == 1
        wait_until(lambda: finished(root) == set(DEFAULT_KINDS))
        time.sleep(0.5)
        assert MaintenanceKind.COMPACTION not in finished(root)
        manager.update_settings(maintain="auto")  # who chooses it has all
        wait_until(lambda: len(finished(root)) == len(MaintenanceKind))
    time.sleep(0.3)
    assert len(threads()) == 1, "the manager is open"
    manager.close()
    wait_until(lambda: not threads())


def test_the_argument_and_the_variable_keep_a_process_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pickle

    copy = pickle.loads(pickle.dumps(StreamManager(root, maintain="auto")))
    gc.collect()
    wait_until(lambda: not threads())
    with StreamManager(root, maintain="off").create_writer("s/t"):
        assert not threads()
    monkeypatch.setenv(VARIABLE, "off")
    with StreamManager(root).create_writer("s/t"):
        assert not threads()
    with StreamManager(root, maintain="auto") as manager:
        assert len(threads()) == 1, "the argument is nearer"
        assert manager.settings().maintain == "auto"
    wait_until(lambda: not threads())
    monkeypatch.delenv(VARIABLE)
    with copy.create_writer("s/t"):
        assert len(threads()) == 1, "the root decides where the copy is used"
    copy.close()
    for value in ("on", "auto"):
        monkeypatch.setenv(VARIABLE, value)
        with pytest.raises(InvalidConfiguration, match=r"PRAVEGA_SPARK_MAINTAIN may only be 'off'"):
            StreamManager(root)
    with pytest.raises(InvalidConfiguration, match="'off' or 'auto'"):
        StreamManager(root, maintain="on")


def test_a_root_that_is_off_has_no_thread_and_is_asked_seldom(root: Path) -> None:
    manager = StreamManager(root)
    manager.update_settings(maintain="off")
    with manager.create_writer("s/t"):
        wait_until(lambda: not threads())
        with manager.create_writer("s/t"):
            assert not threads(), "the setting was read less than five minutes ago"
        assert finished(root) == set()
        with StreamManager(root, maintain="auto"):
            assert len(threads()) == 1


def test_what_is_opened_once_the_setting_is_auto_maintains_a_root_that_was_off(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "AUTO_SETTINGS_SECONDS", 0.0)  # as if five minutes had passed
    manager = StreamManager(root)
    manager.update_settings(maintain="off")
    with manager.create_writer("s/t"):
        wait_until(lambda: not threads())
        manager.update_settings(maintain="auto")
        with manager.create_writer("s/t"):
            assert len(threads()) == 1


def test_a_root_of_an_earlier_version_stays_as_it_is_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "off")  # as before, a root is set up without the setting
        StreamManager(tmp_path / "old").create_scope("s")
        StreamManager(tmp_path / "old").create_stream("s/t", ONE_BYTE)
    monkeypatch.setattr(auto, "AUTO_SETTINGS_SECONDS", 0.0)
    caplog.clear()
    manager = StreamManager(tmp_path / "old")
    manager.create_scope("another")
    for _ in range(3):
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"event", "k").result()
            wait_until(lambda: not threads())
    assert caplog.text.count("nothing maintains ") == 1
    assert "update_settings(maintain='auto')" in caplog.text
    assert finished(tmp_path / "old") == set()
    assert manager.settings().origin("maintain") is SettingOrigin.DEFAULT


def test_nothing_is_asked_or_imported_in_a_process_that_lives_under_a_minute(root: Path) -> None:
    code = """
import sys, threading
from pravega_spark import StreamManager
from pravega_spark.engine.store.local import LocalStore

names, get = [], LocalStore.get
LocalStore.get = lambda self, key: (names.append(key), get(self, key))[1]
with StreamManager(sys.argv[1]).create_writer("s/t") as writer:
    writer.write_event(b"event", "k").result()
    (thread,) = [t for t in threading.enumerate() if t.name.startswith("pravega-maintenance")]
    thread.join(1.0)
    assert thread.is_alive()
assert names and not [key for key in names if key.startswith(("_settings", "_maint"))], names
assert "pravega_spark.maintenance.shares" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code, str(root)], check=True, timeout=60)
    assert finished(root) == set()
    assert AUTO_FIRST_SECONDS >= 60


def test_a_task_of_spark_maintains_nothing_by_the_setting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class TaskContext:
        @staticmethod
        def get() -> object:
            return object()

    module = types.ModuleType("pyspark.taskcontext")
    module.TaskContext = TaskContext  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark.taskcontext", module)
    with StreamManager(root).create_writer("s/t"):
        assert not threads()
    TaskContext.get = staticmethod(lambda: None)  # type: ignore[method-assign]
    with StreamManager(root).create_writer("s/t"):
        assert len(threads()) == 1, "a driver is a process as others are"


def test_what_began_by_the_setting_stops_and_continues_with_it(root: Path) -> None:
    manager = StreamManager(root)
    manager.update_settings(maintain="auto", transactions_interval="1 s")

    def ends() -> list[int | None]:
        return [info.finished_ms for info in manager.maintenance()]

    def nothing_ends() -> bool:
        before = ends()
        time.sleep(2.5)
        return ends() == before

    with manager.create_writer("s/t"):
        wait_until(lambda: len(finished(root)) == len(MaintenanceKind))
        StreamManager(root).update_settings(maintain="off")
        wait_until(nothing_ends)  # once the share that had begun is done
        before = ends()
        with StreamManager(root, maintain="auto"):
            wait_until(lambda: ends() != before)
        wait_until(nothing_ends)
        before = ends()
        StreamManager(root).update_settings(maintain="auto")
        wait_until(lambda: ends() != before)


def test_appends_make_the_same_storage_calls_with_and_without() -> None:
    counts = []
    for maintain in ("off", "auto"):
        store = Spy(MemoryStore())
        manager = manager_over(store)
        manager._maintain = maintain
        manager.create_scope("s")
        manager.create_stream("s/t")
        calls = list[str]()

        def note(operation: str, key: str, calls: list[str] = calls) -> None:
            if threading.current_thread().name.startswith("pravega-writer"):
                calls.append(operation)

        with manager.create_writer("s/t") as writer:
            store.hook = note
            for number in range(50):
                writer.write_event(b"%d" % number, "k").result()
            if maintain == "auto":
                record = MaintenanceTable(store)
                while len(record.entries()) < len(MaintenanceKind):
                    time.sleep(0.02)
        counts.append(sorted(calls))
    assert counts[0] == counts[1]
    assert len(counts[0]) >= 100


def test_it_continues_when_the_same_root_is_back(root: Path) -> None:
    with StreamManager(root, maintain="auto") as manager:
        manager.update_settings(transactions_interval="1 s")
        wait_until(lambda: len(finished(root)) == len(MaintenanceKind))
        root.rename(root.parent / "away")
        time.sleep(0.5)
        assert len(threads()) == 1
        (root.parent / "away").rename(root)
        before = [info.finished_ms for info in manager.maintenance()]
        wait_until(lambda: [info.finished_ms for info in manager.maintenance()] != before)


def test_a_root_that_was_replaced_ends_it_without_an_error_in_the_application(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = StreamManager(root, maintain="auto")
    wait_until(lambda: len(finished(root)) == len(MaintenanceKind))
    shutil.rmtree(root)
    wait_until(lambda: "continues when the root is back" in caplog.text)
    assert not root.exists(), "nothing was written in its place"
    other = [sys.executable, "-c", "import sys; from pravega_spark import StreamManager; "]
    other[-1] += "StreamManager(sys.argv[1]).create_scope('new')"
    subprocess.run([*other, str(root)], check=True)
    wait_until(lambda: not threads())
    assert "this process no longer maintains" in caplog.text
    manager.close()


def test_a_child_of_a_fork_maintains_only_what_it_opens_itself(root: Path) -> None:
    manager = StreamManager(root, maintain="auto")
    wait_until(threads)

    def child(results: Any) -> None:
        before = len(threads())
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"child", "k").result()
            results.put((before, len(threads())))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    assert results.get(timeout=60) == (0, 1)
    process.join(60)
    assert process.exitcode == 0
    assert len(threads()) == 1


SLOW = """
import sys, threading, time
from pravega_spark import StreamManager
from pravega_spark.maintenance import auto, shares
from pravega_spark.maintenance.shares import RootStreams, SharePace

auto.AUTO_FIRST_SECONDS = 0.01
shares.PACE = SharePace(wake_seconds=0.05)
maintain = RootStreams.maintain
begun = threading.Event()

def slow(self, kind, name):
    failures = maintain(self, kind, name)
    print("maintained", name, flush=True)
    begun.set()
    time.sleep({seconds})
    return failures

RootStreams.maintain = slow
manager = StreamManager(sys.argv[1], maintain="auto")
"""


def start(root: Path, code: str, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW.format(seconds=seconds) + code, str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("seconds", [0.05, 60.0])
def test_a_process_ends_soon_in_the_middle_of_a_share(root: Path, seconds: float) -> None:
    manager = StreamManager(root)
    for number in range(20):
        manager.create_stream(f"s/t{number}")
    code = "\nbegun.wait(40)\nprint(f'end {time.time()} ', flush=True)"
    process = start(root, code, seconds)
    out, err = process.communicate(timeout=60)
    took = time.time() - float(
        out.rpartition("end ")[2].split()[0]
    )  # the other thread may print, too
    assert (process.returncode, err) == (0, "")
    assert "maintained s/t" in out
    assert took < 20, "within a second, and the time in which this process was not running"


def test_after_the_kill_of_a_process_another_one_continues_its_share(root: Path) -> None:
    manager = StreamManager(root)
    names = [f"s/x{number}" for number in range(5)]
    for name in names:
        manager.create_stream(name)
    process = start(root, "\ntime.sleep(60)", 60.0)
    assert process.stdout is not None
    assert process.stdout.readline() == "maintained s/t\n"
    record = MaintenanceTable(open_store(str(root)))
    claim = entry_of(record.entries(), RETENTION).claim
    assert claim is not None
    assert record.claim((RETENTION,), (None,), "auto") is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    if process.stderr is not None:
        process.stderr.close()
    began = time.monotonic()
    with StreamManager(root, maintain="auto"):
        wait_until(lambda: RETENTION in finished(root))
    assert time.monotonic() - began < 60, "earlier than the end of the claim"
    (run,) = (info for info in manager.maintenance() if info.kind is RETENTION)
    assert run.streams == 6


def test_the_claim_of_a_killed_process_of_another_machine_ends_by_the_clock(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pravega_spark.engine.state import maintenance_table

    monkeypatch.setattr(maintenance_table, "CLAIM_MS", 1_500)
    with monkeypatch.context() as patch:
        patch.setattr(maintenance_table, "identity", lambda: "elsewhere 1 1")
        assert MaintenanceTable(open_store(str(root))).claim((RETENTION,), (None,), "auto")
    began = time.monotonic()
    with StreamManager(root, maintain="auto"):
        wait_until(lambda: len(finished(root)) == len(MaintenanceKind))
    assert time.monotonic() - began >= 1.2


def test_an_unexpected_error_ends_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter([RuntimeError("a defect")] * 2)
    work = shares.MaintenanceShares._work

    def fail(self: Any) -> bool:
        for error in failures:
            raise error
        return work(self)

    monkeypatch.setattr(shares.MaintenanceShares, "_work", fail)
    with StreamManager(root, maintain="auto"):
        wait_until(lambda: len(finished(root)) == len(MaintenanceKind))
    assert caplog.text.count("a defect") == 1


def test_users_are_known_only_weakly(root: Path) -> None:
    class User:
        pass

    maintained = AutoMaintenance(open_store(str(root)), pace=FAST)
    first, second = User(), User()
    maintained.add(first, lambda user: False)
    maintained.add(second, lambda user: False)
    del first
    gc.collect()
    time.sleep(0.3)
    assert len(threads()) == 1
    del second
    gc.collect()
    wait_until(lambda: not threads())
    third = User()
    maintained.add(third, lambda user: False)
    assert len(threads()) == 1, "a later user starts another thread"
    maintained.stop()
    wait_until(lambda: not threads())


def test_a_process_that_may_not_write_says_so_once_at_info(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "pravega_spark.maintenance")
    store = Spy(MemoryStore(clock_ms=SYSTEM.now_ms))
    manager_over(store).create_scope("s")
    reading = Spy(store.inner)

    def refuse(operation: str, key: str) -> None:
        if operation in ("put", "put_if_absent", "delete"):
            raise StoreReadOnly(f"{key} may not be written")

    reading.hook = refuse
    maintained = AutoMaintenance(reading, pace=FAST)
    user = threading.Event()
    for _ in range(2):
        maintained.add(user, lambda _: False, by_setting=True)
        wait_until(lambda: not threads())
    told = [r for r in caplog.records if "no longer maintains" in r.getMessage()]
    assert [record.levelno for record in told] == [logging.INFO]
    assert store.list("_maintenance") == []
