"""The files of chunks: their bytes, and reading few large ones against many small ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.resources import files
from pathlib import Path

import deltalake
import duckdb
import numpy as np
import pyarrow as pa

from bench.harness.context import Context
from bench.harness.cpu_time import compare
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.lookalike import json_events, texts
from bench.harness.measure import interleave, ratio
from bench.harness.ready_source import ReadyBatches, ready_options
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain, run_to_end
from bench.harness.spark_tables import MeteredReads, spark_copy, table_path
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark.compaction.run import run_compaction
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, StagedChunk
from pravega_spark.engine.chunks.writer import encode, stage
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append

_SEGMENTS = 4
_CHUNK_EVENTS = 200
_COMMIT_CHUNKS = 1_000


@benchmark()
def chunk_bytes(context: Context) -> Iterator[Figure]:
    """The file bytes of an event in a large chunk, of events with different contents."""
    count = context.size(1_000_000, 20_000)
    random = np.random.default_rng(1).bytes(100 * count)
    contents = {
        "JSON events that look alike": json_events(count),
        "texts of 100 B": texts(count),
        "random bytes, 100 B": [random[at : at + 100] for at in range(0, len(random), 100)],
    }
    for name, events in contents.items():
        rows = table(count)
        payloads = pa.array(events, pa.binary())
        rows = pa.Table.from_arrays([*rows.columns[:2], payloads], schema=EVENT_SCHEMA)
        plain = payloads.nbytes / count
        size = encode(rows).size / count
        yield Figure(
            f"bytes of an event in a chunk: {name}",
            size,
            "B",
            "its payload and length",
            plain,
            size / plain,
        )


class _Later(Runtime):
    """A clock that is ahead, so that chunks which were just written count as settled."""

    def now_ms(self) -> int:
        return super().now_ms() + 600_000


def _streams(context: Context) -> tuple[str, str, int]:
    """Return two streams of the same events: in many small chunks, and compacted from these."""

    def make(context: Context) -> tuple[str, str, int]:
        count = context.size(4_000_000, 40_000)
        part = count // _SEGMENTS
        parts = []
        for number in range(_SEGMENTS):
            events = pa.array(json_events(part, number), pa.binary())
            columns = [*table(part, number).columns[:2], events]
            parts.append(pa.Table.from_arrays(columns, schema=EVENT_SCHEMA))
        small, large = context.create("small-chunks", 4), context.create("large-chunks", 4)
        _fill(context, small, parts)
        _fill(context, large, parts)
        done = run_compaction(StreamLog(UnsyncedStore(context.root), large, _Later()))
        assert done.files_after == _SEGMENTS, str(done)
        os.sync()
        return small, large, part * _SEGMENTS

    return context.shared("chunk-files", make)


def _fill(context: Context, name: str, parts: list[pa.Table]) -> None:
    stream = StreamLog(UnsyncedStore(context.root), name)
    view = stream.view()
    chunks: list[StagedChunk] = []
    for segment, part in zip(view.active.segments, parts, strict=True):
        chunks += _stage(stream, segment.segment_id, part)
    for first in range(0, len(chunks), _COMMIT_CHUNKS):
        append(stream, view.life, view.version, chunks[first : first + _COMMIT_CHUNKS])


def _stage(stream: StreamLog, segment_id: int, events: pa.Table) -> list[StagedChunk]:
    chunks: list[StagedChunk] = []
    for first in range(0, events.num_rows, _CHUNK_EVENTS):
        part = events.slice(first, _CHUNK_EVENTS)
        name, folder = f"small-{segment_id}-{first}", version_folder(0)
        chunks += stage(stream.store, stream.path, folder, segment_id, part, name=name)
    return chunks


def _read_delta_rs(path: str) -> None:
    reader = deltalake.DeltaTable(path).to_pyarrow_dataset().scanner().to_reader()
    for _ in reader:
        pass


def _read_duckdb(path: str) -> None:
    extensions = Path(str(files("duckdb_extension_delta")))
    (extension,) = extensions.glob("extensions/*/delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.load_extension(str(extension))
        connection.sql("SET threads = 2")
        connection.sql(
            "SELECT sum(base_offset + offset_delta), max(timestamp), max(routing_key), "
            f"sum(octet_length(event)) FROM delta_scan('{path}')"
        ).fetchall()


@benchmark(Phase.SPARK)
def chunk_files(context: Context) -> Iterator[Figure]:
    """All events of a compacted stream; the peers are its small chunks, and tables of Spark."""
    small, large, count = _streams(context)
    paths = {
        "large": table_path(context, large),
        "small": table_path(context, small),
        "own": spark_copy(context, large, "delta"),
    }
    spark = context.spark
    engines: dict[str, Callable[[str], None]] = {
        "Delta Spark": lambda path: drain(spark.read.format("delta").load(path)),
        "delta-rs": _read_delta_rs,
        "DuckDB": _read_duckdb,
    }
    rounds = context.size(5, 1)
    of_small = f"{count // _CHUNK_EVENTS:,} small chunks"
    for engine, read in engines.items():
        sides = {name: MeteredReads(count, read, path) for name, path in paths.items()}
        if engine == "Delta Spark":
            parquet = spark_copy(context, large, "parquet")
            sides["parquet"] = MeteredReads(
                count, lambda path: drain(spark.read.parquet(path)), parquet
            )
        found = interleave(rounds, sides)
        name = f"{engine}: {count:,} events in {_SEGMENTS} large chunks"

        def against(
            peer: str,
            side: str,
            name: str = name,
            sides: dict[str, MeteredReads] = sides,
            found: dict[str, list[float]] = found,
        ) -> Figure:
            note = compare(sides["large"].meter, sides[side].meter)
            ours, theirs = found["large"], found[side]
            limit = "decoding files that are a fifth smaller (ADR 30); at small sizes planning"
            return Figure.of_rounds(
                name, ours, "events/s", peer, theirs, note=note, limited_by=limit
            )

        figure = against(of_small, "small")
        yield figure.within(ratio_at_least=8.0) if engine == "Delta Spark" else figure
        yield against("a Delta table that Spark wrote", "own").within(ratio_at_least=0.85)
        if "parquet" in sides:
            yield against("plain Parquet that Spark wrote", "parquet")


@benchmark(Phase.SPARK)
def own_reads_of_chunk_files(context: Context) -> Iterator[Figure]:
    """The package's own batch read and readStream of a compacted stream and of its small chunks.

    Beside both is a source that yields ready batches: what reads through Python cost at least.
    """
    small, large, count = _streams(context)
    ready, ready_count = ready_options(context, large, count)
    of_ours = "pravega", {"root": context.root, "startingOffsets": "earliest"}
    of_ready = ReadyBatches.name(), ready

    def query(source: tuple[str, dict[str, str]], what: str) -> None:
        read = context.spark.readStream.format(source[0]).options(**source[1]).load(what)
        run_to_end(context, read, lambda writer: writer.format("noop"))

    def frame(source: tuple[str, dict[str, str]], what: str) -> None:
        drain(context.spark.read.format(source[0]).options(**source[1]).load(what))

    for kind, read in {"batch read": frame, "readStream": query}.items():
        sides = {
            "large": MeteredReads(count, partial(read, of_ours), large),
            "small": MeteredReads(count, partial(read, of_ours), small),
            "ready": MeteredReads(ready_count, partial(read, of_ready), ready["file"]),
        }
        found = interleave(context.size(5, 1), sides)
        most = ratio(found["ready"], found["small"])
        name = f"{kind} of {count:,} events in {_SEGMENTS} large chunks"
        yield Figure.of_rounds(
            name,
            found["large"],
            "events/s",
            f"{count // _CHUNK_EVENTS:,} small chunks",
            found["small"],
            note=f"{compare(sides['large'].meter, sides['small'].meter)}; ready batches "
            f"{most:.2f}x of small chunks",
            limited_by="converting Arrow rows into the JVM's, which both sides pay",
        ).within(ratio_at_least=2.0)
        yield Figure.of_rounds(
            name,
            found["large"],
            "events/s",
            "a source of ready batches",
            found["ready"],
            note=compare(sides["large"].meter, sides["ready"].meter),
            limited_by="planning, decoding and checks",
        ).within(ratio_at_least=0.6)
