"""The columns of a read, under Pravega's or Kafka's names, and the conversion of batches."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.engine.chunks.arrow_arrays import constant
from pravega_spark.errors import InvalidOption
from pravega_spark.spark.key_encoding import decode_keys
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.versions import arrow_schema
from pravega_spark.values.segments import segment_number

CREATE_TIME = 0
"""The value of ``timestamp_type``: the writer sets timestamps, like Kafka's CreateTime."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a read; ``source`` is a chunk's column, or ``=`` and a constant's name."""

    name: str
    type: DataType
    source: str
    nullable: bool = False
    comment: str | None = None

    def fits(self, field: StructField) -> bool:
        """Return whether the column's values are those of a field of a read."""
        return (field.nullable or not self.nullable) and _has(self.type, field.dataType)


_EVENT = Column("event", BinaryType(), "event")
_VALUE = Column("value", BinaryType(), "event")
PRAVEGA = (
    Column("scope", StringType(), "=scope"),
    Column("stream", StringType(), "=stream"),
    Column("segment_id", LongType(), "=segment_id"),
    Column("offset", LongType(), "offset"),
    Column("routing_key", StringType(), "routing_key", nullable=True),
    _EVENT,
    Column("timestamp", TimestampType(), "timestamp"),
    Column("timestamp_type", IntegerType(), "=timestamp_type"),
)
KAFKA = (
    Column("key", BinaryType(), "routing_key", nullable=True),
    _VALUE,
    Column("topic", StringType(), "=name"),
    Column("partition", IntegerType(), "=segment_number"),
    Column("offset", LongType(), "offset"),
    Column("timestamp", TimestampType(), "timestamp"),
    Column("timestampType", IntegerType(), "=timestamp_type"),
)


WATERMARK = Column("watermark", TimestampType(), "=watermark", nullable=True)
"""Only of streaming reads that ask for it."""


HEADERS = Column(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "=headers",
    nullable=True,
)
"""Only of reads that ask for it; of the type that it has in Spark's Kafka source."""
ON_REQUEST = (HEADERS, WATERMARK)


def columns_of(names: str, own: tuple[Column, ...] = ()) -> tuple[Column, ...]:
    """Return all columns under ``pravega`` or ``kafka`` names.

    ``own`` are those of a typed stream, which stand instead of ``event`` or ``value``.
    """
    columns, event = (KAFKA, _VALUE) if names == "kafka" else (PRAVEGA, _EVENT)
    if not own:
        return (*columns, *ON_REQUEST)
    taken = {column.name.lower() for column in own}
    at = columns.index(event)
    asked = [column for column in ON_REQUEST if column.name not in taken]
    return (*columns[:at], *own, *columns[at + 1 :], *asked)


def schema_of(
    names: str,
    wanted: tuple[str, ...],
    own: tuple[Column, ...] = (),
    *,
    include_watermark: bool = False,
    include_headers: bool = False,
) -> StructType:
    """Return the schema of a read of these columns, in this order; of all columns if empty.

    ``own`` are the columns of a typed stream. Names match in any case. The headers and the
    watermark are among all columns only if they are asked for, and then the last ones.
    """
    asked = [
        c.name
        for c, is_asked in zip(ON_REQUEST, (include_headers, include_watermark), strict=True)
        if is_asked
    ]
    known = {column.name: column for column in columns_of(names, own)}
    of_any_case = {name.lower(): name for name in known}
    unknown = [name for name in wanted if name.lower() not in of_any_case]
    if unknown:
        raise InvalidOption(
            f"option columns names {', '.join(unknown)}, but the columns are {', '.join(known)}."
        )
    default = [name for name in known if known[name] not in ON_REQUEST]
    listed = [of_any_case[name.lower()] for name in wanted] or default
    chosen = [known[name] for name in dict.fromkeys([*listed, *asked])]
    return StructType(
        [
            StructField(c.name, c.type, c.nullable, {"comment": c.comment} if c.comment else None)
            for c in chosen
        ]
    )


