"""Batch frames written and read, beside Spark's own Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from bench.harness.arrow_sink import ArrowParquet
from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, ratio, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import (
    as_json,
    backlog_copy,
    cached_events,
    cached_flights,
    drain,
    stream_frame,
)


@benchmark(Phase.SPARK)
def frame_write(context: Context) -> Iterator[Figure]:
    """A cached frame into a new stream of 4 segments, in one commit; and into Parquet."""
    rows = context.size(4_000_000, 20_000)
    frame = cached_events(context, rows)
    numbers = count()

    def ours() -> None:
        writer = frame.write.format("pravega").mode("append").option("root", context.root)
        writer.option("numSegments", 4).save(f"bench/frame-{next(numbers)}")

    def parquet() -> None:
        path = str(context.folder / f"frame-{next(numbers)}.parquet")
        frame.write.option("compression", "zstd").parquet(path)

    found, meters = _rates(rows, context.size(5, 1), {"ours": ours, "parquet": parquet})
    cpu = compare(meters["ours"], meters["parquet"])
    frame.unpersist()
    yield Figure.of_rounds(
        f"DataFrame write of {rows:,} events",
        found["ours"],
        "events/s",
        "Spark's own Parquet write, zstd",
        found["parquet"],
        note=f"into 4 segments, routed by key, with fsync; Spark's write has no fsync; {cpu}",
        limited_by="rows on their way from the JVM into Python as Arrow, and the fsyncs",
    ).within(ratio_at_least=1.0)


@benchmark(Phase.SPARK)
def typed_frame_write(context: Context) -> Iterator[Figure]:
    """A cached frame of ten columns into a new typed stream; and its rows as JSON, and Parquet."""
    context.spark.dataSource.register(ArrowParquet)
    yield from _typed_write(context, context.size(200_000, 2_000), context.size(15, 1))
    yield from _typed_write(context, context.size(2_000_000, 20_000), context.size(7, 1))


def _typed_write(context: Context, rows: int, rounds: int) -> Iterator[Figure]:
    frame = cached_flights(context, rows)
    numbers = count()

    def save(events: Any, **options: str) -> None:
        writer = events.write.format("pravega").mode("append").option("root", context.root)
        writer.options(numSegments=4, **options).save(f"bench/flights-{rows}-{next(numbers)}")

    def parquet() -> None:
        path = str(context.folder / f"flights-{rows}-{next(numbers)}.parquet")
        frame.write.option("compression", "zstd").parquet(path)

    def arrow() -> None:
        path = str(context.folder / f"arrow-{rows}-{next(numbers)}")
        frame.write.format(ArrowParquet.name()).mode("append").save(path)

    sides = {
        "typed": lambda: save(frame, schema="infer", routingKey="carrier"),
        "raw": lambda: save(as_json(frame, "carrier")),
        "parquet": parquet,
        "arrow": arrow,
    }
    found, meters = _rates(rows, rounds, sides)
    frame.unpersist()
    of_floor = ratio(found["arrow"], found["parquet"])

    def figure(peer: str, text: str, note: str) -> Figure:
        cpu = compare(meters["typed"], meters[peer])
        return Figure.of_rounds(
            f"typed DataFrame write of {rows:,} rows of 10 columns", found["typed"], "rows/s",
            text, found[peer], note=f"{note}; {cpu}",
            limited_by="rows on their way from the JVM into Python as Arrow, and the fsyncs",
        )  # fmt: skip

    note = (
        "one commit into 4 segments, routed by carrier, with fsync; Spark's write has no fsync; "
        f"the rows as Arrow into pyarrow's Parquet are {of_floor:.2f}x of it"
    )
    yield figure("parquet", "Spark's own Parquet write, zstd", note).within(ratio_at_least=0.7)
    arrow_note = "the least that a sink in Python costs: no routing, no columns of ours, no fsync"
    yield figure("arrow", "the rows as Arrow into pyarrow's Parquet", arrow_note).within(
        ratio_at_least=0.93
    )
    yield figure("raw", "the same rows as JSON into a stream of bytes", "both with fsync")


@benchmark(Phase.SPARK)
def frame_read(context: Context) -> Iterator[Figure]:
    """All columns of the backlog, and of a copy of it in Parquet, read and discarded."""
    stream, rows = backlog(context)
    path = backlog_copy(context, "parquet")

    def ours() -> None:
        drain(stream_frame(context, stream))

    def parquet() -> None:
        drain(context.spark.read.parquet(path))

    found, meters = _rates(rows, context.size(7, 1), {"ours": ours, "parquet": parquet})
    yield Figure.of_rounds(
        f"DataFrame read of {rows:,} events, all columns",
        found["ours"],
        "events/s",
        "Spark's own Parquet read",
        found["parquet"],
        note=compare(meters["ours"], meters["parquet"]),
        limited_by="rows on their way from Python into the JVM, and from Arrow into its rows, "
        "which alone costs what Spark's own read of Parquet costs",
    ).within(ratio_at_least=0.85)


def _rates(
    rows: int, rounds: int, actions: Mapping[str, Callable[[], None]]
) -> tuple[dict[str, list[float]], dict[str, CpuMeter]]:
    """Return the rows per second of each side, and their processor time."""
    meters = {name: CpuMeter() for name in actions}

    def side(name: str, action: Callable[[], None]) -> Side:
        action()  # warm

        def measured() -> float:
            with meters[name]:
                return rows / timed(action)

        return measured

    return interleave(rounds, {name: side(name, each) for name, each in actions.items()}), meters
