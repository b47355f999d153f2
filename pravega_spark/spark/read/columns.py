"""The columns of a read, under Pravega's or Kafka's names, and the conversion of batches."""

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
"""The value of ``timestamp_type``: the writer sets timestamps, like Kafka's CreateTime."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a read; ``source`` is a chunk's column, or ``=`` and a constant's name."""

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


WATERMARK = Column("watermark", TimestampType(), "=watermark", nullable=True)
"""Only of streaming reads that ask for it."""


def columns_of(names: str) -> tuple[Column, ...]:
    """Return all columns under ``pravega`` or ``kafka`` names."""
    return (*(KAFKA if names == "kafka" else PRAVEGA), WATERMARK)


def schema_of(
    names: str, wanted: tuple[str, ...], *, include_watermark: bool = False
) -> StructType:
    """Return the schema of a read of these columns, in this order; of all columns if empty.

    The watermark is one of all columns only if it is asked for, and then the last one.
    """
    if include_watermark and wanted and WATERMARK.name not in wanted:
        wanted = (*wanted, WATERMARK.name)
    known = {column.name: column for column in columns_of(names)}
    if not wanted and not include_watermark:
        del known[WATERMARK.name]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidOption(
            f"option columns names {', '.join(unknown)}, but the columns are {', '.join(known)}."
        )
    chosen = [known[name] for name in wanted or known]
    return StructType([StructField(c.name, c.type, c.nullable) for c in chosen])


def check_schema(names: str, schema: StructType) -> None:
    """Raise InvalidOption unless every column of the user's schema exists and has its type."""
    known = {column.name: column.type for column in columns_of(names)}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise InvalidOption(
                f"the stream has no column {field.name} {field.dataType.simpleString()}, which "
                f".schema() names; its columns are {columns}. Remove .schema()."
            )


class Projection:
    """Converts batches of one segment's events from a chunk's columns to Spark's."""

    def __init__(self, names: str, schema: StructType, stream: str, segment_id: int) -> None:
        """Take the schema that Spark requests, a selection of the columns."""
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")
        known = {column.name: column.source for column in columns_of(names)}
        self._sources = [known[field.name] for field in schema.fields]
        self.source_columns = tuple(
            dict.fromkeys(s for s in self._sources if not s.startswith("="))
        ) or ("offset",)
        scope, _, name = stream.partition("/")
        self._constants: dict[str, Any] = {
            "=scope": scope,
            "=stream": name,
            "=name": stream,
            "=segment_id": segment_id,
            "=segment_number": segment_number(segment_id),
            "=timestamp_type": CREATE_TIME,
        }

    def __call__(self, batch: pa.RecordBatch, watermark_us: int | None = None) -> pa.RecordBatch:
        """Return the batch with exactly the columns and types of the schema, which Spark checks."""
        arrays = []
        for source, field in zip(self._sources, self._arrow_schema, strict=True):
            if source == WATERMARK.source:
                if watermark_us is None:
                    array = pa.nulls(batch.num_rows, field.type)
                else:
                    array = _constant(watermark_us, field.type, batch.num_rows)
            elif source.startswith("="):
                array = _constant(self._constants[source], field.type, batch.num_rows)
            else:
                array = batch.column(source)
                array = array if array.type == field.type else array.cast(field.type)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)


def _constant(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    """Return an array of the value, as a slice of one that is cached."""
    capacity = 1 << max(10, (rows - 1).bit_length())
    return _repeated(value, kind, capacity).slice(0, rows)


@functools.lru_cache(maxsize=64)
def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    return constant(value, kind, rows)


@functools.lru_cache(maxsize=256)
def projection(names: str, schema_json: str, stream: str, segment_id: int) -> Projection:
    """Return the projection for a schema and a segment, cached in this process."""
    return Projection(names, StructType.fromJson(json.loads(schema_json)), stream, segment_id)
