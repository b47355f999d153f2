"""Schemas as Delta writes them: the JSON of a struct, which is Spark's, too.

In the JSON of a stream every field is nullable, since Delta enforces that only with a table
feature. A column that must not be null has ``pravega.required`` in its metadata: our writers
check it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.column_types import TIMESTAMP
from pravega_spark.values.checks import shown

REQUIRED: Final = "pravega.required"
"""The metadata of a field that must not be null."""
_COMMENT: Final = "comment"
_PLAIN: Final = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_NAMES: Final = {kind: name for name, kind in _PLAIN.items()}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,3}),(-?\d{1,3})\)")
_WAYS: Final = {
    "timestamp_ntz": "timestamp, after telling its time zone with to_utc_timestamp",
    "variant": "string, with to_json",
    "void": "the type of its values, with a cast",
}
_OTHER_WAY: Final = "string or long"


def fields_to_json(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the fields of a canonical schema as JSON values of Delta."""
    return [_field_to_json(field) for field in schema]


def schema_from_json(struct: Mapping[str, Any]) -> pa.Schema:
    """Return the Arrow schema of a struct in Delta's or Spark's JSON; raise InvalidSchema.

    A field is nullable unless its JSON says that it is not, or that it is required.
    """
    return pa.schema(_fields(struct, ""))


def delta_type(kind: pa.DataType) -> str | dict[str, Any]:
    """Return a canonical type as JSON values of Delta."""
    if types.is_struct(kind):
        return {"type": "struct", "fields": [_field_to_json(field) for field in kind]}
    if types.is_map(kind):
        return {
            "type": "map",
            "keyType": delta_type(kind.key_type),
            "valueType": delta_type(kind.item_type),
            "valueContainsNull": True,
        }
    if types.is_list(kind):
        return {"type": "array", "elementType": delta_type(kind.value_type), "containsNull": True}
    if types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES[kind]


def _field_to_json(field: pa.Field) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    if field.metadata:
        metadata[_COMMENT] = field.metadata[b"comment"].decode()
    if not field.nullable:
        metadata[REQUIRED] = True
    kind = delta_type(field.type)
    return {"name": field.name, "type": kind, "nullable": True, "metadata": metadata}


def _fields(struct: Mapping[str, Any], path: str) -> list[pa.Field]:
    fields = struct.get("fields")
    if struct.get("type") != "struct" or not isinstance(fields, list):
        raise InvalidSchema(
            f"this is not the JSON of a schema of Delta or Spark{_of(path)}: {shown(struct)}; it "
            'has the form {"type": "struct", "fields": [...]}.',
            column=path.partition(".")[0] or None,
        )
    return [_field_from_json(field, path) for field in fields]


def _field_from_json(field: Any, path: str) -> pa.Field:
    if not isinstance(field, Mapping) or not isinstance(field.get("name"), str):
        raise InvalidSchema(f"this is not a field of a schema{_of(path)}: {shown(field)}.")
    name = field["name"]
    metadata = field.get("metadata") or {}
    is_nullable = field.get("nullable", True) is True and metadata.get(REQUIRED) is not True
    comment = metadata.get(_COMMENT)
    kind = arrow_type(field.get("type"), f"{path}.{name}" if path else name)
    return pa.field(name, kind, is_nullable, {_COMMENT: comment} if comment else None)


def arrow_type(kind: Any, path: str) -> pa.DataType:
    """Return the Arrow type of a type in Delta's JSON; raise InvalidSchema for one without."""
    if isinstance(kind, str):
        if kind in _PLAIN:
            return _PLAIN[kind]
        decimal = _DECIMAL.fullmatch(kind)
        if decimal:
            try:
                return pa.decimal128(int(decimal[1]), int(decimal[2]))
            except ValueError:  # such as ArrowInvalid
                return pa.decimal256(76, int(decimal[2]))  # refused, with the way on
        raise InvalidSchema(
            f"column {path} of type {kind} has no place in a Delta table that every reader can "
            f"read; use {_WAYS.get(kind, _OTHER_WAY)}.",
            column=path.partition(".")[0],
        )
    inner = kind.get("type") if isinstance(kind, Mapping) else None
    if inner == "struct":
        return pa.struct(_fields(kind, path))
    if inner == "array":
        return pa.list_(arrow_type(kind.get("elementType"), f"{path}.element"))
    if inner == "map":
        key = arrow_type(kind.get("keyType"), f"{path}.key")
        return pa.map_(key, arrow_type(kind.get("valueType"), f"{path}.value"))
    if inner == "udt":
        return arrow_type(kind.get("sqlType"), path)
    raise InvalidSchema(
        f"column {path} has a type that Delta does not have: {shown(kind)}.",
        column=path.partition(".")[0],
    )


def _of(path: str) -> str:
    return f" in column {path}" if path else ""
