"""Checks of what users pass to writers: events, Arrow tables of them, routing keys and times.

The bytes of the events stay where the caller's table has them until a chunk is encoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import (
    constant,
    first_longer,
    numbers,
    offsets_of,
    ready,
)
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, TIMESTAMP
from pravega_spark.engine.chunks.encoder import cuts
from pravega_spark.engine.chunks.format import (
    RAW,
    SYSTEM_NAMES,
    EventFormat,
    SmallEvent,
    TypedEvent,
    widened,
)
from pravega_spark.engine.chunks.large_event_writer import (
    is_payload_source,
    pieces_of,
    split_off,
    too_large_for_all,
)
from pravega_spark.engine.writing.outcomes import EventPositions
from pravega_spark.errors import EventTooLarge, InvalidInput, SchemaMismatch
from pravega_spark.schemas.column_views import without_views
from pravega_spark.values.checks import (
    MAX_TIME_US,
    MIN_TIME_US,
    check_flag,
    check_function,
    check_time_us,
    shown,
)
from pravega_spark.values.limits import (
    MAX_ATOMIC_WRITE_BYTES,
    MAX_EVENT_BYTES,
    MAX_LARGE_EVENT_BYTES,
    MAX_NOTE_LENGTH,
    MAX_ROUTING_KEY_LENGTH,
    WRITER_BATCH_BYTES,
    WRITER_BATCH_EVENTS,
    WRITER_EVENT_BYTES,
)
from pravega_spark.values.units import parse_duration_ms

EventTime = Callable[[Any], "int | datetime"]
"""Returns the time of an event as it was given to the writer: ms since 1970, or a datetime."""


class LatestTime:
    """The latest time of the events of one write, until the write is accepted."""

    __slots__ = ("us",)

    def __init__(self) -> None:
        self.us: int | None = None

    def add(self, time_us: int | None) -> None:
        """Add the time of an event, if it has one."""
        if time_us is not None and (self.us is None or time_us > self.us):
            self.us = time_us


class EventTimes:
    """How far the events of one writer are; their order may be wrong by the delay.

    Each event's time is at most ``delay_us`` earlier than the latest one written before it. So what
    follows is of the latest time less the delay, or later.
    """

    __slots__ = ("_function", "column", "delay_us", "latest_us", "on_event")

    def __init__(self, function: EventTime | str, delay: str | float) -> None:
        """Take both; raise InvalidInput, or InvalidConfiguration for an invalid duration.

        A text names the column of a typed stream's events that has their time.
        """
        self.column = function if isinstance(function, str) else None
        self._function = (
            _of_column(function)
            if isinstance(function, str)
            else check_function("event_time", function)
        )
        self.delay_us = 1_000 * parse_duration_ms("event_time_delay", delay)
        self.latest_us: int | None = None
        self.on_event: Callable[[], object] = lambda: None
        """Called after an event's time was added."""

    @classmethod
    def of(cls, function: EventTime | str | None, delay: str | float | None) -> EventTimes | None:
        """Return the times of a writer that notes them; None for one that does not."""
        if function is not None:
            return cls(function, 0 if delay is None else delay)
        if delay is not None:
            raise InvalidInput(
                f"event_time_delay {shown(delay)} needs event_time, a function that returns the "
                "time of an event."
            )
        return None

    @property
    def bound_us(self) -> int | None:
        """The time that may be noted now; None before the first event."""
        if self.latest_us is None:
            return None
        return max(self.latest_us - self.delay_us, MIN_TIME_US)

    def of_event(self, event: Any) -> int:
        """Return the time of an event; an error of the function is raised unchanged."""
        what = "the event_time of an event" + (f", column {self.column}," if self.column else "")
        return check_time_us(what, self._function(event))

    def add(self, time_us: int) -> None:
        """Add the time of an accepted event, or the latest one of several."""
        if self.latest_us is None or time_us > self.latest_us:
            self.latest_us = time_us
        self.on_event()

    def again(self) -> EventTimes:
        """Return the times of another transaction of the same writer."""
        times = EventTimes(self.column or self._function, 0)
        times.delay_us = self.delay_us
        return times


def _of_column(name: str) -> EventTime:
    """Return the function that takes the time of a row from one of its columns."""

    def time_of(event: Any) -> Any:
        return event.get(name) if isinstance(event, Mapping) else getattr(event, name, None)

    return time_of


