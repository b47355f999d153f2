from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest
import xxhash

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.clock_record import read_now
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.garbage import DeletedFiles, delete_unreferenced_files
from pravega_spark.engine.log.horizon import raise_horizon
from pravega_spark.engine.log.log_cleanup import cleanup_mark_has_aged, delete_old_commits
from pravega_spark.engine.log.snapshot import OPEN_PREFIX, Snapshot
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.errors import CommitUnknown, StagedTooLate, StoreError
from pravega_spark.limits import CLEANUP_WAIT_SECONDS
from tests.harness.engine import (
    NOW_MS,
    FakeRuntime,
    Spy,
    again,
    all_events,
    clean,
    commit,
    event_add,
    make_stream,
    memory,
    put,
    staged,
    table_log,
    versions,
    write,
)
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault


def filled(commits: int, checkpoints: tuple[int, ...] = ()) -> tuple[FakeRuntime, Spy, Log]:
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    log = table_log(store, runtime)
    for n in range(1, commits + 1):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
        if n in checkpoints:
            maintain(log.reader, n, checkpoint=True)
    return runtime, store, log


def wait(runtime: FakeRuntime, log: Log) -> None:
    assert not cleanup_mark_has_aged(log, VersionAges.read(log, now_ms=runtime.now_ms() + 10**10))
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)


def head(log: Log) -> Snapshot:
    snapshot = log.refresh()
    assert snapshot is not None
    return snapshot


# ------------------------------------------------------------------------------------ the marks


def test_horizon_and_mark_never_go_back_and_never_pass_the_head() -> None:
    _, _, log = filled(6)
    raise_horizon(log, 4, 2)
    for horizon, mark in ((3, 1), (4, 2), (0, 0)):
        before = head(log).version
        raise_horizon(log, horizon, mark)
        assert head(log).version == before
    assert (head(log).horizon, head(log).cleanup) == (4, 2)

    raise_horizon(log, 1_000, 500)
    assert (head(log).horizon, head(log).cleanup) == (7, 7)
    assert head(log).cleanup_set_version == 8


def test_mark_never_passes_the_horizon() -> None:
    _, _, log = filled(6)
    raise_horizon(log, 3, 5)
    assert (head(log).horizon, head(log).cleanup) == (3, 3)


def test_chunks_staged_below_the_horizon_are_committed_never_again() -> None:
    stream = make_stream()
    late = staged(stream, [("k", b"late")])
    for _ in range(3):
        write(stream, [("k", b"x")])
    raise_horizon(stream.log, 1)
    other = again(stream)  # it staged before the horizon moved and does not know yet

    for opened in (stream, other):
        with pytest.raises(StagedTooLate, match=r"staged at version 0 .*horizon is at version 1"):
            append(opened, 1, 0, late)
    assert len(all_events(stream)) == 3


# ------------------------------------------------------------------------------------- clean-up


def test_nothing_is_deleted_before_the_mark_has_stood_an_hour_by_both_clocks() -> None:
    runtime, _, log = filled(9, (3, 6, 9))
    raise_horizon(log, 9, 6)
    far = runtime.now_ms() + 10**10
    assert (
        delete_old_commits(log, VersionAges.read(log, now_ms=far)) == 0
    )  # our clock is wrong; the store's says it is too early
    runtime.sleep(CLEANUP_WAIT_SECONDS - 1)
    assert delete_old_commits(log, VersionAges.read(log, now_ms=far)) == 0
    runtime.sleep(2)
    assert (
        delete_old_commits(log, VersionAges.read(log, now_ms=runtime.now_ms() - 10_000)) == 0
    )  # ours says it is too early
    assert delete_old_commits(log) == 5
    assert versions(log) == [0, 6, 7, 8, 9, 10]


def test_a_new_mark_has_to_stand_an_hour_of_its_own() -> None:
    runtime, _, log = filled(9, (3, 6, 9))
    raise_horizon(log, 9, 3)
    wait(runtime, log)
    raise_horizon(log, 9, 6)
    assert delete_old_commits(log, VersionAges.read(log, now_ms=runtime.now_ms() + 10**10)) == 0
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    assert delete_old_commits(log) == 5


def test_raised_horizon_does_not_make_the_mark_younger() -> None:
    runtime, _, log = filled(9, (3, 6, 9))
    raise_horizon(log, 7, 6)
    wait(runtime, log)
    raise_horizon(log, 9)
    assert delete_old_commits(log) == 5


