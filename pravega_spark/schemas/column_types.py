"""The types that a column of a typed stream may have, and its names.

They are the types of Delta that need no table feature, each as one Arrow type:

=============  ===========================  ==================================================
Delta          Arrow                        also taken from a schema
=============  ===========================  ==================================================
boolean        bool
byte .. long   int8, int16, int32, int64
float, double  float32, float64             float16
decimal(p,s)   decimal128(p, s)             decimal32, decimal64, decimal256 of at most 38 digits
string         string                       large_string, string_view
binary         binary                       large_binary, binary_view, fixed_size_binary
date           date32                       date64
timestamp      timestamp[us, UTC]           any other time zone; seconds and milliseconds
array          list                         large_list, list_view, fixed_size_list
map            map
struct         struct
=============  ===========================  ==================================================

A dictionary or a run-end encoding counts as the type of its values. Elements of arrays and values
of maps may always be null.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyarrow import types

from pravega_spark.errors import InvalidSchema
from pravega_spark.values.checks import shown
from pravega_spark.values.names import has_utf8

RESERVED_NAMES: Final = frozenset(
    (
        *("segment_id", "base_offset", "offset_delta", "offset", "routing_key", "timestamp"),
        *("event", "scope", "stream", "timestamp_type", "watermark", "segment_number"),
        *("key", "value", "topic", "partition", "timestamptype"),
    )
)
"""Names, in any case, that columns of the user cannot have: those of our columns in any reader."""
TIMESTAMP: Final = pa.timestamp("us", "UTC")
DECIMAL_DIGITS: Final = 38
MAX_COLUMNS: Final = 2_000
"""Columns of a schema, nested ones included."""
MAX_COLUMN_DEPTH: Final = 32
MAX_COLUMN_NAME_LENGTH: Final = 255
_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=\0]")
"""Characters that Delta refuses in the names of Parquet columns."""
_PLAIN: Final = (
    (types.is_boolean, pa.bool_()),
    (types.is_int8, pa.int8()),
    (types.is_int16, pa.int16()),
    (types.is_int32, pa.int32()),
    (types.is_int64, pa.int64()),
    (types.is_float16, pa.float32()),
    (types.is_float32, pa.float32()),
    (types.is_float64, pa.float64()),
    (types.is_string, pa.string()),
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_binary, pa.binary()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_fixed_size_binary, pa.binary()),
    (types.is_date, pa.date32()),
)
_LISTS: Final = (
    *(types.is_list, types.is_large_list, types.is_fixed_size_list),
    *(types.is_list_view, types.is_large_list_view),
)
_WAYS: Final = (
    (types.is_uint8, "pa.int16()"),
    (types.is_uint16, "pa.int32()"),
    (types.is_uint32, "pa.int64()"),
    (types.is_uint64, "pa.decimal128(20, 0), or pa.int64() if its values fit"),
    (types.is_null, "the type of the values that it will have, such as pa.string()"),
    (types.is_time, "pa.int64() for microseconds since midnight, or pa.string()"),
    (types.is_duration, "pa.int64(), with the unit in the column's name"),
    (types.is_interval, "pa.int64(), with the unit in the column's name"),
    (types.is_union, "a struct with one nullable column for each alternative"),
)


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the one Arrow type of each Delta type; raise InvalidSchema.

    A field keeps its comment, in the metadata ``comment``, and whether it is nullable.
    """
    check_names(schema.names, "")
    if not schema.names:
        raise InvalidSchema("a schema has at least one column; a raw stream has no schema at all.")
    fields = [canonical_field(field, field.name) for field in schema]
    for name in schema.names:
        if name.lower() in RESERVED_NAMES:
            raise InvalidSchema(
                f"a column of a typed stream cannot be named {name!r}: streams or their readers "
                "have a column of that name; rename it. Reserved: "
                f"{', '.join(sorted(RESERVED_NAMES))}.",
                column=name,
            )
    count = sum(map(_count, (field.type for field in fields)), len(fields))
    if count > MAX_COLUMNS:
        raise InvalidSchema(
            f"a schema has at most {MAX_COLUMNS} columns, nested ones included, got {count}; use a "
            "map for columns that few events have."
        )
    return pa.schema(fields)


def canonical_field(field: pa.Field, path: str) -> pa.Field:
    """Return a field with its canonical type; ``path`` names it in errors."""
    comment = (field.metadata or {}).get(b"comment")
    if comment:
        try:
            comment.decode()
        except UnicodeDecodeError:
            raise InvalidSchema(
                f"the comment of column {path} is not UTF-8: {shown(comment)}; encode it so.",
                column=path.partition(".")[0],
            ) from None
    metadata = {b"comment": comment} if comment else None
    return pa.field(field.name, canonical_type(field.type, path), field.nullable, metadata)


