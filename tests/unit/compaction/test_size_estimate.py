"""What a dry run says a merge would write, beside what it writes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from pravega_spark.compaction.plan import CompactionOptions, plan_stream
from pravega_spark.compaction.result import CompactionResult
from pravega_spark.compaction.run import expected_result, run_compaction
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy

OPTIONS = CompactionOptions(root={})
Content = Callable[[random.Random], bytes]
WORDS = [
    "a",
    "stream",
    "is",
    "an",
    "ordered",
    "log",
    "of",
    "events",
    "that",
    "are",
    "written",
    "exactly",
    "once",
    "by",
    "routing",
    "keys",
]


def json_like(chance: random.Random) -> bytes:
    record = {
        "user": f"user-{chance.randint(1, 5_000)}",
        "action": chance.choice(["view", "click", "buy"]),
        "price": round(chance.random() * 100, 2),
        "url": f"/shop/item/{chance.randint(1, 900)}",
    }
    return json.dumps(record).encode()


def hexadecimal(chance: random.Random) -> bytes:
    return chance.randbytes(50).hex().encode()


def words(chance: random.Random) -> bytes:
    return " ".join(chance.choice(WORDS) for _ in range(16)).encode()


def filled(files: int, rows: int, *contents: Content) -> StreamLog:
    """A stream of so many files; the contents take turns, one for each equal part of the files."""
    runtime, chance = FakeRuntime(), random.Random(7)
    stream = make_stream(Spy(memory(runtime)), runtime)
    for number in range(files):
        content = contents[number * len(contents) // files]
        write(stream, [(f"key-{chance.randint(1, 500)}", content(chance)) for _ in range(rows)])
    runtime.sleep(100)
    return stream


def without_samples(stream: StreamLog) -> CompactionResult:
    view = stream.view()
    plan = plan_stream(stream, view, OPTIONS.settings(stream, view))
    return expected_result(stream, plan, estimate=False)


def within_a_factor_of_two(stream: StreamLog) -> None:
    expected = run_compaction(reopen(stream), OPTIONS, dry_run=True)
    done = run_compaction(reopen(stream), OPTIONS)
    assert done.ranges == expected.ranges > 0
    assert done.bytes_written / 2 < expected.bytes_written < done.bytes_written * 2
    assert ", and write about " in str(expected)


@pytest.mark.medium
@pytest.mark.parametrize("content", [json_like, hexadecimal, words])
@pytest.mark.parametrize(("files", "rows"), [(300, 1), (100, 60)])
def test_the_estimate_of_a_dry_run_is_within_a_factor_of_two(
    content: Content, files: int, rows: int
) -> None:
    within_a_factor_of_two(filled(files, rows, content))


def test_the_estimate_sees_all_parts_of_a_range() -> None:
    within_a_factor_of_two(filled(120, 60, words, hexadecimal, json_like))


@pytest.mark.medium
def test_the_estimate_counts_merged_files_and_heads() -> None:
    stream = filled(100, 20, json_like)
    run_compaction(stream, OPTIONS)
    for _ in range(100):
        write(stream, [("k", json_like(random.Random(n))) for n in range(20)])
    stream.runtime.sleep(100)
    truncate(stream, StreamCut(stream.name, 1, {0: 1_500}))
    within_a_factor_of_two(stream)


def test_a_dry_run_reads_a_bounded_sample() -> None:
    stream = filled(400, 1, words)
    spy = stream.store
    assert isinstance(spy, Spy)
    spy.calls.clear()
    run_compaction(stream, OPTIONS, dry_run=True)
    assert 0 < spy.count("get_many", "/data/") <= 260
    assert spy.sent[-1][0].endswith("400.json"), "a dry run writes nothing"
    spy.calls.clear()
    most = without_samples(stream)
    assert spy.count("get_many", "/data/") == 0
    assert most.bytes_written <= most.bytes_read


def test_a_dry_run_of_damaged_files_says_the_most_that_a_merge_may_write() -> None:
    stream = filled(100, 20, words)
    refs = stream.known_chunks(SegmentRange(stream.name, 1, 0, 0, 2_000))
    stream.store.delete([f"{stream.path}/{ref.path}" for ref in refs])
    expected = run_compaction(stream, OPTIONS, dry_run=True)
    most = without_samples(stream)
    assert expected.bytes_written == most.bytes_written > 0
