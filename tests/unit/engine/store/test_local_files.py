"""The local store with system calls that fail, one by one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.store import PutOutcome, local_files
from pravega_spark.engine.store import local_files as store_local_files
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.errors import StoreError, StoreFull, StoreReadOnly, StoreRefused

Patch = Callable[..., None]


@pytest.fixture(params=["nameless", "named"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "root"))
    if request.param == "named":
        store._nameless = False
    elif not hasattr(os, "O_TMPFILE"):
        pytest.skip("no nameless files on this system")
    assert store.put_if_absent("log/0", b"0") is PutOutcome.CREATED
    return store


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Make a function of ``os`` fail from its ``nth`` call; with ``after``, after its effect."""

    def patch(
        name: str, number: int, *, nth: int = 1, once: bool = False, after: bool = False
    ) -> None:
        real, calls = getattr(os, name), 0

        def failing(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            fails = calls == nth if once else calls >= nth
            if not fails or after:
                result = real(*arguments, **options)
            if fails:
                raise OSError(number, os.strerror(number))
            return result

        monkeypatch.setattr(os, name, failing)

    return patch


def _files(store: LocalStore) -> list[str]:
    return sorted(os.listdir(f"{store._root}/log"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_no_space_is_store_full_and_leaves_nothing(
    store: LocalStore, fail: Patch, call: str, number: int
) -> None:
    fail(call, number)
    with pytest.raises(StoreFull, match="log/1"):
        store.put_if_absent("log/1", b"1")
    assert _files(store) == ["0"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_no_right_to_write_is_store_read_only(store: LocalStore, fail: Patch, number: int) -> None:
    fail("open", number)
    with pytest.raises(StoreReadOnly, match="log/1"):
        store.put_if_absent("log/1", b"1")
    with pytest.raises(StoreReadOnly, match="log/1"):
        store.put("log/1", b"1")
    assert _files(store) == ["0"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_links_is_refused(store: LocalStore, fail: Patch, number: int) -> None:
    fail("link", number)
    with pytest.raises(StoreRefused, match="no hard links"):
        store.put_if_absent("log/1", b"1")
    assert _files(store) == ["0"]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT])
def test_hidden_names_are_used_where_nameless_files_are_unsupported(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.open

    def without_nameless(path: str, flags: int, *more: Any, **options: Any) -> int:
        if flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
            raise OSError(number, os.strerror(number))
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", without_nameless)
    assert store.put_if_absent("log/1", b"1") is PutOutcome.CREATED
    store.put("log/1", b"2")
    assert store.get("log/1") == b"2"
    assert _files(store) == ["0", "1"]


def test_failed_fsync_of_the_file_is_unknown_and_creates_nothing(
    store: LocalStore, fail: Patch
) -> None:
    fail("fsync", errno.EIO)
    assert store.put_if_absent("log/1", b"1") is PutOutcome.UNKNOWN
    assert _files(store) == ["0"]
    with pytest.raises(StoreError, match="may not be durable"):
        store.put("log/0", b"new")
    assert store.get("log/0") == b"0"


def test_folder_whose_fsync_failed_is_refused_from_then_on(store: LocalStore, fail: Patch) -> None:
    fail("fsync", errno.EIO, nth=2, once=True)  # the second one is of the folder
    assert store.put_if_absent("log/1", b"1") is PutOutcome.UNKNOWN
    assert store.get("log/1") == b"1"
    with pytest.raises(StoreError, match="earlier fsync"):
        store.make_durable("log")
    for put in (store.put_if_absent, store.put):
        with pytest.raises(StoreError, match="earlier fsync"):
            put("log/2", b"2")
    assert _files(store) == ["0", "1"]
    store.put("log/hint", b"", durable=False)
    store.make_durable("other")


@pytest.mark.parametrize("number", [errno.EEXIST, errno.EIO, errno.ETIMEDOUT, errno.EPERM])
def test_link_that_succeeded_but_reported_failure_is_created(
    store: LocalStore, fail: Patch, number: int
) -> None:
    # A network file system retries after a lost response, and then finds its own link.
    fail("link", number, after=True)
    assert store.put_if_absent("log/1", b"1") is PutOutcome.CREATED
    assert store.get("log/1") == b"1"
    assert _files(store) == ["0", "1"]


@pytest.mark.parametrize("number", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE])
def test_link_with_unknown_effect_is_unknown(store: LocalStore, fail: Patch, number: int) -> None:
    fail("link", number)
    assert store.put_if_absent("log/1", b"1") is PutOutcome.UNKNOWN
    assert _files(store) == ["0"]


def test_failed_rename_keeps_the_old_object(store: LocalStore, fail: Patch) -> None:
    fail("rename", errno.EIO)
    with pytest.raises(StoreError, match="log/0"):
        store.put("log/0", b"new")
    assert store.get("log/0") == b"0"
    assert _files(store) == ["0"]


def test_partial_writes_are_continued(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:1000]))
    data = bytes(range(256)) * 40
    assert store.put_if_absent("log/1", data) is PutOutcome.CREATED
    assert store.get("log/1") == data


def test_hint_is_not_fsynced_and_a_second_create_writes_nothing(
    store: LocalStore, fail: Patch
) -> None:
    fail("fsync", errno.EIO)
    store.put("log/hint", b"1", durable=False)
    store.put("log/hint", b"2", durable=False)
    assert store.get("log/hint") == b"2"
    assert store.put_if_absent("log/0", b"1") is PutOutcome.EXISTS


def test_folder_pruned_during_a_put_is_created_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruned: list[str] = []
    real = os.open

    def prune_then_open(path: str, *arguments: Any, **options: Any) -> int:
        if not pruned:
            pruned.append(path)
            store.delete(["log/0"])
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", prune_then_open)
    assert store.put_if_absent("log/1", b"1") is PutOutcome.CREATED
    assert store.get("log/1") == b"1"


def test_every_new_folder_is_fsynced_once(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fsync, []

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(store._root))
        real(descriptor)

    def folders() -> tuple[set[str], str]:
        """Return the ancestors that were fsynced, and the folder that was fsynced last."""
        *others, last = (path for path in synced if os.path.isdir(store._root + path))
        assert len(set(others)) == len(others)
        assert len(synced) == len(others) + 2
        synced.clear()
        return set(others), last

    monkeypatch.setattr(os, "fsync", sync)
    store.put_if_absent("log/1", b"")
    assert folders() == (set(), "/log")
    store.put("data/v1/chunk", b"")
    assert folders() == ({"/data", ""}, "/data/v1")
    store.put("data/v2/chunk", b"")
    assert folders() == ({"/data"}, "/data/v2")
    store.delete(["data/v2/chunk"])
    store.put("data/v2/chunk", b"")
    assert folders() == ({"/data"}, "/data/v2")


def test_files_that_are_put_together_are_durable_before_they_have_names(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fsync, []

    def sync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(store._root)
        synced.append((path, store.exists("new/0") or store.exists("new/1")))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    store.put_many([(f"new/{n}", b"%d" % n) for n in range(4)])
    *before, last = synced
    assert last == ("/new", True)
    assert len(before) == 5
    assert not any(named for _, named in before)
    assert ("", False) in before, "the new folder is anchored while the files are fsynced"


def test_failed_fsync_of_one_of_several_files_names_none(store: LocalStore, fail: Patch) -> None:
    store.put("log/1", b"")
    fail("fsync", errno.EIO, nth=2, once=True)
    with pytest.raises(StoreError, match="may not be durable"):
        store.put_many([(f"log/{n}", b"") for n in range(2, 6)])
    assert _files(store) == ["0", "1"]


def test_root_deleted_while_open_is_created_and_fsynced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "top" / "root"
    root.mkdir(parents=True)
    store = LocalStore(str(root))
    root.rmdir()
    root.parent.rmdir()
    assert store.put_if_absent("key", b"1") is PutOutcome.CREATED
    assert store._durable.top == str(tmp_path)
    assert {str(root), str(root.parent)} <= store._durable.anchored


def test_hidden_names_differ_after_a_fork() -> None:
    from pravega_spark.engine.store.local_files import _HiddenNames

    names = _HiddenNames()
    first, second = next(names), next(names)
    names._renew()
    assert first != second
    assert first.split("-")[1] != next(names).split("-")[1]


def test_folder_at_the_path_of_an_object_is_an_error(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        store.put_if_absent("log", b"1")
    with pytest.raises(StoreError, match="a folder is needed"):
        store.put_if_absent("log/0/below", b"1")


def test_file_system_of_a_root_that_goes_during_the_look_is_that_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, look = tmp_path / "root", os.stat
    root.mkdir()

    def stat(path: Any, **options: Any) -> os.stat_result:
        found = look(path, **options)
        if path == str(root):
            root.rename(tmp_path / "elsewhere")
        return found

    monkeypatch.setattr(os, "stat", stat)
    found = local_files.file_system(str(root))
    monkeypatch.undo()
    assert found == local_files.file_system(str(tmp_path))


@pytest.mark.parametrize(("count", "most"), [(20, 1.0), (22, 1.9), (200, 4.1)])
def test_an_append_to_somewhat_more_folders_than_are_known_fsyncs_few_ancestors_again(
    count: int, most: float, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_local_files, "_ANCHORED_FOLDERS", 1 + 3 * 20)  # the scope, and theirs
    synced = 0

    def sync(folder: str) -> None:
        nonlocal synced
        synced += 1

    folders = [f"{store._root}/s/{number}/events/_delta_log" for number in range(count)]
    durable = store_local_files.DurableFolders(store._root)
    monkeypatch.setattr(store_local_files, "sync_folder", sync)
    for _ in range(5):
        synced = 0
        for folder in folders:
            durable.sync(folder)
    assert synced <= most * count
