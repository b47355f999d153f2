"""A root that was removed, moved, copied or replaced, or that has another format."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.store import PutOutcome, Store, ensure_probed
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.root_marker import MARKER_KEY, check_same
from pravega_spark.errors import CommitUnknown, CorruptLog, RootChanged, StoreError, StoreRefused
from pravega_spark.manager import manager_over, root_of
from tests.harness.folder_state import remove, wait_for_maintenance
from tests.harness.small_streams import all_events
from tests.harness.small_tables import put, table_log
from tests.harness.spy_store import Spy


def set_up(root: Path, events: int = 2) -> StreamManager:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        for number in range(events):
            writer.write_event(b"%d" % number).result(30)
    return manager


def elsewhere(root: Path) -> StreamManager:
    """A manager as another process has it, with its own store."""
    return manager_over(LocalStore(str(root)))


def move(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def unmount(root: Path) -> None:
    move(root)
    root.mkdir()


# ------------------------------------------------------------------------------ a root that is gone


@pytest.mark.parametrize("gone", [remove, move, unmount])
@pytest.mark.parametrize("known", ["writer", "reader", "scope", "transaction"])
def test_removed_root_accepts_nothing_and_gets_no_folder(
    tmp_path: Path, gone: Callable[[Path], None], known: str
) -> None:
    root = tmp_path / "root"
    manager = set_up(root)
    stream = root_of(manager).stream("s/t")
    writer = manager.create_writer("s/t")
    transactional = manager.create_transactional_writer("s/t")
    transaction = transactional.begin_transaction()
    transactional.close()
    gone(root)

    def write_in_transaction() -> None:
        transaction.write_event(b"lost")
        transaction.flush()

    calls: dict[str, Callable[[], Any]] = {
        "writer": lambda: writer.write_event(b"lost").result(30),
        "reader": stream.view,
        "scope": lambda: root_of(manager).scope("s").create() or manager.create_stream("s/other"),
        "transaction": write_in_transaction,
    }
    with pytest.raises((RootChanged, LookupError)) as raised:
        calls[known]()
    if known != "scope":
        assert raised.type is RootChanged
        assert str(root) in str(raised.value)
        assert "through a new StreamManager" in str(raised.value)
    assert [path for path in root.rglob("*") if "s/t" in str(path)] == []


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.put("new/folder/file", b"late"),
        lambda store: store.put_many([("new/folder/file", b"late")]),
        lambda store: store.put_if_absent("new/folder/file", b"late"),
        lambda store: store.stage([("new/folder/file", b"late")]),
    ],
    ids=["put", "put_many", "put_if_absent", "stage"],
)
def test_root_that_is_removed_amid_a_write_is_not_made_again(
    tmp_path: Path, write: Callable[[Store], Any]
) -> None:
    """The write has just seen, as it began and before it makes a folder, that the root is there."""
    root = tmp_path / "root"
    store = LocalStore(str(root))
    manager_over(store).create_scope("s")
    wait_for_maintenance()
    checks = itertools.count(1)

    def check_and_remove() -> None:
        check_same(store)
        if next(checks) == 2:
            remove(root)

    store.set_root_check(check_and_remove)
    with pytest.raises(RootChanged):
        write(store)
    assert not root.exists()


def test_root_that_was_restored_is_used_again(tmp_path: Path) -> None:
    manager = set_up(tmp_path / "root")
    writer = manager.create_writer("s/t", "w")
    writer.write_event(b"2").result(30)
    move(tmp_path / "root")
    with pytest.raises(RootChanged):
        writer.write_event(b"lost").result(30)
    (tmp_path / "elsewhere").rename(tmp_path / "root")
    with manager.create_writer("s/t", "w") as writer:
        writer.write_event(b"3").result(30)
    assert [event.data for event in manager.read("s/t")] == [b"0", b"1", b"2", b"3"]


def test_replaced_root_in_one_process_starts_empty(tmp_path: Path) -> None:
    manager = set_up(tmp_path / "root")
    old, known = manager.create_writer("s/t"), root_of(manager).stream("s/t")
    remove(tmp_path / "root")
    set_up(tmp_path / "root", events=1)
    with pytest.raises(RootChanged, match="removed, moved, unmounted or replaced"):
        old.write_event(b"of another root").result(30)
    with pytest.raises(RootChanged):
        known.view()
    with pytest.raises(RootChanged):
        manager.tail("s/t")
    assert [event.data for event in StreamManager(tmp_path / "root").read("s/t")] == [b"0"]
    log = tmp_path / "root/s/t/events/_delta_log"
    assert sorted(path.name for path in log.iterdir()) == [f"{n:020d}.json" for n in (0, 1)]


def test_root_replaced_by_another_process_accepts_no_writes_for_the_first(
    tmp_path: Path,
) -> None:
    """Even if the new stream's log has the version that the writer knows as the newest one."""
    root = tmp_path / "root"
    first = LocalStore(str(root))
    manager = manager_over(first)
    manager.create_scope("s")
    manager.create_stream("s/t")
    known = root_of(manager).stream("s/t")
    known.view()
    wait_for_maintenance()
    remove(root)
    second = elsewhere(root)
    second.create_scope("s")
    second.create_stream("s/t")
    with pytest.raises(RootChanged):
        known.log.commit(lambda snapshot: (Body("DECIDED ON ANOTHER ROOT"), None))
    assert len(list((root / "s/t/events/_delta_log").iterdir())) == 1


