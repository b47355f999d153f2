"""Tables that Spark wrote with the rows of a stream, and metered reads of whole tables."""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter
from bench.harness.measure import timed
from bench.harness.spark_session import spark_setting
from pravega_spark import frame


def table_path(context: Context, stream: str) -> str:
    """Return the path of a stream's Delta table."""
    return f"{context.root}/{stream}/events"


def spark_copy(context: Context, stream: str, kind: str) -> str:
    """Return a table in the format ``kind`` that Spark wrote: a file for each file of the stream.

    A file of the stream is one partition of the frame, so rows keep their order without a shuffle.
    """

    def make(context: Context) -> str:
        path = str(context.folder / f"{stream.replace('/', '-')}-{kind}")
        spark = context.spark
        with (
            spark_setting(spark, "spark.sql.files.maxPartitionBytes", "1g"),
            spark_setting(spark, "spark.sql.files.openCostInBytes", "1g"),
        ):
            frame = spark.read.format("delta").load(table_path(context, stream))
            frame.write.format(kind).option("compression", "zstd").save(path)
        return path

    return context.shared(f"{stream}-as-{kind}", make)


def frame_copy(context: Context, stream: str, kind: str) -> str:
    """Return a table that Spark wrote with the rows and all columns of a stream's frame.

    It has a file for each file of the stream.
    """

    def make(context: Context) -> str:
        path = str(context.folder / f"{stream.replace('/', '-')}-frame-{kind}")
        spark = context.spark
        with (
            spark_setting(spark, "spark.sql.files.maxPartitionBytes", "1g"),
            spark_setting(spark, "spark.sql.files.openCostInBytes", "1g"),
        ):
            rows = frame(spark, stream, root=context.root)
            rows.write.format(kind).option("compression", "zstd").save(path)
        return path

    return context.shared(f"{stream}-frame-as-{kind}", make)


class MeteredReads:
    """One side: reads everything, and meters the processor time of each read but the first."""

    def __init__(self, count: int, read: Callable[[str], None], what: str) -> None:
        self.meter = CpuMeter()
        self._count, self._read, self._what = count, read, what
        read(what)  # warm

    def __call__(self) -> float:
        """Read everything; return the events a second."""
        with self.meter:
            return self._count / timed(lambda: self._read(self._what))
