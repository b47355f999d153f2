"""Pipelined durable writes from one Python process, with a future for each event."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import pyarrow as pa

from bench.harness.context import Context
from bench.harness.dataset import KEYS, payloads
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import benchmark
from bench.harness.slow_store import SlowStore
from pravega_spark import EventStreamWriter, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import encode_events
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView

_POOL = 10_000
_FLOOR_BATCH = 131_072


@benchmark()
def pipelined_writes(context: Context) -> Iterator[Figure]:
    """Events of 1,000 keys into 4 segments; the clock stops when the last future is done."""
    count = context.size(1_000_000, 5_000)
    events = payloads(_POOL).to_pylist()
    keys = [f"key-{i}" for i in range(KEYS)]
    name = context.create("pipelined", 4)
    stream = open_stream(context.root, name)

    def ours() -> float:
        with context.manager.create_writer(name) as writer:
            seconds = timed(lambda: _write(writer, events, keys, count))
        return count / seconds

    def dropped() -> float:
        with context.manager.create_writer(name) as writer:
            seconds = timed(lambda: _write_dropped(writer, events, keys, count))
        return count / seconds

    def floor() -> float:
        return count / timed(lambda: _stage_only(stream, events, keys, count))

    rows = pa.table({"routing_key": keys * (count // KEYS), "event": payloads(count)})

    def tables() -> float:
        with context.manager.create_writer(name) as writer:
            seconds = timed(lambda: writer.write_table(rows).result())
        return count / seconds

    def table_floor() -> float:
        return count / timed(lambda: _stage_table(stream, rows))

    sides = {
        "ours": ours,
        "dropped": dropped,
        "floor": floor,
        "tables": tables,
        "table floor": table_floor,
    }
    found = interleave(context.size(5, 2), sides)
    yield Figure.of_rounds(
        "pipelined durable writes, a future for each event",
        found["ours"],
        "events/s",
        "one thread: lists to fsynced Parquet",
        found["floor"],
        note=f"best round {max(found['ours']):,.0f}/s; every future is kept",
        limited_by="one interpreter: the caller's loop, its futures (half of that is Python's "
        "garbage collector walking the ones kept) and the committer's Arrow share the GIL",
    ).within(at_least=500_000)
    yield Figure.of_rounds(
        "the same, futures dropped, and a flush at the end",
        found["dropped"],
        "events/s",
        "one thread: lists to fsynced Parquet",
        found["floor"],
        note=f"best round {max(found['dropped']):,.0f}/s",
        limited_by="one interpreter: the caller's loop and the committer's Arrow share the GIL",
    ).within(at_least=500_000)
    yield Figure.of_rounds(
        "durable writes of Arrow rows",
        found["tables"],
        "events/s",
        "one thread: the same rows to fsynced Parquet",
        found["table floor"],
        note=f"best round {max(found['tables']):,.0f}/s",
        limited_by="Parquet, zstd and the disk",
    ).within(at_least=2_000_000)


@benchmark()
def pipelined_remote_writes(context: Context) -> Iterator[Figure]:
    """One writer on a simulated store with 30 ms a call; the next chunks go with each commit."""
    count = context.size(1_000_000, 5_000)
    slow = SlowStore(MemoryStore())
    stream = StreamLog(slow, "s/t")
    lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(4)))
    stream.log.maintain = None
    events, keys = payloads(_POOL).to_pylist(), [f"key-{i}" for i in range(KEYS)]
    slow.delay_seconds = 0.030
    rates, cpu = [], []
    with EventStreamWriter(stream) as writer:
        for _ in range(context.size(3, 1)):
            began = time.process_time()
            rates.append(count / timed(lambda: _write_dropped(writer, events, keys, count)))
            cpu.append(1e6 * (time.process_time() - began) / count)
    yield Figure(
        "one writer, simulated store: pipelined writes",
        statistics.median(rates),
        "events/s",
        note=f"{statistics.median(cpu):.2f} us of processor time an event; futures are dropped",
        limited_by="one interpreter",
    ).within(at_least=250_000)


def _write_dropped(
    writer: EventStreamWriter, events: list[bytes], keys: list[str], count: int
) -> None:
    for i in range(count):
        writer.write_event(events[i % _POOL], keys[i % KEYS])
    writer.flush()


def _write(writer: EventStreamWriter, events: list[bytes], keys: list[str], count: int) -> None:
    write = writer.write_event
    futures = [write(events[i % _POOL], keys[i % KEYS]) for i in range(count)]
    writer.flush()
    assert all(future.done() for future in futures[:: max(1, count // 1_000)])
    assert futures[-1].exception() is None


def _stage_table(stream: StreamLog, rows: pa.Table) -> None:
    view = stream.view(refresh=False)
    times = pa.array([time.time_ns() // 1_000] * len(rows), pa.timestamp("us", "UTC"))
    events = rows.add_column(1, "timestamp", times)
    for first in range(0, len(rows), _FLOOR_BATCH):
        _stage(stream, view, events.slice(first, _FLOOR_BATCH))


def _stage(stream: StreamLog, view: StreamView, events: pa.Table) -> None:
    for segment_id, part in split(events, Router(view.active.segments)):
        stage(
            stream.store, stream.path, version_folder(view.version), segment_id, part,
            name=f"floor-{stream.runtime.token()}",
        )  # fmt: skip


def _stage_only(stream: StreamLog, events: list[bytes], keys: list[str], count: int) -> None:
    """Do the work that no writer can avoid, on one thread."""
    view = stream.view(refresh=False)
    for first in range(0, count, _FLOOR_BATCH):
        held: tuple[list[bytes], list[str | None], list[int]] = ([], [], [])
        for i in range(first, min(first + _FLOOR_BATCH, count)):
            held[0].append(events[i % _POOL])
            held[1].append(keys[i % KEYS])
            held[2].append(time.time_ns() // 1_000)
        _stage(stream, view, encode_events(held[1], held[2], held[0]))
