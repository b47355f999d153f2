"""The one Spark session of a run, and the frames that its benchmarks use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness.context import Context
from bench.harness.dataset import KEYS, backlog
from pravega_spark import session

SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"


def start(folder: Path) -> Any:
    """Return a session with two cores and Delta; peers and ours run in it by turns."""
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "pravega-bench",
        "spark.driver.memory": "4g",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        SNAPSHOT_PARTITIONS: "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return session(**settings)


def events(context: Context, count: int) -> Any:
    """Return a cached frame of keys and events of 100 bytes, in two partitions."""
    from pyspark.sql import functions as f

    spark = context.spark  # functions need a session
    number = f.lpad(f.col("id").cast("string"), 20, "0")
    digits = [f.lpad(f.hex(f.xxhash64("id", f.lit(i))), 16, "0") for i in range(5)]
    frame = (
        spark.range(0, count, 1, 2)
        .select(
            f.concat(f.lit("key-"), (f.col("id") % KEYS).cast("string")).alias("routing_key"),
            f.concat(number, *digits).cast("binary").alias("event"),
        )
        .cache()
    )
    drain(frame)
    return frame


@contextmanager
def conf(spark: Any, key: str, value: str | None) -> Iterator[None]:
    """Set a setting of Spark while a block runs; None leaves it as it is."""
    if value is None:
        yield
        return
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


def stream_frame(context: Context, stream: str) -> Any:
    """Return a stream as a batch frame."""
    reader = context.spark.read.format("pravega").option("root", context.root)
    return reader.load(stream)


def drain(frame: Any) -> None:
    """Compute every row and column of a frame, and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def backlog_copy(context: Context, kind: str) -> str:
    """Return the path of a copy of the backlog, all columns and as many files, as a peer's table.

    ``kind`` is ``parquet`` or ``delta``; made once a run.
    """

    def make(context: Context) -> str:
        stream, _ = backlog(context)
        path = str(context.folder / f"backlog-{kind}")
        frame = stream_frame(context, stream)
        frame.write.format(kind).option("compression", "zstd").save(path)
        return path

    return str(context.shared(f"backlog-{kind}", make))
