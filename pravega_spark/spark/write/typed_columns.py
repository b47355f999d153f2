"""Which columns of a frame become those of a typed stream, its routing key and its time.

A frame's column goes to the stream's column of its name, in any case. The columns of streams
themselves, which a read has beside the user's, are no columns of the schema: ``routing_key`` and
``timestamp`` are the event's, and the others are those of another place, and left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
)

from pravega_spark.engine.chunks.arrow_arrays import constant, first_longer
from pravega_spark.engine.chunks.chunk import TIMESTAMP
from pravega_spark.engine.chunks.event_format import EventFormat, format_of, widened
from pravega_spark.errors import InvalidOption, InvalidSchema, SchemaMismatch
from pravega_spark.limits import MAX_EVENT_BYTES, MAX_ROUTING_KEY_LENGTH
from pravega_spark.schemas.schema_forms import all_nullable
from pravega_spark.schemas.table_fit import BadRow
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.input_columns import check_time, find_column, named_column
from pravega_spark.stream_schema import StreamSchema

_KEY, _TIME = "routing_key", "timestamp"
_OF_READS = frozenset(
    (_KEY, _TIME, "scope", "stream", "segment_id", "offset", "timestamp_type", "watermark")
)
"""Columns of reads, which a frame that was read from a stream has."""
RowNumbers = Sequence[int] | NDArray[np.int64]
_KEY_TYPES = (StringType, IntegralType, DecimalType, BooleanType, DateType)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """Names of the frame's columns for those of the schema, the routing key and the time."""

    stream: str
    schema: StreamSchema
    own: tuple[tuple[str, str], ...]
    """The name in the frame and in the schema, of the columns that the frame has."""
    routing_key: str | None
    timestamp: str | None

    @classmethod
    def of(cls, frame: StructType, settings: WriteSettings, schema: StreamSchema) -> TypedColumns:
        """Find the columns; raise InvalidOption or SchemaMismatch if one is missing or wrong."""
        _check_raw_options(settings)
        types = {field.name: field.dataType for field in frame.fields}
        key = named_column("routingKey", settings.routing_key, types) or find_column(types, _KEY)
        if key is not None:
            _check_key(settings.stream, key, types[key])
        at = named_column("eventTime", settings.event_time, types) or find_column(types, _TIME)
        if at is not None:
            check_time(at, types[at])
        own = _own_columns(types, schema, {settings.routing_key, settings.event_time})
        found = cls(settings.stream, schema, own, key, at)
        found._check_types(frame)
        return found

    def _check_types(self, frame: StructType) -> None:
        """Raise SchemaMismatch if no row of the frame can fit, before any task runs."""
        where = f"a write to stream {self.stream}"
        given = pa.schema(
            [pa.field(own, _arrow_type(frame, name, where)) for name, own in self.own]
        )
        for field in self.schema.fields:
            if not field.nullable and field.name not in given.names:
                raise SchemaMismatch(
                    f"{where}: the required column {field.name} is missing; the frame has "
                    f"{', '.join(frame.names)}.",
                    column=field.name,
                )
        self.schema.conform(given.empty_table(), where)

    @property
    def event_format(self) -> EventFormat:
        """The columns of the events."""
        return format_of(self.schema)

    def where(self, partition: int) -> str:
        """Return what errors call the rows of a task."""
        return f"a write to stream {self.stream}: partition {partition} of the frame"

    def events(self, batch: pa.RecordBatch, partition: int, numbers: RowNumbers) -> pa.Table:
        """Return a frame's batch as events of the stream; ``numbers`` are its rows' in the task.

        Raises SchemaMismatch with row, column and value for the first row that does not fit.
        """
        where = self.where(partition)
        rows, bad = self._fitted(batch, where)
        if bad:
            first = min(bad, key=lambda found: found.row)
            first = replace(first, row=int(numbers[first.row]))
            raise SchemaMismatch(
                f"{where}: {first}. Nothing was written; correct the row, or write to this stream "
                "alone with the option badRecords=dlq.",
                row=first.row,
                column=first.column,
                value=first.value,
            )
        return self._table(batch, rows)

    def split(self, batch: pa.RecordBatch, where: str) -> tuple[pa.Table, list[BadRow]]:
        """Return the rows that fit as events, and the others with their reasons, both in order."""
        bad = {found.row: found for found in self._bad_envelopes(batch)}
        rows, misfits = self.schema.split(self._rows(batch), where)
        for found in misfits:
            bad.setdefault(found.row, found)
        if not misfits:
            for found in self._too_large(rows):
                bad.setdefault(found.row, found)
        if not bad:
            return self._table(batch, rows), []
        is_good = np.ones(batch.num_rows, bool)
        is_good[list(bad)] = False
        rest, more = self.split(batch.filter(pa.array(is_good)), where)
        numbers = np.flatnonzero(is_good)
        for found in more:  # too large, which only rows that fit can be
            row = int(numbers[found.row])
            bad[row] = BadRow(row, found.column, found.value, found.reason)
        return rest, [bad[row] for row in sorted(bad)]

    def keys(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the routing keys of a batch as texts."""
        if self.routing_key is None:
            return pa.nulls(batch.num_rows, pa.string())
        return batch.column(self.routing_key).cast(pa.string())

    def times(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the times of a batch's rows: those of the column, or now."""
        if self.timestamp is None:
            return constant(time.time_ns() // 1_000, TIMESTAMP, batch.num_rows)
        return batch.column(self.timestamp).cast(TIMESTAMP)

    def _fitted(self, batch: pa.RecordBatch, where: str) -> tuple[pa.Table, list[BadRow]]:
        """Return the rows as the schema wants them; and the reasons, if some do not fit."""
        bad, given = self._bad_envelopes(batch), self._rows(batch)
        try:
            rows = self.schema.conform(given, where)
        except SchemaMismatch as error:
            if error.row is None:
                raise
            return given, [*bad, *self.schema.split(given, where)[1]]
        return rows, [*bad, *self._too_large(rows)]

    def _rows(self, batch: pa.RecordBatch) -> pa.Table:
        columns = [batch.column(name) for name, _ in self.own]
        return pa.Table.from_arrays(columns, [own for _, own in self.own])

    def _table(self, batch: pa.RecordBatch, rows: pa.Table) -> pa.Table:
        events = self.event_format.events
        own = [
            widened(rows.column(name), events.field(name).type)
            for name in self.event_format.payload
        ]
        return pa.Table.from_arrays([self.keys(batch), self.times(batch), *own], schema=events)

    def _bad_envelopes(self, batch: pa.RecordBatch) -> list[BadRow]:
        """Return the rows whose time is null, or whose routing key is too long."""
        bad = []
        if self.timestamp is not None and batch.column(self.timestamp).null_count:
            nulls = np.flatnonzero(batch.column(self.timestamp).is_null())
            reason = "null, and an event needs a time"
            bad += [BadRow(int(row), self.timestamp, "None", reason) for row in nulls]
        if self.routing_key is not None:
            keys, most = self.keys(batch), MAX_ROUTING_KEY_LENGTH
            if first_longer(keys, most) is None:
                return bad
            lengths = pc.utf8_length(keys).fill_null(0)
            for row in np.flatnonzero(pc.greater(lengths, most)):
                shown = f"a text of {lengths[int(row)]} characters"
                reason = f"a routing key of more than {most} characters"
                bad.append(BadRow(int(row), self.routing_key, shown, reason))
        return bad

    def _too_large(self, rows: pa.Table) -> list[BadRow]:
        sizes = self.schema.event_sizes(rows)
        largest = self.schema.names[0]
        return [
            BadRow(int(row), largest, f"a row of {sizes[row]} bytes",
                   f"an event has at most {MAX_EVENT_BYTES} bytes (8 MiB)")
            for row in np.flatnonzero(sizes > MAX_EVENT_BYTES)
        ]  # fmt: skip


def inferred_schema(frame: StructType, settings: WriteSettings) -> StreamSchema:
    """Return the schema that a frame's columns make; raise InvalidSchema."""
    fields = [field for field in frame.fields if field.name.lower() not in _OF_READS]
    if not fields:
        raise InvalidSchema(
            f"no schema for stream {settings.stream} can be inferred from a frame whose columns "
            f"are {', '.join(frame.names)}, all of which are streams' own; add a column."
        )

    return StreamSchema.of(all_nullable(StreamSchema.of(StructType(fields)).arrow))


def _own_columns(
    types: dict[str, DataType], schema: StreamSchema, used: set[str | None]
) -> tuple[tuple[str, str], ...]:
    own = {name.lower(): name for name in schema.names}
    for_key_or_time = {name.lower() for name in used if name is not None}
    found: dict[str, str] = {}
    for name in types:
        low = name.lower()
        if low not in own and (low in _OF_READS or low in for_key_or_time):
            continue
        target = own.get(low, name)
        if target in found:
            raise InvalidOption(
                f"the frame's columns {found[target]}, {name} differ in case only, and both would "
                f"be the column {target} of the stream; drop one."
            )
        found[target] = name
    return tuple((name, target) for target, name in found.items())


def _check_raw_options(settings: WriteSettings) -> None:
    given: Iterable[tuple[str, bool]] = (
        ("columnNames=kafka", settings.column_names == "kafka"),
        (f"nullValues={settings.null_values}", settings.null_values != "fail"),
        (f"keyEncoding={settings.key_encoding}", settings.key_encoding != "utf8"),
        ("schema=raw", settings.schema == "raw"),
    )
    for option, is_set in given:
        if is_set:
            raise InvalidOption(
                f"option {option} is for streams of bytes, and stream {settings.stream} is typed: "
                "remove it; a typed stream takes the frame's columns by their names."
            )


def _check_key(stream: str, column: str, kind: DataType) -> None:
    if not isinstance(kind, _KEY_TYPES):
        raise InvalidOption(
            f"the routing key of stream {stream} cannot be the column {column}, since "
            f"{kind.simpleString()} has no text form that all writers share; name a column that "
            "is a string, a whole number, a decimal, a boolean or a date, or cast it to a string."
        )


def _arrow_type(frame: StructType, name: str, where: str) -> pa.DataType:
    field = frame[name]
    try:
        return to_arrow_schema(StructType([field]), timezone="UTC").field(0).type
    except PySparkException as error:
        raise SchemaMismatch(
            f"{where}: column {name} of type {field.dataType.simpleString()} cannot be written: "
            f"{error}; cast it, or drop it.",
            column=name,
        ) from None
