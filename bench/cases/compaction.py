"""Compaction: its speed, what it does for Delta's batch reads, and how often it writes a byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark.compaction.compaction_options import CompactionOptions
from pravega_spark.compaction.compaction_plan import plan_compaction
from pravega_spark.compaction.compaction_run import run_compaction
from pravega_spark.compaction.live_chunks import FileBytes, live_chunks
from pravega_spark.compaction.range_merge import merge_range
from pravega_spark.engine.chunks.chunk_writer import stage
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.limits import ROW_GROUP_EVENTS

DEFAULTS = CompactionOptions(root={})
_FILES_OF_A_COMMIT = 500


class _Later(Runtime):
    """A clock that is ahead, so that chunks which were just written count as settled."""

    def now_ms(self) -> int:
        return super().now_ms() + 600_000


def _fill(context: Context, name: str, files: int, events: int) -> StreamLog:
    """Return a stream of one segment in so many files, as it looks ten minutes later."""
    store = UnsyncedStore(context.root)
    stream = StreamLog(store, context.create(name))
    block = table(_FILES_OF_A_COMMIT * events)
    for first in range(0, files, _FILES_OF_A_COMMIT):
        view = stream.view()
        (segment,) = view.active.segments
        folder = version_folder(view.version)
        chunks = [
            chunk
            for n in range(min(_FILES_OF_A_COMMIT, files - first))
            for chunk in stage(
                store, stream.path, folder, segment.segment_id,
                block.slice(n * events, events), name=f"{first + n}",
            )
        ]  # fmt: skip
        append(stream, view.life, view.version, chunks)
    os.sync()
    return StreamLog(store, stream.name, _Later())


@benchmark()
def compaction_speed(context: Context) -> Iterator[Figure]:
    """One process merges all files into files of the target; the commit is not timed."""
    files, events = context.size(4_000, 60), context.size(1_000, 100)
    stream = _fill(context, "merged", files, events)
    plan = plan_compaction(stream, DEFAULTS)
    count = sum(len(rng.events) for rng in plan)
    assert count == files * events
    refs = [ref for rng in plan for ref in stream.known_chunks(rng.events)]
    inputs = [f"{context.root}/{stream.path}/{ref.path}" for ref in refs]
    copy = context.folder / "copy.parquet"

    def ours() -> None:
        for rng in plan:
            chunk = merge_range(stream, rng).chunk
            assert chunk is not None

    def pyarrow() -> None:
        _copy(inputs, copy)

    sides = {"ours": lambda: count / timed(ours), "pyarrow": lambda: count / timed(pyarrow)}
    interleave(1, sides)
    found = interleave(context.size(5, 1), sides)
    yield Figure.of_rounds(
        f"compaction of {count:,} events in {files:,} files",
        found["ours"],
        "events/s",
        "pyarrow reading the files and writing one, with the same settings",
        found["pyarrow"],
        note=f"100-byte events; {len(plan)} files after it",
        limited_by="opening small Parquet files, and zstd",
    ).within(at_least=2_000_000, ratio_at_least=0.7)


def _copy(inputs: list[str], copy: Path) -> None:
    """Read Parquet files one after the other and write their rows into one file."""
    schema = pq.read_schema(inputs[0])
    with pq.ParquetWriter(
        copy,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=["routing_key"],
        column_encoding=dict.fromkeys(("offset_delta", "timestamp"), "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    ) as writer:
        held: list[pa.Table] = []
        for path in inputs:
            file = pq.ParquetFile(path, page_checksum_verification=True)
            held.append(file.read(use_threads=False))
            if sum(part.num_rows for part in held) >= ROW_GROUP_EVENTS:
                writer.write_table(pa.concat_tables(held).combine_chunks())
                held = []
        if held:
            writer.write_table(pa.concat_tables(held).combine_chunks())
    with copy.open("rb") as written:
        os.fsync(written.fileno())


@benchmark(Phase.SPARK)
def delta_read_after_compaction(context: Context) -> Iterator[Figure]:
    """A batch read of all columns by Delta Spark, before and after one compaction."""
    files, events = context.size(20_000, 100), context.size(200, 20)
    stream = _fill(context, "many-files", files, events)
    path = f"{context.root}/{stream.path}"

    def read(version: int) -> float:
        frame = context.spark.read.format("delta").option("versionAsOf", version).load(path)
        seconds = timed(lambda: frame.write.format("noop").mode("overwrite").save())
        return files * events / seconds

    before = stream.view().version
    result = run_compaction(stream, DEFAULTS)
    (after,) = result.versions
    sides = {"after": lambda: read(after), "before": lambda: read(before)}
    interleave(1, sides)
    found = interleave(context.size(5, 1), sides)
    yield Figure.of_rounds(
        f"Delta Spark's batch read of {files * events:,} events after compaction",
        found["after"],
        "events/s",
        f"the same in {files:,} files",
        found["before"],
        note=f"{result.files_after} files of {result.bytes_written:,} bytes",
        limited_by="opening and planning files before, decoding after",
    ).within(ratio_at_least=8)


@benchmark()
def write_amplification(context: Context) -> Iterator[Figure]:
    """Small appends, and a run after every 40th, until many files have the target's size.

    The target is small, so that the files grow through as many tiers as in years.
    """
    commits, events = context.size(12_000, 400), 20
    target = context.size(8 << 20, 1 << 16)
    store = UnsyncedStore(context.root)
    stream = StreamLog(store, context.create("years"))
    later = StreamLog(store, stream.name, _Later())
    options = CompactionOptions(root={"compact_target": target})
    most = 0
    for n in range(commits):
        view = stream.view()
        (segment,) = view.active.segments
        folder = version_folder(view.version)
        ids = segment.segment_id
        append(
            stream,
            view.life,
            view.version,
            stage(store, stream.path, folder, ids, table(events, n), name=f"{n}"),
        )
        if n % 40 == 39:
            run_compaction(later, options)
            most = max(most, len(_small(later, target)))
    adds = [add for _, found in live_chunks(later, later.view()) for add in found]
    yield Figure(
        f"write amplification of {commits:,} small appends with compaction",
        FileBytes.of(adds).amplification,
        "bytes written for each byte appended",
        note=f"{len(adds):,} files at the end",
        limited_by="the number of tiers between an append's file and the target",
    ).within(at_most=3)
    yield Figure(
        "most files below half the target at the same time",
        most,
        "files",
        limited_by="the fan-in of the tiers",
    ).within(at_most=100)


def _small(stream: StreamLog, target: int) -> list[int]:
    found = live_chunks(stream, stream.view())
    return [add.size for _, adds in found for add in adds if add.size < target // 2]
