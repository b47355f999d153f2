"""Tables of columns that are written to typed streams: checked by columns, never row by row."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from pravega_spark.arguments import shown
from pravega_spark.engine.chunks.arrow_arrays import ready
from pravega_spark.engine.chunks.event_format import SYSTEM_NAMES, EventFormat, widened
from pravega_spark.engine.writing.table_rows import EventTable, checked_times
from pravega_spark.errors import EventTooLarge, InvalidInput
from pravega_spark.limits import MAX_EVENT_BYTES, WRITER_EVENT_BYTES

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
        from pravega_spark.schemas.schema_forms import to_table  # late: not all writers need it

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
        if len(sizes) and sizes.max() > MAX_EVENT_BYTES:
            bad = int(np.argmax(sizes > MAX_EVENT_BYTES))
            raise EventTooLarge(
                f"{where}: the event of row {bad} has {sizes[bad]} bytes, more than "
                f"{MAX_EVENT_BYTES} (8 MiB); split it, or store a part elsewhere and write a "
                "reference.",
                size_bytes=int(sizes[bad]),
                limit_bytes=MAX_EVENT_BYTES,
            )
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
