"""The files of chunks: their bytes, and reading few large ones against many small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import numpy as np
import pyarrow as pa

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.lookalike import json_events, texts
from bench.harness.measure import Side, interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain, run_to_end, stream_frame
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, StagedChunk
from pravega_spark.engine.chunks.chunk_writer import ChunkWriter, encode, stage
from pravega_spark.engine.staging_folder import version_folder
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


def _streams(context: Context) -> tuple[str, str, int]:
    """Return two streams of the same events, in many small chunks and in one a segment."""

    def make(context: Context) -> tuple[str, str, int]:
        count = context.size(4_000_000, 20_000)
        part = count // _SEGMENTS
        parts = []
        for number in range(_SEGMENTS):
            events = pa.array(json_events(part, number), pa.binary())
            columns = [*table(part, number).columns[:2], events]
            parts.append(pa.Table.from_arrays(columns, schema=EVENT_SCHEMA))
        small, large = context.create("small-chunks", 4), context.create("large-chunks", 4)
        _fill(context, small, parts, _stage_small)
        _fill(context, large, parts, _stage_large)
        return small, large, part * _SEGMENTS

    return context.shared("chunk-files", make)


def _fill(context: Context, name: str, parts: list[pa.Table], stage_part: Any) -> None:
    stream = StreamLog(UnsyncedStore(context.root), name)
    view = stream.view()
    chunks: list[StagedChunk] = []
    for segment, part in zip(view.active.segments, parts, strict=True):
        chunks += stage_part(stream, segment.segment_id, part)
    for first in range(0, len(chunks), _COMMIT_CHUNKS):
        append(stream, view.life, view.version, chunks[first : first + _COMMIT_CHUNKS])


def _stage_small(stream: StreamLog, segment_id: int, events: pa.Table) -> list[StagedChunk]:
    chunks: list[StagedChunk] = []
    for first in range(0, events.num_rows, _CHUNK_EVENTS):
        part = events.slice(first, _CHUNK_EVENTS)
        name, folder = f"small-{segment_id}-{first}", version_folder(0)
        chunks += stage(stream.store, stream.path, folder, segment_id, part, name=name)
    return chunks


def _stage_large(stream: StreamLog, segment_id: int, events: pa.Table) -> list[StagedChunk]:
    folder, name = version_folder(0), f"large-{segment_id}"
    with ChunkWriter(stream.store, stream.path, folder, segment_id, name=name) as writer:
        for batch in events.to_batches(65_536):
            writer.write(batch)
        return [writer.close()]


def _own(context: Context, large: str) -> str:
    """Return a Delta table that Spark wrote, with the rows and columns of the stream's table."""

    def make(context: Context) -> str:
        path = str(context.folder / "own-delta")
        frame = context.spark.read.format("delta").load(_path(context, large))
        frame = frame.repartitionByRange(_SEGMENTS, "segment_id")
        frame = frame.sortWithinPartitions("segment_id", "base_offset", "offset_delta")
        frame.write.format("delta").option("compression", "zstd").save(path)
        return path

    return context.shared("own-delta", make)


def _path(context: Context, stream: str) -> str:
    return f"{context.root}/{stream}/events"


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
    """All events in large chunks, read by each engine; the peers are small chunks, and Spark's."""
    small, large, count = _streams(context)
    paths = {
        "large": _path(context, large),
        "small": _path(context, small),
        "own": _own(context, large),
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
        found = interleave(rounds, {name: _side(count, read, paths[name]) for name in paths})
        name = f"{engine}: {count:,} events in {_SEGMENTS} large chunks"
        figure = Figure.of_rounds(name, found["large"], "events/s", of_small, found["small"])
        yield figure.within(ratio_at_least=8.0) if engine == "Delta Spark" else figure
        yield Figure.of_rounds(
            name, found["large"], "events/s", "a Delta table that Spark wrote", found["own"]
        ).within(ratio_at_least=0.95)

    def stream_read(stream: str) -> None:
        source = spark.readStream.format("pravega").option("root", context.root)
        source = source.option("startingOffsets", "earliest").load(stream)
        run_to_end(context, source, lambda writer: writer.format("noop"))

    ours: dict[str, Callable[[str], None]] = {
        "batch read": lambda stream: drain(stream_frame(context, stream)),
        "readStream": stream_read,
    }
    for kind, read in ours.items():
        sides = {name: _side(count, read, name) for name in (large, small)}
        found = interleave(rounds, sides)
        name = f"{kind} of {count:,} events in {_SEGMENTS} large chunks"
        yield Figure.of_rounds(name, found[large], "events/s", of_small, found[small]).within(
            ratio_at_least=4.0
        )


def _side(count: int, read: Callable[[str], None], what: str) -> Side:
    read(what)  # warm
    return lambda: count / timed(lambda: read(what))
