"""The columns of a read, under our names or Kafka's, and batches in exactly their types."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.engine.chunks.arrow_arrays import constant
from pravega_spark.errors import InvalidOption
from pravega_spark.model import segment_number

CREATE_TIME = 0
"""``timestamp_type``: timestamps are the writers', as Kafka's CreateTime."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a read: type, and what it is made of: a chunk's column, or a constant."""

    name: str
    type: DataType
    source: str
    nullable: bool = False


PRAVEGA = (
    Column("scope", StringType(), "=scope"),
    Column("stream", StringType(), "=stream"),
    Column("segment_id", LongType(), "=segment_id"),
    Column("offset", LongType(), "offset"),
    Column("routing_key", StringType(), "routing_key", nullable=True),
    Column("event", BinaryType(), "event"),
    Column("timestamp", TimestampType(), "timestamp"),
    Column("timestamp_type", IntegerType(), "=timestamp_type"),
)
KAFKA = (
    Column("key", BinaryType(), "routing_key", nullable=True),
    Column("value", BinaryType(), "event"),
    Column("topic", StringType(), "=name"),
    Column("partition", IntegerType(), "=segment_number"),
    Column("offset", LongType(), "offset"),
    Column("timestamp", TimestampType(), "timestamp"),
    Column("timestampType", IntegerType(), "=timestamp_type"),
)


def columns_of(names: str) -> tuple[Column, ...]:
    """Return the columns under one of the two sets of names."""
    return KAFKA if names == "kafka" else PRAVEGA


def schema_of(names: str, wanted: tuple[str, ...]) -> StructType:
    """Return the schema of a read with the wanted columns (none: all), in the wanted order."""
    known = {column.name: column for column in columns_of(names)}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidOption(
            f"option columns names {', '.join(unknown)}; the columns are {', '.join(known)}."
        )
    chosen = [known[name] for name in wanted or known]
    return StructType([StructField(c.name, c.type, c.nullable) for c in chosen])


def check_schema(names: str, schema: StructType) -> None:
    """Raise InvalidOption unless a user's own schema is a choice of our columns, typed as ours."""
    known = {column.name: column.type for column in columns_of(names)}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            has = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise InvalidOption(
                f"column {field.name} {field.dataType.simpleString()} of the given schema is not "
                f"one of the stream's: {has}. Leave .schema() out."
            )


class Projection:
    """Turns events of one segment, as a chunk gives them, into rows as Spark expects them."""

    def __init__(self, names: str, schema: StructType, stream: str, segment_id: int) -> None:
        """Take the schema Spark asked for; it holds some of our columns."""
        self.arrow = to_arrow_schema(schema, timezone="UTC")
        known = {column.name: column.source for column in columns_of(names)}
        self._sources = [known[field.name] for field in schema.fields]
        self.columns = tuple(dict.fromkeys(s for s in self._sources if not s.startswith("="))) or (
            "offset",
        )
        scope, _, name = stream.partition("/")
        self._constants: dict[str, Any] = {
            "=scope": scope,
            "=stream": name,
            "=name": stream,
            "=segment_id": segment_id,
            "=segment_number": segment_number(segment_id),
            "=timestamp_type": CREATE_TIME,
        }

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the columns and types of the schema."""
        arrays = []
        for source, field in zip(self._sources, self.arrow, strict=True):
            if source.startswith("="):
                array = _constant(self._constants[source], field.type, batch.num_rows)
            else:
                array = batch.column(source)
                array = array if array.type == field.type else array.cast(field.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow)


def _constant(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return ``rows`` times the value, a slice of an array that is made once."""
    capacity = 1 << max(10, (rows - 1).bit_length())
    return _repeated(value, kind, capacity).slice(0, rows)


@functools.lru_cache(maxsize=64)
def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    return constant(value, kind, rows)


@functools.lru_cache(maxsize=256)
def projection(names: str, schema_json: str, stream: str, segment_id: int) -> Projection:
    """Return this process's projection for a schema and segment."""
    return Projection(names, StructType.fromJson(json.loads(schema_json)), stream, segment_id)
