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
from bench.harness.ready_source import ReadyBatches, ready_options
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import read_rate, stream_copy
from bench.harness.spark_session import SNAPSHOT_PARTITIONS, spark_setting


@benchmark(Phase.SPARK)
def streaming_backlog(context: Context) -> Iterator[Figure]:
    """readStream with AvailableNow and no sink, from start() until the end of the query.

    The peer has its default number of snapshot partitions, then one that suits a small machine. The
    floor is a query over a source that yields ready batches.
    """
    stream, rows = backlog(context)
    path = stream_copy(context, stream, "delta")
    ready, ready_rows = ready_options(context, stream, rows)

    def run(frame: Any, meter: CpuMeter) -> float:
        return read_rate(context, frame, rows, meter)

    def floor() -> float:
        source = context.spark.readStream.format(ReadyBatches.name()).options(**ready)
        return read_rate(context, source.load(), ready_rows, meters["ready"])

    def ours() -> float:
        source = context.spark.readStream.format("pravega").option("root", context.root)
        return run(source.option("startingOffsets", "earliest").load(stream), meters["ours"])

    def delta(name: str) -> float:
        return run(context.spark.readStream.format("delta").load(path), meters[name])

    def default() -> float:
        with spark_setting(context.spark, SNAPSHOT_PARTITIONS, "50"):
            return delta("default")

    meters = {name: CpuMeter() for name in ("ours", "ready", "tuned", "default")}
    ours(), floor(), delta("tuned"), default()
    meters.update({name: CpuMeter() for name in meters})
    sides = {"ours": ours, "ready": floor, "tuned": lambda: delta("tuned"), "default": default}
    found = interleave(context.size(5, 1), sides)
    figure = Figure.of_rounds(
        f"readStream of a backlog of {rows:,} events, whole query",
        found["ours"],
        "events/s",
        "Delta's readStream of an equal table",
        found["default"],
        note=compare(meters["ours"], meters["default"]),
        limited_by="converting Arrow rows into the JVM's, and the start of the source's Python "
        "process",
    )
    yield figure.within(ratio_at_least=0.8)
    yield replace(
        figure,
        name="the same",
        peer="a query over a source of ready batches",
        peer_value=statistics.median(found["ready"]),
        ratio=ratio(found["ours"], found["ready"]),
        note=compare(meters["ours"], meters["ready"]),
        limited_by="planning, decoding and checks",
    ).within(ratio_at_least=0.7)
    yield replace(
        figure,
        name="the same",
        peer=f"{figure.peer}, 2 snapshot partitions",
        peer_value=statistics.median(found["tuned"]),
        ratio=ratio(found["ours"], found["tuned"]),
        note=compare(meters["ours"], meters["tuned"]),
    )
