"""Helpers for tests of the writers: the data source as Spark's processes use it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType, _parse_datatype_json_string

from pravega_spark.manager import StreamManager
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.write.sink import PravegaBatchWriter

TEXT = {"routing_key": "string", "event": "string"}


def schema(**columns: str) -> StructType:
    """Return a schema from names and Spark types."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    found = _parse_datatype_json_string(json.dumps({"type": "struct", "fields": fields}))
    assert isinstance(found, StructType)
    return found


def source(root: Path, **options: str) -> PravegaDataSource:
    return PravegaDataSource({"root": str(root), "path": "s/a", **options})


def batch_writer(
    root: Path, columns: dict[str, str] | None = None, /, **options: str
) -> PravegaBatchWriter:
    """Return a batch writer as a task has it, by pickle."""
    writer = source(root, **options).writer(schema(**(columns or TEXT)), False)
    assert isinstance(writer, PravegaBatchWriter)
    copy = pickle.loads(pickle.dumps(writer))
    assert isinstance(copy, PravegaBatchWriter)
    return copy


def rows(first: int, last: int, keys: int = 5) -> pa.RecordBatch:
    """Return a batch of numbered events."""
    return pa.record_batch(
        [
            pa.array([f"k{i % keys}" for i in range(first, last)]),
            pa.array([str(i) for i in range(first, last)]),
        ],
        names=["routing_key", "event"],
    )


def read(root: Path, name: str = "s/a") -> list[int]:
    """Return the numbers of a stream's events."""
    return [int(event.data) for event in StreamManager(root).read(name)]
