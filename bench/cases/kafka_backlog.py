"""A streaming query that reads a backlog by a native frame, beside Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.kafka_topic import filled_topic, topic_stream
from bench.harness.measure import interleave
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import read_rate
from pravega_spark import stream_frame


@benchmark(Phase.SPARK)
def kafka_backlog(context: Context) -> Iterator[Figure]:
    """A streaming query over 4 M events with AvailableNow and no sink, from start() to its end."""
    stream, rows = backlog(context)
    given = {"root": context.root, "startingOffsets": "earliest"}
    meters: dict[str, CpuMeter] = {}

    def run(name: str, source: Any) -> float:
        return read_rate(context, source, rows, meters[name])

    with filled_topic(context, rows) as topic:
        if topic is None:
            return
        sides: dict[str, Callable[[], float]] = {
            "native": lambda: run("native", stream_frame(context.spark, stream, **given)),
            "python": lambda: run("python", _python_frame(context, stream)),
            "kafka": lambda: run("kafka", topic_stream(context, topic)),
        }
        meters.update({name: CpuMeter() for name in sides})
        for side in sides.values():
            side()
        meters.update({name: CpuMeter() for name in sides})
        found = interleave(context.size(5, 1), sides)

    def figure(side: str, name: str) -> Figure:
        return Figure.of_rounds(
            f"{name} over a backlog of {rows:,} events, whole query",
            found[side],
            "events/s",
            "Spark's Kafka source",
            found["kafka"],
            note=f"{compare(meters[side], meters['kafka'])}; the broker's is in the peer's",
            limited_by="decoding; and the broker, which shares the cores with the peer",
        )

    yield figure("native", "native stream").within(ratio_at_least=2.0)
    yield figure("python", "readStream")


def _python_frame(context: Context, stream: str) -> Any:
    reader = context.spark.readStream.format("pravega").option("root", context.root)
    return reader.option("startingOffsets", "earliest").load(stream)
