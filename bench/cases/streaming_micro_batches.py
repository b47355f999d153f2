"""Micro-batches: from stream to stream beside Delta to Delta, and the cost of a reader group."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import count
from typing import Any

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.measure import interleave, ratio
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import median_batch_ms, run_to_end, stream_frame
from bench.harness.spark_session import spark_setting
from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration

_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_FILE_SYSTEM_BASED = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_ROWS = 100


@benchmark(Phase.SPARK)
def stream_to_stream(context: Context) -> Iterator[Figure]:
    """Micro-batches of 100 rows, as Spark times them (``triggerExecution``).

    Both sources hold one file of 100 rows for each micro-batch, both queries are limited to one
    file a batch, and both sinks are exactly-once. Two managers of checkpoint files are measured:
    Spark's default and FileSystemBasedCheckpointFileManager.
    """
    batches = context.size(15, 5)
    source, path = _stream_and_table(context, batches)
    numbers = count()

    def ours() -> float:
        target = f"bench/target-{next(numbers)}"

        def sink(writer: Any) -> Any:
            return writer.format("pravega").option("root", context.root).option("stream", target)

        return median_batch_ms(
            run_to_end(context, _read_stream(context, source), sink), batches, _ROWS
        )

    def delta() -> float:
        reader = context.spark.readStream.format("delta").option("maxFilesPerTrigger", 1)
        target = str(context.folder / f"target-{next(numbers)}")

        def sink(writer: Any) -> Any:
            return writer.format("delta").option("path", target)

        return median_batch_ms(run_to_end(context, reader.load(path), sink), batches, _ROWS)

    for manager, name, limit in (
        (None, "default checkpoints", 150.0),
        (_FILE_SYSTEM_BASED, "FileSystem-based", 110.0),
    ):
        with spark_setting(context.spark, _MANAGER, manager):
            ours()
            found = interleave(context.size(3, 1), {"ours": ours, "delta": delta})
        yield Figure.of_rounds(
            f"micro-batch of {_ROWS} rows, stream to stream, p50, {name}",
            found["ours"],
            "ms",
            "Delta to Delta, 2 snapshot partitions",
            found["delta"],
            note="exactly-once; the peer has the same checkpoint files",
            limited_by="Spark's own checkpoint files, its planning of a micro-batch, and the "
            "round trips to Python workers",
        ).within(at_most=limit)


@benchmark(Phase.SPARK)
def reader_group_overhead(context: Context) -> Iterator[Figure]:
    """A query that reports every micro-batch to a reader group, beside one without a group."""
    batches = context.size(30, 5)
    source = _source(context, "watched", batches)
    policy = RetentionPolicy.by_consumption()
    context.manager.update_stream(source, StreamConfiguration(ScalingPolicy.fixed(1), policy))
    numbers = count()

    def alone(**options: str) -> float:
        frame = _read_stream(context, source, **options)
        return median_batch_ms(
            run_to_end(context, frame, lambda w: w.format("noop")), batches, _ROWS
        )

    def member() -> float:
        group = f"bench/query-{next(numbers)}"
        return alone(readerGroup=group, readerGroupMode="subscriber", readerGroupInterval="1ms")

    member()
    found = interleave(context.size(5, 1), {"member": member, "alone": alone})
    ours, peer = found["member"], found["alone"]
    yield Figure(
        "readerGroup of a query: cost of a micro-batch",
        statistics.median(a - b for a, b in zip(ours, peer, strict=True)),
        "ms",
        "the query without a group, p50",
        statistics.median(peer),
        ratio(ours, peer),
        note="a subscriber that reports each batch; by default it reports at most one in 5 s",
        limited_by="two commits: the group's position, and the stream's subscriber cut",
    ).within(at_most=30.0)


def _read_stream(context: Context, stream: str, **options: str) -> Any:
    """Return a streaming frame over a stream, limited to one file a micro-batch."""
    reader = context.spark.readStream.format("pravega").option("root", context.root)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", _ROWS)
    return reader.options(**options).load(stream)


def _source(context: Context, name: str, batches: int) -> str:
    """Return a stream with one file of 100 rows for each micro-batch."""
    stream = context.create(name)
    events = table(_ROWS)
    with context.manager.create_writer(stream) as writer:
        for _ in range(batches):
            writer.write_events(events.column("event").to_pylist(), "key").result()
    return stream


def _stream_and_table(context: Context, batches: int) -> tuple[str, str]:
    """Return a stream and an equal Delta table, each with one file for each micro-batch."""
    stream = _source(context, "source", batches)
    path = str(context.folder / "source-delta")
    frame = stream_frame(context, stream)
    frame.repartition(batches).write.format("delta").save(path)
    return stream, path
