"""Delta Spark's read of very many events in large chunks, against a table that Spark wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa

from bench.harness.context import Context
from bench.harness.cpu_time import compare
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.lookalike import json_events
from bench.harness.measure import interleave
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain
from bench.harness.spark_tables import MeteredReads, spark_copy, table_path
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.engine.chunks.chunk_writer import ChunkWriter
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append

_SEGMENTS, _FILES_OF_A_SEGMENT, _BLOCKS_OF_A_FILE = 4, 2, 5


def _stream_of_40m(context: Context) -> tuple[str, int]:
    """Return a stream of large chunks and its events; the writer is that of compaction.

    A block of different events is written again and again. Each page is compressed by itself and
    is much smaller, so the repetition does not help Zstandard.
    """

    def make(context: Context) -> tuple[str, int]:
        block, blocks = context.size(1_000_000, 10_000), _BLOCKS_OF_A_FILE
        name = context.create("large-chunks-40m", _SEGMENTS)
        stream = StreamLog(UnsyncedStore(context.root), name)
        view = stream.view()
        for number, segment in enumerate(view.active.segments):
            rows = table(block, number)
            events = pa.array(json_events(block, number), pa.binary())
            rows = rows.set_column(2, EVENT_SCHEMA.field("event"), events)
            for file in range(_FILES_OF_A_SEGMENT):
                ids, folder = segment.segment_id, version_folder(0)
                with ChunkWriter(
                    stream.store, stream.path, folder, ids, name=f"large-{ids}-{file}"
                ) as writer:
                    for _ in range(blocks):
                        writer.write(rows)
                    append(stream, view.life, view.version, [writer.close()])
        os.sync()
        return name, _SEGMENTS * _FILES_OF_A_SEGMENT * blocks * block

    return context.shared("chunk-files-40m", make)


@benchmark(Phase.SPARK)
def chunk_files_40m(context: Context) -> Iterator[Figure]:
    """Delta Spark reads ten times as many events: a query's planning counts for less."""
    large, count = _stream_of_40m(context)
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
    name = f"Delta Spark: {count:,} events in {_SEGMENTS * _FILES_OF_A_SEGMENT} large chunks"
    peers = {"own": "a Delta table that Spark wrote", "parquet": "plain Parquet that Spark wrote"}
    for side, peer in peers.items():
        figure = Figure.of_rounds(
            name, found["large"], "events/s", peer, found[side],
            note=compare(sides["large"].meter, sides[side].meter), limited_by="decoding",
        )  # fmt: skip
        yield figure.within(ratio_at_least=0.95) if side == "own" else figure
