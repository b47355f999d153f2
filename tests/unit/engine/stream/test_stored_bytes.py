"""What a stream stores by kind: each object is counted once, with the reason why it is stored."""

from __future__ import annotations

import pytest

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.retained import pin
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.stream.stored_bytes import StorageInfo, StorageKind
from pravega_spark.manager import manager_over, root_of
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.small_streams import reopen, staged
from tests.harness.spy_store import Spy

S = "s/t"
HOUR = 3_600
GRACE, RETAIN = "2 hours", "10 hours"


class World:
    """A stream with two segments in memory, and its clock."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.store = Spy(memory(self.runtime))
        self.manager = manager_over(self.store, self.runtime)
        self.manager.create_scope("s")
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
        self.manager.update_settings(grace=GRACE, retain=RETAIN)
        self.stream = root_of(self.manager).stream(S)

    def write(self, commits: int) -> None:
        """Commits of one chunk each."""
        with self.manager.create_writer(S) as writer:
            for n in range(commits):
                writer.write_event(b"x" * 100, f"k{n}")
                writer.flush()

    def sweep(self) -> None:
        self.manager.sweep_stream(S)

    def found(self) -> StorageInfo:
        """The storage; all objects of the stream are counted, and no object is written."""
        wait_for_maintenance()  # a sweep's history gets its first state file in the background
        info = self.manager.stream_storage(S)
        self.store.calls.clear()
        assert self.manager.stream_storage(S) == info
        written = [
            call for call in self.store.calls if call[0] in ("put", "put_if_absent", "delete")
        ]
        assert written == []
        return info

    def chunks(self) -> FileTotals:
        """The chunks that are stored."""
        entries = self.store.list(f"{S}/events/data")
        return FileTotals(len(entries), sum(entry.size for entry in entries))


def total_of(store: Store) -> FileTotals:
    entries = store.list(S)
    return FileTotals(len(entries), sum(entry.size for entry in entries))


def files(info: StorageInfo) -> dict[str, int]:
    """The number of files by kind of chunk."""
    kinds = ("live", "retained", "staged", "open transactions", "pending", "swept")
    return {part.kind.value: part.files for part in info.parts if part.kind.value in kinds}


NONE = dict.fromkeys(("live", "retained", "staged", "open transactions", "pending", "swept"), 0)


def test_every_object_is_counted_once_and_live_files_are_those_of_stream_info() -> None:
    world = World()
    world.write(6)
    transaction = world.manager.create_transactional_writer(S).begin_transaction()
    transaction.write_event(b"y", "k")
    transaction.flush()
    staged(world.stream, [("k", b"never committed")])
    world.manager.truncate_stream(S, world.manager.tail(S))
    world.write(2)

    info = world.found()
    assert info.total == total_of(world.store)
    assert files(info) == NONE | {"live": 2, "retained": 6, "staged": 1, "open transactions": 1}
    live = info.part(StorageKind.LIVE)
    assert world.manager.stream_info(S).files == FileTotals(live.files, live.size_bytes)
    assert live.size_bytes < world.chunks().size_bytes
    assert info.part(StorageKind.TRANSACTIONS).files >= 1
    assert info.part(StorageKind.COMMITS).files == info.version + 1
    assert "no retention policy" in live.reason
    assert "  retained: 6 files" in str(info)
    transaction.abort()
    assert files(world.found())["pending"] == 1


def test_retained_chunks_say_when_they_can_be_deleted_and_swept_ones_are_counted() -> None:
    world = World()
    world.write(4)
    world.manager.truncate_stream(S, world.manager.tail(S))
    removed_ms = world.runtime.now_ms()
    world.write(1)

    retained = world.found().part(StorageKind.RETAINED)
    assert retained.deletable_ms == pytest.approx(removed_ms + 10 * HOUR * 1_000, abs=10_000)
    assert "10 hours (retain)" in retained.reason
    assert "By the settings a sweep deletes the first of them from" in retained.reason
    assert "one that is given shorter times, earlier" in retained.reason
    commits = world.found().part(StorageKind.COMMITS)
    assert (
        commits.reason == "Versions from 0 on can be read; no sweep has let commits be deleted yet."
    )
    world.sweep()
    assert files(world.found()) == NONE | {"live": 1, "retained": 4}

    world.runtime.sleep(11 * HOUR)
    assert "none has run since" in world.found().part(StorageKind.RETAINED).reason
    world.write(1)
    world.sweep()
    info = world.found()
    assert files(info) == NONE | {"live": 2, "swept": 4}
    assert info.part(StorageKind.SWEPT).size_bytes == retained.size_bytes
    assert info.total == total_of(world.store)


def test_staged_chunks_wait_for_the_grace_and_then_for_a_sweep() -> None:
    world = World()
    world.write(1)
    staged(world.stream, [("k", b"never committed")])
    assert "counted from the next commit" in world.found().part(StorageKind.STAGED).reason
    world.write(2)
    part = world.found().part(StorageKind.STAGED)
    assert part.deletable_ms == pytest.approx(world.runtime.now_ms() + 2 * HOUR * 1_000, abs=10_000)
    world.runtime.sleep(3 * HOUR)
    world.write(1)
    assert "A sweep now deletes" in world.found().part(StorageKind.STAGED).reason
    world.sweep()
    assert files(world.found()) == NONE | {"live": 4, "swept": 1}
    snapshot = world.stream.log.refresh()
    assert snapshot is not None
    for version in (snapshot.horizon, snapshot.horizon - 1):
        staged(world.stream, [("k", b"never committed")], version)
    assert files(world.found()) == NONE | {"live": 4, "swept": 1, "staged": 1, "pending": 1}


def test_backup_that_holds_a_version_is_the_reason() -> None:
    world = World()
    world.write(2)
    held = pin(world.stream.log, "p", keep_ms=HOUR * 1_000)
    world.manager.truncate_stream(S, world.manager.tail(S))
    part = world.found().part(StorageKind.RETAINED)
    assert part.deletable_ms is None
    assert f"A backup holds version {held.version} until it is complete" in part.reason
    assert "UTC. If it was killed, wait until then" in part.reason
    assert "  staged: 1 file, " in str(staged_one(world))
    world.runtime.sleep(HOUR + 1)
    assert "its time is over: the next sweep ends it" in (
        world.found().part(StorageKind.RETAINED).reason
    )


def staged_one(world: World) -> StorageInfo:
    staged(world.stream, [("k", b"never committed")])
    return world.found()


def test_wrong_dates_are_a_reason() -> None:
    world = World()
    world.write(2)
    world.runtime.wall_ms -= 10 * HOUR * 1_000  # the storage's clock was behind the commits' times
    world.manager.truncate_stream(S, world.manager.tail(S))
    staged(world.stream, [("k", b"never committed")])
    world.runtime.wall_ms += 10 * HOUR * 1_000
    world.runtime.sleep(60)
    part = world.found().part(StorageKind.RETAINED)
    assert part.deletable_ms is None
    assert "count as new. The dates of their commits' objects cannot be right" in part.reason
    assert "Correct the clock" in part.reason


def test_counts_of_sweeps_end_with_the_life_and_damage_counts_from_zero() -> None:
    world = World()
    world.write(2)
    world.manager.truncate_stream(S, world.manager.tail(S))
    world.runtime.sleep(11 * HOUR)
    world.write(1)
    world.sweep()
    key = f"{S}/events/_pravega/swept.json"
    assert files(world.found())["swept"] == 2
    for damage in (b"", b"[]", b'{"files":"2","bytes":1}', b"\xff"):
        good = world.store.get(key)
        world.store.put(key, damage)
        assert files(world.found())["swept"] == 0
        world.store.put(key, good)
    world.manager.seal_stream(S)
    world.manager.delete_stream(S)
    world.manager.sweep_scope("s")
    assert not world.store.exists(key)


def test_totals_of_a_long_stream_are_read_without_a_listing() -> None:
    world = World()
    world.write(40)
    stream = reopen(world.stream)
    world.store.calls.clear()
    live = world.manager.stream_info(S).files
    assert not [key for op, key in world.store.calls if op == "list" and "/data" in key]
    assert live == world.chunks() == FileTotals(40, live.size_bytes)
    stream.log.refresh()
    with stream.log.files() as index:
        assert index.totals() == live
