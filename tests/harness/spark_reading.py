"""Helpers for tests of the readers: plan on the driver, pickle, and read as a task does."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.spark.read.batch import PravegaBatchReader
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.versions import (
    ReadAllAvailable,
)
from tests.harness.small_streams import write


def fill(stream: StreamLog, first: int, last: int, keys: int = 5) -> None:
    """Write numbered events."""
    write(stream, [(f"k{i % keys}", b"%d" % i) for i in range(first, last)])


def batch_reader(root: str, **options: str) -> PravegaBatchReader:
    """Return a batch reader of ``s/a``."""
    source = PravegaDataSource({"root": root, "path": "s/a", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, PravegaBatchReader)
    return reader


def stream_reader(root: str, **options: str) -> PravegaStreamReader:
    """Return a streaming reader of ``s/a`` from its head."""
    given = {"root": root, "path": "s/a", "startingoffsets": "earliest", **options}
    source = PravegaDataSource(given)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, PravegaStreamReader)
    return reader


def first_batch(reader: PravegaStreamReader) -> dict[str, Any]:
    """Return the end of a new query's first micro-batch."""
    return reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def rows(reader: Any, partitions: Iterable[InputPartition]) -> list[dict[str, Any]]:
    """Read as tasks do, with copies of the reader and the partitions made by pickle."""
    found = []
    for partition in partitions:
        copy, part = pickle.loads(pickle.dumps((reader, partition)))
        for read in copy.read(part):
            assert isinstance(read, pa.RecordBatch)
            found += read.to_pylist()
    return found


def events(found: list[dict[str, Any]]) -> list[int]:
    """Return the numbers of the events in rows."""
    return [int(row["event"]) for row in found]