def test_stream_whose_folder_was_removed_gets_no_later_version(tmp_path: Path) -> None:
    manager = set_up(tmp_path / "root")
    writer = manager.create_writer("s/t")
    remove(tmp_path / "root/s/t")
    with pytest.raises(StoreError, match=r"s/t/events does not exist any more: .* Put it back"):
        writer.write_event(b"lost").result(30)
    assert not (tmp_path / "root/s/t").exists()


def test_log_whose_newest_commit_is_missing_accepts_no_next_one(tmp_path: Path) -> None:
    """As after a restore of an older copy."""
    manager = set_up(tmp_path / "root")
    writer = manager.create_writer("s/t")
    log = tmp_path / "root/s/t/events/_delta_log"
    (log / f"{2:020d}.json").unlink()
    with pytest.raises(
        RootChanged, match=r"0002\.json, the version before this write, does not"
    ) as raised:
        writer.write_event(b"lost").result(30)
    assert "or this process paused until the log was cleaned" in str(raised.value)
    assert not (log / f"{3:020d}.json").exists()


def test_log_removed_during_a_commit_is_not_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = set_up(tmp_path / "root")
    writer = manager.create_writer("s/t")
    real, log = LocalStore._publish, tmp_path / "root/s/t/events/_delta_log"

    def removed_first(store: LocalStore, path: str, *rest: Any, **options: Any) -> bool:
        if path.startswith(f"{log}/"):
            remove(log)
        return real(store, path, *rest, **options)

    monkeypatch.setattr(LocalStore, "_publish", removed_first)
    with pytest.raises(RootChanged):
        writer.write_event(b"lost").result(30)
    assert not log.exists()


def test_emptied_store_without_folders_is_noticed_when_the_root_is_probed() -> None:
    store = MemoryStore()
    manager = manager_over(store)
    manager.create_scope("s")
    manager.create_stream("s/t")
    known = root_of(manager).stream("s/t")
    known.view()
    store.delete([entry.key for entry in store.list("")])
    with pytest.raises(RootChanged):
        known.view()
    with pytest.raises(RootChanged):
        ensure_probed(store)
    again = MemoryStore.named(store.url.removeprefix("memory://"))
    assert again is not store
    assert manager_over(again).create_scope("other")
    with pytest.raises(RootChanged):
        known.view()
    with pytest.raises(RootChanged):
        manager.create_scope("other")


def test_object_store_emptied_under_a_writer_is_noticed_by_the_next_state_file() -> None:
    """Its appends read nothing, so they continue until the missing versions are read."""
    store = Spy()
    log = table_log(store)
    log.maintain = None
    put(log, "1", [])
    store.inner.delete([entry.key for entry in store.inner.list("")])
    put(log, "2", [])
    done = checkpoint.maintain_in_background(log, 2)
    assert done is not None
    done.result(30)
    for opened in (log, Log(store, log.path)):
        with pytest.raises(CorruptLog, match=r"version 0 of the log is missing .* version 2"):
            put(opened, "3", [])
    assert [entry.key for entry in store.inner.list(log.reader.folder)] == [log.reader.key(2)]


# ----------------------------------------------------------------------------- what a marker names


class Overwriting(MemoryStore):
    """A store whose creates overwrite."""

    storage = "overwriting"

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        self.put(key, data)
        return PutOutcome.CREATED


def copied(source: MemoryStore, to: Store) -> Store:
    for entry in source.list(""):
        to.put(entry.key, source.get(entry.key))
    return to


def filled_memory() -> MemoryStore:
    store = MemoryStore()
    manager = manager_over(store)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"0").result(30)
    return store


def marker(store: Store) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(store.get(MARKER_KEY))
    return record


