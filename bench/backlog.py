"""A streaming query that works off a backlog, against Delta's own streaming source."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from bench.context import Context
from bench.data import backlog
from bench.figures import Figure
from bench.measure import interleave, ratio, timed
from bench.registry import benchmark
from bench.spark import backlog_copy

_numbers = count()


def finish(context: Context, frame: Any, sink: Callable[[Any], Any]) -> Any:
    """Run a query over what there is, with a checkpoint of its own; return it when it ended."""
    checkpoint = str(context.folder / f"checkpoint-{next(_numbers)}")
    writer = sink(frame.writeStream).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


@benchmark
def streaming_backlog(context: Context) -> Iterator[Figure]:
    """readStream with AvailableNow to nowhere: from start() until the query has ended."""
    stream, rows = backlog(context)
    path = backlog_copy(context, "delta")

    def run(frame: Any) -> float:
        queries: list[Any] = []

        def query() -> None:
            queries.append(finish(context, frame, lambda writer: writer.format("noop")))

        seconds = timed(query)
        read = sum(progress["numInputRows"] for progress in queries[0].recentProgress)
        assert read == rows, f"{read} of {rows} rows"
        return rows / seconds

    def ours() -> float:
        source = context.spark.readStream.format("pravega").option("root", context.root)
        return run(source.option("startingOffsets", "earliest").load(stream))

    def delta() -> float:
        return run(context.spark.readStream.format("delta").load(path))

    ours(), delta()
    found = interleave(context.size(5, 1), {"ours": ours, "delta": delta})
    yield Figure(
        f"readStream of a backlog of {rows:,} events, whole query",
        statistics.median(found["ours"]),
        "events/s",
        "Delta's readStream of an equal table",
        statistics.median(found["delta"]),
        ratio(found["ours"], found["delta"]),
        limited_by="rows on their way from Python into the JVM, and Spark's start and end of a "
        "query",
    ).within(ratio_at_least=2.5)
