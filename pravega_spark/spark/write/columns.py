"""Which columns of a frame become events or typed rows, and their conversion.

Columns are found in any case, as Spark finds them.

Which columns of a frame become those of a typed stream, its routing key and its time. A frame's
column goes to the stream's column of its name, in any case. The columns of streams themselves,
which a read has beside the user's, are no columns of the schema: ``routing_key`` and ``timestamp``
are the event's, and the others are those of another place, and left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.chunks.arrow_arrays import constant, first_longer, mask, numbers
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, TIMESTAMP
from pravega_spark.engine.chunks.format import EventFormat, format_of, widened
from pravega_spark.errors import (
    InvalidInput,
    InvalidName,
    InvalidOption,
    InvalidSchema,
    SchemaMismatch,
)
from pravega_spark.schemas.fit import BadRow
from pravega_spark.schemas.forms import all_nullable
from pravega_spark.spark.key_encoding import encode_keys, first_foreign
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.versions import arrow_schema
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import MAX_EVENT_BYTES, MAX_ROUTING_KEY_LENGTH
from pravega_spark.values.names import split_stream

_TEXT = (StringType, BinaryType)
_TIMESTAMP = EVENT_SCHEMA.field("timestamp").type

_PRAVEGA_NAMES = ("event", "routing_key")
_KAFKA_NAMES = ("value", "key")
_ADDED = {"routingKey": "routing_key", "eventTime": "event_time"}
"""What errors call a column that an expression makes for an option."""
_PARTITION, _HEADERS = "partition", "headers"
"""Columns that Spark's Kafka sink obeys."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
            event=event,
            routing_key=key_column,
            timestamp=time_column,
            headers=headers,
            key_encoding=settings.key_encoding,
            null_values=settings.null_values,
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
            f"the key {shown(None if row is None else keys[row].as_py())} in column {name}, row "
            f"{row} of a batch of {len(keys)}, is not UTF-8, and a routing key is text. Set the "
            "option keyEncoding to percent, which writes other bytes as %FF, and is undone by a "
            "read that sets it, too; or encode the column, such as by hex(key)."
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
        return arrow_schema(StructType([field])).field(0).type
    except PySparkException as error:
        raise SchemaMismatch(
            f"{where}: column {name} of type {field.dataType.simpleString()} cannot be written: "
            f"{error}; cast it, or drop it.",
            column=name,
        ) from None


_NAMES = ("stream", "topic")


@dataclass(frozen=True, slots=True)
class StreamColumn:
    """The frame's column with the streams' names, and where the scope of a bare name is."""

    column: str
    scope_column: str | None
    scope: str | None

    @classmethod
    def of(cls, schema: StructType, settings: WriteSettings) -> StreamColumn:
        """Find the columns in a frame's schema; raise InvalidOption if there is none."""
        types = {f.name: f.dataType for f in schema.fields}
        names = reversed(_NAMES) if settings.column_names == "kafka" else _NAMES
        column = next(filter(None, (find_column(types, name) for name in names)), None)
        if column is None:
            raise InvalidOption(
                "no stream is named: call .save('scope/stream') or .start('scope/stream'), set the "
                "option stream, or add a column stream (or topic) with the stream of each row; the "
                f"frame's columns are {', '.join(types)}."
            )
        scope_column = find_column(types, "scope")
        for name in filter(None, (column, scope_column)):
            if not isinstance(types[name], StringType):
                raise InvalidOption(
                    f"column {name} must be a string that names a stream, but is "
                    f"{types[name].simpleString()}; cast it, or name one stream for all rows."
                )
        return cls(column, scope_column, settings.scope)

    def without_names(self, frame: StructType) -> StructType:
        """Return a frame's columns but those that name the streams."""
        names = (self.column, self.scope_column)
        return StructType([field for field in frame.fields if field.name not in names])

    def split(
        self, batch: pa.RecordBatch, columns: InputColumns | None
    ) -> Iterator[tuple[str, pa.RecordBatch, NDArray[np.int64]]]:
        """Yield each stream of a batch with its rows, in their order, and their numbers.

        ``columns`` are those of events of bytes, if the frame has them. Raises InvalidInput for a
        row without a stream, or with a name that is none.
        """
        kept = None if columns is None else kept_rows(batch, columns)
        at = np.arange(batch.num_rows)
        if kept is not None:
            batch, at = batch.filter(kept), np.flatnonzero(numbers(kept.cast(pa.int8())))
        names = self._names(batch)
        coded = names.dictionary_encode()
        if coded.null_count:
            row = int(np.flatnonzero(numbers(coded.is_null().cast(pa.int8())))[0])
            raise InvalidInput(
                f"column {self.column} is null in {coded.null_count} of {batch.num_rows} rows, the "
                f"first of which is row {row}; it names the stream of each row: fill it, or filter "
                "the rows."
            )
        codes = numbers(coded.indices)
        for code, name in enumerate(coded.dictionary.to_pylist()):
            is_its = codes == code
            self._check(name, int(np.flatnonzero(is_its)[0]))
            yield name, batch if is_its.all() else batch.filter(mask(is_its)), at[is_its]

    def _names(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the full names of the rows' streams."""
        coded = batch.column(self.column).cast(pa.string()).dictionary_encode()
        if self.scope_column is None:
            full = [self._full(name, self.scope) for name in coded.dictionary.to_pylist()]
            return pa.array(full, pa.string()).take(coded.indices)
        scopes = batch.column(self.scope_column).to_pylist()
        names = batch.column(self.column).to_pylist()
        return pa.array(
            [None if n is None else self._full(n, s) for n, s in zip(names, scopes, strict=True)],
            pa.string(),
        )

    def _full(self, name: str, scope: str | None) -> str:
        return name if scope is None or "/" in name else f"{scope}/{name}"

    def _check(self, name: str, row: int) -> None:
        try:
            split_stream(name)
        except InvalidName as error:
            raise InvalidInput(
                f"column {self.column} has {shown(name)} in row {row}, which names no stream: "
                f"{error} A name without a scope takes that of the option scope."
            ) from None
