"""A sweep deletes all files of a deleted stream that the next creation does not need."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CommitUnknown, StaleIdentity
from pravega_spark.manager import manager_over, root_of
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS
from tests.harness.drawn_lives import DRAWN
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.faulty_store import FaultyStore
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_tables import versions
from tests.harness.spy_store import Spy

SECRET = b"payroll-writer"


def world() -> tuple[StreamManager, Spy, FakeRuntime]:
    """A deleted stream that had two writers, a note, a transaction and a gap in its log."""
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    manager = manager_over(store, runtime)
    manager.create_scope("s")
    manager.create_stream("s/t")
    for number in range(3):
        with manager.create_writer("s/t", SECRET.decode()) as writer:
            writer.write_event(b"%d" % number, routing_key="k").result(30)
    transactions = manager.create_transactional_writer("s/t")
    with transactions, transactions.begin_transaction() as transaction:
        transaction.write_event(b"within", "k")
    manager.seal_stream("s/t")
    manager.delete_stream("s/t")
    store.put(f"s/t/transactions/{transaction.id}/00000007.json", b"a late manifest")
    wait_for_maintenance()
    return manager, store, runtime


class Behind(FaultyStore):
    """The store as of a version of the log."""

    def __init__(self, inner: Store, version: int) -> None:
        super().__init__(inner, self._absent)
        self._version = version

    def _absent(self, operation: str, key: str) -> Exception | None:
        late = "_pravega/" in key or key.endswith(f"{self._version + 1:020d}.json")
        return FileNotFoundError(key) if late and operation == "get" else None


def swept(manager: StreamManager, runtime: FakeRuntime) -> int:
    """Sweep as a job does until the mark of commits is old enough; return the deleted ones."""
    commits = 0
    for _ in range(4):
        commits += manager.sweep_scope("s", grace="1 s", retain="1 s").commits
        runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    return commits


def log_of(manager: StreamManager) -> StreamLog:
    return StreamLog(root_of(manager).store, "s/t", root_of(manager).runtime)


def test_log_of_a_deleted_stream_is_cleaned_down_to_its_first_and_last_commit() -> None:
    manager, store, runtime = world()
    stream = log_of(manager)
    head = stream.log.refresh()
    assert head is not None
    assert any(SECRET in store.get(entry.key) for entry in store.list("s/t/events"))
    assert swept(manager, runtime) >= head.version
    last = head.version + 1
    assert versions(stream.log) == [0, last]
    left = [entry.key.removeprefix("s/t/events/") for entry in store.list("s/t")]
    assert [key for key in left if "metadata/" not in key] == [
        f"_delta_log/{0:020d}.json",
        f"_delta_log/{last:020d}.checkpoint.parquet",
        f"_delta_log/{last:020d}.json",
        "_delta_log/_last_checkpoint",
        f"_pravega/checkpoint/{last:020d}.json",
        "_pravega/latest.json",
        f"_pravega/state/{last:020d}.json",
    ]
    assert not any(SECRET in store.get(f"s/t/events/{key}") for key in left if "meta" not in key)
    calls = len(store.sent)
    assert swept(manager, runtime) == 0
    assert [key for key, _ in store.sent[calls:] if key.startswith("s/t/")] == []


def test_nothing_is_deleted_before_the_commit_deletion_mark_is_an_hour_old() -> None:
    manager, _, runtime = world()
    stream = log_of(manager)
    runtime.sleep(CLEANUP_WAIT_SECONDS * 3)
    before = versions(stream.log)
    for _ in range(3):
        manager.sweep_scope("s", grace="1 s", retain="1 s")
        runtime.sleep(CLEANUP_WAIT_SECONDS / 4)
    assert versions(stream.log) == [*before, before[-1] + 1]


@pytest.mark.parametrize("lost", ["", "latest.json", "state/", "checkpoint/", ".parquet"])
def test_name_is_created_again_as_the_next_life(lost: str) -> None:
    manager, store, runtime = world()
    swept(manager, runtime)
    if lost:
        store.delete([e.key for e in store.list("s/t/events") if lost in e.key])
    last = versions(log_of(manager).log)[-1]
    assert not manager.stream_exists("s/t")
    assert manager.create_stream("s/t")
    with manager.create_writer("s/t", "w") as writer:
        pointer = writer.write_event(b"of the second life").result(30)
    assert pointer.life > DRAWN
    assert pointer.segment_id & 0xFFFFFFFF == 1
    assert [event.data for event in manager.read("s/t")] == [b"of the second life"]
    assert versions(log_of(manager).log)[2] == last + 1
    before = store.list("s/t/events")
    swept(manager, runtime)
    assert store.list("s/t/events") == before


def test_process_that_was_paused_in_the_first_life_cannot_change_the_second() -> None:
    manager, store, runtime = world()
    stalled = Log(Behind(store.inner, 3), "s/t/events", runtime)
    known = stalled.refresh()
    assert known is not None
    assert known.version == 3
    stalled.reader.store = stalled.store = store

    def second_life() -> None:
        swept(manager, runtime)
        assert manager.create_stream("s/t")
        wait_for_maintenance()

    with at_failpoint("commit.before", second_life), pytest.raises(CommitUnknown):
        stalled.commit(lambda snapshot: (Body("APPEND"), None))
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"of the second life").result(30)
    assert [event.data for event in manager.read("s/t")] == [b"of the second life"]
    with pytest.raises(StaleIdentity):
        log_of(manager).view(life=1)


@pytest.mark.parametrize("point", ["cleanup.delete", "maintain.state", "maintain.checkpoint"])
def test_killed_sweep_is_finished_by_the_next(point: str) -> None:
    manager, _, runtime = world()

    with at_failpoint(point, kill) as killed:
        for _ in range(3):
            try:
                manager.sweep_scope("s", grace="1 s", retain="1 s")
            except Killed:
                break
            runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
        assert killed.hits
    swept(manager, runtime)
    assert len(versions(log_of(manager).log)) == 2
    assert manager.create_stream("s/t")


def test_stream_that_is_created_during_a_sweep_stays_intact() -> None:
    manager, _, runtime = world()
    manager.sweep_scope("s", grace="1 s", retain="1 s")
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    with at_failpoint("cleanup.delete", lambda: manager.create_stream("s/t")) as created:
        manager.sweep_scope("s", grace="1 s", retain="1 s")
    assert created.hits
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"whole").result(30)
    assert [event.data for event in manager.read("s/t")] == [b"whole"]


# ------------------------------------------------------------------------ files without their name


def hidden(folder: Path, *, age_seconds: float) -> Path:
    """A file as a killed process leaves it if the kernel has no unnamed files."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".4711-{'ab' * 8}-{len(list(folder.iterdir()))}.tmp"
    path.write_bytes(b"half a chunk")
    now = path.stat().st_mtime
    os.utime(path, (now - age_seconds, now - age_seconds))
    return path