_EVENT, _KEY_COLUMN, _TIME_COLUMN = "event", "routing_key", "timestamp"


class RowsOutcome(Protocol):
    """Takes the positions of rows once they are durable."""

    def add(self, positions: EventPositions, row: int, count: int) -> None:
        """Record the next ``count`` rows as durable; ``row`` is the first one's in its batch."""
        ...


class _Unwatched:
    """The outcome of rows that nobody waits for."""

    def add(self, positions: EventPositions, row: int, count: int) -> None:
        raise AssertionError("these rows enter no batch")


_UNWATCHED: Final = _Unwatched()


class TableRows:
    """Consecutive rows of a table that enter one batch together."""

    __slots__ = (
        "_events", "_keys", "_times", "count", "is_taken", "outcome", "size_bytes", "time_ns"
    )  # fmt: skip

    def __init__(
        self,
        keys: pa.ChunkedArray | None,
        events: pa.ChunkedArray | pa.Table,
        size_bytes: int,
        time_ns: int,
        outcome: RowsOutcome,
        times: pa.ChunkedArray | None = None,
    ) -> None:
        """Take the columns, checked; ``size_bytes`` is counted as in the writer's buffer.

        ``events`` are bytes, or the columns of typed events. ``time_ns`` is the time of rows
        without times.
        """
        self._keys = keys
        self._events = events
        self._times = times
        self.count = len(events)
        self.size_bytes = size_bytes
        self.time_ns = time_ns
        self.outcome = outcome
        self.is_taken = False
        """Whether a batch has them: rows that an interrupted call queued twice enter one batch."""

    def table(self) -> pa.Table:
        """Return the rows as a table of events."""
        keys, times, events = self._keys, self._times, self._events
        if times is None:
            now = constant(self.time_ns // 1_000, pa.int64(), self.count)
            times = now.view(TIMESTAMP)
        texts = pa.nulls(self.count, pa.string()) if keys is None else keys.cast(pa.string())
        if isinstance(events, pa.Table):
            names = [_KEY_COLUMN, _TIME_COLUMN, *events.column_names]
            return pa.Table.from_arrays([texts, times, *events.columns], names=names)
        bytes_of_all = pa.chunked_array([_as_binary(chunk) for chunk in events.chunks], pa.binary())
        return pa.Table.from_arrays([texts, times, bytes_of_all], schema=EVENT_SCHEMA)


class EventTable:
    """A checked table of events."""

    def __init__(self, stream: str, table: object, *, needs_times: bool = False) -> None:
        """Check a table; raise InvalidInput or EventTooLarge, which name the first bad row.

        With ``needs_times`` it must have a column of times.
        """
        ready()
        self._stream = stream
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if not isinstance(table, pa.Table):
            raise InvalidInput(
                f"write_table on stream {stream} takes a pyarrow Table or RecordBatch, not "
                f"{type(table).__name__}."
            )
        names = table.column_names
        is_known = len({*names}) == len(names) and {*names} <= {_EVENT, _KEY_COLUMN, _TIME_COLUMN}
        if not is_known or _EVENT not in names:
            raise InvalidInput(
                f"write_table on stream {stream} takes the columns event, routing_key and "
                f"timestamp (both of which may be missing); got {', '.join(names) or 'none'}. "
                "Select and rename columns."
            )
        if needs_times and _TIME_COLUMN not in names:
            raise InvalidInput(
                f"write_table on stream {stream} needs the column timestamp, since the writer was "
                "created with event_time and notes the times of its rows; add the column."
            )
        self._events, lengths = self._checked_events(table.column(_EVENT))
        self._keys = self._checked_keys(table.column(_KEY_COLUMN)) if _KEY_COLUMN in names else None
        self._times = (
            checked_times(stream, table.column(_TIME_COLUMN), _TIME_COLUMN)
            if _TIME_COLUMN in names
            else None
        )
        self._sizes = np.cumsum(lengths + WRITER_EVENT_BYTES)

    @property
    def latest_us(self) -> int | None:
        """The latest of the rows' times, in us since 1970; None without a row or without times."""
        if self._times is None or not len(self):
            return None
        return int(numbers(self._times.cast(pa.int64())).max())

    def __len__(self) -> int:
        return len(self._sizes)

    def parts(self, most_bytes: int, time_ns: int, outcome: RowsOutcome) -> Iterator[TableRows]:
        """Yield the rows in parts of one batch each; an event above ``most_bytes`` is alone."""
        most_bytes = min(most_bytes, WRITER_BATCH_BYTES)
        for first, last, size in cuts(self._sizes, WRITER_BATCH_EVENTS, most_bytes):
            keys = None if self._keys is None else self._keys.slice(first, last - first)
            events = self._payload(first, last - first)
            times = None if self._times is None else self._times.slice(first, last - first)
            yield TableRows(
                keys=keys,
                events=events,
                size_bytes=size,
                time_ns=time_ns,
                outcome=outcome,
                times=times,
            )

    def tables(self, most_bytes: int, time_ns: int) -> Iterator[pa.Table]:
        """Yield the rows in parts as tables of events; an event above ``most_bytes`` is alone."""
        return (part.table() for part in self.parts(most_bytes, time_ns, _UNWATCHED))

    def _payload(self, first: int, count: int) -> pa.ChunkedArray | pa.Table:
        return self._events.slice(first, count)

    def _checked_events(self, column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, NDArray[Any]]:
        if not _is_bytes_or_text(column.type):
            raise InvalidInput(
                f"write_table on stream {self._stream}: the column event must be binary or string, "
                f"not {column.type}; encode the events first."
            )
        chunks, lengths, row = [], [np.empty(0, np.int64)], 0
        for chunk in map(_with_offsets, column.chunks):
            if chunk.null_count:
                raise InvalidInput(
                    f"write_table on stream {self._stream}: the event of row "
                    f"{row + _first(chunk.is_null())} is null; leave such rows out."
                )
            sizes = np.diff(offsets_of(chunk))
            _check_sizes(self._stream, sizes, row, "it")
            chunks.append(chunk)
            lengths.append(sizes)
            row += len(chunk)
        kind = chunks[0].type if chunks else pa.binary()
        return pa.chunked_array(chunks, kind), np.concatenate(lengths)

    def _checked_keys(self, column: pa.ChunkedArray) -> pa.ChunkedArray | None:
        kind, row = column.type, 0
        if pa.types.is_null(kind):
            return None
        values = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not _is_text(values):
            raise InvalidInput(
                f"write_table on stream {self._stream}: the column routing_key must be string, not "
                f"{kind}; cast it, or leave it out."
            )
        for chunk in column.chunks:
            try:
                chunk.validate(full=True)
                if pa.types.is_dictionary(kind):
                    chunk.dictionary.validate(full=True)
            except pa.ArrowInvalid as error:
                raise InvalidInput(
                    f"write_table on stream {self._stream}: the routing key of row "
                    f"{row + _first_invalid(chunk)} is not valid: {error}; give keys in UTF-8."
                ) from error
            long = _first_long_key(chunk)
            if long is not None:
                raise InvalidInput(
                    f"write_table on stream {self._stream}: the routing key of row {row + long} "
                    f"is longer than {MAX_ROUTING_KEY_LENGTH} characters; use a part of it, or its "
                    "hash."
                )
            row += len(chunk)
        if pa.types.is_dictionary(kind):
            chunks = [_with_values(chunk, pa.large_string()) for chunk in column.chunks]
            return pa.chunked_array(chunks, pa.dictionary(kind.index_type, pa.large_string()))
        return without_views(column)


def checked_times(stream: str, times: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return the column of times of this name in the type of a stream's timestamps."""
    if not pa.types.is_timestamp(times.type) or times.type.tz is None:
        raise InvalidInput(
            f"write_table on stream {stream}: the column {name} must be a timestamp with a time "
            f"zone, not {times.type}; cast it, such as to pa.timestamp('us', 'UTC')."
        )
    if times.null_count:
        row = int(times.is_null().index(True).as_py())
        raise InvalidInput(
            f"write_table on stream {stream}: the {name} of row {row} is null; fill it, or "
            "leave such rows out."
        )
    try:
        found = times.cast(TIMESTAMP, safe=times.type.unit != "ns")
    except pa.ArrowInvalid as error:
        raise InvalidInput(
            f"write_table on stream {stream}: the column {name} ({times.type}) holds a time "
            f"that microseconds cannot: {error}."
        ) from error
    whole = numbers(found.cast(pa.int64()))
    wrong = np.flatnonzero((whole < MIN_TIME_US) | (whole > MAX_TIME_US))
    if len(wrong):
        raise InvalidInput(
            f"write_table on stream {stream}: the {name} of row {wrong[0]} is beyond the years 1 "
            "to 9999; correct it."
        )
    return found


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view())


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    is_bytes = (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    )
    return is_bytes or _is_text(kind)


def _with_offsets(chunk: pa.Array) -> pa.Array:
    """Return the values with an offset for each, which a few types do not have."""
    if pa.types.is_dictionary(chunk.type):
        chunk = _with_values(chunk, pa.large_binary()).dictionary_decode()
    if pa.types.is_fixed_size_binary(chunk.type):
        return chunk.cast(pa.large_binary())
    return without_views(chunk)


def _first_long_key(chunk: pa.Array) -> int | None:
    if pa.types.is_dictionary(chunk.type):
        words = without_views(chunk.dictionary).cast(pa.large_string())
        if first_longer(words, MAX_ROUTING_KEY_LENGTH) is None:
            return None
        chunk = _with_values(chunk, pa.large_string()).dictionary_decode()
    return first_longer(_with_offsets(chunk), MAX_ROUTING_KEY_LENGTH)


def _with_values(chunk: pa.DictionaryArray, kind: pa.DataType) -> pa.DictionaryArray:
    """Return the array with values of another type: Arrow decodes no dictionary of views."""
    held = without_views(chunk.dictionary).cast(kind)
    return pa.DictionaryArray.from_arrays(chunk.indices, held)


def _as_binary(chunk: pa.Array) -> pa.Array:
    """Return the values as ``binary``, with the same data, wherever in a large array they are."""
    offsets = offsets_of(chunk)
    first, last = int(offsets[0]), int(offsets[-1])
    data = chunk.buffers()[2]
    data = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
    ends = pa.py_buffer((offsets - first).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(chunk), [None, ends, data])


def _first(marked: pa.Array) -> int:
    return int(np.argmax(np.asarray(marked)))


def _first_invalid(chunk: pa.Array) -> int:
    for row in range(len(chunk)):
        try:
            chunk[row].as_py()
        except (UnicodeDecodeError, IndexError):
            return row
    return 0


_KEY, _TIME = SYSTEM_NAMES
_KEY_TYPES: Final = "a string, a whole number, a decimal, a boolean or a date"


class TypedTable(EventTable):
    """A checked table of typed events."""

    def __init__(
        self,
        stream: str,
        table: object,
        event_format: EventFormat,
        *,
        routing_key: str | None = None,
        event_time: str | None = None,
        needs_times: bool = False,
    ) -> None:
        """Check a table of the schema's columns; ``routing_key`` and ``event_time`` name columns.

        It may have the columns ``routing_key`` and ``timestamp`` of streams, too. Raises
        SchemaMismatch, InvalidInput or EventTooLarge, which name the first bad row.
        """
        from pravega_spark.schemas.forms import to_table  # late: not all writers need it

        ready()
        self._stream = stream
        assert event_format.schema is not None
        where = f"write_table on stream {stream}"
        given = to_table(table, where, event_format.schema.arrow)
        named = {_KEY: ("routing_key", routing_key), _TIME: ("event_time", event_time)}
        for system, (option, name) in named.items():
            if name is not None and system in given.column_names:
                raise InvalidInput(
                    f"{where}: the table has the column {system}, and {option} names the column "
                    f"{name!r}; give one of the two."
                )
        for system in SYSTEM_NAMES:
            if given.column_names.count(system) > 1:
                raise InvalidInput(f"{where}: the table has the column {system} twice; drop one.")
        own = [at for at, name in enumerate(given.column_names) if name not in SYSTEM_NAMES]
        rows = event_format.schema.conform(given.select(own), where)
        self._columns = pa.table(
            [
                widened(rows.column(name), event_format.events.field(name).type)
                for name in event_format.payload
            ],
            names=list(event_format.payload),
        )
        self._keys = self._found_keys(given, routing_key)
        self._times = self._found_times(given, event_time)
        if needs_times and self._times is None:
            raise InvalidInput(
                f"{where} needs the times of the rows, since the writer notes them: name their "
                "column by event_time, or add the column timestamp."
            )
        sizes = event_format.schema.event_sizes(rows)
        _check_sizes(stream, sizes, 0, "a part")
        self._sizes = np.cumsum(sizes + WRITER_EVENT_BYTES)

    def _payload(self, first: int, count: int) -> pa.Table:
        return self._columns.slice(first, count)

    def _found_keys(self, given: pa.Table, routing_key: str | None) -> pa.ChunkedArray | None:
        if routing_key is None:
            return self._checked_keys(given.column(_KEY)) if _KEY in given.column_names else None
        values = self._column("routing_key", routing_key)
        return self._checked_keys(key_texts(self._stream, routing_key, values))

    def _found_times(self, given: pa.Table, event_time: str | None) -> pa.ChunkedArray | None:
        if event_time is None:
            has_times = _TIME in given.column_names
            return checked_times(self._stream, given.column(_TIME), _TIME) if has_times else None
        return checked_times(self._stream, self._column("event_time", event_time), event_time)

    def _column(self, option: str, name: str) -> pa.ChunkedArray:
        if name not in self._columns.column_names:
            raise InvalidInput(
                f"write_table on stream {self._stream}: {option} names the column {shown(name)}, "
                f"and the schema has {', '.join(self._columns.column_names)}; name one of these."
            )
        return self._columns.column(name)


def key_texts(stream: str, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as routing keys, null where it is; raise InvalidInput for other types."""
    types, kind = pa.types, values.type
    if types.is_string(kind):
        return values
    if not (
        types.is_integer(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
    ):
        raise InvalidInput(
            f"the routing key of stream {stream} cannot be the column {name}, since {kind} has no "
            f"text form that all writers share; name a column that is {_KEY_TYPES}."
        )
    return values.cast(pa.string())


Serializer = Callable[[Any], bytes]
"""Turns what is given to a writer into the bytes of an event."""


def json_serializer(event: Any) -> bytes:
    """Encode an event as compact JSON in UTF-8."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


class EventEncoder:
    """Encodes and checks the events of one writer; tells their times if it notes these."""

    __slots__ = ("_name", "event_format", "large_events", "newest", "serializer", "times")

    def __init__(
        self,
        name: str,
        serializer: Serializer | None,
        *,
        large_events: bool = False,
        times: EventTimes | None = None,
        event_format: EventFormat = RAW,
    ) -> None:
        """Keep the stream's name for errors; without a serializer, raw events are bytes or str.

        Raises InvalidInput for what a typed stream does not take.
        """
        self._name = name
        self.newest: Callable[[], EventFormat] = lambda: event_format
        """Reads the format of the stream as it is now, which may have more columns."""
        self.event_format = event_format
        """The format that events are checked by: that of a later schema once it was needed."""
        self.times = times
        self.large_events = check_flag("large_events", large_events)
        self.serializer = check_function("a serializer", serializer)
        column = None if times is None else times.column
        if not event_format.is_raw:
            self._check_typed(column)
        elif column is not None:
            raise InvalidInput(
                f"stream {name} is raw, and its events have no column {shown(column)} for "
                "event_time: give a function that returns the time of an event."
            )

    def _check_typed(self, time_column: str | None) -> None:
        index = self.event_format.events.get_field_index(time_column or "")
        if time_column is not None and (
            index < 0 or self.event_format.events.field(index).type != TIMESTAMP
        ):
            raise InvalidInput(
                f"stream {self._name} has no column {shown(time_column)} of type {TIMESTAMP} for "
                f"event_time; its schema is {self.event_format.schema}."
            )
        if self.serializer is not None:
            raise InvalidInput(
                f"stream {self._name} is typed, and its events are rows of columns: write dicts, "
                "dataclasses, pydantic models or tables, without a serializer."
            )
        if self.large_events:
            raise InvalidInput(
                f"stream {self._name} is typed, and its events have at most {MAX_EVENT_BYTES} "
                "bytes (8 MiB): leave large_events out, and write large payloads to a raw stream."
            )

    def event(self, event: Any, number: int = 0) -> SmallEvent:
        """Return an event as bytes, or as a checked row of a typed stream, ``number`` in errors.

        Raises InvalidInput, SchemaMismatch, or EventTooLarge above 8 MiB.
        """
        data = self._bytes(event) if self.event_format.is_raw else self._row(event, number)
        if len(data) > MAX_EVENT_BYTES:
            raise self.too_large(len(data))
        return data

    def time_us(self, event: Any) -> int | None:
        """Return the time of an event, for ``accept``; None if times are not noted."""
        return None if self.times is None else self.times.of_event(event)

    def accept(self, latest_us: int | None) -> None:
        """Count the time of an event, or the latest of several: nothing refuses them any more."""
        if latest_us is not None and self.times is not None:
            self.times.add(latest_us)

    def noted_us(self, given_us: int | None) -> int | None:
        """Return the time that a commit notes: the one that is given, or that of the events."""
        return self.times.bound_us if given_us is None and self.times is not None else given_us

    def _row(self, event: Any, number: int) -> TypedEvent:
        """Return a row; if it does not fit, look whether the stream has a newer schema."""
        where = f"an event for stream {self._name}"
        schema = self.event_format.schema
        assert schema is not None
        try:
            return TypedEvent(*schema.check_row(event, where, number))
        except SchemaMismatch:
            newest = self.newest()
            if newest.schema is None or newest is self.event_format:
                raise
            self.event_format = newest
            return TypedEvent(*newest.schema.check_row(event, where, number))

    def table(self, table: object, routing_key: str | None, event_time: str | None) -> EventTable:
        """Return a checked table of events; ``routing_key`` and ``event_time`` name columns.

        Raises InvalidInput, SchemaMismatch or EventTooLarge, which name the first bad row.
        """
        needs_times, present = self.times is not None, self.event_format
        if present.is_raw:
            for option, name in (("routing_key", routing_key), ("event_time", event_time)):
                if name is not None:
                    raise InvalidInput(
                        f"write_table on stream {self._name}: {option}={name!r} names a column of "
                        "a typed stream, and this one is raw; give the columns event, routing_key "
                        "and timestamp."
                    )
            return EventTable(self._name, table, needs_times=needs_times)
        if event_time is None and self.times is not None:
            event_time = self.times.column
        named = {"routing_key": routing_key, "event_time": event_time}
        try:
            return TypedTable(self._name, table, present, **named, needs_times=needs_times)
        except SchemaMismatch:
            newest = self.newest()
            if newest is present:
                raise
            self.event_format = newest
            return TypedTable(self._name, table, newest, **named, needs_times=needs_times)

    def payload(self, event: Any) -> SmallEvent | Iterator[memoryview]:
        """Return an event as bytes, or the pieces of a large one; raise as :meth:`event` does.

        Without a serializer, a large event may be a file in binary mode or an iterable of bytes.
        One that turns out to be small is returned as bytes.
        """
        if not self.large_events:
            return self.event(event)
        if self.serializer is None and is_payload_source(event):
            data, pieces = split_off(pieces_of(event), MAX_EVENT_BYTES)
            return data if pieces is None else pieces
        is_plain = self.serializer is None and isinstance(event, (bytearray, memoryview))
        found = event if is_plain else self._bytes(event)
        if len(found) > MAX_LARGE_EVENT_BYTES:
            raise too_large_for_all(len(found))
        return pieces_of(found) if len(found) > MAX_EVENT_BYTES else bytes(found)

    def pieces(
        self, event: bytes | Iterator[memoryview], *, is_conditional: bool
    ) -> Iterator[memoryview]:
        """Return the pieces of an event above 8 MiB; raise EventTooLarge unless it may be large.

        Raises InvalidInput for a conditional write.
        """
        if isinstance(event, bytes) and not self.large_events:
            raise self.too_large(len(event))
        if is_conditional:
            raise InvalidInput(
                f"a large event of stream {self._name} is written without `expected`: write it, "
                "and then a small event with the condition."
            )
        if not isinstance(event, bytes):
            return event
        if len(event) > MAX_LARGE_EVENT_BYTES:
            raise too_large_for_all(len(event))
        return pieces_of(event)

    def each(self, events: object, latest: LatestTime) -> Iterator[SmallEvent]:
        """Return an iterator that encodes one event after the other, and adds its time to latest.

        Raises InvalidInput unless it is a list of events.
        """
        single = isinstance(events, (str, bytes, bytearray, memoryview, Mapping))
        if single or not isinstance(events, Iterable):
            raise InvalidInput(
                f"write_events on stream {self._name} takes a list of events, not "
                f"{type(events).__name__}: {shown(events)}; give a list, or one event to "
                "write_event."
            )
        if self.times is None:
            return map(self.event, events) if self.event_format.is_raw else self._rows(events)
        return (self._timed(event, latest, number) for number, event in enumerate(events))

    def _rows(self, events: Iterable[Any]) -> Iterator[SmallEvent]:
        return (self.event(event, number) for number, event in enumerate(events))

    def _timed(self, event: Any, latest: LatestTime, number: int) -> SmallEvent:
        data = self.event(event, number)
        latest.add(self.time_us(event))
        return data

    def too_large(self, size: int) -> EventTooLarge:
        """Return the error for an event of ``size`` bytes that must be a small one."""
        if self.large_events:
            way = "a large event is written alone, by write_event"
        elif self.event_format.is_raw:
            way = (
                "split it, or create the writer with large_events=True, which takes up to "
                f"{MAX_LARGE_EVENT_BYTES} bytes"
            )
        else:
            way = "split it, or store a part elsewhere and write a reference"
        return EventTooLarge(
            f"an event of {size} bytes for stream {self._name} is larger than {MAX_EVENT_BYTES} "
            f"bytes (8 MiB); {way}.",
            size_bytes=size,
            limit_bytes=MAX_EVENT_BYTES,
        )

    def _bytes(self, event: Any) -> bytes:
        if self.serializer is not None:
            data = self.serializer(event)
            if not isinstance(data, bytes):
                raise InvalidInput(
                    f"the serializer of the writer of {self._name} returned "
                    f"{type(data).__name__}, not bytes."
                )
            return data
        if isinstance(event, str):
            return self._utf8("an event", event)
        if isinstance(event, (bytes, bytearray, memoryview)):
            return bytes(event)
        way = (
            "give the writer a serializer, such as pravega_spark.json_serializer, or create the "
            "stream with a schema"
        )
        if is_payload_source(event):
            way += ", or large_events=True to write files and iterables of bytes"
        raise InvalidInput(
            f"an event for stream {self._name} must be bytes or str, not {type(event).__name__}; "
            f"{way}."
        )

    def check_atomic(self, events: int, size: int) -> None:
        """Raise EventTooLarge unless one atomic write takes this many events and bytes."""
        if size > MAX_ATOMIC_WRITE_BYTES:
            raise EventTooLarge(
                f"{events} events of {size} bytes for stream {self._name}: one atomic write takes "
                f"at most {MAX_ATOMIC_WRITE_BYTES} bytes; use a transaction for more.",
                size_bytes=size,
                limit_bytes=MAX_ATOMIC_WRITE_BYTES,
            )
        if events > WRITER_BATCH_EVENTS:
            raise EventTooLarge(
                f"{events} events for stream {self._name}: one atomic write takes at most "
                f"{WRITER_BATCH_EVENTS} events; use a transaction for more."
            )

    def check_key(self, routing_key: object) -> None:
        """Raise InvalidInput unless the routing key is None or a valid str.

        It has at most MAX_ROUTING_KEY_LENGTH characters, each of which UTF-8 can encode.
        """
        if routing_key is None:
            return
        if type(routing_key) is not str:
            raise InvalidInput(
                f"a routing key must be a str or None, not {type(routing_key).__name__}: "
                f"{shown(routing_key)}."
            )
        if len(routing_key) > MAX_ROUTING_KEY_LENGTH:
            raise InvalidInput(
                f"a routing key of {len(routing_key)} characters for stream {self._name} is longer "
                f"than {MAX_ROUTING_KEY_LENGTH}; use a part of it, or its hash."
            )
        if not routing_key.isascii():
            self._utf8("a routing key", routing_key)

    def check_note(self, note: object) -> None:
        """Raise InvalidInput unless the note is a str of at most MAX_NOTE_LENGTH characters."""
        if not isinstance(note, str) or len(note) > MAX_NOTE_LENGTH:
            raise InvalidInput(
                f"a note must be a str of at most {MAX_NOTE_LENGTH} characters, got {shown(note)}."
            )
        self._utf8("a note", note)

    def _utf8(self, what: str, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{what} for stream {self._name} has no UTF-8 form: {error}; replace the lone "
                "surrogates in it."
            ) from None


def _check_sizes(stream: str, sizes: NDArray[Any], row: int, part: str) -> None:
    """Raise EventTooLarge for events from a row on; ``part`` of one can lie elsewhere."""
    if len(sizes) and sizes.max() > MAX_EVENT_BYTES:
        bad = int(np.argmax(sizes > MAX_EVENT_BYTES))
        raise EventTooLarge(
            f"write_table on stream {stream}: the event of row {row + bad} has {sizes[bad]} bytes, "
            f"more than {MAX_EVENT_BYTES} (8 MiB); split it, or store {part} elsewhere and write a "
            "reference.",
            size_bytes=int(sizes[bad]),
            limit_bytes=MAX_EVENT_BYTES,
        )
