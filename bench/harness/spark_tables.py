"""Tables that Spark wrote with the rows of a stream, and metered reads of whole tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter
from bench.harness.measure import timed
from bench.harness.spark_session import spark_setting
from pravega_spark import frame
from pravega_spark.values.limits import ROW_GROUP_EVENTS

_ROW_GROUP_LIMIT = "parquet.block.row.count.limit"


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


def frame_copy(context: Context, stream: str, kind: str, *columns: str) -> str:
    """Return a table that Spark wrote with the rows of a stream's frame, by default all columns.

    It has a file for each file of the stream, with as many rows and row groups.
    """
    name = "-".join((kind, *columns))

    def make(context: Context) -> str:
        path = str(context.folder / f"{stream.replace('/', '-')}-frame-{name}")
        spark = context.spark
        rows = frame(spark, stream, root=context.root).select(*columns or "*")
        with (
            spark_setting(spark, "spark.sql.files.maxPartitionBytes", "1g"),
            spark_setting(spark, "spark.sql.files.openCostInBytes", "1g"),
            spark_setting(spark, _ROW_GROUP_LIMIT, str(ROW_GROUP_EVENTS)),
        ):
            rows.write.format(kind).option("compression", "zstd").save(path)
        ours, copied = layout(rows), layout(spark.read.format(kind).load(path))
        assert ours == copied, f"files by (rows, row groups): {ours}, and in the copy {copied}"
        return path

    return context.shared(f"{stream}-frame-as-{name}", make)


def layout(frame: Any) -> Counter[tuple[int, int]]:
    """Return how many files of a frame have so many rows and row groups."""
    return Counter(_shapes(frame.inputFiles()))


def _shapes(urls: Iterable[str]) -> Iterable[tuple[int, int]]:
    for url in urls:
        found = pq.read_metadata(unquote(urlparse(url).path))
        yield found.num_rows, found.num_row_groups


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
