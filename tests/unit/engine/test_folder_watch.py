from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.runtime import folder_watch
from pravega_spark.engine.runtime.folder_watch import watch_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def watching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "pravega-watch"]


@pytest.fixture(autouse=True)
def own_watches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test watches of its own, and see that their thread ends."""
    known = set(watching_threads())
    monkeypatch.setattr(folder_watch, "_watches", folder_watch._FolderWatches())
    monkeypatch.setattr(folder_watch, "_IDLE_MS", 50)
    yield
    gc.collect()
    wait_until(lambda: set(watching_threads()) <= known)


def used() -> bool:
    return True


@pytest.mark.medium
def test_linked_and_renamed_files_are_reported(tmp_path: Path) -> None:
    changed = threading.Event()
    watch = watch_folder(str(tmp_path / "."), changed.set, used)
    (tmp_path.parent / "source").write_text("x")
    for name, give in (("a", os.link), ("b", os.rename)):
        changed.clear()
        give(tmp_path.parent / "source", tmp_path / name)
        assert changed.wait(30)
    assert watch is not None
    assert watch.is_live


@pytest.mark.medium
def test_many_folders_share_one_thread_that_ends_with_the_last_watch(tmp_path: Path) -> None:
    known = len(watching_threads())
    found: list[int] = []
    watches: list[Any] = []
    for n in range(100):
        (tmp_path / str(n)).mkdir()
        watches.append(watch_folder(str(tmp_path / str(n)), partial(found.append, n), used))
    assert len(watching_threads()) == known + 1
    (tmp_path / "42" / "file").touch()
    wait_until(lambda: found)
    assert found == [42]
    del watches
    wait_until(lambda: len(watching_threads()) == known)
    assert folder_watch._watches._inotify is None


@pytest.mark.medium
def test_two_watches_of_a_folder_are_both_told(tmp_path: Path) -> None:
    events = [threading.Event(), threading.Event()]
    watches = [watch_folder(str(tmp_path), event.set, used) for event in events]
    (tmp_path / "file").touch()
    assert all(event.wait(30) for event in events)
    assert None not in watches


@pytest.mark.medium
def test_watch_that_is_not_used_ends_and_can_be_made_again(tmp_path: Path) -> None:
    watch = watch_folder(str(tmp_path), lambda: None, lambda: False)
    assert watch is not None
    wait_until(lambda: not watch.is_live)
    changed = threading.Event()
    again = watch_folder(str(tmp_path), changed.set, used)
    (tmp_path / "file").touch()
    assert changed.wait(30)
    del again


@pytest.mark.medium
@pytest.mark.parametrize("act", [os.rmdir, lambda path: os.rename(path, f"{path}-moved")])
def test_folder_that_is_gone_is_reported_and_ends_the_watch(
    tmp_path: Path, act: Callable[[str], object]
) -> None:
    folder, changed = tmp_path / "folder", threading.Event()
    folder.mkdir()
    watch = watch_folder(str(folder), changed.set, used)
    assert watch is not None
    act(str(folder))
    assert changed.wait(30)
    assert not watch.is_live
    assert watch_folder(str(folder), changed.set, used) is None


@pytest.mark.medium
@pytest.mark.parametrize("call", ["INotify", "add_watch"])
def test_limit_of_the_system_means_no_watch(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import inotify_simple

    def refuse(*_: object, **options: object) -> int:
        raise OSError(28 if call == "add_watch" else 24, "limit")

    of = inotify_simple.INotify if call == "add_watch" else inotify_simple
    monkeypatch.setattr(of, call, refuse)
    assert watch_folder(str(tmp_path), lambda: None, used) is None
    assert watch_folder(str(tmp_path), lambda: None, used) is None


@pytest.mark.medium
def test_missing_library_means_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inotify_simple", None)
    assert watch_folder(str(tmp_path), lambda: None, used) is None


@pytest.mark.medium
def test_overflow_of_the_queue_tells_every_watch(tmp_path: Path) -> None:
    from inotify_simple import Event, flags

    found: list[int] = []
    watches = []
    for n in range(3):
        (tmp_path / str(n)).mkdir()
        watches.append(watch_folder(str(tmp_path / str(n)), partial(found.append, n), used))
    changed = folder_watch._watches._changed([Event(-1, flags.Q_OVERFLOW, 0, "")])
    assert set(changed) == set(watches)


@pytest.mark.medium
def test_forked_child_has_watches_of_its_own(tmp_path: Path) -> None:
    changed = threading.Event()
    watch = watch_folder(str(tmp_path), changed.set, used)
    ours = folder_watch._watches
    child = os.fork()
    if child == 0:  # pragma: no cover
        status = 1
        try:
            ours.leave()
            seen = threading.Event()
            mine = watch_folder(str(tmp_path), seen.set, used)
            (tmp_path / "of-the-child").touch()
            status = 0 if seen.wait(30) and mine is not None else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert changed.wait(30)  # the child has not taken the parent's report
    assert watch is not None