def canonical_type(kind: pa.DataType, path: str) -> pa.DataType:
    """Return the type that a column of this type has in a stream; raise InvalidSchema if none."""
    if path.count(".") >= MAX_COLUMN_DEPTH:
        raise InvalidSchema(
            f"column {path[:MAX_COLUMN_NAME_LENGTH]} is nested more than {MAX_COLUMN_DEPTH} levels "
            "deep; keep the inner part as a JSON text in a string column.",
            column=path.partition(".")[0],
        )
    for is_kind, plain in _PLAIN:
        if is_kind(kind):
            return plain
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return canonical_type(kind.value_type, path)
    if types.is_decimal(kind):
        if kind.precision > DECIMAL_DIGITS or not 0 <= kind.scale <= kind.precision:
            raise _refused(
                path,
                kind,
                f"a decimal of 1 to {DECIMAL_DIGITS} digits, of which none "
                "to all are after the point, such as pa.decimal128(38, 9)",
            )
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_timestamp(kind):
        if kind.tz is None or kind.unit == "ns":
            raise _refused(path, kind, "pa.timestamp('us', 'UTC')")
        return TIMESTAMP
    if types.is_map(kind):
        key = canonical_type(kind.key_type, f"{path}.key")
        if types.is_map(key):
            raise _refused(
                f"{path}.key", kind.key_type, "a key that is not a map, such as pa.string()"
            )
        return pa.map_(key, canonical_type(kind.item_type, f"{path}.value"))
    if is_list(kind):
        return pa.list_(canonical_type(kind.value_type, f"{path}.element"))
    if types.is_struct(kind):
        return pa.struct(_canonical_fields(list(kind), path))
    for is_kind, way in _WAYS:
        if is_kind(kind):
            raise _refused(path, kind, way)
    way = (
        f"its storage type {kind.storage_type}" if hasattr(kind, "storage_type") else "pa.string()"
    )
    raise _refused(path, kind, way)


def is_list(kind: pa.DataType) -> bool:
    """Return True for each of Arrow's kinds of lists, but not for maps."""
    return any(is_kind(kind) for is_kind in _LISTS)


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path and the type of each Parquet column of a column of this canonical type."""
    if types.is_struct(kind):
        for field in kind:
            yield from leaves(f"{path}.{field.name}", field.type)
    elif types.is_map(kind):
        yield from leaves(f"{path}.key_value.key", kind.key_type)
        yield from leaves(f"{path}.key_value.value", kind.item_type)
    elif types.is_list(kind):
        yield from leaves(f"{path}.list.element", kind.value_type)
    else:
        yield path, kind


def shared_paths(schema: pa.Schema) -> list[str]:
    """Return the paths that several Parquet columns have: ``a.b``, beside a struct ``a`` of ``b``.

    Parquet's writers tell columns apart by their paths, and cannot write these.
    """
    counts = Counter(path for field in schema for path, _ in leaves(field.name, field.type))
    return [path for path, count in counts.items() if count > 1]


def check_paths(schema: pa.Schema, old: pa.Schema | None = None) -> None:
    """Raise InvalidSchema if columns share a path that those of an older schema do not."""
    new = [path for path in shared_paths(schema) if old is None or path not in shared_paths(old)]
    if new:
        raise InvalidSchema(
            f"two columns have the path {new[0]} in Parquet, one by a dot in its name and one by "
            f"being nested, and its writers know columns by their paths: name one of them "
            f"{new[0].replace('.', '_')!r}.",
            column=new[0].partition(".")[0],
        )


def check_names(names: Iterable[str], path: str) -> None:
    """Raise InvalidSchema if a column or a field of a struct has a name that Delta refuses.

    Two names differ by more than their case, since SQL does not see case.
    """
    counts = Counter(name.lower() for name in names)
    for name in names:
        column = path.partition(".")[0] or name
        where = f" in column {path}" if path else ""
        if not 0 < len(name) <= MAX_COLUMN_NAME_LENGTH or not has_utf8(name):
            raise InvalidSchema(
                f"the name of a column has 1 to {MAX_COLUMN_NAME_LENGTH} characters of UTF-8, got "
                f"{shown(name)}{where}.",
                column=column,
            )
        if _FORBIDDEN.search(name):
            raise InvalidSchema(
                f"the column name {name!r}{where} has a character that Delta refuses, one of "
                f"' ,;{{}}()\\n\\t=': use {_FORBIDDEN.sub('_', name)!r}.",
                column=column,
            )
        if counts[name.lower()] > 1:
            raise InvalidSchema(
                f"two columns are named {name!r}{where}, or differ only in case, which SQL does "
                "not see; rename one.",
                column=column,
            )


def _canonical_fields(fields: list[pa.Field], path: str) -> list[pa.Field]:
    if not fields:
        raise InvalidSchema(
            f"column {path} is a struct without fields, which Parquet cannot hold; give it a "
            "field, or use a map.",
            column=path.partition(".")[0],
        )
    check_names([field.name for field in fields], path)
    return [canonical_field(field, f"{path}.{field.name}") for field in fields]


def _count(kind: pa.DataType) -> int:
    """Return the number of types inside of a type."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return sum(map(_count, inner), len(inner))


def _refused(path: str, kind: pa.DataType, way: str) -> InvalidSchema:
    return InvalidSchema(
        f"column {path} of type {kind} has no place in a Delta table that every reader can read; "
        f"use {way}.",
        column=path.partition(".")[0],
    )
