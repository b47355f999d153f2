"""A streaming query that reads a backlog, beside Delta's own streaming source."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.measure import interleave, ratio
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import backlog_copy, read_rate
from bench.harness.spark_session import SNAPSHOT_PARTITIONS, spark_setting


@benchmark(Phase.SPARK)
def streaming_backlog(context: Context) -> Iterator[Figure]:
    """readStream with AvailableNow and no sink, from start() until the end of the query.

    The peer has its default number of snapshot partitions, then one that suits a small machine.
    """
    stream, rows = backlog(context)
    path = backlog_copy(context, "delta")

    def run(frame: Any, meter: CpuMeter) -> float:
        return read_rate(context, frame, rows, meter)

    def ours() -> float:
        source = context.spark.readStream.format("pravega").option("root", context.root)
        return run(source.option("startingOffsets", "earliest").load(stream), meters["ours"])

    def delta(name: str) -> float:
        return run(context.spark.readStream.format("delta").load(path), meters[name])

    def default() -> float:
        with spark_setting(context.spark, SNAPSHOT_PARTITIONS, "50"):
            return delta("default")

    meters = {name: CpuMeter() for name in ("ours", "tuned", "default", "first")}
    ours(), delta("first"), default()
    sides = {"ours": ours, "tuned": lambda: delta("tuned"), "default": default}
    found = interleave(context.size(5, 1), sides)
    figure = Figure.of_rounds(
        f"readStream of a backlog of {rows:,} events, whole query",
        found["ours"],
        "events/s",
        "Delta's readStream of an equal table",
        found["default"],
        note=compare(meters["ours"], meters["default"]),
        limited_by="converting Arrow rows into the JVM's, which alone costs what Spark's own "
        "read of Parquet costs; and the start of the source's Python process",
    )
    yield figure.within(ratio_at_least=2.5)
    yield replace(
        figure,
        name="the same",
        peer=f"{figure.peer}, 2 snapshot partitions",
        peer_value=statistics.median(found["tuned"]),
        ratio=ratio(found["ours"], found["tuned"]),
        note=compare(meters["ours"], meters["tuned"]),
    )
