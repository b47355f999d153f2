"""Which data files are deleted: unreferenced ones, and orphans of foreign writers."""

from __future__ import annotations

import json
import random

import pytest
import xxhash

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.log.sweep import DeletedFiles, delete_unreferenced_files
from pravega_spark.engine.log.sweep_record import record_key
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.errors import StoreError
from pravega_spark.values.limits import FULL_LISTING_MS
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import NOW_MS, FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import all_events, make_stream, reopen, staged, write
from tests.harness.small_tables import clean, commit, event_add, put, table_log
from tests.harness.spy_store import Spy


def files_of(log: Log) -> list[str]:
    return sorted(e.key.removeprefix(f"{log.path}/") for e in log.store.list(f"{log.path}/data"))


def test_exactly_the_files_that_no_retained_version_references_are_deleted() -> None:
    stream = make_stream()
    log = stream.log
    for n in range(4):
        write(stream, [("k", b"%d" % n)])
    unused_old = staged(stream, [("k", b"never")], version=2)[0].path
    unused_new = staged(stream, [("k", b"never")], version=5)[0].path
    for name in ("open", "ended"):
        log.store.put(f"{log.path}/data/t-{name}/x.parquet", b"x")
    paths = [add.path for commit in log.reader.span(0, 4) for add in commit.adds]
    put(log, "removes", removes=paths[:1])  # version 5: at the retention mark
    commit(log, lambda snapshot: Body("BEGIN", domains={f"{OPEN_PREFIX}open": "[]"}))
    put(log, "removes", removes=paths[1:2])  # version 7: after the retention mark
    raise_horizon(log, 5, 5)

    assert delete_unreferenced_files(log).files == 3
    deleted = {paths[0], unused_old}
    assert set(files_of(log)) == {*paths, unused_new, "data/t-open/x.parquet"} - deleted
    assert delete_unreferenced_files(log).files == 0


def test_without_a_horizon_nothing_is_deleted() -> None:
    stream = make_stream()
    staged(stream, [("k", b"never")])
    assert delete_unreferenced_files(stream.log).files == 0
    assert len(files_of(stream.log)) == 1
    assert delete_unreferenced_files(Log(MemoryStore(), "none")).files == 0