def test_version_0_and_all_since_the_older_of_two_sound_checkpoints_stay() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    store.put(f"{log.path}/_delta_log/{12:020d}.checkpoint.parquet", b"torn")
    raise_horizon(log, 12, 12)
    wait(runtime, log)

    assert delete_old_commits(log) == 5
    assert versions(log) == [0, *range(6, 14)]
    assert log.reader.listed("checkpoint") == [12, 9, 6]
    assert log.reader.listed("state") == [12, 9, 6]
    assert Log(store, log.path, runtime).refresh() == head(log)


def test_every_retained_version_has_a_sound_checkpoint_to_stand_on() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    store.put(f"{log.path}/_delta_log/{6:020d}.checkpoint.parquet", b"torn")
    raise_horizon(log, 12, 7)  # version 7 is retained; checkpoint 6 is of no use to it
    wait(runtime, log)

    assert delete_old_commits(log) == 2
    assert versions(log)[:2] == [0, 3]


@pytest.mark.parametrize("checkpoints", [(), (6,), (9, 12)])
def test_nothing_is_deleted_without_two_checkpoints_and_one_below_the_mark(
    checkpoints: tuple[int, ...],
) -> None:
    runtime, _, log = filled(12, checkpoints)
    raise_horizon(log, 12, 8)
    wait(runtime, log)
    assert delete_old_commits(log) == 0
    assert versions(log) == list(range(14))


def test_log_without_a_mark_is_never_cleaned() -> None:
    runtime, _, log = filled(12, (3, 6, 9))
    runtime.sleep(10 * CLEANUP_WAIT_SECONDS)
    assert delete_old_commits(log) == 0
    assert delete_old_commits(Log(MemoryStore(), "none")) == 0


def test_deletion_goes_upward_and_a_clean_up_that_died_is_finished_by_the_next() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    raise_horizon(log, 12, 9)
    wait(runtime, log)
    store.calls.clear()
    delete = store.inner.delete

    def die(keys: Iterable[str]) -> None:
        doomed = list(keys)
        if not any("/_delta_log/" in key for key in doomed):
            return delete(doomed)
        delete(doomed[:3])
        raise StoreError("died")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.inner, "delete", die)
        with pytest.raises(StoreError, match="died"):
            delete_old_commits(log)
    assert versions(log) == [0, *range(4, 14)]
    with log.files() as files:
        assert len(list(files.all())) == 12
    fresh = Log(store, log.path, runtime)
    assert fresh.refresh() == head(log)
    with fresh.files() as files:
        assert len(list(files.all())) == 12

    store.calls.clear()
    assert delete_old_commits(fresh) == 5
    deleted = [key for op, key in store.calls if op == "delete" and "_delta_log/" in key]
    commits = [key for key in deleted if "checkpoint" not in key]
    assert commits == sorted(commits)
    assert versions(log) == [0, *range(9, 14)]


def test_two_cleaners_at_once_do_no_harm() -> None:
    runtime, store, log = filled(12, (3, 6, 9, 12))
    raise_horizon(log, 12, 9)
    wait(runtime, log)
    other = Log(store, log.path, runtime)
    with at_failpoint("cleanup.delete", lambda: delete_old_commits(other)):
        delete_old_commits(log)
    assert versions(log) == [0, *range(9, 14)]


def calls_of_clean_up(commits: int) -> int:
    runtime, store, log = filled(commits, (commits - 2, commits - 1))
    raise_horizon(log, commits, commits)
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


def test_many_commits_are_cleaned_away_by_few_calls() -> None:
    assert calls_of_clean_up(600) == calls_of_clean_up(60)


class Unordered(Spy):
    """An object store, which deletes what is in one call in any order."""

    is_local = False
    between: Callable[[], object] | None = None
    seed = 0

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        random.Random(self.seed).shuffle(doomed)
        for key in doomed:
            super().delete([key])
            if self.between is not None and "/_delta_log/" in key:
                self.between()


def cleaned_under(seed: int, act: Callable[[Log], object]) -> int:
    """Let processes act that know an old version, after each deletion of a clean-up."""
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
    raise_horizon(first, 12, 9)
    wait(runtime, first)
    pick = random.Random(seed)
    pick.shuffle(known)
    acted: list[int] = []

    def between() -> None:
        acted.append(1)
        act(known.pop())

    store.seed, store.between = seed, between
    assert delete_old_commits(first) == 8
    assert versions(first)[-1] == head(first).version
    return len(acted)


