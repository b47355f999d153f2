"""Compaction: its speed, how often it writes a byte, and what appends pay while it runs."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import EVENT, table
from bench.harness.figures import Figure
from bench.harness.kafka_log import log_bytes
from bench.harness.lookalike import texts
from bench.harness.measure import interleave, percentile, timed
from bench.harness.registry import benchmark
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark.compaction.merge import commit_merged, merge_range
from pravega_spark.compaction.plan import CompactionOptions, FileBytes, plan_compaction
from pravega_spark.compaction.run import run_compaction
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import append
from pravega_spark.values.limits import READ_AHEAD_PARTS, ROW_GROUP_EVENTS
from pravega_spark.values.segments import SegmentRange

DEFAULTS = CompactionOptions(root={})
_FILES_OF_A_COMMIT = 500


class _Later(Runtime):
    """A clock that is ahead, so that chunks which were just written count as settled."""

    def now_ms(self) -> int:
        return super().now_ms() + 600_000


def live_chunks(stream: StreamLog, view: StreamView) -> Iterator[tuple[SegmentRange, list[Add]]]:
    """Yield each segment's readable range between head and tail, and the files that hold it.

    The files are those of the newest known version of the log, which may be later than the view.
    """
    for rng in view.located_head.ranges_to(view.located_tail):
        with stream.log.files() as files:
            yield rng, files.find(rng.segment_id, rng.start, rng.end)


def _fill(
    context: Context,
    name: str,
    files: int,
    events: int,
    *,
    segments: int = 1,
    block: pa.Table | None = None,
) -> StreamLog:
    """Return a stream with so many files in each segment, as it looks ten minutes later."""
    store = UnsyncedStore(context.root)
    stream = StreamLog(store, context.create(name, segments))
    if block is None:
        block = table(_FILES_OF_A_COMMIT * events)
    for segment in stream.view().active.segments:
        for first in range(0, files, _FILES_OF_A_COMMIT):
            view = stream.view()
            folder = version_folder(view.version)
            chunks = [
                chunk
                for n in range(min(_FILES_OF_A_COMMIT, files - first))
                for chunk in stage(
                    store, stream.path, folder, segment.segment_id,
                    block.slice(n * events, events), name=f"{segment.segment_id}-{first + n}",
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

    meters = {"ours": CpuMeter(), "pyarrow": CpuMeter()}

    def ours() -> None:
        with meters["ours"]:
            for rng in plan:
                chunk = merge_range(stream, rng).chunk
                assert chunk is not None

    def pyarrow() -> None:
        with meters["pyarrow"]:
            _copy(inputs, copy)

    sides = {"ours": lambda: count / timed(ours), "pyarrow": lambda: count / timed(pyarrow)}
    interleave(1, sides)
    found = interleave(context.size(5, 1), sides)
    yield Figure.of_rounds(
        f"compaction of {count:,} events in {files:,} files",
        found["ours"],
        "events/s",
        "pyarrow in one thread, the same settings",
        found["pyarrow"],
        note=f"ours: a thread encodes, {READ_AHEAD_PARTS} read; {len(plan)} files after it; "
        f"{compare(meters['ours'], meters['pyarrow'])}",
        limited_by="processor time of both cores: pyarrow's decoding of small files, and zstd",
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


def _compact_shares(root: str, name: str, shares: int, pipe: Connection) -> None:
    """Run in a process: merge and commit one share of the stream's ranges on each request."""
    stream = StreamLog(LocalStore(root), name, _Later())
    plan = plan_compaction(stream, DEFAULTS)
    assert len(plan) >= shares, f"{len(plan)} ranges for {shares} rounds"
    pipe.send(len(plan))
    for share in range(shares):
        pipe.recv()
        for rng in plan[share::shares]:
            assert not commit_merged(stream, [merge_range(stream, rng)]).skipped
        pipe.send(share)


@benchmark()
def append_while_compacting(context: Context) -> Iterator[Figure]:
    """One durable event after the other while another process compacts the stream, and while not.

    The stream is local, and each merged range is a commit of its own.
    """
    rounds, segments, files = context.size(10, 2), context.size(40, 4), context.size(300, 40)
    stream = _fill(context, "compacted-while-appending", files, 100, segments=segments)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    spawn = multiprocessing.get_context("spawn").Process
    process = spawn(target=_compact_shares, args=(context.root, stream.name, rounds, theirs))
    process.start()
    ours.recv()
    seen: dict[str, list[float]] = {"during": [], "without": []}
    with context.manager.create_writer(stream.name) as writer:

        def append_one() -> float:
            return 1e3 * timed(lambda: writer.write_event(EVENT, "key").result())

        def during() -> float:
            ours.send(None)
            found = [append_one()]
            while not ours.poll():
                found.append(append_one())
            ours.recv()
            seen["during"] += found
            return statistics.median(found)

        def without() -> float:
            found = [append_one() for _ in range(context.size(150, 10))]
            seen["without"] += found
            return statistics.median(found)

        without()
        seen["without"].clear()
        found = interleave(rounds, {"during": during, "without": without})
    process.join()
    assert process.exitcode == 0, f"the compacting process ended with {process.exitcode}"
    limit = "the second core: another process on the machine takes part of it"
    yield Figure.of_rounds(
        "durable append while the stream is compacted, p50",
        found["during"],
        "ms",
        "the same without",
        found["without"],
        note=f"{len(seen['during'])} and {len(seen['without'])} appends",
        limited_by=limit,
    ).within(ratio_at_most=1.15)
    tails = {side: percentile(values, 0.99) for side, values in seen.items()}
    yield Figure(
        "durable append while the stream is compacted, p99",
        tails["during"],
        "ms",
        "the same without",
        tails["without"],
        tails["during"] / tails["without"],
        limited_by=limit,
    ).within(ratio_at_most=1.5)


@benchmark()
def stored_bytes(context: Context) -> Iterator[Figure]:
    """The files of events of 100 B after compaction, and Kafka's log of the same keys and values.

    The producer's default is 16 KiB in a batch; batches of 1 MiB compress better.
    """
    count = context.size(4_000_000, 40_000)
    rows = table(count)
    contents = {
        "hexadecimal digits": rows["event"].combine_chunks(),
        "texts": pa.array(texts(count), pa.binary()),
    }
    for what, events in contents.items():
        block = rows.set_column(2, rows.schema.field("event"), events)
        keys = [key.encode() for key in rows["routing_key"].to_pylist()]
        stored = _compacted_bytes(context, what.split()[0], block)
        for size in (16 << 10, 1 << 20):
            peer = log_bytes(zip(keys, events.to_pylist(), strict=True), size)
            yield Figure(
                f"bytes stored of {count:,} events of 100 B, compacted: {what}",
                stored / count,
                "B an event",
                f"Kafka's log with zstd, batches of {size >> 10} KiB",
                peer / count,
                stored / peer,
                limited_by="the events' own entropy",
            ).within(ratio_at_most=1.0)


def _compacted_bytes(context: Context, name: str, block: pa.Table) -> int:
    """Return the size of a stream's live files after its events, in 200 files, are compacted."""
    files = 200
    per_file = block.num_rows // files
    stream = _fill(context, f"stored-{name}", files, per_file, block=block)
    run_compaction(stream, DEFAULTS)
    found = live_chunks(stream, stream.view())
    return sum(add.size for _, adds in found for add in adds)


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