def frame_schema(settings: ReadSettings, own: tuple[Column, ...] = ()) -> StructType:
    """Return the schema of a read by its settings; ``own`` are the columns of a typed stream."""
    return schema_of(
        settings.column_names,
        settings.columns,
        own,
        include_watermark=settings.include_watermark,
        include_headers=settings.include_headers,
    )


def check_schema(names: str, schema: StructType, own: tuple[Column, ...] = ()) -> None:
    """Raise InvalidOption unless every column of the user's schema exists and has its type."""
    known = {column.name: column.type for column in columns_of(names, own)}
    for field in schema.fields:
        if field.name not in known or not _has(known[field.name], field.dataType):
            columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise InvalidOption(
                f"the stream has no column {field.name} {field.dataType.simpleString()}, which "
                f".schema() names; its columns are {columns}. Remove .schema()."
            )


def _has(kind: DataType, wanted: DataType) -> bool:
    """Return whether a type is the wanted one, or a later form whose structs have more fields."""
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        known = {field.name: field.dataType for field in kind.fields}
        return all(f.name in known and _has(known[f.name], f.dataType) for f in wanted.fields)
    if isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        return _has(kind.elementType, wanted.elementType)
    if isinstance(kind, MapType) and isinstance(wanted, MapType):
        return _has(kind.keyType, wanted.keyType) and _has(kind.valueType, wanted.valueType)
    return kind == wanted


def constants_of(stream: str, segment_id: int) -> dict[str, Any]:
    """Return the columns that have the same value in all events of a segment."""
    scope, _, name = stream.partition("/")
    return {
        "=scope": scope,
        "=stream": name,
        "=name": stream,
        "=segment_id": segment_id,
        "=segment_number": segment_number(segment_id),
        "=timestamp_type": CREATE_TIME,
    }


class Projection:
    """Converts batches of events from a chunk's columns to Spark's."""

    def __init__(
        self,
        names: str,
        schema: StructType,
        *,
        key_encoding: str = "utf8",
        own: Collection[str] = (),
    ) -> None:
        """Take the schema that Spark requests, a selection of the columns.

        ``own`` are the names of a typed stream's.
        """
        self._is_percent = key_encoding == "percent" and names == "kafka"
        self._arrow_schema = arrow_schema(schema)
        known = {column.name: column.source for column in columns_of(names)}
        self._sources = [
            field.name if field.name in own else known[field.name] for field in schema.fields
        ]
        self.source_columns = tuple(
            dict.fromkeys(s for s in self._sources if not s.startswith("="))
        ) or ("offset",)

    def __call__(
        self,
        batch: pa.RecordBatch,
        constants: Mapping[str, Any],
        watermark_us: int | None = None,
    ) -> pa.RecordBatch:
        """Return the batch with exactly the columns and types of the schema, which Spark checks.

        ``constants`` are those of the segment that holds the events.
        """
        arrays = []
        for source, field in zip(self._sources, self._arrow_schema, strict=True):
            if source == HEADERS.source:
                array = pa.nulls(batch.num_rows, field.type)
            elif source == WATERMARK.source:
                if watermark_us is None:
                    array = pa.nulls(batch.num_rows, field.type)
                else:
                    array = _constant(watermark_us, field.type, batch.num_rows)
            elif source.startswith("="):
                array = _constant(constants[source], field.type, batch.num_rows)
            elif source == "routing_key" and self._is_percent:
                array = decode_keys(batch.column(source))
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
def projection(
    names: str, schema_json: str, key_encoding: str = "utf8", own: tuple[str, ...] = ()
) -> Projection:
    """Return the projection for a schema, cached in this process."""
    schema = StructType.fromJson(json.loads(schema_json))
    return Projection(names, schema, key_encoding=key_encoding, own=own)
