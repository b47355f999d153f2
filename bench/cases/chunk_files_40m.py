"""Delta Spark's read of very many events in large chunks, against a table that Spark wrote."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.cpu_time import compare
from bench.harness.figures import Figure
from bench.harness.large_chunks import LARGE_FILES, stream_of_40m
from bench.harness.measure import interleave
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain
from bench.harness.spark_tables import MeteredReads, spark_copy, table_path


@benchmark(Phase.SPARK)
def chunk_files_40m(context: Context) -> Iterator[Figure]:
    """Delta Spark reads ten times as many events: a query's planning counts for less."""
    large, count = stream_of_40m(context)
    spark = context.spark

    def read_delta(path: str) -> None:
        drain(spark.read.format("delta").load(path))

    def read_parquet(path: str) -> None:
        drain(spark.read.parquet(path))

    sides = {
        "large": MeteredReads(count, read_delta, table_path(context, large)),
        "own": MeteredReads(count, read_delta, spark_copy(context, large, "delta")),
        "parquet": MeteredReads(count, read_parquet, spark_copy(context, large, "parquet")),
    }
    found = interleave(context.size(5, 1), sides)
    name = f"Delta Spark: {count:,} events in {LARGE_FILES} large chunks"
    peers = {"own": "a Delta table that Spark wrote", "parquet": "plain Parquet that Spark wrote"}
    for side, peer in peers.items():
        figure = Figure.of_rounds(
            name, found["large"], "events/s", peer, found[side],
            note=compare(sides["large"].meter, sides[side].meter),
            limited_by="decoding files that are a fifth smaller (ADR 30)",
        )  # fmt: skip
        yield figure.within(ratio_at_least=0.85) if side == "own" else figure
