"""Scales during Spark's work: between tasks and commit, and between planning and reading.

``tests/unit/test_scale_between.py`` covers every step in one process. In these tests a task does
the scale, and tasks, planner and committer are Spark's own processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from tests.harness.small_streams import write
from tests.spark.conftest import Load, finish

Make = Callable[..., StreamLog]
Ranges = list[tuple[float, float]]
SCALES: dict[str, Ranges] = {
    "split": [(0.0, 0.1), (0.1, 0.5), (0.5, 0.8), (0.8, 1.0)],
    "merge": [(0.0, 1.0)],
    "across borders": [(0.0, 0.3), (0.3, 1.0)],
}
FLEXIBLE = StreamConfiguration(ScalingPolicy.by_event_rate(1_000_000))
"""A policy that allows a single segment, with a rate that never scales the stream."""
KEYS = 7


class Scaling:
    """Scales a stream after a task has read its rows and before the task passes them on."""

    def __init__(self, root: str, stream: str, *scales: Ranges) -> None:
        self.root, self.stream, self.scales = root, stream, scales

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        context = TaskContext.get()
        assert context is not None
        if rows and context.partitionId() == 0:
            for ranges in self.scales:
                rescale(self.root, self.stream, ranges)
        yield from rows


def rescale(root: str, stream: str, ranges: Ranges) -> None:
    manager = StreamManager(root)
    manager.scale_stream(stream, [str(s) for s in manager.segments(stream)], ranges)


def fill(stream: StreamLog, first: int, last: int) -> None:
    """Write numbers; every eighth event has no key."""
    write(stream, [(None if i % 8 == 7 else f"k{i % KEYS}", b"%d" % i) for i in range(first, last)])


def check(root: str, name: str, numbers: range) -> None:
    """Check each number once, order by key, and that every segment accepts events."""
    by_key: dict[str | None, list[int]] = defaultdict(list)
    manager = StreamManager(root)
    for event in manager.read(name):
        by_key[event.routing_key].append(int(event.data))
    assert sorted(n for found in by_key.values() for n in found) == list(numbers)
    by_key.pop(None, None)
    assert all(found == sorted(found) for found in by_key.values())
    before, segments = dict(manager.tail(name)), manager.segments(name)
    with manager.create_writer(name) as writer:
        for _ in segments:
            writer.write_event(b"-1")
    assert all(end == before[s] + 1 for s, end in manager.tail(name))


@pytest.mark.versions
@pytest.mark.parametrize("scale", SCALES)
def test_scale_between_the_tasks_and_the_commit_of_a_frame(
    spark: SparkSession, root: str, make: Make, scale: str
) -> None:
    stream = make(segments=2)
    StreamManager(root).update_stream("s/a", FLEXIBLE)
    fill(stream, 0, 100)
    version = stream.view().version
    frame = spark.range(100, 400, 1, 2).selectExpr(
        f"IF(id % 8 = 7, NULL, concat('k', id % {KEYS})) AS routing_key",
        "CAST(id AS STRING) AS event",
    )
    scaled = frame.mapInArrow(Scaling(root, "s/a", SCALES[scale]), frame.schema)
    scaled.write.format("pravega").mode("append").option("root", root).save("s/a")
    assert stream.view().version == version + 2, "one commit for the scale and one for all rows"
    check(root, "s/a", range(400))


@pytest.mark.parametrize("limit", ["29", "1000"])
def test_scales_of_source_and_target_in_every_micro_batch(
    spark: SparkSession, root: str, make: Make, follow: Load, tmp_path: Path, limit: str
) -> None:
    source, _ = make("s/a", segments=2), make("s/b", segments=2)
    for name in ("s/a", "s/b"):
        StreamManager(root).update_stream(name, FLEXIBLE)
    fill(source, 0, 60)
    rescale(root, "s/a", SCALES["across borders"])
    fill(source, 60, 80)

    frame = follow(maxOffsetsPerTrigger=limit).select("routing_key", "event")
    for name in ("s/a", "s/b"):
        frame = frame.mapInArrow(
            Scaling(root, name, SCALES["split"], SCALES["merge"]), frame.schema
        )
    writer = frame.writeStream.format("pravega").option("root", root)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    for first in (80, 100):
        finish(writer.trigger(availableNow=True).start("s/b"))
        fill(source, first, first + 20)
    finish(writer.trigger(availableNow=True).start("s/b"))
    check(root, "s/b", range(120))


@pytest.mark.versions
def test_scale_between_micro_batches_of_a_query_that_follows_the_tail(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make(segments=2)
    StreamManager(root).update_stream("s/a", FLEXIBLE)
    fill(source, 0, 40)
    layouts = [*SCALES.values(), *SCALES.values()]
    seen: dict[str | None, list[int]] = defaultdict(list)

    def process(frame: DataFrame, batch_id: int) -> None:
        for row in frame.collect():
            seen[row.routing_key].append(int(row.event))
        if layouts:
            rescale(root, "s/a", layouts.pop())
            first = 40 + 10 * (5 - len(layouts))
            fill(source, first, first + 10)

    query = (
        follow(maxOffsetsPerTrigger="9")
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert not layouts
    assert sorted(n for found in seen.values() for n in found) == list(range(100))
    assert all(found == sorted(found) for key, found in seen.items() if key is not None)
