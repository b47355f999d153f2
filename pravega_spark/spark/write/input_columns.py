"""Which columns of a frame become event, routing key and timestamp, and their conversion."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pravega_spark.engine.chunks.arrow_arrays import constant, first_longer
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.limits import MAX_ROUTING_KEY_LENGTH
from pravega_spark.spark.settings import WriteSettings

_TEXT = (StringType, BinaryType)
_TIME = (TimestampType, TimestampNTZType)
_TIMESTAMP = EVENT_SCHEMA.field("timestamp").type

_PRAVEGA_NAMES = ("event", "routing_key")
_KAFKA_NAMES = ("value", "key")
_KAFKA_ROUTING = ("topic", "partition", "headers")
"""Columns that Spark's Kafka sink obeys, and that a stream cannot store."""


@dataclass(frozen=True, slots=True)
class InputColumns:
    """Names of the frame's columns with event, routing key and time; None for no column."""

    event: str
    routing_key: str | None
    timestamp: str | None

    @classmethod
    def of(cls, schema: StructType, settings: WriteSettings) -> InputColumns:
        """Find the columns in a frame's schema; raise InvalidOption if one is missing or wrong."""
        types = {f.name: f.dataType for f in schema.fields}
        event, key = _PRAVEGA_NAMES
        if settings.column_names == "kafka":
            event, key = _KAFKA_NAMES
            _check_kafka(types)
        if event not in types:
            raise InvalidOption(
                f"the frame has no column {event!r} (binary or string) to write as events; its "
                f"columns are {', '.join(types)}. Add one: "
                f'frame.selectExpr("... AS routing_key", "to_json(struct(*)) AS {event}").'
            )
        _check_type(event, types[event], _TEXT, "binary or string")
        key_column = _named("routingKey", settings.routing_key, types)
        if key_column is None and key in types:
            key_column = key
        if key_column is not None:
            _check_type(key_column, types[key_column], _TEXT, "string or binary")
        time_column = _named("eventTime", settings.event_time, types)
        if time_column is not None:
            _check_type(time_column, types[time_column], _TIME, "timestamp")
        return cls(event, key_column, time_column)


def _check_kafka(types: dict[str, DataType]) -> None:
    """Raise InvalidOption for columns that Spark's Kafka sink obeys and a stream cannot store.

    Other columns (offset, timestamp, timestampType) are ignored, as that sink ignores them.
    """
    found = [name for name in _KAFKA_ROUTING if name in types]
    if found:
        raise InvalidOption(
            f"the frame's columns {', '.join(found)} cannot be written: the write names the "
            "stream, the routing key chooses the segment, and events have no headers. Drop them "
            'by .select("key", "value"), or write one frame for each topic; put what you need of '
            "them into value."
        )


def _named(option: str, column: str | None, types: dict[str, DataType]) -> str | None:
    if column is None or column in types:
        return column
    raise InvalidOption(
        f"option {option} names {column!r}, but the frame's columns are {', '.join(types)}. The "
        f"option takes a column's name, not an expression: add the column first, such as "
        f'frame.withColumn("{option}", expr("...")).'
    )


def _check_type(
    column: str, found: DataType, wanted: tuple[type[DataType], ...], words: str
) -> None:
    if not isinstance(found, wanted):
        raise InvalidOption(
            f"column {column} must be {words}, but is {found.simpleString()}; cast it first."
        )


def to_events(batch: pa.RecordBatch, columns: InputColumns) -> pa.RecordBatch:
    """Return a frame's batch in the schema of events.

    Raises InvalidInput if an event or a time is null, a key too long, or a value cannot be cast.
    """
    key: pa.Array
    if columns.routing_key is None:
        key = pa.nulls(batch.num_rows, pa.string())
    else:
        key = _cast(batch, columns.routing_key, pa.string())
        if first_longer(key, MAX_ROUTING_KEY_LENGTH) is not None:
            raise InvalidInput(
                f"column {columns.routing_key} has a routing key of more than "
                f"{MAX_ROUTING_KEY_LENGTH} characters; use a part of it, or its hash."
            )
    if columns.timestamp is None:
        at = constant(time.time_ns() // 1_000, _TIMESTAMP, batch.num_rows)
    else:
        at = _cast(batch, columns.timestamp, _TIMESTAMP)
    event = _cast(batch, columns.event, pa.binary())
    for name, array in ((columns.event, event), (columns.timestamp, at)):
        if array.null_count:
            raise InvalidInput(
                f"column {name} is null in {array.null_count} of {batch.num_rows} rows; an event "
                "needs a payload and a time: filter the rows or fill the nulls first."
            )
    return pa.RecordBatch.from_arrays([key, at, event], schema=EVENT_SCHEMA)


def _cast(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    array = batch.column(name)
    if array.type == kind:
        return array
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise InvalidInput(
            f"column {name} ({array.type}) cannot be written as {kind}: {error}. Cast it first."
        ) from error
