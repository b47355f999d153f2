"""Spark reads of many segments and of many streams, each of which has little to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain, run_to_end, stream_frame

_ROWS = 200_000
_SEGMENTS = (10, 100, 1_000)
_STREAMS = (30, 300)
_SCALES = (20, 200)


@benchmark(Phase.SPARK)
def batch_of_many_segments(context: Context) -> Iterator[Figure]:
    """All of 200,000 rows in 10, 100 and 1,000 segments, read as ``format("pravega")``."""
    rows = context.size(_ROWS, 2_000)
    sides: dict[str, Side] = {}
    tasks = {}
    for count in _SEGMENTS:
        stream = context.create(f"segments-of-little-{count}", count)
        with context.manager.create_writer(stream) as writer:
            writer.write_table(_events(rows)).result()
        tasks[str(count)] = stream_frame(context, stream).rdd.getNumPartitions()
        sides[str(count)] = _processor_time(_drain(context, stream))
    found = interleave(context.size(5, 1), sides)
    few, *more = map(str, _SEGMENTS)
    for many in more:
        yield Figure.of_rounds(
            f"a batch read of {rows:,} rows in {many} segments, CPU",
            found[many],
            "ms",
            f"{few} segments",
            found[few],
            note=f"{tasks[many]} and {tasks[few]} tasks",
            limited_by="a chunk for each segment, and a task for each 64 of them",
        ).within(ratio_at_most=5.0)


@benchmark(Phase.SPARK)
def micro_batch_of_many_streams(context: Context) -> Iterator[Figure]:
    """The micro-batch of an event from each of 30 and of 300 streams, with its start and end."""
    sides: dict[str, Side] = {}
    for count in _STREAMS:
        names = [context.create(f"one-of-{count}-{number}") for number in range(count)]
        for name in names:
            with context.manager.create_writer(name) as writer:
                writer.write_event(b"event", "key").result()
        sides[str(count)] = _processor_time(_micro_batch(context, names))
    found = interleave(context.size(5, 1), sides)
    few, many = map(str, _STREAMS)
    yield Figure.of_rounds(
        f"a query of one micro-batch over {many} streams of an event, CPU",
        found[many],
        "ms",
        f"{few} streams",
        found[few],
        limited_by="opening each stream on the driver",
    ).within(ratio_at_most=3.0)


@benchmark(Phase.SPARK)
def micro_batches_of_many_scales(context: Context) -> Iterator[Figure]:
    """A query that begins behind 20 and behind 200 scales, with ten events at each."""
    sides: dict[str, Side] = {}
    batches: dict[str, int] = {}
    for count in _SCALES:
        name = _scaled(context, context.size(count, count // 10))
        action = _micro_batch(context, [name])
        batches[str(count)] = action()
        sides[str(count)] = _processor_time(action)
    found = interleave(context.size(3, 1), sides)
    few, many = map(str, _SCALES)
    yield Figure.of_rounds(
        f"a query behind {many} scales with ten events at each, CPU",
        found[many],
        "ms",
        f"{few} scales",
        found[few],
        note=f"{batches[many]} and {batches[few]} micro-batches",
        limited_by="the plan: a round of reading for each epoch",
    ).within(ratio_at_most=3.0)


def _scaled(context: Context, scales: int) -> str:
    """Return a stream that was split and merged so often, with ten events each time."""
    name = context.create(f"scaled-{scales}")
    for number in range(scales):
        with context.manager.create_writer(name) as writer:
            for event in range(10):
                writer.write_event(b"%d" % event, f"key-{event}")
        segments = context.manager.stream(name).segments()
        ranges = [(0.0, 1.0)] if number % 2 else [(0.0, 0.5), (0.5, 1.0)]
        context.manager.scale_stream(name, segments, ranges)
    return name


def _events(count: int) -> pa.Table:
    """Return events with a key each, which reach every segment."""
    keys = pa.array([f"key-{number}" for number in range(count)])
    return table(count).set_column(0, "routing_key", keys)


def _drain(context: Context, stream: str) -> Any:
    return lambda: drain(stream_frame(context, stream))


def _micro_batch(context: Context, names: list[str]) -> Any:
    def run() -> int:
        reader = context.spark.readStream.format("pravega").option("root", context.root)
        given = reader.option("startingOffsets", "earliest").option("subscribe", ",".join(names))
        query = run_to_end(context, given.load(), lambda writer: writer.format("noop"))
        progress = query.recentProgress
        assert sum(each["numInputRows"] for each in progress) >= len(names)
        return 1 + max(int(each["batchId"]) for each in progress)

    return run


def _processor_time(action: Any) -> Side:
    action()

    def measured() -> float:
        meter = CpuMeter()
        with meter:
            action()
        return 1e3 * meter.seconds[0]

    return measured
