"""Rows of an Arrow table as events: checked by columns, cut into batches, never copied into Python.

The bytes of the events stay where the caller's table has them until a chunk is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.arguments import MAX_TIME_US, MIN_TIME_US
from pravega_spark.engine.chunks.arrow_arrays import (
    constant,
    first_longer,
    numbers,
    offsets_of,
    ready,
)
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, TIMESTAMP
from pravega_spark.engine.chunks.chunk_encoder import cuts
from pravega_spark.engine.writing.write_outcomes import EventPositions
from pravega_spark.errors import EventTooLarge, InvalidInput
from pravega_spark.limits import (
    MAX_EVENT_BYTES,
    MAX_ROUTING_KEY_LENGTH,
    WRITER_BATCH_BYTES,
    WRITER_BATCH_EVENTS,
    WRITER_EVENT_BYTES,
)

_EVENT, _KEY, _TIME = "event", "routing_key", "timestamp"


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
            names = [_KEY, _TIME, *events.column_names]
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
        is_known = len({*names}) == len(names) and {*names} <= {_EVENT, _KEY, _TIME}
        if not is_known or _EVENT not in names:
            raise InvalidInput(
                f"write_table on stream {stream} takes the columns event, routing_key and "
                f"timestamp (both of which may be missing); got {', '.join(names) or 'none'}. "
                "Select and rename columns."
            )
        if needs_times and _TIME not in names:
            raise InvalidInput(
                f"write_table on stream {stream} needs the column timestamp, since the writer was "
                "created with event_time and notes the times of its rows; add the column."
            )
        self._events, lengths = self._checked_events(table.column(_EVENT))
        self._keys = self._checked_keys(table.column(_KEY)) if _KEY in names else None
        self._times = checked_times(stream, table.column(_TIME), _TIME) if _TIME in names else None
        self._sizes = np.cumsum(lengths + WRITER_EVENT_BYTES)

    @property
    def latest_us(self) -> int | None:
        """The latest of the rows' times, in us since 1970; None without a row or without times."""
        if self._times is None or not len(self):
            return None
        return int(numbers(self._times.cast(pa.int64())).max())

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._sizes)

    def parts(self, most_bytes: int, time_ns: int, outcome: RowsOutcome) -> Iterator[TableRows]:
        """Yield the rows in parts of one batch each; an event above ``most_bytes`` is alone."""
        most_bytes = min(most_bytes, WRITER_BATCH_BYTES)
        for first, last, size in cuts(self._sizes, WRITER_BATCH_EVENTS, most_bytes):
            keys = None if self._keys is None else self._keys.slice(first, last - first)
            events = self._payload(first, last - first)
            times = None if self._times is None else self._times.slice(first, last - first)
            yield TableRows(keys, events, size, time_ns, outcome, times)

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
            if len(sizes) and sizes.max() > MAX_EVENT_BYTES:
                bad = int(np.argmax(sizes > MAX_EVENT_BYTES))
                raise EventTooLarge(
                    f"write_table on stream {self._stream}: the event of row {row + bad} has "
                    f"{sizes[bad]} bytes, more than {MAX_EVENT_BYTES} (8 MiB); split it, or store "
                    "it elsewhere and write a reference.",
                    size_bytes=int(sizes[bad]),
                    limit_bytes=MAX_EVENT_BYTES,
                )
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
        return column


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
    kind = chunk.type
    if kind == pa.string_view():
        return chunk.cast(pa.large_string())
    if pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return chunk.cast(pa.large_binary())
    return chunk


def _first_long_key(chunk: pa.Array) -> int | None:
    if pa.types.is_dictionary(chunk.type):
        words = chunk.dictionary.cast(pa.large_string())
        if first_longer(words, MAX_ROUTING_KEY_LENGTH) is None:
            return None
        chunk = _with_values(chunk, pa.large_string()).dictionary_decode()
    return first_longer(_with_offsets(chunk), MAX_ROUTING_KEY_LENGTH)


def _with_values(chunk: pa.DictionaryArray, kind: pa.DataType) -> pa.DictionaryArray:
    """Return the array with values of another type: Arrow decodes no dictionary of views."""
    return pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(kind))


def _as_binary(chunk: pa.Array) -> pa.Array:
    """Return the values as ``binary``, with the same data, wherever in a large array they are."""
    offsets = offsets_of(chunk)
    first, last = int(offsets[0]), int(offsets[-1])
    data = chunk.buffers()[2]
    data = pa.py_buffer(b"") if data is None else data.slice(first, last - first)
    ends = pa.py_buffer((offsets - first).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(chunk), [None, ends, data])


def _first(marked: pa.Array) -> int:
    """Return the first row that is true."""
    return int(np.argmax(np.asarray(marked)))


def _first_invalid(chunk: pa.Array) -> int:
    for row in range(len(chunk)):
        try:
            chunk[row].as_py()
        except (UnicodeDecodeError, IndexError):
            return row
    return 0
