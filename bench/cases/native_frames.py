"""Native frames: Spark's own reader over the files that our log names, batch and streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.large_chunks import LARGE_FILES, stream_of_40m
from bench.harness.measure import interleave
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain, read_rate
from bench.harness.spark_frames import stream_frame as python_frame
from bench.harness.spark_tables import MeteredReads, frame_copy
from pravega_spark import frame, stream_frame

_VARYING = ("offset", "routing_key", "event", "timestamp")
"""The columns of a frame that differ within a file."""
_LIMIT = "decoding Parquet, which is Spark's reader on both sides; at small sizes planning"


@benchmark(Phase.SPARK)
def native_batch_frame(context: Context) -> Iterator[Figure]:
    """All columns of 4 M events, and two of them; planning is a part of each read."""
    stream, rows = backlog(context)
    spark = context.spark
    columns = "routing_key,offset"
    more: dict[str, Callable[[str], None]] = {
        "two": lambda name: drain(frame(spark, name, root=context.root, columns=columns)),
        "python": lambda name: drain(python_frame(context, name)),
    }
    sides = _sides(context, stream, rows, more)
    found = interleave(context.size(7, 1), sides)
    name = f"native frame of {rows:,} events, all columns"
    yield from _beside_spark(name, found, sides)
    yield _figure(name, found, sides, "native", "python", "format('pravega')").within(
        ratio_at_least=1.5
    )
    yield _figure(
        "the same, two columns by `columns`", found, sides, "two", "native", "all columns"
    )


@benchmark(Phase.SPARK)
def native_frame_40m(context: Context) -> Iterator[Figure]:
    """All columns of ten times as many events, in large files: planning counts for less."""
    stream, rows = stream_of_40m(context)
    sides = _sides(context, stream, rows, {})
    found = interleave(context.size(5, 1), sides)
    name = f"native frame of {rows:,} events in {LARGE_FILES} large chunks, all columns"
    yield from _beside_spark(name, found, sides)


def _sides(
    context: Context, stream: str, rows: int, more: dict[str, Callable[[str], None]]
) -> dict[str, MeteredReads]:
    """Return the reads of a stream, and of what Spark wrote with equal rows, files and groups."""
    spark = context.spark
    reads: dict[str, Callable[[str], None]] = {
        "native": lambda name: drain(frame(spark, name, root=context.root)),
        "delta": lambda path: drain(spark.read.format("delta").load(path)),
        "parquet": lambda path: drain(spark.read.parquet(path)),
        "narrow": lambda path: drain(spark.read.format("delta").load(path)),
        **more,
    }
    copies = {kind: frame_copy(context, stream, kind) for kind in ("delta", "parquet")}
    copies["narrow"] = frame_copy(context, stream, "delta", *_VARYING)
    return {
        name: MeteredReads(rows, read, copies.get(name, stream)) for name, read in reads.items()
    }


def _beside_spark(
    name: str, found: Mapping[str, list[float]], sides: Mapping[str, MeteredReads]
) -> Iterator[Figure]:
    delta = "a Delta table of equal rows that Spark wrote"
    yield _figure(name, found, sides, "native", "delta", delta).within(ratio_at_least=0.95)
    yield _figure(name, found, sides, "native", "parquet", "plain Parquet that Spark wrote")
    narrow = "that table without its four constant columns"
    yield _figure(name, found, sides, "native", "narrow", narrow)


def _figure(
    name: str,
    found: Mapping[str, list[float]],
    sides: Mapping[str, MeteredReads],
    side: str,
    peer: str,
    text: str,
) -> Figure:
    note = compare(sides[side].meter, sides[peer].meter)
    return Figure.of_rounds(
        name, found[side], "events/s", text, found[peer], note=note, limited_by=_LIMIT
    )


@benchmark(Phase.SPARK)
def native_backlog(context: Context) -> Iterator[Figure]:
    """A streaming query over 4 M events with AvailableNow and no sink, from start() to its end."""
    stream, rows = backlog(context)
    path = frame_copy(context, stream, "delta")
    meters = {"native": CpuMeter(), "delta": CpuMeter()}

    def run(name: str, source: Any) -> float:
        return read_rate(context, source, rows, meters[name])

    def native() -> float:
        given = {"root": context.root, "startingOffsets": "earliest"}
        return run("native", stream_frame(context.spark, stream, **given))

    def delta() -> float:
        return run("delta", context.spark.readStream.format("delta").load(path))

    native(), delta()
    meters = {"native": CpuMeter(), "delta": CpuMeter()}
    found = interleave(context.size(5, 1), {"native": native, "delta": delta})
    yield Figure.of_rounds(
        f"native stream over a backlog of {rows:,} events, whole query",
        found["native"],
        "events/s",
        "Delta's readStream of an equal table, 2 snapshot partitions",
        found["delta"],
        note=compare(meters["native"], meters["delta"]),
        limited_by=_LIMIT,
    ).within(ratio_at_least=1.0)