def test_root_copied_to_refused_storage_is_read_only() -> None:
    store = copied(filled_memory(), Overwriting())
    manager = manager_over(store)
    assert [event.data for event in manager.read("s/t")] == [b"0"]
    before = {entry.key: store.get(entry.key) for entry in store.list("")}
    for call in (
        lambda: manager.create_writer("s/t", "w"),
        lambda: manager.create_scope("another"),
        lambda: manager.create_stream("s/another"),
    ):
        with pytest.raises(StoreRefused, match="cannot hold streams"):
            call()
    assert {entry.key: store.get(entry.key) for entry in store.list("")} == before


def test_root_copied_to_good_storage_is_probed_there_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = filled_memory()
    monkeypatch.setattr(MemoryStore, "storage", "another")
    store = Spy(copied(source, MemoryStore()))
    for number in (1, 2):
        with manager_over(store).create_writer("s/t") as writer:
            writer.write_event(b"%d" % number).result(30)
        assert store.count("put_if_absent", "_probe/") == 2 + 8 * 2
    assert marker(store)["storage"] == ["memory", "another"]
    assert marker(store)["root"] == marker(source)["root"]
    assert [event.data for event in manager_over(store).read("s/t")] == [b"0", b"1", b"2"]


def test_marker_of_an_older_version_is_completed_by_the_next_write() -> None:
    store = filled_memory()
    old = {"format": 1, "probed_ms": 7, "racers": 8, "races": 2}
    store.put(MARKER_KEY, json.dumps(old).encode())
    manager = manager_over(Spy(store))
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"1").result(30)
    assert marker(store) == {**old, "root": "probed-7", "storage": ["memory"]}
    check_same(root_of(manager).store)


def test_every_reader_and_writer_checks_the_format() -> None:
    store = filled_memory()
    store.put(MARKER_KEY, json.dumps({**marker(store), "format": 2}).encode())
    manager = manager_over(Spy(store))
    for call in (
        lambda: list(manager.read("s/t")),
        lambda: manager.create_writer("s/t"),
        lambda: manager.create_stream("s/another"),
        lambda: manager.list_streams("s"),
        lambda: manager.create_reader_group("s/g", ["s/t"]),
    ):
        with pytest.raises(StoreRefused, match="has format 2, this version knows 1"):
            call()


def test_marker_is_read_once_and_never_by_an_append() -> None:
    store = Spy(filled_memory())
    manager = manager_over(store)
    with manager.create_writer("s/t") as writer:
        for number in range(3):
            writer.write_event(b"%d" % number).result(30)
    assert store.count("get", MARKER_KEY) == 1  # to open the root


def test_local_disk_names_its_file_system_from_any_folder(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "not/yet/there"))
    assert store.storage == LocalStore(str(tmp_path)).storage
    kind, number = store.storage.split(" ")
    assert kind != os.name or not Path("/proc/self/mountinfo").exists()
    assert int(number, 16) == os.statvfs(tmp_path).f_fsid
    if Path("/proc").is_dir():
        assert LocalStore("/proc/root").storage != store.storage


def test_events_are_readable_after_a_move_within_the_storage(tmp_path: Path) -> None:
    set_up(tmp_path / "root")
    move(tmp_path / "root")
    calls = Spy(LocalStore(str(tmp_path / "elsewhere")))
    manager = manager_over(calls)
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"2").result(30)
    assert calls.count("put_if_absent", "_probe/") == 0
    assert len(all_events(root_of(manager).stream("s/t"))) == 3


def test_a_changed_link_to_another_root_redirects_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link changes after the checks of a commit, before the commit has its name."""
    set_up(tmp_path / "first")
    other = set_up(tmp_path / "second")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "first")
    manager = StreamManager(link)
    writer = manager.create_writer("s/t")
    real = LocalStore._publish

    def changed_first(store: LocalStore, path: str, *rest: Any, **options: Any) -> bool:
        if "/_delta_log/" in path:  # not a state file, which is written in the background
            (tmp_path / "new").symlink_to(tmp_path / "second")
            (tmp_path / "new").rename(link)
        return real(store, path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "_publish", changed_first)
        with pytest.raises(CommitUnknown, match="symbolic link was changed"):
            writer.write_event(b"2").result(30)
    with pytest.raises(RootChanged, match="symbolic link was changed"):
        manager.create_writer("s/t")
    assert [event.data for event in other.read("s/t")] == [b"0", b"1"]
    assert [event.data for event in StreamManager(link).read("s/t")] == [b"0", b"1"]
    link.unlink()
    link.symlink_to(tmp_path / "first")
    assert [event.data for event in StreamManager(link).read("s/t")] == [b"0", b"1", b"2"]
