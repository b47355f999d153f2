"""Native frames: Spark's own reader over the files that our log names, batch and streaming."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain, run_to_end
from bench.harness.spark_frames import stream_frame as python_frame
from bench.harness.spark_tables import MeteredReads, frame_copy
from pravega_spark import frame, stream_frame

_LIMIT = "decoding Parquet, which is Spark's reader on both sides; at small sizes planning"


@benchmark(Phase.SPARK)
def native_batch_frame(context: Context) -> Iterator[Figure]:
    """All columns of 4 M events, and two of them; planning is a part of each read."""
    stream, rows = backlog(context)
    spark = context.spark
    columns = "routing_key,offset"
    reads: dict[str, Callable[[str], None]] = {
        "native": lambda name: drain(frame(spark, name, root=context.root)),
        "two": lambda name: drain(frame(spark, name, root=context.root, columns=columns)),
        "python": lambda name: drain(python_frame(context, name)),
        "delta": lambda path: drain(spark.read.format("delta").load(path)),
        "parquet": lambda path: drain(spark.read.parquet(path)),
    }
    copies = {kind: frame_copy(context, stream, kind) for kind in ("delta", "parquet")}
    sides = {
        name: MeteredReads(rows, read, copies.get(name, stream)) for name, read in reads.items()
    }
    found = interleave(context.size(7, 1), sides)

    def figure(side: str, peer: str, text: str, name: str) -> Figure:
        note = compare(sides[side].meter, sides[peer].meter)
        return Figure.of_rounds(
            name, found[side], "events/s", text, found[peer], note=note, limited_by=_LIMIT
        )

    name = f"native frame of {rows:,} events, all columns"
    peer = "a Delta table that Spark wrote, equal rows and files"
    yield figure("native", "delta", peer, name).within(ratio_at_least=0.95)
    yield figure("native", "parquet", "plain Parquet that Spark wrote", name)
    yield figure("native", "python", "format('pravega')", name).within(ratio_at_least=1.5)
    yield figure("two", "native", "all columns", "the same, two columns by `columns`")


@benchmark(Phase.SPARK)
def native_backlog(context: Context) -> Iterator[Figure]:
    """A streaming query over 4 M events with AvailableNow and no sink, from start() to its end."""
    stream, rows = backlog(context)
    path = frame_copy(context, stream, "delta")
    meters = {"native": CpuMeter(), "delta": CpuMeter()}

    def run(name: str, source: Any) -> float:
        queries: list[Any] = []
        with meters[name]:
            seconds = timed(
                lambda: queries.append(run_to_end(context, source, lambda w: w.format("noop")))
            )
        read = sum(progress["numInputRows"] for progress in queries[0].recentProgress)
        assert read == rows, f"{read} of {rows} rows"
        return rows / seconds

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
