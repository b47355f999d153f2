"""Batch frames written and read, beside Spark's own Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from bench.harness.arrow_sink import ArrowParquet
from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog, fill
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, ratio, timed
from bench.harness.ready_source import ReadyBatches, ready_options, stream_files
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import (
    as_json,
    cached_events,
    cached_flights,
    drain,
    stream_copy,
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
        limited_by="rows on their way from the JVM into Python as Arrow, which pyarrow's Parquet "
        "alone writes 0.74 to 0.83x as fast as Spark (typed_frame_write), and the fsyncs",
    ).within(ratio_at_least=0.75)


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
        f"Arrow into pyarrow's Parquet are {of_floor:.2f}x of it"
    )
    yield figure("parquet", "Spark's own Parquet write, zstd", note).within(ratio_at_least=0.7)
    arrow_note = "the least that a sink in Python costs: no routing, no columns of ours, no fsync"
    yield figure("arrow", "Arrow into pyarrow's Parquet", arrow_note).within(ratio_at_least=0.93)
    yield figure("raw", "as JSON into a stream", "both with fsync")


@benchmark(Phase.SPARK)
def frame_read(context: Context) -> Iterator[Figure]:
    """All columns of 0.4 M and 4 M events, and of copies in Parquet, read and discarded.

    Beside them is a source in Python whose batches are ready, alone, and while it decodes the
    files of the stream.
    """
    few = context.size(400_000, 4_000)
    yield from _frame_read(context, fill(context, context.create("frame-read", 4), few), few)
    yield from _frame_read(context, *backlog(context))


def _frame_read(context: Context, stream: str, rows: int) -> Iterator[Figure]:
    path = stream_copy(context, stream, "parquet")
    ready, ready_rows = ready_options(context, stream, rows)
    decoded = {**ready, "decoded": json.dumps(stream_files(context, stream))}

    def of_ready(options: Mapping[str, str]) -> None:
        drain(context.spark.read.format(ReadyBatches.name()).options(**options).load())

    sides = {
        "ours": lambda: drain(stream_frame(context, stream)),
        "parquet": lambda: drain(context.spark.read.parquet(path)),
        "ready": lambda: of_ready(ready),
        "decoded": lambda: of_ready(decoded),
    }
    found, meters = _rates(rows, context.size(7, 1), sides)
    for side in ("ready", "decoded"):
        found[side] = [rate * ready_rows / rows for rate in found[side]]

    def figure(side: str, peer: str, limited_by: str) -> Figure:
        return Figure.of_rounds(
            f"DataFrame read of {rows:,} events, all columns",
            found["ours"],
            "events/s",
            peer,
            found[side],
            note=compare(meters["ours"], meters[side]),
            limited_by=limited_by,
        )

    yield figure(
        "decoded",
        "ready batches, and pyarrow's decoding",
        "planning, the columns that are constant in a segment, and the checks of each batch",
    ).within(ratio_at_least=0.9 if rows > 1_000_000 else 0.75)
    yield figure("ready", "ready batches alone", "decoding, which they do not need").within(
        ratio_at_least=0.7
    )
    yield figure(
        "parquet",
        "Spark's own Parquet read",
        "rows on their way from Python into the JVM, and from Arrow into its rows: that of ready "
        "batches takes longer than a read of Parquet, and decoding comes to it",
    ).within(ratio_at_least=0.5)


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
