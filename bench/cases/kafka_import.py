"""A Kafka topic that Spark copies into a stream, beside the same copy into Parquet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.kafka_topic import filled_topic, topic_stream
from bench.harness.measure import interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import run_to_end


@benchmark(Phase.SPARK)
def kafka_import(context: Context) -> Iterator[Figure]:
    """A query with AvailableNow from a topic of two partitions, from start() to its end."""
    rows = context.size(2_000_000, 50_000)
    with filled_topic(context, rows) as topic:
        if topic is None:
            return
        sides = _sides(context, topic, rows)
        for side in sides.values():
            side()
        found = interleave(context.size(3, 1), sides)
    figure = Figure.of_rounds(
        f"a Kafka topic of {rows:,} events into a stream by Spark",
        found["ours"],
        "events/s",
        "the same into Parquet",
        found["parquet"],
        limited_by="converting the JVM's rows into Arrow for the sink's Python process",
    )
    yield figure.within(ratio_at_least=0.9)


def _sides(context: Context, topic: dict[str, str], rows: int) -> dict[str, Any]:
    numbers = iter(range(1_000))

    def run(sink: Any) -> float:
        events = topic_stream(context, topic).select("key", "value", "timestamp")
        queries: list[Any] = []
        seconds = timed(lambda: queries.append(run_to_end(context, events, sink)))
        read = sum(progress["numInputRows"] for progress in queries[0].recentProgress)
        assert read == rows, f"{read} of {rows} rows"
        return rows / seconds

    def ours() -> float:
        stream = context.create(f"imported-{next(numbers)}", 2)
        options = {"root": context.root, "columnNames": "kafka", "eventTime": "timestamp"}
        options["stream"] = stream
        try:
            return run(lambda writer: writer.format("pravega").options(**options))
        finally:
            context.manager.seal_stream(stream)
            context.manager.delete_stream(stream)

    def parquet() -> float:
        path = context.folder / f"imported-{next(numbers)}.parquet"
        try:
            return run(
                lambda writer: (
                    writer.format("parquet").option("compression", "zstd").option("path", str(path))
                )
            )
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return {"ours": ours, "parquet": parquet}
