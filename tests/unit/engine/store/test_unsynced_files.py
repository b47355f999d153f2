"""Staged files are durable, with their names, before the commit that names them can be seen.

The tests hold its parts back, where others win a race or a fork takes place: nothing else makes
them do so each time.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.local_files import _MOST_FILES
from pravega_spark.errors import StoreError, StoreFull


def test_create_whose_staged_files_were_swept_after_a_lost_race_says_that_it_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = LocalStore(str(tmp_path)), LocalStore(str(tmp_path))
    store.stage([("data/v0/chunk", b"chunk")])
    syncs = store._unsynced.syncs

    def others_win(paths: Any) -> Any:
        found = syncs(paths)
        other.put_if_absent("log/1", b"theirs")
        other.delete(["data/v0/chunk"])  # with its folder
        return found

    monkeypatch.setattr(store._unsynced, "syncs", others_win)
    assert store.put_if_absent("log/1", b"ours", staged=["data/v0/chunk"]) is PutOutcome.EXISTS


class Disk:
    """Records which fsyncs have ended when a file gets its name, and may fail some of them.

    After a power failure a disk holds the content of a file that was fsynced, and a name whose
    folder was fsynced after the name had been given.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.root = str(root)
        self.content: set[int] = set()
        """Inodes that were fsynced."""
        self.names: dict[str, int] = {}
        """Given names with their inodes; durable ones."""
        self.given: dict[str, int] = {}
        """Names that are not durable yet."""
        self.at_link: dict[str, frozenset[str]] = {}
        """By name: the durable files when it was given."""
        self.fsyncs: list[str] = []
        self.fails: Callable[[str, int], int | None] = lambda path, inode: None
        self._lock = threading.Lock()
        self._link, self._fsync = os.link, os.fsync
        monkeypatch.setattr(os, "link", self.link)
        monkeypatch.setattr(os, "fsync", self.fsync)

    def durable(self) -> frozenset[str]:
        """Return the files that survive a power failure now."""
        return frozenset(p for p, inode in self.names.items() if inode in self.content)

    def link(self, source: str, path: str, **options: Any) -> None:
        with self._lock:
            self.at_link[self.short(path)] = self.durable()
        self._link(source, path, **options)
        with self._lock:
            self.given[self.short(path)] = os.stat(path).st_ino

    def fsync(self, descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        number = self.fails(self.short(path), os.fstat(descriptor).st_ino)
        if number is not None:
            raise OSError(number, os.strerror(number))
        with self._lock:
            given = dict(self.given)
        self._fsync(descriptor)
        with self._lock:
            self.fsyncs.append(self.short(path))
            self.content.add(os.fstat(descriptor).st_ino)
            for name, inode in given.items():
                if os.path.dirname(name) == self.short(path):
                    self.names[name] = inode
                    self.given.pop(name, None)

    def short(self, path: str) -> str:
        return path.removeprefix(self.root).lstrip("/")


@pytest.fixture(params=["nameless", "named"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "root"))
    if request.param == "named":
        store._nameless = False
    elif not hasattr(os, "O_TMPFILE"):
        pytest.skip("no nameless files on this system")
    assert store.put_if_absent("log/0", b"0") is PutOutcome.CREATED
    store.put("data/0", b"0")
    return store


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, store: LocalStore) -> Disk:
    return Disk(monkeypatch, Path(store._root))


def stage(store: LocalStore, *names: str) -> list[str]:
    keys = [f"data/{name}" for name in names]
    store.stage([(key, key.encode()) for key in keys])
    return keys


def test_a_commit_gets_its_name_after_all_that_it_names_is_durable(
    store: LocalStore, disk: Disk
) -> None:
    keys = stage(store, "a", "b")
    assert store.get_many(keys) == [b"data/a", b"data/b"]
    assert disk.fsyncs == [], "nothing waits for the disk before the commit"
    assert store.put_if_absent("log/1", b"1", staged=keys) is PutOutcome.CREATED
    assert {*keys} <= disk.at_link["log/1"]
    assert {*keys, "log/1"} <= disk.durable()
    assert disk.fsyncs.count("data") == 1, "their folder is fsynced once"
    assert len(disk.fsyncs) == 5
    assert disk.fsyncs[-1] == "log"


