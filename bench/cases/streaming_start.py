"""The first batch of a streaming query, from ``start()`` on, beside Delta's own source."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import stream_frame

_ROWS = 100


@benchmark(Phase.SPARK)
def first_batch(context: Context) -> Iterator[Figure]:
    """A query over 100 events in a warm session, from ``start()`` until it has processed them."""
    stream = context.create("started")
    with context.manager.create_writer(stream) as writer:
        writer.write_events(table(_ROWS).column("event").to_pylist(), "key").result()
    path = str(context.folder / "started-delta")
    stream_frame(context, stream).write.format("delta").save(path)
    numbers = count()

    def start(frame: Any, meter: CpuMeter) -> float:
        checkpoint = str(context.folder / f"started-{next(numbers)}")
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        queries: list[Any] = []

        def run() -> None:
            queries.append(writer.start())
            queries[0].processAllAvailable()

        with meter:
            seconds = timed(run)
        queries[0].stop()
        assert sum(progress["numInputRows"] for progress in queries[0].recentProgress) == _ROWS
        return 1e3 * seconds

    def ours() -> float:
        reader = context.spark.readStream.format("pravega").option("root", context.root)
        return start(reader.option("startingOffsets", "earliest").load(stream), meters["ours"])

    def delta() -> float:
        return start(context.spark.readStream.format("delta").load(path), meters["delta"])

    meters = {name: CpuMeter() for name in ("ours", "delta", "first")}
    ours(), delta()
    meters = {name: CpuMeter() for name in meters}
    found = interleave(context.size(7, 1), {"ours": ours, "delta": delta})
    yield Figure.of_rounds(
        "first batch of a query, from start(), p50",
        found["ours"],
        "ms",
        "Delta's readStream, 2 snapshot partitions",
        found["delta"],
        note=compare(meters["ours"], meters["delta"]),
        limited_by="Spark starts a Python process for the source of each query: PySpark's imports "
        "are more than half of what it waits for, and the rest is Spark's first batch",
    ).within(at_most=1_000.0)