@pytest.mark.parametrize("seed", range(20))
def test_put_in_the_midst_of_a_deletion_without_order_counts_or_is_unknown(seed: int) -> None:
    """Acknowledged is only what a reader finds that opens the log afterwards."""

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


@pytest.mark.parametrize("seed", range(20))
def test_look_in_the_midst_of_a_deletion_without_order_finds_the_head(seed: int) -> None:
    found: list[int] = []

    def act(stalled: Log) -> None:
        stalled._follower._newest_at = None
        found.append(head(stalled).version)

    cleaned_under(seed, act)
    assert set(found) == {13}


# ---------------------------------------------------------------------------------------- sweep


def files_of(log: Log) -> list[str]:
    return sorted(e.key.removeprefix(f"{log.path}/") for e in log.store.list(f"{log.path}/data"))


def test_sweep_deletes_exactly_what_no_retained_version_needs() -> None:
    stream = make_stream()
    log = stream.log
    for n in range(4):
        write(stream, [("k", b"%d" % n)])
    orphan_old = staged(stream, [("k", b"never")], version=2)[0].path
    orphan_new = staged(stream, [("k", b"never")], version=5)[0].path
    for name in ("open", "ended"):
        log.store.put(f"{log.path}/data/t-{name}/x.parquet", b"x")
    paths = [add.path for add in log.reader.span(0, 4) for add in add.adds]
    put(log, "removes", removes=paths[:1])  # version 5: below the mark
    commit(log, lambda snapshot: Body("BEGIN", domains={f"{OPEN_PREFIX}open": "[]"}))
    put(log, "removes", removes=paths[1:2])  # version 7: above the mark
    raise_horizon(log, 5, 5)

    swept = delete_unreferenced_files(log)

    assert swept.files == 3
    gone = {paths[0], orphan_old}
    assert set(files_of(log)) == {*paths, orphan_new, "data/t-open/x.parquet"} - gone
    assert delete_unreferenced_files(log).files == 0


def test_sweep_without_a_horizon_deletes_nothing() -> None:
    stream = make_stream()
    staged(stream, [("k", b"never")])
    assert delete_unreferenced_files(stream.log).files == 0
    assert len(files_of(stream.log)) == 1
    assert delete_unreferenced_files(Log(MemoryStore(), "none")).files == 0


STRAYS = (
    "segment_id=0/base_offset=7/part-00000-1b7c.c000.snappy.parquet",
    "segment_id=4294967297/base_offset=0/duckdb_1b7c.parquet",
    "segment_id=__HIVE_DEFAULT_PARTITION__/base_offset=__HIVE_DEFAULT_PARTITION__/part-1.parquet",
    "part-00000-9d9d.c000.snappy.parquet",
    "a=0/part-0.parquet",
    "Z=0/other=/part-0.parquet",
)
OTHERS = (
    "segment_id=0/readme.txt",
    "segment_id=0/base_offset=7/deeper/part-0.parquet",
    "deeper/part-0.parquet",
    "part.parquet",
    "notes/segment_id=0/base_offset=0/part-0.parquet",
    "_delta_log/segment_id=0/base_offset=0/part-0.parquet",
)


def strays_of(stream: StreamLog) -> list[str]:
    prefix = f"{stream.path}/"
    keys = [entry.key.removeprefix(prefix) for entry in stream.store.list(stream.path)]
    return [key for key in keys if key in (*STRAYS, *OTHERS)]


def test_files_that_refused_writers_left_go_after_the_grace_and_nothing_else_of_theirs() -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    write(stream, [("k", b"x")])
    for path in (*STRAYS, *OTHERS):
        stream.store.put(f"{stream.path}/{path}", b"theirs")

    runtime.sleep(60)
    assert delete_unreferenced_files(stream.log).files == 0  # nobody gave a grace
    assert delete_unreferenced_files(stream.log, grace_ms=60_000).files == 0
    runtime.sleep(1)
    assert delete_unreferenced_files(stream.log, grace_ms=60_000) == DeletedFiles(
        6, 6 * len(b"theirs")
    )
    assert strays_of(stream) == sorted(OTHERS)
    assert delete_unreferenced_files(stream.log, grace_ms=0).files == 0
    assert len(all_events(again(stream))) == 1


