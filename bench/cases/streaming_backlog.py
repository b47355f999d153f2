"""A streaming query that works off a backlog, against Delta's own streaming source."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import Meter, compare
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.measure import interleave, ratio, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import SNAPSHOT_PARTITIONS, backlog_copy, conf

_numbers = count()


def finish(context: Context, frame: Any, sink: Callable[[Any], Any]) -> Any:
    """Run a query over what there is, with a checkpoint of its own; return it when it ended."""
    checkpoint = str(context.folder / f"checkpoint-{next(_numbers)}")
    writer = sink(frame.writeStream).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@benchmark(Phase.SPARK)
def streaming_backlog(context: Context) -> Iterator[Figure]:
    """readStream with AvailableNow to nowhere: from start() until the query has ended.

    The peer as it comes, and with the number of snapshot partitions that suits a small machine.
    """
    stream, rows = backlog(context)
    path = backlog_copy(context, "delta")

    def run(frame: Any, meter: Meter) -> float:
        queries: list[Any] = []

        def query() -> None:
            queries.append(finish(context, frame, lambda writer: writer.format("noop")))

        with meter:
            seconds = timed(query)
        read = sum(progress["numInputRows"] for progress in queries[0].recentProgress)
        assert read == rows, f"{read} of {rows} rows"
        return rows / seconds

    def ours() -> float:
        source = context.spark.readStream.format("pravega").option("root", context.root)
        return run(source.option("startingOffsets", "earliest").load(stream), meters["ours"])

    def delta(name: str) -> float:
        return run(context.spark.readStream.format("delta").load(path), meters[name])

    def default() -> float:
        with conf(context.spark, SNAPSHOT_PARTITIONS, "50"):
            return delta("default")

    meters = {name: Meter() for name in ("ours", "tuned", "default", "first")}
    ours(), delta("first"), default()
    sides = {"ours": ours, "tuned": lambda: delta("tuned"), "default": default}
    found = interleave(context.size(5, 1), sides)
    figure = Figure(
        f"readStream of a backlog of {rows:,} events, whole query",
        statistics.median(found["ours"]),
        "events/s",
        "Delta's readStream of an equal table",
        statistics.median(found["default"]),
        ratio(found["ours"], found["default"]),
        note=compare(meters["ours"], meters["default"]),
        limited_by="turning rows from Arrow into the JVM's, which alone costs what Spark's own "
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
