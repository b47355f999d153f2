"""The columns of a stream's events: the bytes of a raw stream, or a typed stream's own columns.

A table that has the column ``event`` is of raw events. Any other one is of typed events: that name
is reserved. So a writer of chunks takes the format from the table. A reader says which
format is wanted: a chunk of an older schema lacks columns, and its events are null there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.chunks.arrow_arrays import column, ready
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, TIMESTAMP, as_raw_events, encode_events
from pravega_spark.errors import InvalidInput
from pravega_spark.primitives.lazy_property import lazy_property
from pravega_spark.schemas.value_sizes import event_sizes

_SYSTEM_FIELDS: Final = (EVENT_SCHEMA.field("routing_key"), EVENT_SCHEMA.field("timestamp"))
SYSTEM_NAMES: Final = tuple(field.name for field in _SYSTEM_FIELDS)
_OFFSET_DELTA: Final = pa.field("offset_delta", pa.int32(), False)
_OFFSET: Final = pa.field("offset", pa.int64())


class TypedEvent:
    """The checked values of one typed event; its length is its size in bytes, as that of bytes."""

    __slots__ = ("_size_bytes", "values")

    def __init__(self, values: dict[str, Any], size_bytes: int) -> None:
        """Take what ``StreamSchema.check_row`` returned."""
        self.values = values
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes


SmallEvent = bytes | TypedEvent
"""An event in memory, as a writer of a raw or a typed stream keeps it."""


class EventFormat:
    """The columns of events, not yet in a chunk and as they are read; shared and immutable."""

    def __init__(self, schema: StreamSchema | None) -> None:
        """Take the schema of a typed stream; None is the raw format."""
        self.schema = schema
        fields = (EVENT_SCHEMA.field("event"),) if schema is None else _columns_of(schema)
        self.events = pa.schema((*_SYSTEM_FIELDS, *fields))
        """The columns of events that are not yet in a chunk."""
        self.batch = pa.schema((_OFFSET, *self.events))
        """The columns of events that are read, if all are requested."""

    @property
    def is_raw(self) -> bool:
        """Whether events are bytes."""
        return self.schema is None

    @lazy_property
    def payload(self) -> tuple[str, ...]:
        """The names of the columns that hold the event itself."""
        return payload_names(self.events)

    @lazy_property
    def batch_names(self) -> tuple[str, ...]:
        """The names of all columns that can be read."""
        return tuple(self.batch.names)

    def encode(
        self, keys: list[str | None], times_us: Any, events: Sequence[SmallEvent]
    ) -> pa.Table:
        """Return events as a table of this format. Raises InvalidInput if they misfit."""
        if self.schema is None:
            return encode_events(keys, times_us, cast("Sequence[bytes]", events))
        ready()
        rows = [event.values for event in cast("Sequence[TypedEvent]", events)]
        fields = list(self.events)[len(_SYSTEM_FIELDS) :]
        columns = [
            pa.array(keys, pa.string()),
            column(np.asarray(times_us, np.int64), TIMESTAMP),
            *(pa.array([row.get(field.name) for row in rows], field.type) for field in fields),
        ]
        return pa.Table.from_arrays(columns, schema=self.events)

    def widened(self, events: pa.Table) -> pa.Table:
        """Return events of this schema or an older one in this format: new columns are null."""
        if events.schema.equals(self.events):
            return events
        names = frozenset(events.schema.names)
        columns = [
            widened(events.column(field.name), field.type)
            if field.name in names
            else pa.nulls(events.num_rows, field.type)
            for field in self.events
        ]
        return pa.Table.from_arrays(columns, schema=self.events)


@lru_cache(maxsize=256)
def format_of(schema: StreamSchema | None) -> EventFormat:
    """Return the format of a stream with this schema; None is a raw stream."""
    return EventFormat(schema)


RAW: Final = format_of(None)
"""The format of raw streams."""


def is_raw(schema: pa.Schema) -> bool:
    """Return whether these are columns of raw events."""
    return bool(schema.get_field_index("event") >= 0)


def payload_names(schema: pa.Schema) -> tuple[str, ...]:
    """Return the names of the columns that hold the event itself."""
    if is_raw(schema):
        return ("event",)
    system = frozenset((*SYSTEM_NAMES, _OFFSET_DELTA.name, _OFFSET.name))
    return tuple(name for name in schema.names if name not in system)


@lru_cache(maxsize=256)
def file_schema(events: pa.Schema) -> pa.Schema:
    """Return the columns of the file of a chunk with these events."""
    return pa.schema((_OFFSET_DELTA, *events))


def typed_sizes(events: pa.Table | pa.RecordBatch) -> NDArray[np.int64]:
    """Return the size of each typed event in bytes; columns that are not of the user do not count.

    It does not depend on the chunk: a column that was added later is null, and takes no byte.
    """
    return event_sizes(events.select(list(payload_names(events.schema))))


def columns_with_nan(events: pa.Table) -> frozenset[str]:
    """Return the names of the columns of typed events that have a NaN; nested ones have no bounds.

    Arrow leaves it out of a column's bounds. But Spark, Delta's readers and DuckDB order it above
    all numbers, and would not find it: so a column of a file that has one has no bounds there.
    """
    floats = [field.name for field in events.schema if pa.types.is_floating(field.type)]
    if not floats:
        return frozenset()
    import pyarrow.compute as pc  # late: slow to import

    return frozenset(
        name for name in floats if pc.any(pc.is_nan(events.column(name)), min_count=0).as_py()
    )


def as_events(table: pa.Table) -> pa.Table:
    """Return the events of ``table`` as columns of a chunk, raw ones by ``as_raw_events``.

    Raises InvalidInput if a column is missing, has a wrong type, or is null where it must not be.
    """
    if is_raw(table.schema):
        return as_raw_events(table)
    for index, field in enumerate(_SYSTEM_FIELDS):
        found = table.schema.field(index) if index < len(table.schema) else None
        if found is None or found.name != field.name or found.type != field.type:
            raise InvalidInput(
                f"the table is not a table of events: column {index} must be {field.name} of type "
                f"{field.type}; got {', '.join(f'{f.name} of {f.type}' for f in table.schema)}."
            )
    nulls = table.column("timestamp").null_count
    if nulls:
        raise InvalidInput(f"{nulls} of {table.num_rows} events have a null timestamp.")
    return table


def widened(values: Any, kind: pa.DataType) -> Any:
    """Return an array whose structs may lack fields of this type; these are null."""
    return values if values.type.equals(kind) else values.cast(kind)


def is_narrower(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether the values of an older or a newer schema can be read as a wanted type.

    Only the fields of structs differ: those that are missing are null.
    """
    if kind.equals(wanted):
        return True
    if kind.id != wanted.id or not kind.num_fields:
        return False
    if pa.types.is_struct(kind):
        return any(kind.get_field_index(field.name) >= 0 for field in wanted) and all(
            is_narrower(kind.field(field.name).type, field.type)
            for field in wanted
            if kind.get_field_index(field.name) >= 0
        )
    pairs = zip(_inner(kind), _inner(wanted), strict=True)
    return all(is_narrower(mine, other) for mine, other in pairs)


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type]


def _columns_of(schema: StreamSchema) -> tuple[pa.Field, ...]:
    """Return the columns of a schema as chunks hold them: any value may be null."""
    return tuple(pa.field(field.name, plain_type(field.type)) for field in schema.arrow)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without what only our writers check: comments, and what must not be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(plain_type(kind.value_type))
    return kind