ORPHANS = (
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


def foreign_files_of(stream: StreamLog) -> list[str]:
    prefix = f"{stream.path}/"
    keys = [entry.key.removeprefix(prefix) for entry in stream.store.list(stream.path)]
    return [key for key in keys if key in (*ORPHANS, *OTHERS)]


def test_orphan_files_of_refused_writers_and_no_others_are_deleted_after_the_grace() -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    write(stream, [("k", b"x")])
    for path in (*ORPHANS, *OTHERS):
        stream.store.put(f"{stream.path}/{path}", b"theirs")

    runtime.sleep(60)
    assert delete_unreferenced_files(stream.log).files == 0  # without a grace
    assert delete_unreferenced_files(stream.log, grace_ms=60_000).files == 0
    runtime.sleep(1)
    assert delete_unreferenced_files(stream.log, grace_ms=60_000) == DeletedFiles(
        6, 6 * len(b"theirs")
    )
    assert foreign_files_of(stream) == sorted(OTHERS)
    assert delete_unreferenced_files(stream.log, grace_ms=0).files == 0
    assert len(all_events(reopen(stream))) == 1


def test_storages_clock_alone_decides_the_age_of_an_orphan_file() -> None:
    clock, ours = FakeRuntime(), FakeRuntime()
    stream = make_stream(memory(clock), ours)
    stream.store.put(f"{stream.path}/{ORPHANS[0]}", b"theirs")
    ours.sleep(10**6)
    assert delete_unreferenced_files(stream.log, grace_ms=60_000).files == 0
    clock.sleep(61)
    assert delete_unreferenced_files(stream.log, grace_ms=60_000).files == 1


def test_orphan_file_of_unknown_age_is_kept() -> None:
    now = [0]
    stream = make_stream(MemoryStore(clock_ms=lambda: now[0]))
    stream.store.put(f"{stream.path}/{ORPHANS[0]}", b"theirs")
    now[0] = NOW_MS
    assert delete_unreferenced_files(stream.log, grace_ms=0).files == 0


def test_orphan_file_that_a_retained_version_references_is_kept() -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    live, removed, unreferenced = ORPHANS[:3]
    for path in ORPHANS[:3]:
        stream.store.put(f"{stream.path}/{path}", b"named")
    put(stream.log, "adds", [event_add(path, 0, n, 1) for n, path in enumerate(ORPHANS[:3])])
    put(stream.log, "removes", removes=[unreferenced])
    raise_horizon(stream.log, 2, 2)
    put(stream.log, "removes", removes=[removed])
    runtime.sleep(60)
    assert delete_unreferenced_files(stream.log, grace_ms=0).files == 1
    assert foreign_files_of(stream) == sorted([live, removed])


def test_concurrent_sweep_and_append_never_lose_a_committed_file() -> None:
    stream = make_stream()
    for _ in range(3):
        write(stream, [("k", b"x")])
    late = staged(stream, [("k", b"late")])
    other = reopen(stream)
    with at_failpoint("sweep.delete", lambda: append(other, 1, 3, late)):
        staged(stream, [("k", b"never")], version=0)
        raise_horizon(stream.log, 3)
        assert delete_unreferenced_files(stream.log).files == 1
    assert len(all_events(reopen(stream))) == 4


def test_file_that_is_removed_during_a_sweep_is_kept_for_the_retained_versions() -> None:
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    stream = make_stream(store, runtime)
    for n in range(4):
        write(stream, [("k", b"%d" % n)])
    raise_horizon(stream.log, 4)
    path = next(iter(stream.log.reader.span(0, 1))).adds[0].path

    def remove(operation: str, key: str) -> None:
        # Another thread of this process commits between two steps of the sweep.
        if operation == "get_many" and key == stream.log.reader.key(1):
            store.hook = None
            put(stream.log, "removed", removes=[path])

    store.hook = remove
    delete_unreferenced_files(stream.log)
    assert path in files_of(stream.log)


def sweep_calls(commits: int) -> tuple[int, int]:
    """The commits that two sweeps read, in a table with a removed file that is retained."""
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


def test_each_commit_is_read_by_one_sweep_only() -> None:
    (first, again_few), (_, again_many) = sweep_calls(20), sweep_calls(200)
    assert first > 20
    assert again_few == again_many <= 10


@pytest.mark.parametrize("spoil", ["digest", "token", "mark", "missing", "shape"])
def test_record_that_does_not_match_the_log_is_not_used(spoil: str) -> None:
    """It claims that the commits removed nothing, and that the removed file was never added."""
    store = Spy()
    log = table_log(store)
    for n in range(3):
        store.put(f"{log.path}/data/v0/f{n}", b"x")
        put(log, "1", [event_add(f"data/v0/f{n}", 0, n, 1)])
    put(log, "2", removes=["data/v0/f0"])
    raise_horizon(log, 4, 1)
    assert delete_unreferenced_files(log).files == 0
    key = record_key(log.path)
    record = json.loads(store.get(key).partition(b"\n")[0])
    assert record["removed"] == {"4": [10, ["data/v0/f0"]]}
    record["removed"], record["added"], record["horizon"] = {}, {}, 0
    if spoil == "token":
        record["token"] = "another"
    if spoil == "mark":
        record["retained"] = 2
    if spoil == "shape":
        record["removed"] = {"x": 1}
    line = json.dumps(record).encode()
    digest = b"no" if spoil == "digest" else xxhash.xxh3_128_hexdigest(line).encode()
    store.put(key, line + b"\n" + digest)
    if spoil == "missing":
        store.delete([key])
    store.put(f"{log.path}/data/{version_folder(2)}/never", b"x")
    assert delete_unreferenced_files(log).files == 1
    assert len(files_of(log)) == 3
    raise_horizon(log, 5, 5)
    assert delete_unreferenced_files(log).files == 1
    assert files_of(log) == ["data/v0/f1", "data/v0/f2"]


def test_files_removed_before_the_retention_mark_are_deleted() -> None:
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


def test_killed_sweep_is_finished_by_the_next() -> None:
    store = Spy()
    stream = make_stream(store)
    for n in range(3):
        staged(stream, [("k", b"%d" % n)])
        write(stream, [("k", b"%d" % n)])
    raise_horizon(stream.log, 3)
    store.rules.add(Rule(Fault.LOSE_REQUEST, "delete", nth=1))
    with pytest.raises(StoreError):
        delete_unreferenced_files(stream.log)
    assert delete_unreferenced_files(reopen(stream).log).files == 3
    assert len(all_events(stream)) == 3


@pytest.mark.medium
def test_any_order_of_appends_sweeps_and_cleanups_keeps_every_event() -> None:
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
            clean(stream.log, runtime, max(stream.view().snapshot.retention_mark, version - 7, 0))
        else:
            stream = reopen(stream)
    assert [event for _, event in all_events(stream)] == [b"%d" % n for n in range(written)]
    assert all_events(reopen(stream)) == all_events(stream)


def test_a_full_listing_finds_the_newest_checkpoint_without_another_listing() -> None:
    store = Spy(MemoryStore())
    log = table_log(store)
    for n in range(5):
        put(log, f"e{n}")
    asked = {}
    for has_checkpoint in (False, True):
        if has_checkpoint:
            maintain(log.reader, 5, checkpoint=True)
        delete_unreferenced_files(log, grace_ms=1_000, now_ms=NOW_MS)
        store.calls.clear()
        delete_unreferenced_files(log, grace_ms=1_000, now_ms=NOW_MS + FULL_LISTING_MS)
        asked[has_checkpoint] = [name for name, _ in store.calls if name != "get_many"]
    assert asked[True] == asked[False]
    assert asked[True].count("list") == 2, "all files, and what is beside the log"
    key = checkpoint_key(log.path, 5)
    store.put(key, store.get(key)[:-1])
    delete_unreferenced_files(log, grace_ms=1_000, now_ms=NOW_MS + 2 * FULL_LISTING_MS)
    assert log.reader.checkpoint(5) is not None
