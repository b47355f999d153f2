"""The record of a plan: the same ranges as from all chunks, at the cost of what is new."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.compaction import plan as compaction_plan
from pravega_spark.compaction.merge import commit_merged, merge_range
from pravega_spark.compaction.plan import (
    FULL_LOOK_MS,
    NEW_CHUNKS,
    CompactionOptions,
    CompactionPlan,
    PlanRecord,
    decode_record,
    plan_compaction,
    plan_stream,
    read_record,
    record_key,
)
from pravega_spark.compaction.result import CompactionResult, MergedRange
from pravega_spark.compaction.run import run_compaction
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.files import FileIndex
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.writing.append import append
from pravega_spark.errors import StoreReadOnly
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import all_events, make_stream, reopen, scale, write
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

TARGET = 16 << 10
OPTIONS = CompactionOptions(root={"compact_target": TARGET})


def made(segments: int = 1) -> StreamLog:
    runtime = FakeRuntime()
    return make_stream(Spy(memory(runtime)), runtime, segments)


def spy_of(stream: StreamLog) -> Spy:
    assert isinstance(stream.store, Spy)
    return stream.store


def grow(stream: StreamLog, chunks: int = 40, rows: int = 3) -> None:
    for n in range(chunks):
        write(stream, [(f"k{i}", b"%d-%d" % (n, i)) for i in range(rows)])
        stream.runtime.sleep(1)
    stream.runtime.sleep(100)


def absent_chunks(stream: StreamLog, sizes: list[int], rows: int = 10) -> None:
    """Commit chunks to segment 0 whose files do not exist: a plan reads none."""
    view = stream.view()
    folder, token = version_folder(view.version), stream.runtime.token()
    chunks = [
        StagedChunk(f"data/{folder}/{token}-{n}.parquet", 0, rows, size, rows * 10, 1, 2, 0)
        for n, size in enumerate(sizes)
    ]
    append(stream, view.life, view.version, chunks)


def plan_of(stream: StreamLog) -> CompactionPlan:
    view = stream.view()
    return plan_stream(stream, view, OPTIONS.settings(stream, view))


def record_of(stream: StreamLog) -> PlanRecord:
    record = read_record(stream, stream.view())
    assert record is not None
    return record


def drop_record(stream: StreamLog) -> None:
    stream.store.delete([record_key(stream.path)])


# ---------------------------------------------------------------------------------- the same ranges


def step(stream: StreamLog, chance: random.Random) -> None:
    """Something that happens to a stream: most of all small appends."""
    view = stream.view()
    kind = chance.random()
    if kind < 0.6:
        sizes = [chance.choice([900, 2_000, 5_000]) for _ in range(chance.randint(1, 30))]
        absent_chunks(stream, sizes)
    elif kind < 0.75:
        absent_chunks(stream, [chance.choice([1_000, 9_000, 40_000]) for _ in range(3)])
    else:
        head, tail = view.head_offset(0), view.segment(0).next_offset
        offset = chance.randint(head, head + (tail - head) // 3)
        truncate(stream, StreamCut(stream.name, view.life, {0: offset}))
    stream.runtime.sleep(100)


def merge_without_reading(stream: StreamLog, plan: CompactionPlan) -> None:
    """Commit what a plan proposes, as if each merged file were a third of its inputs."""
    for rng in plan.ranges:
        view, size = stream.view(), max(900, rng.size_bytes // 3)
        path = f"data/{version_folder(view.version)}/{stream.runtime.token()}.parquet"
        refs = stream.known_chunks(rng.events)
        rows = rng.end - rng.start
        chunk = StagedChunk(path, 0, rows, size, rows * 10, 1, 2, 0)
        inputs = tuple(ref.path for ref in refs)
        found = MergedRange(rng, chunk, view.version, inputs, rng.start * 10)
        assert commit_merged(stream, [found]).ranges == 1


@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(3, 50)))
def test_a_plan_with_a_record_is_the_plan_from_all_chunks(seed: int) -> None:
    chance, stream, planned = random.Random(seed), made(), 0
    absent_chunks(stream, [1_000])
    for _ in range(25):
        step(stream, chance)
        other = reopen(stream)
        plan = plan_of(other)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction_plan, "read_record", lambda stream, view: None)
            full = plan_of(other)
        assert (plan.ranges, plan.files) == (full.ranges, full.files)
        planned += len(plan.ranges)
        if chance.random() < 0.7:
            plan.store_record(other)
            merge_without_reading(other, plan)
    assert planned > 3
    scale(stream, [0], [(0.0, 1.0)])
    compact_to_the_end(stream)


def compact_to_the_end(stream: StreamLog) -> None:
    """Compact by the record until it has no work; then there is none."""
    for _ in range(9):
        stream.runtime.sleep(100)
        plan = plan_of(stream)
        plan.store_record(stream)
        merge_without_reading(stream, plan)
    stream.runtime.sleep(100)
    drop_record(stream)
    assert plan_of(stream).ranges == []


# ------------------------------------------------------------------------------------ what it costs


def test_a_plan_with_a_record_reads_nothing_old_however_many_files_are_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = made()
    for _ in range(4):
        absent_chunks(stream, [TARGET] * 500)
    reader = stream.log.reader
    checkpoint.maintain(reader, stream.view().version, checkpoint=True)
    grow(stream, 5)
    checkpoint.maintain(reader, stream.view().version)
    assert run_compaction(reopen(stream), OPTIONS).files_before == 2_005
    found: list[int] = []
    find = FileIndex.find

    def counted(index: FileIndex, segment_id: int, start: int, end: int) -> Any:
        adds = find(index, segment_id, start, end)
        found.append(len(adds))
        return adds

    monkeypatch.setattr(FileIndex, "find", counted)
    for news in (0, 3):
        grow(stream, news)
        spy = spy_of(stream)
        spy.calls.clear()
        found.clear()
        assert run_compaction(reopen(stream), OPTIONS).files_before == 2_005 + news
        assert [call for call in spy.calls if "checkpoint" in call[1]] == []
        assert sum(found) == news
        assert len(spy.calls) < 20 + 2 * news


def test_the_record_follows_the_small_chunks_and_not_the_live_ones() -> None:
    stream, sizes = made(), []
    for _ in range(3):
        absent_chunks(stream, [TARGET] * 100)
        grow(stream, 40)
        run_compaction(stream, OPTIONS)
        record = record_of(stream)
        assert record.size <= 3
        sizes.append(len(stream.store.get(record_key(stream.path))))
    assert max(sizes) < 300


def test_few_new_chunks_without_work_are_not_worth_a_put() -> None:
    stream = made()
    grow(stream, 40)
    run_compaction(stream, OPTIONS)
    spy = spy_of(stream)
    grow(stream, 2)
    spy.calls.clear()
    assert run_compaction(stream, OPTIONS).ranges == 0
    assert spy.count("put", "compaction.json") == 0
    absent_chunks(stream, [TARGET] * NEW_CHUNKS)
    stream.runtime.sleep(100)
    run_compaction(stream, OPTIONS)
    assert spy.count("put", "compaction.json") >= 1
    assert plan_of(stream).new_chunks == 0


# ------------------------------------------------------------------- a record that is wrong or lost


def torn(stream: StreamLog) -> None:
    key = record_key(stream.path)
    stream.store.put(key, stream.store.get(key)[:-9])


def flipped(stream: StreamLog) -> None:
    key = record_key(stream.path)
    data = stream.store.get(key)
    stream.store.put(key, data[:30] + bytes([data[30] ^ 1]) + data[31:])


def of_another_life(stream: StreamLog) -> None:
    put_record(stream, replace(record_of(stream), life=2))


def of_a_version_to_come(stream: StreamLog) -> None:
    put_record(stream, replace(record_of(stream), version=10_000))


def of_a_clock_ahead(stream: StreamLog) -> None:
    put_record(stream, replace(record_of(stream), began_ms=stream.now_ms() + 1))


def of_yesterday(stream: StreamLog) -> None:
    put_record(stream, replace(record_of(stream), began_ms=stream.now_ms() - FULL_LOOK_MS))


def of_another_target(stream: StreamLog) -> None:
    put_record(stream, replace(record_of(stream), target_bytes=TARGET * 2))


def put_record(stream: StreamLog, record: PlanRecord) -> None:
    stream.store.put(record_key(stream.path), record.encode())


@pytest.mark.parametrize(
    "change",
    [
        drop_record,
        torn,
        flipped,
        of_another_life,
        of_a_version_to_come,
        of_a_clock_ahead,
        of_yesterday,
        of_another_target,
    ],
)
def test_a_record_that_cannot_be_used_costs_a_look_at_all_chunks(
    change: Callable[[StreamLog], None],
) -> None:
    stream = made()
    absent_chunks(stream, [TARGET] * 30)
    stream.runtime.sleep(100)
    run_compaction(stream, OPTIONS)
    drop_record(stream)
    plan_of(stream).store_record(stream)
    put_record(stream, plan_of(stream).record)
    assert plan_of(stream).new_chunks == 0
    change(stream)
    plan = plan_of(stream)
    assert (plan.new_chunks, plan.files) == (30, 30)


@pytest.mark.parametrize("meanwhile", ["compact.planned", "compact.staged", "compact.committed"])
def test_a_kill_at_any_step_leaves_a_record_that_only_costs_work(meanwhile: str) -> None:
    stream = made(segments=2)
    grow(stream)
    before = all_events(stream)
    with at_failpoint(meanwhile, kill), pytest.raises(Killed):
        run_compaction(stream, OPTIONS)
    result = CompactionResult("")
    for _ in range(3):
        stream.runtime.sleep(100)
        result = run_compaction(reopen(stream), OPTIONS)
    assert (result.ranges, result.files_after, len(result.skipped)) == (0, 2, 0)
    assert all_events(stream) == before


def test_a_record_that_an_older_run_put_back_is_forgotten_once_its_range_does_not_fit() -> None:
    stream = made()
    grow(stream)
    plan_of(stream).store_record(stream)
    old = stream.store.get(record_key(stream.path))
    run_compaction(stream, OPTIONS)
    stream.store.put(record_key(stream.path), old)
    skipped = run_compaction(stream, OPTIONS)
    assert [bool(left.reason) for left in skipped.skipped] == [True]
    assert 0 not in record_of(stream).segments
    grow(stream)
    merged = run_compaction(stream, OPTIONS)
    assert (merged.ranges, merged.files_before, merged.files_after) == (1, 41, 2)


def test_executors_that_merge_the_ranges_of_a_plan_leave_a_right_record() -> None:
    stream = made(segments=2)
    grow(stream)
    ranges = plan_compaction(reopen(stream), OPTIONS)
    merged = [merge_range(reopen(stream), rng) for rng in ranges]
    commit_merged(reopen(stream), merged)
    assert {s: len(known.chunks) for s, known in record_of(stream).segments.items()} == {0: 1, 1: 1}
    stream.runtime.sleep(100)
    plan = plan_of(stream)
    assert (plan.ranges, plan.new_chunks, plan.files) == ([], 0, 2)


def test_a_store_that_replaces_no_object_stops_no_run() -> None:
    stream = made()
    grow(stream)
    rule = Rule(StoreReadOnly("no object may be replaced"), "put", "*compaction.json")
    spy_of(stream).rules.add(rule)
    result = run_compaction(stream, OPTIONS)
    assert (result.ranges, result.files_after) == (1, 1)
    assert not stream.store.exists(record_key(stream.path))


def test_a_record_of_other_bytes_is_none() -> None:
    stream = made()
    grow(stream)
    run_compaction(stream, OPTIONS)
    data = stream.store.get(record_key(stream.path))
    assert decode_record(data) == record_of(stream)
    for other in (b"", b"[1]", b"\xff", data[:40], data.replace(b'"format":1', b'"format":2')):
        assert decode_record(other) is None


def test_record_of_a_later_state_than_the_log_hides_no_files(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    stream = make_stream(LocalStore(str(tmp_path / "root")), runtime)
    grow(stream)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    run_compaction(stream, OPTIONS)
    grow(stream, 10)
    run_compaction(stream, OPTIONS)
    later = record_key(stream.path)
    (tmp_path / "copy" / later).parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "root" / later, tmp_path / "copy" / later)
    copy = StreamLog(LocalStore(str(tmp_path / "copy")), stream.name, runtime)

    done = run_compaction(copy, OPTIONS)

    assert done.events == 120
    assert done.files_after == 1
