"""A Kafka topic that Spark copies into a stream, beside the same copy into Parquet."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from bench.harness.context import Context
from bench.harness.dataset import KEYS
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import run_to_end

TOPIC = "events"


@benchmark(Phase.SPARK)
def kafka_import(context: Context) -> Iterator[Figure]:
    """A query with AvailableNow from a topic of two partitions, from start() to its end.

    The broker runs on the same machine, and both sides read it by Spark's own connector; it needs
    the jars that ``make setup`` fetches, and has no figure without them.
    """
    from tests.harness.kafka_broker import running_broker
    from tests.harness.kafka_jars import add_connector, are_fetched

    if not are_fetched():
        context.console.print("  no figure: Kafka's jars are missing")
        return
    rows = context.size(2_000_000, 50_000)
    with running_broker() as servers:
        add_connector(context.spark)
        digits = ", ".join(f"lpad(hex(xxhash64(id, {i})), 16, '0')" for i in range(5))
        frame = context.spark.range(0, rows, 1, 2).selectExpr(
            f"cast(concat('key-', cast(id % {KEYS} as string)) as binary) as key",
            f"cast(concat(lpad(cast(id as string), 20, '0'), {digits}) as binary) as value",
        )
        kafka = {"kafka.bootstrap.servers": servers}
        frame.write.format("kafka").options(**kafka, topic=TOPIC).save()
        sides = _sides(context, kafka, rows)
        for side in sides.values():
            side()
        found = interleave(context.size(3, 1), sides)
    figure = Figure.of_rounds(
        f"a Kafka topic of {rows:,} events of 100 bytes into a stream by Spark, whole query",
        found["ours"],
        "events/s",
        "the same into Parquet",
        found["parquet"],
        limited_by="converting the JVM's rows into Arrow for the sink's Python process",
    )
    yield figure.within(ratio_at_least=0.9)


def _sides(context: Context, kafka: dict[str, str], rows: int) -> dict[str, Any]:
    numbers = iter(range(1_000))

    def topic() -> Any:
        reader = context.spark.readStream.format("kafka").options(**kafka)
        reader = reader.option("startingOffsets", "earliest").option("subscribe", TOPIC)
        return reader.load().select("key", "value", "timestamp")

    def run(sink: Any) -> float:
        queries: list[Any] = []
        seconds = timed(lambda: queries.append(run_to_end(context, topic(), sink)))
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
