"""A source that has its batches already: the least that a read through Python costs.

Each task yields one batch again and again, so nothing is planned, opened, decoded or checked. What
is left is Spark's: the bytes on their way into the JVM, and Arrow's columns as its rows. Given the
files of a stream, the tasks also decode these with pyarrow, and drop what they decode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bench.harness.context import Context
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.values.limits import READ_BATCH_EVENTS

_TASKS = 4
"""As many as a stream of the benchmarks has segments."""


class ReadyBatches(DataSource):
    """The batch of the file ``file``, ``times`` times in each of four tasks.

    They share the files of ``decoded``, a list in JSON, between them and decode these.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ready_batches"

    def schema(self) -> StructType:
        """Return the columns of the batch."""
        return from_arrow_schema(_batch(self.options["file"]).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a frame."""
        return _Reader(
            self.options["file"],
            int(self.options["times"]),
            json.loads(self.options.get("decoded", "[]")),
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a query, which has one micro-batch."""
        return _StreamReader(self.options["file"], int(self.options["times"]))


class _Reader(DataSourceReader):
    def __init__(self, path: str, times: int, decoded: list[str]) -> None:
        self._path, self._times, self._decoded = path, times, decoded

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        decoding = _decoding(self._decoded[partition.value :: _TASKS])
        for batch in repeat(_batch(self._path), self._times):
            next(decoding, None)
            yield batch
        for _ in decoding:
            pass


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, path: str, times: int) -> None:
        self._frame = _Reader(path, times, [])

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": 1}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return self._frame.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._frame.read(partition)


def _batch(path: str) -> pa.RecordBatch:
    with pa.memory_map(path) as file:
        return pa.ipc.open_file(file).get_batch(0)


def _decoding(files: list[str]) -> Iterator[None]:
    """Decode files as a read of chunks does, with the checksums of their pages, by batches."""
    for path in files:
        with (
            pa.OSFile(path) as file,
            pq.ParquetFile(file, page_checksum_verification=True) as parquet,
        ):
            for _ in parquet.iter_batches(READ_BATCH_EVENTS, use_threads=False):
                yield


def stream_files(context: Context, stream: str) -> list[str]:
    """Return the files that a read of a stream decodes."""
    source = PravegaDataSource({"root": context.root, "path": stream})
    parts: Any = source.reader(source.schema()).partitions()
    refs = [ref for part in parts for one in part.ranges for ref in one.refs]
    folder = f"{context.root}/{stream}/events"
    return [f"{folder}/{path}" for path in dict.fromkeys(ref.path for ref in refs)]


def ready_options(
    context: Context, stream: str, rows: int, **options: str
) -> tuple[dict[str, str], int]:
    """Return the options of a read of about as many rows as one of a stream, and their number.

    Its batch is the first one that the read itself gives to Spark.
    """
    context.spark.dataSource.register(ReadyBatches)
    source = PravegaDataSource({"root": context.root, "path": stream, **options})
    reader = source.reader(source.schema())
    batch: Any = next(iter(reader.read(reader.partitions()[0])))
    name = "-".join((stream.replace("/", "-"), *options.values())).replace(",", "-")
    path = str(context.folder / f"ready-{name}.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    times = max(1, round(rows / (_TASKS * batch.num_rows)))
    return {"file": path, "times": str(times)}, _TASKS * times * batch.num_rows