def test_files_of_killed_processes_are_swept_when_they_are_old(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    manager.create_stream("s/gone")
    manager.seal_stream("s/gone")
    manager.delete_stream("s/gone")
    wait_for_maintenance()
    folders = ["s/t/events/data/v7", "s/t/events/_delta_log", "s/t/transactions/x", "s/_scope/data"]
    old = [hidden(tmp_path / f, age_seconds=7_200) for f in (*folders, "s/gone/events/data/v1")]
    new = [hidden(tmp_path / f, age_seconds=60) for f in folders]
    old.append(hidden(tmp_path, age_seconds=7_200))
    new.append(hidden(tmp_path, age_seconds=60))
    other = hidden(tmp_path / "s2/t/events", age_seconds=7_200)
    own = tmp_path / "s/t/events/.keep.tmp"
    own.write_bytes(b"of somebody else")
    os.utime(own, (0, 0))

    result = manager.sweep_stream("s/t", grace="1 hour")
    result_of_scope = manager.sweep_scope("s", grace="1 hour")

    assert [path for path in old if path.exists()] == []
    assert all(path.exists() for path in [*new, own, other])
    assert result.files >= 2
    assert result_of_scope.files >= 2
    assert not (tmp_path / "s/gone/events/data").exists()


def test_hidden_checksums_of_refused_writers_are_deleted_with_their_files(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    events = tmp_path / "s/t/events"

    def left(path: str, age_seconds: float) -> Path:
        file = events / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"theirs")
        os.utime(file, (time.time() - age_seconds,) * 2)
        return file

    folders = ("", "segment_id=0/", "segment_id=0/base_offset=7/")
    names = ("part-0.snappy.parquet", ".part-0.snappy.parquet.crc")
    old = [left(f + name, 7_200) for f in folders for name in names]
    kept = [left(f"segment_id=1/{name}", 60) for name in names]
    kept += [left(f".keep-{n}.crc", 7_200) for n in range(2)]
    kept += [left("deeper/part-1.parquet", 7_200), left("deeper/.part-1.parquet.crc", 7_200)]

    assert manager.sweep_stream("s/t", grace="1 hour").files == len(old)
    assert [path for path in old if path.exists()] == []
    assert not (events / "segment_id=0").exists()
    assert all(path.exists() for path in kept)


def test_file_that_is_being_written_survives_a_sweep_without_grace(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store._nameless = False
    real = os.link

    def swept_first(*arguments: object, **options: object) -> None:
        os.link = real
        store.discard_unfinished("", -1_000)
        real(*arguments, **options)  # type: ignore[arg-type]

    os.link = swept_first
    try:
        store.put_if_absent("folder/key", b"whole")
    finally:
        os.link = real
    assert store.get("folder/key") == b"whole"
    assert os.listdir(tmp_path / "folder") == ["key"]