def test_a_new_folder_is_anchored_before_the_commit(store: LocalStore, disk: Disk) -> None:
    store.stage([("new/deep/a", b"1")])
    assert store.put_if_absent("log/1", b"1", staged=["new/deep/a"]) is PutOutcome.CREATED
    assert {"new/deep", "new", ""} <= set(disk.fsyncs[: disk.fsyncs.index("log")])
    assert "new/deep/a" in disk.at_link["log/1"]


def test_a_stream_waits_for_the_disk_twice_for_each_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = StreamManager(str(tmp_path / "root"))
    manager.create_scope("s")
    manager.create_stream("s/t")
    disk = Disk(monkeypatch, tmp_path / "root/s/t/events")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"first", "key").result(30)
        for number in range(20):
            disk.fsyncs.clear()
            writer.write_event(b"%d" % number, "key").result(30)
            commit = max(name for name in disk.at_link if name.startswith("_delta_log/"))
            chunks = {name for name in disk.at_link if name.startswith("data/")}
            assert chunks <= disk.at_link[commit], "a commit names a chunk that a crash loses"
            assert commit in disk.durable()
            assert len(disk.fsyncs) == 4, disk.fsyncs


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreError)])
@pytest.mark.parametrize("part", ["file", "folder"])
def test_what_is_not_durable_is_committed_never(
    store: LocalStore, disk: Disk, number: int, kind: type[StoreError], part: str
) -> None:
    keys = stage(store, "a")
    lost = os.stat(f"{store._root}/data" if part == "folder" else f"{store._root}/data/a").st_ino
    disk.fails = lambda path, inode: number if inode == lost else None
    expected = StoreError if part == "folder" else kind
    with pytest.raises(expected, match="data"):
        store.put_if_absent("log/1", b"1", staged=keys)
    disk.fails = lambda path, inode: None  # the kernel has reported the loss once, and forgotten it
    with pytest.raises(expected, match="data"):
        store.put_if_absent("log/1", b"1", staged=keys)
    assert not store.exists("log/1")
    if part == "file":
        assert store.put_if_absent("log/1", b"1", staged=stage(store, "b")) is PutOutcome.CREATED


def test_the_loser_of_a_race_makes_its_files_durable_with_its_next_commit(
    store: LocalStore, disk: Disk
) -> None:
    keys = stage(store, "a")
    assert store.put_if_absent("log/0", b"other", staged=keys) is PutOutcome.EXISTS
    assert keys[0] not in disk.durable()
    assert store.put_if_absent("log/1", b"1", staged=keys) is PutOutcome.CREATED
    assert keys[0] in disk.at_link["log/1"]


def test_files_that_no_commit_names_become_durable_and_are_closed(
    store: LocalStore, disk: Disk
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    keys = stage(store, *map(str, range(1, 3 * _MOST_FILES)))
    assert len(os.listdir("/proc/self/fd")) <= before + _MOST_FILES
    assert store.put_if_absent("log/1", b"1", staged=keys) is PutOutcome.CREATED
    assert {*keys} <= disk.at_link["log/1"]
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_commits_of_many_threads_name_durable_files_only(store: LocalStore, disk: Disk) -> None:
    def commit(number: int) -> None:
        keys = stage(store, *(f"{number}-{k}" for k in range(1 + number % 3)))
        assert store.put_if_absent(f"log/{number}", b"", staged=keys) is PutOutcome.CREATED
        assert {*keys} <= disk.at_link[f"log/{number}"]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(commit, range(1, 100)))


@pytest.mark.medium
def test_a_forked_child_stages_files_of_its_own(store: LocalStore) -> None:
    stage(store, "parent")
    child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(30)  # a child that waits for a lock of the parent would wait for ever
        try:
            for one in store._unsynced._files.values():
                one._lock.acquire()  # as a thread of the parent may hold it
            keys = stage(store, *(f"child-{n}" for n in range(2 * _MOST_FILES)))
            created = store.put_if_absent("log/1", b"1", staged=keys)
            status = 0 if created is PutOutcome.CREATED else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.put_if_absent("log/2", b"2", staged=["data/parent"]) is PutOutcome.CREATED
