"""What a sweep costs, what its record makes it skip, and that it never deletes too much."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.log import reader, sweep_record
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.clock import read_clock
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.files import changes_folder
from pravega_spark.engine.log.retained import pin, pins, raise_horizon
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.log.sweep import (
    SweepResult,
    delete_unreferenced_files,
    preview_sweep,
    sweep_table,
)
from pravega_spark.engine.log.sweep_record import record_key
from pravega_spark.engine.store.memory import MemoryStore
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_tables import commit, event_add, put, table_log
from tests.harness.spy_store import Spy
from tests.harness.tiers import only_long, sized

DAY_MS = 86_400_000


class Table:
    """A table whose files are added, removed and staged in vain, and what should be stored."""

    def __init__(self, store: Spy | None = None) -> None:
        self.runtime = FakeRuntime()
        self.store = store or Spy(memory(self.runtime))
        self.log = table_log(self.store, self.runtime)
        self.live: list[str] = []
        self.made = 0

    @property
    def version(self) -> int:
        snapshot = self.log.refresh()
        assert snapshot is not None
        return snapshot.version

    def stage(self, version: int | None = None) -> str:
        self.made += 1
        folder = version_folder(self.version if version is None else version)
        path = f"data/{folder}/f{self.made}"
        self.store.put(f"{self.log.path}/{path}", b"x" * 10)
        return path

    def append(self, files: int = 1, *, removes: int = 0) -> None:
        """Commit new files, and remove the oldest live ones."""
        paths = [self.stage() for _ in range(files)]
        adds = [event_add(path, 0, self.made + n, 1) for n, path in enumerate(paths)]
        gone, self.live = self.live[:removes], self.live[removes:] + paths
        put(self.log, str(self.made), adds, gone)

    def files(self) -> list[str]:
        prefix = f"{self.log.path}/"
        stored = self.store.inner.list(f"{self.log.path}/data")
        return sorted(entry.key.removeprefix(prefix) for entry in stored)

    def sweep(self, back: int = 0, *, now_ms: int | None = None) -> int:
        raise_horizon(self.log, self.version - back, self.version - back)
        return delete_unreferenced_files(Log(self.store, self.log.path), now_ms=now_ms).files


def test_sweep_after_the_first_deletes_what_was_removed_and_what_was_staged_in_vain() -> None:
    table = Table()
    table.append(3)
    table.sweep()
    table.stage()
    table.append(2, removes=2)
    assert table.sweep() == 3
    assert table.files() == sorted(table.live)
    assert table.sweep() == 0


def test_file_that_the_first_commit_of_a_table_added_is_kept() -> None:
    store = Spy()
    log = Log(store, "s/first", FakeRuntime())
    path = f"data/{version_folder(0)}/rows"
    store.put(f"s/first/{path}", b"x")
    origin = table_log(MemoryStore()).reader.commit(0, light=False)
    assert origin is not None
    body = Body(
        "CREATE",
        protocol=origin.protocol,
        metadata=origin.metadata,
        adds=[event_add(path, 0, 0, 1)],
    )
    commit(log, lambda snapshot: body)
    delete_unreferenced_files(log)
    for n in range(3):
        put(log, str(n))
    raise_horizon(log, 3, 3)
    assert delete_unreferenced_files(log).files == 0
    assert store.exists(f"s/first/{path}")


def test_file_of_a_slow_job_is_kept_whenever_it_commits() -> None:
    """It was staged at an old version, and the commit that adds it is read long before."""
    table = Table()
    table.append()
    table.sweep()
    slow = table.stage()
    in_vain = table.stage()
    for _ in range(20):
        table.append()
        table.sweep(back=80)
    put(table.log, "slow", [event_add(slow, 1, 0, 1)])
    for _ in range(25):
        table.append()
        table.sweep(back=10)
    assert slow in table.files()
    assert in_vain not in table.files()


def test_old_and_new_names_of_folders_are_both_swept_by_a_complete_listing() -> None:
    table = Table()
    table.append()
    assert table.sweep(now_ms=1) == 0
    for name in ("v0", "v1", version_folder(1)):
        table.store.put(f"{table.log.path}/data/{name}/late", b"x")
    table.append()
    table.append()
    assert table.sweep(now_ms=DAY_MS - 1) == 1
    table.append()
    assert table.sweep(now_ms=DAY_MS + 1) == 2
    assert table.files() == sorted(table.live)


def test_folder_of_a_transaction_is_swept_once_it_has_ended() -> None:
    table = Table()
    log, opened = table.log, f"{OPEN_PREFIX}t1"
    table.append()
    table.sweep()
    put(log, "a")
    commit(log, lambda snapshot: Body("BEGIN", domains={opened: "[]"}))
    named, in_vain = "data/t-t1/named", "data/t-t1/in-vain"
    for path in (named, in_vain):
        table.store.put(f"{log.path}/{path}", b"x")
    assert table.sweep() == 0
    commit(
        log,
        lambda snapshot: Body("COMMIT", domains={opened: None}, adds=[event_add(named, 1, 0, 1)]),
    )
    assert table.sweep() == 1
    assert named in table.files()
    assert in_vain not in table.files()


def test_paths_that_are_not_of_our_folders_are_never_deleted() -> None:
    table = Table()
    table.append()
    table.sweep()
    paths = ["_delta_log/00000000000000000000.json", "data/v1/../../x", "other/x", "data/v1/.x"]
    put(table.log, "forged", removes=paths)
    put(table.log, "on")
    before = table.store.inner.list("s")
    delete_unreferenced_files(table.log)
    raise_horizon(table.log, 100, 100)
    assert delete_unreferenced_files(table.log).files == 0
    assert {e.key for e in before} <= {e.key for e in table.store.inner.list("s")}


# --------------------------------------------------------------------------------- segments, races


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_record, "SWEEP_SEGMENT_FILES", 8)


def segments(table: Table) -> int:
    return len(table.store.inner.list(changes_folder(table.log.path)))


@pytest.mark.usefixtures("small_segments")
def test_segments_are_written_once_and_deleted_when_the_mark_passed_them() -> None:
    table = Table()
    table.append(5)
    table.sweep()
    for _ in range(30):
        table.append(2, removes=2)
        table.sweep(back=20)
    puts = [key for op, key in table.store.calls if op == "put" and "/changes/" in key]
    assert len(puts) == len(set(puts)) > 5
    assert 2 <= segments(table) <= 15
    table.append()
    table.append()
    table.sweep()
    assert segments(table) == 0
    assert table.files() == sorted(table.live)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("spoil", ["lost", "torn"])
def test_lost_segment_makes_the_sweep_list_all_files(spoil: str) -> None:
    table = Table()
    for _ in range(20):
        table.append(2, removes=1)
        table.sweep(back=15)
    (first, *_) = table.store.inner.list(changes_folder(table.log.path))
    if spoil == "lost":
        table.store.inner.delete([first.key])
    else:
        table.store.inner.put(first.key, table.store.inner.get(first.key)[:-9] + b"\n")
    in_vain = table.stage()
    table.append()
    table.append()
    table.sweep()
    assert table.files() == sorted(table.live)
    assert in_vain not in table.files()
    assert segments(table) == 0


def test_waiting_files_are_counted_with_the_versions_that_removed_them() -> None:
    table = Table()
    table.append(4)
    table.sweep()
    table.append(removes=1)
    first = table.version
    table.append(removes=2)
    last = table.version
    waiting = delete_unreferenced_files(table.log).waiting
    assert (waiting.files, waiting.size_bytes) == (3, 30)
    assert (waiting.first_removal, waiting.last_removal) == (first, last)


POINTS = ["sweep.delete", "sweep.segment", "sweep.recorded"]


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("hits", [1, 3, 8])
def test_killed_sweep_is_finished_by_the_next_one(point: str, hits: int) -> None:
    table = Table()
    killed = 0
    for n in range(40):
        table.append(2, removes=2 if n else 0)
        table.stage()
        with at_failpoint(point, kill if n % hits == 0 else lambda: None):
            try:
                table.sweep(back=3)
            except Killed:
                killed += 1
        assert set(table.live) <= set(table.files())
    assert killed > 0
    table.append()
    table.sweep()
    assert table.files() == sorted(table.live)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(3, 100)))
def test_any_order_of_commits_sweeps_kills_and_other_sweeps_keeps_what_is_needed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step every live file, and every file of a retained version, is stored."""
    monkeypatch.setattr(reader, "STATE_FILE_COMMITS", 2)  # so sweeps learn of commits from states
    pick, table = random.Random(seed), Table()
    slow: list[tuple[int, str]] = []
    held: list[tuple[int, list[str]]] = [(0, [])]

    def check() -> None:
        stored = set(table.files())
        snapshot = table.log.refresh()
        assert snapshot is not None
        for version, files in held:
            if version >= snapshot.retention_mark or version == held[-1][0]:
                assert set(files) <= stored, f"version {version}"

    def act() -> None:
        kind = pick.choice(
            ["append", "append", "remove", "stage", "begin slow", "end slow", "state"]
        )
        if kind in ("append", "remove"):
            table.append(pick.randrange(3), removes=pick.randrange(3) if kind == "remove" else 0)
        elif kind == "stage":
            table.stage()
        elif kind == "state":
            maintain(table.log.reader, table.version)
        elif kind == "begin slow":
            slow.append((table.version, table.stage()))
        elif slow:
            version, path = slow.pop()
            snapshot = table.log.refresh()
            assert snapshot is not None
            if version >= snapshot.horizon:  # otherwise the commit is refused
                table.live.append(path)
                put(table.log, "slow", [event_add(path, 1, table.made, 1)])
        held.append((table.version, list(table.live)))

    for _ in range(150):
        act()
        if pick.random() < 0.3:
            back = pick.randrange(12)
            actions: list[Callable[[], object]] = [act, kill, partial(table.sweep, back)]
            among = pick.choice(actions)
            point = pick.choice(POINTS)
            with at_failpoint(point, among), suppress(Killed):
                table.sweep(back, now_ms=pick.choice([None, 1, 10 * DAY_MS]))
        check()
    table.append()
    table.append()
    table.sweep(now_ms=30 * DAY_MS)
    assert table.files() == sorted(table.live)


