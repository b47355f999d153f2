"""DataFrames and streaming queries that several benchmarks use."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import count
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter
from bench.harness.dataset import KEYS
from bench.harness.measure import timed

_checkpoints = count()


def event_rows(context: Context, rows: int) -> Any:
    """Return a frame that computes routing keys and 100-byte events, in two partitions."""
    digits = ", ".join(f"lpad(hex(xxhash64(id, {i})), 16, '0')" for i in range(5))
    return context.spark.range(0, rows, 1, 2).selectExpr(
        f"concat('key-', cast(id % {KEYS} as string)) as routing_key",
        f"cast(concat(lpad(cast(id as string), 20, '0'), {digits}) as binary) as event",
    )


def cached_events(context: Context, rows: int) -> Any:
    """Return a cached frame of routing keys and 100-byte events, in two partitions."""
    frame = event_rows(context, rows)
    frame.cache()
    drain(frame)
    return frame


def cached_flights(context: Context, rows: int) -> Any:
    """Return a cached frame of ten columns: numbers, words, a date, a time and a flag."""
    frame = context.spark.range(0, rows, 1, 2).selectExpr(
        "cast(2000 + pmod(xxhash64(id, 1), 20) as int) as year",
        "date_add(date'2000-01-01', cast(pmod(xxhash64(id, 2), 8000) as int)) as day",
        "concat('C', pmod(xxhash64(id, 3), 20)) as carrier",
        "cast(pmod(xxhash64(id, 4), 9999) as int) as flight",
        "concat('A', lpad(pmod(xxhash64(id, 5), 300), 3, '0')) as origin",
        "concat('A', lpad(pmod(xxhash64(id, 6), 300), 3, '0')) as destination",
        "timestamp_micros(1700000000000000 + 1000 * id) as departed",
        "cast(pmod(xxhash64(id, 7), 200) - 20 as double) as delay",
        "pmod(xxhash64(id, 8), 5000) as distance",
        "pmod(xxhash64(id, 9), 50) = 0 as cancelled",
    )
    frame.cache()
    drain(frame)
    return frame


def as_json(frame: Any, key: str) -> Any:
    """Return the rows of a frame as events of bytes: the key, and all columns as JSON."""
    return frame.selectExpr(f"{key} as routing_key", "cast(to_json(struct(*)) as binary) as event")


def stream_frame(context: Context, stream: str) -> Any:
    """Return a stream as a batch frame."""
    reader = context.spark.read.format("pravega").option("root", context.root)
    return reader.load(stream)


def drain(frame: Any) -> None:
    """Compute every row and column of a frame and discard them."""
    frame.write.format("noop").mode("overwrite").save()


def run_to_end(context: Context, frame: Any, sink: Callable[[Any], Any]) -> Any:
    """Run a streaming query over all available data; return the query after its end.

    The query has a checkpoint location of its own.
    """
    checkpoint = str(context.folder / f"checkpoint-{next(_checkpoints)}")
    writer = sink(frame.writeStream).option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def read_rate(context: Context, frame: Any, rows: int, meter: CpuMeter) -> float:
    """Read a streaming frame of ``rows`` rows to its end, into no sink; return the rows a second.

    The time is that from ``start()`` to the end of the query.
    """
    queries: list[Any] = []
    with meter:
        seconds = timed(
            lambda: queries.append(run_to_end(context, frame, lambda writer: writer.format("noop")))
        )
    read = sum(progress["numInputRows"] for progress in queries[0].recentProgress)
    assert read == rows, f"{read} of {rows} rows"
    return rows / seconds


def median_batch_ms(query: Any, batches: int, rows: int, warm: int = 3) -> float:
    """Return the median duration of a finished query's micro-batches after the first few.

    All of them have so many rows.
    """
    done = [p for p in query.recentProgress if p["numInputRows"] > 0]
    assert len(done) == batches, f"{len(done)} micro-batches, not {batches}"
    assert all(p["numInputRows"] == rows for p in done)
    return statistics.median(float(p["durationMs"]["triggerExecution"]) for p in done[warm:])


def stream_copy(context: Context, stream: str, kind: str) -> str:
    """Return the path of a stream's copy in a peer's format, made once a run.

    ``kind`` is ``parquet`` or ``delta``. The copy has all columns and as many files.
    """

    def make(context: Context) -> str:
        path = str(context.folder / f"{stream.replace('/', '-')}-copy-{kind}")
        frame = stream_frame(context, stream)
        frame.write.format(kind).option("compression", "zstd").save(path)
        return path

    return context.shared(f"{stream}-copy-{kind}", make)
