"""When old commits are deleted, which are kept, and that stalled processes notice it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.clock import read_clock
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import VersionAges, raise_horizon
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.sweep import delete_old_commits, mark_has_aged, sweep_table
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CommitUnknown, StoreError
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_tables import event_add, put, raise_marks, table_log, versions
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized


def filled(commits: int, checkpoints: tuple[int, ...] = ()) -> tuple[FakeRuntime, Spy, Log]:
    """A table with so many commits, and checkpoints of some of its versions."""
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    log = table_log(store, runtime)
    for n in range(1, commits + 1):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
        if n in checkpoints:
            maintain(log.reader, n, checkpoint=True)
    return runtime, store, log


def wait(runtime: FakeRuntime, log: Log) -> None:
    """Let the mark become old enough, from its first check on."""
    assert not mark_has_aged(log, VersionAges.read(log, now_ms=runtime.now_ms() + 10**10))
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)


def newest(log: Log) -> Snapshot:
    snapshot = log.refresh()
    assert snapshot is not None
    return snapshot


def test_nothing_is_deleted_before_the_commit_deletion_mark_is_an_hour_old_by_both_clocks() -> None:
    runtime, _, log = filled(9, (3, 6, 9))
    raise_marks(log, 9, 6)
    far = runtime.now_ms() + 10**10
    # The host's clock is far ahead, and the storage's shows that it is too early.
    assert delete_old_commits(log, VersionAges.read(log, now_ms=far)) == 0
    runtime.sleep(CLEANUP_WAIT_SECONDS - 1)
    assert delete_old_commits(log, VersionAges.read(log, now_ms=far)) == 0
    runtime.sleep(2)
    early = runtime.now_ms() - 10_000
    assert delete_old_commits(log, VersionAges.read(log, now_ms=early)) == 0
    assert delete_old_commits(log) == 5
    assert versions(log) == [0, 6, 7, 8, 9, 10]


def test_new_commit_deletion_mark_needs_an_hour_of_its_own() -> None:
    runtime, _, log = filled(9, (3, 6, 9))
    raise_marks(log, 9, 3)
    wait(runtime, log)
    raise_marks(log, 9, 6)
    assert delete_old_commits(log, VersionAges.read(log, now_ms=runtime.now_ms() + 10**10)) == 0
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    assert delete_old_commits(log) == 5


def test_raised_horizon_does_not_make_the_commit_deletion_mark_younger() -> None:
    runtime, _, log = filled(9, (3, 6, 9))
    raise_marks(log, 7, 6)
    wait(runtime, log)
    raise_horizon(log, 9)
    assert delete_old_commits(log) == 5


def test_version_0_and_all_since_the_older_of_two_intact_checkpoints_are_kept() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    store.put(f"{log.path}/_delta_log/{12:020d}.checkpoint.parquet", b"torn")
    raise_marks(log, 12, 12)
    wait(runtime, log)

    assert delete_old_commits(log) == 5
    assert versions(log) == [0, *range(6, 14)]
    assert log.reader.listed("checkpoint") == [12, 9, 6]
    assert log.reader.listed("state") == [12, 9, 6]
    assert Log(store, log.path, runtime).refresh() == newest(log)


def test_every_retained_version_keeps_an_intact_checkpoint_at_or_below_it() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    store.put(f"{log.path}/_delta_log/{6:020d}.checkpoint.parquet", b"torn")
    raise_marks(log, 12, 7)  # version 7 is retained, and checkpoint 6 is torn
    wait(runtime, log)

    assert delete_old_commits(log) == 2
    assert versions(log)[:2] == [0, 3]


@pytest.mark.parametrize("checkpoints", [(), (6,), (9, 12)])
def test_nothing_is_deleted_without_two_checkpoints_and_one_below_the_commit_deletion_mark(
    checkpoints: tuple[int, ...],
) -> None:
    runtime, _, log = filled(12, checkpoints)
    raise_marks(log, 12, 8)
    wait(runtime, log)
    assert delete_old_commits(log) == 0
    assert versions(log) == list(range(14))


def test_log_without_a_commit_deletion_mark_is_never_cleaned() -> None:
    runtime, _, log = filled(12, (3, 6, 9))
    runtime.sleep(10 * CLEANUP_WAIT_SECONDS)
    assert delete_old_commits(log) == 0
    assert delete_old_commits(Log(MemoryStore(), "none")) == 0


def test_deletion_goes_upward_and_a_killed_cleanup_is_finished_by_the_next() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    raise_marks(log, 12, 9)
    wait(runtime, log)
    store.calls.clear()
    delete = store.inner.delete

    def fail_midway(keys: Iterable[str]) -> None:
        listed = list(keys)
        if not any("/_delta_log/" in key for key in listed):
            return delete(listed)
        delete(listed[:3])
        raise StoreError("failed midway")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.inner, "delete", fail_midway)
        with pytest.raises(StoreError, match="failed midway"):
            delete_old_commits(log)
    assert versions(log) == [0, *range(4, 14)]
    with log.files() as files:
        assert len(list(files.all())) == 12
    fresh = Log(store, log.path, runtime)
    assert fresh.refresh() == newest(log)
    with fresh.files() as files:
        assert len(list(files.all())) == 12

    store.calls.clear()
    assert delete_old_commits(fresh) == 5
    deleted = [key for op, key in store.calls if op == "delete" and "_delta_log/" in key]
    commits = [key for key in deleted if "checkpoint" not in key]
    assert commits == sorted(commits)
    assert versions(log) == [0, *range(9, 14)]


def test_two_concurrent_cleanups_delete_no_more_than_one() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    raise_marks(log, 12, 9)
    wait(runtime, log)
    other = Log(store, log.path, runtime)
    with at_failpoint("cleanup.delete", lambda: delete_old_commits(other)):
        delete_old_commits(log)
    assert versions(log) == [0, *range(9, 14)]


def calls_of_cleanup(commits: int) -> int:
    runtime, store, log = filled(commits, (commits - 2, commits - 1))
    raise_marks(log, commits, commits)
    wait(runtime, log)
    requests: list[int] = []
    delete = store.inner.delete

    def count(keys: Iterable[str]) -> None:
        requests.append(1)
        delete(keys)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.inner, "delete", count)
        assert delete_old_commits(log) == commits - 3
    return len(requests)


def test_many_commits_are_deleted_by_few_calls() -> None:
    assert calls_of_cleanup(600) == calls_of_cleanup(60)


class Unordered(Spy):
    """An object store, which deletes the objects of one call in any order."""

    is_local = False
    between: Callable[[], object] | None = None
    seed = 0

    def delete(self, keys: Iterable[str]) -> None:
        shuffled = list(keys)
        random.Random(self.seed).shuffle(shuffled)
        for key in shuffled:
            super().delete([key])
            if self.between is not None and "/_delta_log/" in key:
                self.between()


def cleaned_under(seed: int, act: Callable[[Log], object]) -> int:
    """Let a process with an old snapshot act after each deletion of a cleanup; count the acts."""
    runtime = FakeRuntime()
    store = Unordered(memory(runtime))
    first = table_log(store, runtime)
    known: list[Log] = []
    for n in range(1, 13):
        put(first, str(n))
        known.append(Log(store, first.path, runtime))
        known[-1].refresh()
        if n in (9, 12):
            maintain(first.reader, n, checkpoint=True)
    raise_marks(first, 12, 9)
    wait(runtime, first)
    pick = random.Random(seed)
    pick.shuffle(known)
    acted: list[int] = []

    def between() -> None:
        acted.append(1)
        act(known.pop())

    store.seed, store.between = seed, between
    assert delete_old_commits(first) == 8
    assert versions(first)[-1] == newest(first).version
    return len(acted)


@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(6, 200)))
def test_put_during_a_deletion_without_order_is_readable_or_unknown(seed: int) -> None:
    """An acknowledged commit is read by every process that opens the log afterwards."""

    def act(stalled: Log) -> None:
        stalled._follower._newest_at = None
        known = stalled.snapshot
        assert known is not None
        with suppress(CommitUnknown):
            if stalled._send(Body("TEST", domains={"test": "new"})):
                lost.append(known.version)

    lost: list[int] = []
    assert cleaned_under(seed, act) == 8
    assert not [version for version in lost if version < 12]


@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(6, 200)))
def test_refresh_during_a_deletion_without_order_finds_the_newest_version(seed: int) -> None:
    found: list[int] = []

    def act(stalled: Log) -> None:
        stalled._follower._newest_at = None
        found.append(newest(stalled).version)

    cleaned_under(seed, act)
    assert set(found) == {13}


# --------------------------------------------------------------------------------- wrong clocks


def with_new_mark(runtime: FakeRuntime, *, own_clock: bool) -> tuple[MemoryStore, Log]:
    """A table whose mark was set just now."""
    store = memory(runtime)
    store.has_clock = own_clock
    log = table_log(store, runtime)
    for n in range(12):
        put(log, str(n))
        runtime.sleep(60)
    maintain(log.reader, 6, checkpoint=True)
    maintain(log.reader, 12, checkpoint=True)
    read_clock(store, runtime)
    raise_marks(log, 12, 8)
    assert delete_old_commits(log) == 0
    return store, log


@pytest.mark.parametrize("step_seconds", [CLEANUP_WAIT_SECONDS + 1, 86_400, 3_650 * 86_400])
def test_wall_clock_that_steps_ahead_does_not_age_the_mark(step_seconds: float) -> None:
    runtime = FakeRuntime()
    _, log = with_new_mark(runtime, own_clock=False)
    runtime.wall_ms += step_seconds * 1_000
    runtime.elapsed += 60
    assert delete_old_commits(log) == 0
    runtime.sleep(CLEANUP_WAIT_SECONDS)
    assert delete_old_commits(log) > 0


def test_append_of_a_machine_that_was_frozen_with_its_boot_clock_is_unknown() -> None:
    """The machine and its boot clock stopped; its wall clock was corrected afterwards."""
    runtime, frozen = FakeRuntime(), FakeRuntime()
    store, log = with_new_mark(runtime, own_clock=True)
    frozen.wall_ms = runtime.wall_ms
    stalled = Log(store, log.path, frozen)
    stalled.refresh()

    def others() -> None:
        for n in range(8):
            put(log, f"later {n}")
        for _ in range(3):
            runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
            maintain(log.reader, put(log, "on"), checkpoint=True)
            sweep_table(log, grace_ms=0, retain_ms=0)
        frozen.wall_ms = runtime.wall_ms

    deleted = stalled.snapshot.version + 1  # type: ignore[union-attr]
    with at_failpoint("commit.before", others), pytest.raises(CommitUnknown):
        put(stalled, "lost")
    assert deleted in versions(log), "it was created in the place of a deleted commit"
