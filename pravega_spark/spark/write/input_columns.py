"""Which columns of a frame become event, routing key and timestamp, and their conversion.

Columns are found in any case, as Spark finds them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pravega_spark.arguments import shown
from pravega_spark.engine.chunks.arrow_arrays import constant, first_longer, numbers
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.limits import MAX_ROUTING_KEY_LENGTH
from pravega_spark.spark.key_encoding import encode_keys, first_foreign
from pravega_spark.spark.settings import WriteSettings

_TEXT = (StringType, BinaryType)
_TIMESTAMP = EVENT_SCHEMA.field("timestamp").type

_PRAVEGA_NAMES = ("event", "routing_key")
_KAFKA_NAMES = ("value", "key")
_ADDED = {"routingKey": "routing_key", "eventTime": "event_time"}
"""What errors call a column that an expression makes for an option."""
_PARTITION, _HEADERS = "partition", "headers"
"""Columns that Spark's Kafka sink obeys."""


@dataclass(frozen=True, slots=True)
class InputColumns:
    """Names of the frame's columns with event, routing key and time; None for no column.

    ``headers`` must be empty, since a stream of bytes has no place for them. ``key_encoding`` and
    ``null_values`` are the options of these names.
    """

    event: str
    routing_key: str | None
    timestamp: str | None
    headers: str | None = None
    key_encoding: str = "utf8"
    null_values: str = "fail"

    @classmethod
    def of(cls, schema: StructType, settings: WriteSettings) -> InputColumns:
        """Find the columns in a frame's schema; raise InvalidOption if one is missing or wrong."""
        types = {f.name: f.dataType for f in schema.fields}
        wanted, key = _PRAVEGA_NAMES
        headers = None
        if settings.column_names == "kafka":
            wanted, key = _KAFKA_NAMES
            _check_partition(types)
            headers = find_column(types, _HEADERS)
            if headers is not None:
                _check_type(headers, types[headers], (ArrayType,), "an array of structs")
        event = find_column(types, wanted)
        if event is None:
            raise InvalidOption(
                f"the frame has no column {wanted!r} (binary or string) to write as events; its "
                f"columns are {', '.join(types)}. Add one: "
                'frame.selectExpr("... AS routing_key", pravega_spark.row_json(frame) + " AS '
                f'{wanted}"). Or set '
                "the option schema to infer, which makes a typed stream of the frame's columns."
            )
        _check_type(event, types[event], _TEXT, "binary or string")
        key_column = named_column("routingKey", settings.routing_key, types)
        if key_column is None:
            key_column = find_column(types, key)
        if key_column is not None:
            _check_type(key_column, types[key_column], _TEXT, "string or binary")
        time_column = named_column("eventTime", settings.event_time, types)
        if time_column is not None:
            check_time(time_column, types[time_column])
        return cls(
            event, key_column, time_column, headers, settings.key_encoding, settings.null_values
        )


def has_events(schema: StructType, settings: WriteSettings) -> bool:
    """Return whether a frame has a column of events, or must have one."""
    if settings.column_names == "kafka" or settings.schema == "raw":
        return True
    types = {field.name: field.dataType for field in schema.fields}
    return find_column(types, _PRAVEGA_NAMES[0]) is not None


def find_column(types: dict[str, DataType], wanted: str) -> str | None:
    """Return the frame's name of a column, in any case; None without one.

    A column that is written alike comes first. Raises InvalidOption if two differ in case only.
    """
    if wanted in types:
        return wanted
    found = [name for name in types if name.lower() == wanted.lower()]
    if len(found) > 1:
        raise InvalidOption(
            f"the frame's columns {', '.join(found)} differ in case only, and {wanted} could be "
            f"either; rename one to {wanted}, or drop the others."
        )
    return found[0] if found else None


def _check_partition(types: dict[str, DataType]) -> None:
    """Raise InvalidOption for the column by which Spark's Kafka sink chooses a partition.

    Other columns (offset, timestamp, timestampType) are ignored, as that sink ignores them, and so
    is ``topic`` if the write names a stream.
    """
    found = find_column(types, _PARTITION)
    if found is not None:
        raise InvalidOption(
            f"the frame's column {found} cannot be written: the routing key chooses the segment. "
            'Drop it by .drop("partition"), or .select("key", "value").'
        )


def named_column(option: str, column: str | None, types: dict[str, DataType]) -> str | None:
    """Return the frame's name of the column that an option names; None if it names none.

    Raises InvalidOption for a column that is not there.
    """
    if column is None:
        return None
    found = find_column(types, column)
    if found is not None:
        return found
    added = _ADDED[option]
    raise InvalidOption(
        f"option {option} names {column!r}, but the frame's columns are {', '.join(types)}. The "
        "option takes a column's name, not an expression, since Spark evaluates none for a sink: "
        f'use frame.withColumn("{added}", expr({column!r})), with the option '
        f"{option}={added}."
    )