def test_age_of_a_stray_is_told_by_the_store_s_clock_alone() -> None:
    clock, ours = FakeRuntime(), FakeRuntime()
    stream = make_stream(memory(clock), ours)
    stream.store.put(f"{stream.path}/{STRAYS[0]}", b"theirs")
    ours.sleep(10**6)
    assert delete_unreferenced_files(stream.log, grace_ms=60_000).files == 0
    clock.sleep(61)
    assert delete_unreferenced_files(stream.log, grace_ms=60_000).files == 1


def test_stray_of_unknown_age_stays() -> None:
    now = [0]
    stream = make_stream(MemoryStore(clock_ms=lambda: now[0]))
    stream.store.put(f"{stream.path}/{STRAYS[0]}", b"theirs")
    now[0] = NOW_MS
    assert delete_unreferenced_files(stream.log, grace_ms=0).files == 0


def test_stray_that_a_retained_version_names_stays() -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    live, removed, gone = STRAYS[:3]
    for path in STRAYS[:3]:
        stream.store.put(f"{stream.path}/{path}", b"named")
    put(stream.log, "adds", [event_add(path, 0, n, 1) for n, path in enumerate(STRAYS[:3])])
    put(stream.log, "removes", removes=[gone])
    raise_horizon(stream.log, 2, 2)
    put(stream.log, "removes", removes=[removed])
    runtime.sleep(60)
    assert delete_unreferenced_files(stream.log, grace_ms=0).files == 1
    assert strays_of(stream) == sorted([live, removed])


def test_sweep_and_append_at_once_never_lose_a_committed_file() -> None:
    stream = make_stream()
    for _ in range(3):
        write(stream, [("k", b"x")])
    late = staged(stream, [("k", b"late")])
    other = again(stream)
    with at_failpoint("sweep.delete", lambda: append(other, 1, 3, late)):
        staged(stream, [("k", b"never")], version=0)
        raise_horizon(stream.log, 3)
        assert delete_unreferenced_files(stream.log).files == 1
    assert len(all_events(again(stream))) == 4


def test_file_removed_while_a_sweep_looks_is_kept_for_the_versions_that_need_it() -> None:
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    stream = make_stream(store, runtime)
    for n in range(4):
        write(stream, [("k", b"%d" % n)])
    raise_horizon(stream.log, 4)
    path = next(iter(stream.log.reader.span(0, 1))).adds[0].path

    def remove(operation: str, key: str) -> None:
        # another thread of this process commits between two steps of the sweep
        if operation == "get_many" and key == stream.log.reader.key(1):
            store.hook = None
            put(stream.log, "removed", removes=[path])

    store.hook = remove
    delete_unreferenced_files(stream.log)
    assert path in files_of(stream.log)


def sweep_calls(commits: int) -> tuple[int, int]:
    """The commits that two sweeps read, of a table with a file that a retained version holds."""
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    log = table_log(store, runtime)
    store.put(f"{log.path}/data/v1/held", b"x")
    put(log, "1", [event_add("data/v1/held", 0, 0, 1)])
    put(log, "2", removes=["data/v1/held"])
    for n in range(commits):
        put(log, str(n))
    raise_horizon(log, commits, 1)
    reads = []
    for _ in range(2):
        for n in range(5):
            put(log, str(n))
        fresh = Log(store, log.path, runtime)
        fresh.refresh()
        with fresh.files():
            store.calls.clear()
            assert delete_unreferenced_files(fresh).files == 0
        reads.append(store.count("get_many", "/_delta_log/"))
    assert files_of(log) == ["data/v1/held"]
    return reads[0], reads[1]


def test_each_commit_is_read_by_one_sweep_and_not_by_all() -> None:
    (first, again_few), (_, again_many) = sweep_calls(20), sweep_calls(200)
    assert first > 20
    assert again_few == again_many <= 10


@pytest.mark.parametrize("spoil", ["digest", "token", "mark", "missing"])
def test_removals_that_do_not_match_the_log_are_read_anew(spoil: str) -> None:
    store = Spy()
    log = table_log(store)
    for n in range(3):
        store.put(f"{log.path}/data/v0/f{n}", b"x")
        put(log, "1", [event_add(f"data/v0/f{n}", 0, n, 1)])
    put(log, "2", removes=["data/v0/f0"])
    raise_horizon(log, 4, 1)
    assert delete_unreferenced_files(log).files == 0
    key = f"{log.path}/_pravega/removed.json"
    record = json.loads(store.get(key).partition(b"\n")[0])
    assert record["removed"] == {"data/v0/f0": 4}
    record["removed"] = {}
    if spoil == "token":
        record["token"] = "another"
    if spoil == "mark":
        record["since"] = 2
    line = json.dumps(record).encode()
    digest = b"no" if spoil == "digest" else xxhash.xxh3_128_hexdigest(line).encode()
    store.put(key, line + b"\n" + digest)
    if spoil == "missing":
        store.delete([key])
    assert delete_unreferenced_files(log).files == 0
    assert len(files_of(log)) == 3


