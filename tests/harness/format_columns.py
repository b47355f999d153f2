"""The columns of typed chunks, from docs/FORMAT.md: for the reader and the writer of the page.

It imports the standard library and pyarrow alone, so that nothing of the package can help it.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

Field = dict[str, Any]
"""A field of ``schemaString``."""
_SYSTEM = ("segment_id", "base_offset", "offset_delta", "routing_key", "timestamp")
_PLAIN = {
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
    "timestamp": pa.timestamp("us", "UTC"),
}
_BYTES = {
    **{"boolean": 1, "byte": 1, "short": 2, "integer": 4, "float": 4, "date": 4},
    **{"long": 8, "double": 8, "timestamp": 8},
}
PACKED = ("byte", "short", "integer", "date", "long", "timestamp")
"""Types whose columns have the encoding DELTA_BINARY_PACKED."""


def typed_columns(schema_string: str) -> list[Field] | None:
    """The columns of the events of a typed stream; None for a raw one."""
    fields: list[Field] = json.loads(schema_string)["fields"]
    names = [field["name"] for field in fields]
    assert names[: len(_SYSTEM)] == [*_SYSTEM], names
    return None if names[len(_SYSTEM) :] == ["event"] else fields[len(_SYSTEM) :]


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a type of Delta's JSON."""
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return pa.decimal128(*map(int, kind[len("decimal(") : -1].split(",")))
        return _PLAIN[kind]
    if kind["type"] == "struct":
        return pa.struct([(f["name"], arrow_type(f["type"])) for f in kind["fields"]])
    if kind["type"] == "map":
        return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    return pa.list_(arrow_type(kind["elementType"]))


def is_older(found: pa.DataType, kind: Any) -> bool:
    """Whether a column of a chunk has a type, or one that lacks fields that structs got later."""
    if isinstance(kind, str):
        return bool(found == arrow_type(kind))
    if kind["type"] == "struct" and pa.types.is_struct(found):
        fields = {field["name"]: field["type"] for field in kind["fields"]}
        return all(one.name in fields and is_older(one.type, fields[one.name]) for one in found)
    if kind["type"] == "map" and pa.types.is_map(found):
        types = (found.key_type, kind["keyType"]), (found.item_type, kind["valueType"])
        return all(is_older(one, other) for one, other in types)
    return pa.types.is_list(found) and is_older(found.value_type, kind["elementType"])


def as_read(value: Any, kind: Any) -> Any:
    """A value of a chunk with the fields that its structs lack, as null, and maps as dicts."""
    if value is None or isinstance(kind, str):
        return value
    if kind["type"] == "struct":
        return {f["name"]: as_read(value.get(f["name"]), f["type"]) for f in kind["fields"]}
    if kind["type"] == "map":
        pairs = value.items() if isinstance(value, dict) else value
        key, item = kind["keyType"], kind["valueType"]
        return {as_read(k, key): as_read(v, item) for k, v in pairs}
    return [as_read(one, kind["elementType"]) for one in value]


def size_of(value: Any, kind: Any) -> int:
    """The bytes of a value, of which the tags and the limits speak."""
    if value is None:
        return 0
    if isinstance(kind, str):
        if kind.startswith("decimal"):
            return 16
        return _BYTES.get(kind) or len(value.encode() if isinstance(value, str) else value)
    if kind["type"] == "struct":
        return sum(size_of(value.get(f["name"]), f["type"]) for f in kind["fields"])
    if kind["type"] == "map":
        key, item = kind["keyType"], kind["valueType"]
        return sum(size_of(k, key) + size_of(v, item) for k, v in value.items())
    return sum(size_of(one, kind["elementType"]) for one in value)


def row_size(row: dict[str, Any], columns: list[Field]) -> int:
    """The bytes of a row."""
    return sum(size_of(row.get(field["name"]), field["type"]) for field in columns)