def check_time(column: str, found: DataType) -> None:
    """Raise InvalidOption for a column of event times that are not instants."""
    if isinstance(found, TimestampNTZType):
        raise InvalidOption(
            f"column {column} is {found.simpleString()}: its times have no time zone, and that of "
            f"the session does not reach the tasks. Use CAST({column} AS TIMESTAMP), which takes "
            "them in the session's time zone."
        )
    _check_type(column, found, (TimestampType,), "a timestamp")


def _check_type(
    column: str, found: DataType, wanted: tuple[type[DataType], ...], words: str
) -> None:
    if not isinstance(found, wanted):
        raise InvalidOption(
            f"column {column} must be {words}, but is {found.simpleString()}; cast it first."
        )


def to_events(batch: pa.RecordBatch, columns: InputColumns) -> pa.RecordBatch:
    """Return a frame's batch in the schema of events.

    Raises InvalidInput with the row if an event or a time is null, a key too long or not UTF-8,
    there are headers, or a value cannot be cast.
    """
    batch = _without_nulls(batch, columns)
    _check_headers(batch, columns)
    if columns.timestamp is None:
        at = constant(time.time_ns() // 1_000, _TIMESTAMP, batch.num_rows)
    else:
        at = _cast(batch, columns.timestamp, _TIMESTAMP)
    event = _cast(batch, columns.event, pa.binary())
    if event.null_count and columns.null_values == "empty":
        event = event.fill_null(b"")
    for name, array in ((columns.event, event), (columns.timestamp, at)):
        if array.null_count:
            raise InvalidInput(_null_text(str(name), array, batch, columns))
    return pa.RecordBatch.from_arrays([_keys(batch, columns), at, event], schema=EVENT_SCHEMA)


def kept_rows(batch: pa.RecordBatch, columns: InputColumns) -> pa.Array | None:
    """Return which rows of a batch are written; None if all are."""
    event = batch.column(columns.event)
    if columns.null_values != "skip" or not event.null_count:
        return None
    return event.is_valid()


def _without_nulls(batch: pa.RecordBatch, columns: InputColumns) -> pa.RecordBatch:
    kept = kept_rows(batch, columns)
    return batch if kept is None else batch.filter(kept)


def _keys(batch: pa.RecordBatch, columns: InputColumns) -> pa.Array:
    """Return the routing keys as text."""
    name = columns.routing_key
    if name is None:
        return pa.nulls(batch.num_rows, pa.string())
    if columns.key_encoding == "percent":
        key = encode_keys(batch.column(name))
    else:
        key = _utf8(name, batch.column(name))
    row = first_longer(key, MAX_ROUTING_KEY_LENGTH)
    if row is not None:
        raise InvalidInput(
            f"column {name} has a routing key of more than {MAX_ROUTING_KEY_LENGTH} characters; "
            "use a part of it, or its hash."
        )
    return key


def _utf8(name: str, keys: pa.Array) -> pa.Array:
    try:
        return keys if keys.type == pa.string() else keys.cast(pa.string())
    except pa.ArrowInvalid:
        row = first_foreign(keys)
        raise InvalidInput(
            f"column {name} has in row {row} of a batch of {len(keys)} the key "
            f"{shown(None if row is None else keys[row].as_py())}, which is not UTF-8, and a "
            "routing key is text. Set the option keyEncoding to percent, which writes other bytes "
            "as %FF, and is undone by a read that sets it, too; or encode the column, such as by "
            "hex(key)."
        ) from None


def _null_text(name: str, array: pa.Array, batch: pa.RecordBatch, columns: InputColumns) -> str:
    """Return the message for the nulls of a column."""
    row = int(np.flatnonzero(numbers(array.is_null().cast(pa.int8())))[0])
    key = None if columns.routing_key is None else batch.column(columns.routing_key)[row].as_py()
    skip = " Or set the option nullValues to skip or to empty." if name == columns.event else ""
    return (
        f"column {name} is null in {array.null_count} of {batch.num_rows} rows, the first of which "
        f"is row {row} with the key {shown(key)}; an event needs a payload and a time: filter the "
        f"rows or fill the nulls first.{skip}"
    )


def _check_headers(batch: pa.RecordBatch, columns: InputColumns) -> None:
    """Raise InvalidInput if a row has headers."""
    if columns.headers is None:
        return
    import pyarrow.compute as pc  # takes as long to import as the rest of Arrow

    lengths = pc.fill_null(pc.list_value_length(batch.column(columns.headers)), 0)
    with_some = np.flatnonzero(numbers(lengths))
    if len(with_some):
        raise InvalidInput(
            f"column {columns.headers} is not empty in {len(with_some)} of {batch.num_rows} rows, "
            f"the first of which is row {int(with_some[0])}; events of bytes have no headers. Drop "
            "the column to lose them, or put what you need of them into the value."
        )


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