# ------------------------------------------------------------------------------------ what waits


def test_sweep_says_what_it_could_not_delete_why_and_from_when_it_can(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = Table()
    table.append(4)
    table.runtime.sleep(60)
    table.append(removes=2)
    removed_ms = table.runtime.now_ms()
    table.runtime.sleep(10)
    table.append(removes=1)
    (pending,) = sweep_table(table.log, grace_ms=20_000, retain_ms=30_000).pending
    assert (pending.files, pending.size_bytes) == (3, 30)
    assert pending.reason == "versions of the last 30.0 s hold them"
    assert (pending.from_ms, pending.until_ms) == (removed_ms + 30_000, removed_ms + 40_000)
    table.runtime.sleep(20)
    table.append()
    with caplog.at_level(logging.INFO, "pravega_spark"):
        result = sweep_table(table.log, grace_ms=20_000, retain_ms=30_000)
    assert result.files == 2
    assert result.pending[0].files == 1
    assert "deleted 2 files of 20 bytes and 0 commits; kept 1 file of 10 B" in caplog.text
    table.runtime.sleep(10)
    done = sweep_table(table.log, grace_ms=20_000, retain_ms=30_000)
    assert (done.files, done.pending) == (1, ())


def test_files_that_a_backup_pins_wait_for_the_end_of_its_pin() -> None:
    table = Table()
    table.append(4)
    held = pin(table.log, "backup", keep_ms=DAY_MS)
    pinned_ms = table.runtime.now_ms()
    table.append(removes=2)
    table.runtime.sleep(3_600)
    (pending,) = sweep_table(table.log, grace_ms=0, retain_ms=0).pending
    assert (pending.files, pending.reason) == (2, f"a backup pins version {held.version}")
    assert pending.from_ms == pinned_ms + DAY_MS


@pytest.mark.medium
def test_stream_that_is_truncated_all_the_time_gives_its_space_back_after_retain() -> None:
    """A commit and a truncation a second, a sweep each second: 20 s of grace, 30 s of retain."""
    table = Table()
    most = 0
    for second in range(300):
        table.append(10, removes=10 if second else 0)
        if second % 100 == 50:
            maintain(table.log.reader, table.version)
        table.runtime.sleep(1)
        sweep_table(table.log, grace_ms=20_000, retain_ms=30_000)
        most = max(most, len(table.files()))
    assert most <= 10 * (30 + 2 + 1)


# ---------------------------------------------------------------------------------------- cost


def cost_of_a_sweep(live: int) -> tuple[int, int, int]:
    """Calls, listed entries and read bytes of a sweep of 20 new commits beside ``live`` files."""
    table = Table()
    for _ in range(live // 500):
        table.append(500)
    maintain(table.log.reader, table.version, checkpoint=True)
    table.sweep()
    for _ in range(20):
        table.append(1, removes=1)
    table.stage()
    table.append()
    raise_horizon(table.log, table.version, table.version)
    log = Log(table.store, table.log.path)
    log.refresh()
    table.store.calls.clear()
    listed = 0
    inner_list = table.store.inner.list

    def counted(*arguments: object, **options: object) -> object:
        nonlocal listed
        found = inner_list(*arguments, **options)  # type: ignore[arg-type]
        listed += len(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table.store.inner, "list", counted)
        assert delete_unreferenced_files(log).files == 21
    assert record_key(log.path) in {key for op, key in table.store.calls if op == "put"}
    return len(table.store.calls), listed, table.store.count("get")


@pytest.mark.medium
def test_cost_of_a_sweep_does_not_depend_on_what_is_live() -> None:
    assert cost_of_a_sweep(500) == cost_of_a_sweep(5_000)


@pytest.mark.long
@only_long("the test above compares 5,000 files with 500")
def test_cost_of_a_sweep_is_the_same_at_100_000_files() -> None:
    assert cost_of_a_sweep(1_000) == cost_of_a_sweep(10_000) == cost_of_a_sweep(100_000)


def preview(table: Table, retain_ms: int = 30_000) -> SweepResult:
    """What a sweep would do; the look changes nothing."""
    table.store.calls.clear()
    now = read_clock(table.store, table.runtime, keep=False)
    found = preview_sweep(
        Log(table.store, table.log.path, table.runtime),
        grace_ms=20_000,
        retain_ms=retain_ms,
        now=now,
    )
    calls = table.store.calls
    written = [call for call in calls if call[0] in ("put", "put_if_absent", "put_many", "delete")]
    assert not written
    assert not [key for operation, key in calls if operation == "list" and "/data" in key]
    return found


@pytest.mark.parametrize("segment_files", [2_048, 2])
def test_preview_of_a_sweep_deletes_nothing_and_says_what_the_sweep_then_does(
    segment_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_record, "SWEEP_SEGMENT_FILES", segment_files)
    table, pick = Table(), random.Random(4)
    table.append(6)
    deleted = 0
    for _ in range(30):
        table.append(pick.randrange(1, 4), removes=pick.randrange(3))
        table.runtime.sleep(pick.randrange(1, 12))
        if pick.random() < 0.5:
            expected = preview(table)
            swept = sweep_table(table.log, grace_ms=20_000, retain_ms=30_000)
            assert (expected.files, expected.size_bytes) == (swept.files, swept.size_bytes)
            assert expected.pending == swept.pending
            assert expected.unmoved == swept.unmoved
            assert (expected.horizon, expected.retention_mark) == (
                swept.horizon,
                swept.retention_mark,
            )
            deleted += swept.files
    assert deleted > 5


def test_preview_without_a_record_or_with_a_lost_segment_reads_the_commits_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep_record, "SWEEP_SEGMENT_FILES", 1)
    table = Table()
    table.append(9)
    for _ in range(4):
        table.runtime.sleep(10)
        table.append(removes=2)
    sweep_table(table.log, grace_ms=20_000, retain_ms=30_000)
    table.runtime.sleep(3_600)
    table.append()
    expected = preview(table)
    assert expected.files > 0
    table.store.delete([e.key for e in table.store.list(changes_folder(table.log.path))])
    assert preview(table) == expected
    table.store.delete([record_key(table.log.path)])
    assert preview(table) == expected


def test_preview_shows_a_pin_and_foresees_its_end() -> None:
    table = Table()
    table.append(4)
    held = pin(table.log, "backup", keep_ms=DAY_MS)
    table.append(removes=2)
    table.runtime.sleep(3_600)
    found = preview(table)
    assert (found.files, found.pending[0].files) == (0, 2)
    assert found.pending[0].reason == f"a backup pins version {held.version}"
    table.runtime.sleep(DAY_MS / 1_000)
    found = preview(table)
    assert (found.files, found.pending, found.unmoved) == (2, (), "")
    snapshot = table.log.refresh()
    assert snapshot is not None
    assert list(pins(snapshot)), "the look has not released it"


def test_preview_of_a_table_that_does_not_exist_is_empty() -> None:
    store = Spy()
    runtime = FakeRuntime()
    now = read_clock(store, runtime, keep=False)
    found = preview_sweep(Log(store, "none", runtime), grace_ms=0, retain_ms=0, now=now)
    assert (found.files, found.pending, found.unmoved) == (0, (), "")
