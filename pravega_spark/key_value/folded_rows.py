"""The rows of a folded table as columns: as its files hold them, and as the engine orders them.

The engine's rows have a column ``k``, one value by which both parts of a key are compared: in the
order of the stored keys (``table_key``), first the primary and then the secondary part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import column, numbers, ready
from pravega_spark.key_value.table_key import KeyType, TableKey

SortKey = Any
"""A key as one value: an int for tables of whole numbers alone, otherwise bytes."""

ENTRY_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("secondary_key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("segment_id", pa.int64()),
        ("offset", pa.int64()),
    ]
)
"""Changes and entries between the parts of the engine: keys as they are stored; a value of null is
a removal."""
_REST: Final = ("value", "timestamp", "segment_id", "offset")
_NATIVE: Final = {
    KeyType.BYTES: (pa.binary(), "binary"),
    KeyType.STRING: (pa.string(), "string"),
    KeyType.LONG: (pa.int64(), "long"),
}
_END, _ESCAPED = b"\x00\x01", b"\x00\xff"
_SIGN: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class RowLayout:
    """How the keys of one table are stored in its files, and compared."""

    key_type: KeyType
    has_secondary: bool

    @property
    def is_number(self) -> bool:
        """Whether a whole number is all of a key."""
        return self.key_type is KeyType.LONG and not self.has_secondary

    @property
    def delta_columns(self) -> dict[str, str]:
        """The columns of the Delta table with their types."""
        secondary = {"secondary_key": "binary"} if self.has_secondary else {}
        rest = {"value": "binary", "timestamp": "timestamp", "segment_id": "long", "offset": "long"}
        return {"key": _NATIVE[self.key_type][1], **secondary, **rest}

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of a file."""
        found = [pa.field("key", _NATIVE[self.key_type][0])]
        names = ("secondary_key", *_REST) if self.has_secondary else _REST
        return pa.schema([*found, *(ENTRY_SCHEMA.field(name) for name in names)])

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of the engine's rows."""
        kind = pa.int64() if self.is_number else pa.binary()
        parts = ("key", "secondary_key") if self.has_secondary else ()
        rest = (ENTRY_SCHEMA.field(name) for name in (*parts, *_REST))
        return pa.schema([pa.field("k", kind), *rest])

    def sort_key(self, key: TableKey) -> SortKey:
        """Return a key, or the bound of a range of keys, as one value."""
        if self.is_number:
            return int.from_bytes(key.primary, "big") - _SIGN
        if not self.has_secondary:
            return key.primary
        return key.primary.replace(b"\x00", _ESCAPED) + _END + key.secondary

    def table_key(self, sort_key: SortKey) -> TableKey:
        """Return the key of the result of :meth:`sort_key`."""
        if isinstance(sort_key, int):
            return TableKey((sort_key + _SIGN).to_bytes(8, "big"))
        if not self.has_secondary:
            return TableKey(sort_key)
        primary, _, secondary = sort_key.partition(_END)
        return TableKey(primary.replace(_ESCAPED, b"\x00"), secondary)

    def to_text(self, sort_key: SortKey) -> str:
        """Return a key as the text of a tag: hexadecimal digits of its stored parts."""
        key = self.table_key(sort_key)
        return f"{key.primary.hex()}.{key.secondary.hex()}" if self.has_secondary else key[0].hex()

    def of_text(self, text: str) -> SortKey:
        """Return the key of such a text; raise ValueError for any other."""
        primary, _, secondary = text.partition(".")
        return self.sort_key(TableKey(bytes.fromhex(primary), bytes.fromhex(secondary)))

    def rows_of_entries(self, entries: pa.Table) -> pa.Table:
        """Return entries of ``ENTRY_SCHEMA`` as rows."""
        entries = entries.combine_chunks()
        columns = {name: _whole(entries.column(name)) for name in ENTRY_SCHEMA.names}
        primary, secondary = columns["key"], columns["secondary_key"]
        if self.is_number:
            order = _to_numbers(primary)
        elif self.has_secondary:
            order = _joined(primary, secondary)
        else:
            order = primary
        return self._table({"k": order, **columns})

    def entries_of_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows as entries of ``ENTRY_SCHEMA``."""
        rows = rows.combine_chunks()
        if self.has_secondary:
            return rows.select(ENTRY_SCHEMA.names)
        order = _whole(rows.column("k"))
        primary = to_stored_numbers(numbers(order)) if self.is_number else order
        rest = [_whole(rows.column(name)) for name in _REST]
        return pa.Table.from_arrays([primary, _empty(rows.num_rows), *rest], schema=ENTRY_SCHEMA)

    def with_keys(self, columns: Sequence[str]) -> list[str]:
        """Return columns of a file, with those of the keys."""
        keys = ("key", "secondary_key")
        return [name for name in self.file_schema.names if name in keys or name in columns]

    def filled(self, stored: pa.Table) -> pa.Table:
        """Return some columns of a file as all of them; those that were not read are null."""
        schema = self.file_schema
        if stored.num_columns == len(schema):
            return stored
        columns = [
            stored.column(field.name)
            if field.name in stored.column_names
            else pa.nulls(stored.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def rows_of_file(self, stored: pa.Table) -> pa.Table:
        """Return the columns of a file as rows."""
        stored = stored.combine_chunks()
        columns = {name: _whole(stored.column(name)) for name in stored.column_names}
        native = columns["key"]
        if self.is_number:
            return self._table({"k": native, **columns})
        primary = native.view(pa.binary()) if self.key_type is not KeyType.LONG else None
        if primary is None:
            primary = to_stored_numbers(numbers(native))
        order = _joined(primary, columns["secondary_key"]) if self.has_secondary else primary
        return self._table({**columns, "k": order, "key": primary})

    def columns_of_rows(self, rows: pa.Table) -> pa.Table:
        """Return rows as the columns of a file."""
        primary = _whole(rows.column("key" if self.has_secondary else "k"))
        if self.key_type is KeyType.STRING:
            primary = primary.view(pa.string())
        elif self.key_type is KeyType.LONG and self.has_secondary:
            primary = _to_numbers(primary)
        schema = self.file_schema
        rest = [_whole(rows.column(name)) for name in schema.names[1:]]
        return pa.Table.from_arrays([primary, *rest], schema=schema)

    def empty(self) -> pa.Table:
        """Return no rows."""
        ready()
        return self.row_schema.empty_table()

    def _table(self, columns: dict[str, pa.Array]) -> pa.Table:
        schema = self.row_schema
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)


def position(order: pa.Array, key: SortKey, *, after: bool = False) -> int:
    """Return how many sorted keys are below a key, or with ``after`` up to it."""
    if isinstance(key, int):
        return int(np.searchsorted(numbers(order), key, side="right" if after else "left"))
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        found = order[middle].as_py()
        if found < key or (after and found == key):
            low = middle + 1
        else:
            high = middle
    return low


def keys_of(rows: pa.Table) -> pa.Array:
    """Return the keys of rows as one array."""
    return _whole(rows.column("k"))


def first_key(rows: pa.Table) -> SortKey:
    """Return the first key of rows."""
    found: SortKey = rows.column("k")[0].as_py()
    return found


def last_key(rows: pa.Table) -> SortKey:
    """Return the last key of rows."""
    found: SortKey = rows.column("k")[rows.num_rows - 1].as_py()
    return found


def joined_rows(parts: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables as one, whose columns are in one piece."""
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).combine_chunks()


