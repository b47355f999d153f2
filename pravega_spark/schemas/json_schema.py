"""Schemas of rows from a JSON Schema: of an object with properties."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.column_types import MAX_COLUMN_DEPTH, TIMESTAMP
from pravega_spark.values.checks import shown

_FORMATS: Final = {
    "date-time": TIMESTAMP,
    "date": pa.date32(),
    "time": pa.time64("us"),  # refused, with the way on
    "duration": pa.duration("us"),  # likewise
    "int32": pa.int32(),  # of OpenAPI, as the next ones
    "float": pa.float32(),
    "byte": pa.binary(),
    "binary": pa.binary(),
}
_PLAIN: Final = {
    "boolean": (pa.bool_(), ()),
    "integer": (pa.int64(), ("int32",)),
    "number": (pa.float64(), ("float",)),
    "string": (pa.string(), ("date-time", "date", "time", "duration", "byte", "binary")),
}
_VALUE_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


class JsonSchemaTypes:
    """Turns one JSON Schema document into Arrow types; follows references inside of it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def schema(self) -> pa.Schema:
        """Return the columns; raise InvalidSchema.

        A property is required if ``required`` names it and its type does not allow null. Its
        ``description`` is the comment.
        """
        root, _ = self._resolved(self._document, ())
        properties = root.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            raise InvalidSchema(
                f"the JSON Schema {shown(self._document)} does not describe an object with "
                "properties; the properties are the columns."
            )
        return pa.schema(self._fields(root, ()))

    def _fields(self, node: Mapping[str, Any], path: tuple[str, ...]) -> list[pa.Field]:
        required = node.get("required", ())
        found = []
        for name, given in node["properties"].items():
            kind, nullable = self._type(given, (*path, name))
            comment = given.get("description") if isinstance(given, Mapping) else None
            metadata = {"comment": comment} if isinstance(comment, str) and comment else None
            found.append(pa.field(name, kind, nullable or name not in required, metadata))
        return found

    def _type(self, given: Any, path: tuple[str, ...]) -> tuple[pa.DataType, bool]:
        """Return the type of a subschema, and whether it allows null."""
        node, nullable = self._resolved(given, path)
        kinds = node.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        if not kinds:
            kinds = self._kinds_of_values(node)
        if "null" in kinds:
            nullable = True
            kinds.remove("null")
        if set(kinds) == {"integer", "number"}:
            kinds = ["number"]
        if len(kinds) != 1:
            way = "one type" if kinds else "a `type`"
            raise _refused(path, given, f"{way}, such as string for a text of JSON")
        return self._plain_type(kinds[0], node, path), nullable

    def _plain_type(self, kind: str, node: Mapping[str, Any], path: tuple[str, ...]) -> pa.DataType:
        if kind == "object":
            return self._object(node, path)
        if kind == "array":
            if not isinstance(node.get("items"), Mapping):
                raise _refused(path, node, "`items` with one schema for all elements")
            return pa.list_(self._type(node["items"], (*path, "element"))[0])
        if kind not in _PLAIN:
            raise _refused(path, node, "a type of JSON Schema")
        plain, formats = _PLAIN[kind]
        if kind == "string" and node.get("contentEncoding") == "base64":
            return pa.binary()
        name = node.get("format")
        return _FORMATS[name] if name in formats else plain

    def _object(self, node: Mapping[str, Any], path: tuple[str, ...]) -> pa.DataType:
        if node.get("properties"):
            return pa.struct(self._fields(node, path))
        values = node.get("additionalProperties")
        if not isinstance(values, Mapping):
            raise _refused(path, node, "`properties`, or `additionalProperties` with a schema")
        return pa.map_(pa.string(), self._type(values, (*path, "value"))[0])

    def _kinds_of_values(self, node: Mapping[str, Any]) -> list[str]:
        """Return the types of ``enum`` or ``const``, and of an object or an array without type."""
        values = node.get("enum", [node["const"]] if "const" in node else [])
        found = {"null" if value is None else _VALUE_TYPES.get(type(value), "") for value in values}
        if not found and "properties" in node:
            return ["object"]
        return sorted(found)

    def _resolved(self, given: Any, path: tuple[str, ...]) -> tuple[Mapping[str, Any], bool]:
        """Return a subschema without references and choices, and whether a choice is null."""
        nullable = False
        for _ in range(MAX_COLUMN_DEPTH - min(len(path), MAX_COLUMN_DEPTH)):
            if not isinstance(given, Mapping):
                raise _refused(path, given, "a schema with a `type`")
            choices = given.get("anyOf") or given.get("oneOf") or given.get("allOf")
            if "$ref" in given:
                given = self._referred(given["$ref"], path)
            elif choices:
                others = [choice for choice in choices if choice != {"type": "null"}]
                nullable = nullable or len(others) < len(choices)
                if len(others) != 1:
                    raise _refused(path, given, "one type, or an object with all alternatives")
                given = others[0]
            else:
                return given, nullable
        raise _refused(path, given, "a schema that does not contain itself")

    def _referred(self, reference: Any, path: tuple[str, ...]) -> Any:
        node: Any = self._document
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise _refused(path, reference, "a reference inside of the document: #/$defs/...")
        for part in filter(None, reference[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise _refused(path, reference, "a reference that leads to a schema")
            node = node[name]
        return node


def read_document(given: Mapping[str, Any] | str | os.PathLike[str]) -> Mapping[str, Any]:
    """Return a parsed JSON Schema, or that of a file; raise InvalidSchema."""
    if isinstance(given, Mapping):
        return given
    try:
        with open(given, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidSchema(
            f"no JSON Schema can be read from {shown(given)}: {error}; give a path, or the parsed "
            "schema."
        ) from None
    if not isinstance(found, Mapping):
        raise InvalidSchema(f"the file {shown(given)} holds {shown(found)}, not a JSON object.")
    return found


def _refused(path: tuple[str, ...], given: Any, way: str) -> InvalidSchema:
    where = f"column {'.'.join(path)}" if path else "the root"
    return InvalidSchema(
        f"{where} of the JSON Schema has no type in Delta: {shown(given)}; use {way}.",
        column=path[0] if path else None,
    )