def test_removals_below_the_mark_are_forgotten() -> None:
    store = Spy()
    log = table_log(store)
    for n in range(2):
        store.put(f"{log.path}/data/v0/f{n}", b"x")
        put(log, "1", [event_add(f"data/v0/f{n}", 0, n, 1)])
    for n in range(2):
        put(log, "2", removes=[f"data/v0/f{n}"])
        raise_horizon(log, 100, 1)
        delete_unreferenced_files(log)
    raise_horizon(log, 100, 4)
    assert delete_unreferenced_files(log).files == 1
    assert files_of(log) == ["data/v0/f1"]


def test_sweep_that_dies_is_finished_by_the_next() -> None:
    store = Spy()
    stream = make_stream(store)
    for n in range(3):
        staged(stream, [("k", b"%d" % n)])
        write(stream, [("k", b"%d" % n)])
    raise_horizon(stream.log, 3)
    store.rules.add(Rule(Fault.LOSE_REQUEST, "delete", nth=1))
    with pytest.raises(StoreError):
        delete_unreferenced_files(stream.log)
    assert delete_unreferenced_files(again(stream).log).files == 3
    assert len(all_events(stream)) == 3


def test_any_order_of_appends_sweeps_and_clean_ups_keeps_every_event() -> None:
    source = random.Random(7)
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    written = 0
    for _ in range(120):
        action = source.choice(["append", "append", "stage", "sweep", "clean", "open"])
        version = stream.view().version
        if action == "append":
            write(stream, [("k", b"%d" % written)])
            written += 1
        elif action == "stage":
            staged(stream, [("k", b"never")])
        elif action == "sweep":
            raise_horizon(stream.log, version - source.randrange(5))
            delete_unreferenced_files(stream.log)
        elif action == "clean":
            clean(stream.log, runtime, max(stream.view().snapshot.cleanup, version - 7, 0))
        else:
            stream = again(stream)
    assert [event for _, event in all_events(stream)] == [b"%d" % n for n in range(written)]
    assert all_events(again(stream)) == all_events(stream)


# --------------------------------------------------------------------------------- wrong clocks


def marked(runtime: FakeRuntime, *, own_clock: bool) -> tuple[MemoryStore, Log]:
    """A table whose clean-up mark was set just now, by a sweep."""
    store = memory(runtime)
    store.has_clock = own_clock  # type: ignore[misc]
    log = table_log(store, runtime)
    for n in range(12):
        put(log, str(n))
        runtime.sleep(60)
    maintain(log.reader, 6, checkpoint=True)
    maintain(log.reader, 12, checkpoint=True)
    read_now(store, runtime)
    raise_horizon(log, 12, 8)
    assert delete_old_commits(log) == 0
    return store, log


@pytest.mark.parametrize("step_seconds", [CLEANUP_WAIT_SECONDS + 1, 86_400, 3_650 * 86_400])
def test_a_wall_clock_that_steps_ahead_does_not_make_a_mark_stand(step_seconds: float) -> None:
    runtime = FakeRuntime()
    _, log = marked(runtime, own_clock=False)
    runtime.wall_ms += step_seconds * 1_000
    runtime.elapsed += 60
    assert delete_old_commits(log) == 0
    runtime.sleep(CLEANUP_WAIT_SECONDS)
    assert delete_old_commits(log) > 0


def test_an_appender_that_was_frozen_with_its_boot_clock_is_not_told_created() -> None:
    """The machine stood still, its boot clock too; its wall clock was set right afterwards."""
    runtime, frozen = FakeRuntime(), FakeRuntime()
    store, log = marked(runtime, own_clock=True)
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

    gone = stalled.snapshot.version + 1  # type: ignore[union-attr]
    with at_failpoint("commit.before", others), pytest.raises(CommitUnknown):
        put(stalled, "lost")
    assert gone in versions(log), "it was created where the log had been cleaned away"