def _whole(found: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(found, pa.Array):
        return found
    if found.num_chunks == 1:
        return found.chunk(0)
    ready()
    return found.combine_chunks() if found.num_chunks else pa.array([], found.type)


def _joined(primary: pa.Array, secondary: pa.Array) -> pa.Array:
    """Return both parts as one value that is in the order of the pairs, whatever the lengths."""
    escaped: Any = pc.replace_substring(primary, pattern=b"\x00", replacement=_ESCAPED)
    return pc.binary_join_element_wise(escaped, secondary, pa.scalar(_END, pa.binary()))


def _to_numbers(primary: pa.Array) -> pa.Array:
    """Return stored whole numbers as such."""
    buffer = primary.buffers()[2]
    start = 0 if buffer is None else np.frombuffer(primary.buffers()[1], np.int32)[primary.offset]
    data = np.frombuffer(buffer or b"", ">u8", len(primary), int(start))
    return column((data ^ np.uint64(_SIGN)).astype(np.uint64).view(np.int64), pa.int64())


def to_stored_numbers(values: NDArray[np.int64]) -> pa.Array:
    """Return whole numbers as they are stored."""
    data = (values.view(np.uint64) ^ np.uint64(_SIGN)).astype(">u8")
    ends = np.arange(len(values) + 1, dtype=np.int32) * 8
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def _empty(rows: int) -> pa.Array:
    ends = np.zeros(rows + 1, np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(b"")])
