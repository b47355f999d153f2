"""Schemas of rows from an Avro schema: of a record. ``fastavro`` checks it and expands names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.column_types import DECIMAL_DIGITS, MAX_COLUMN_DEPTH, TIMESTAMP
from pravega_spark.values.checks import shown
from pravega_spark.values.package import install_extra

_PLAIN: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
    "null": pa.null(),  # refused, with the way on
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "timestamp-millis": TIMESTAMP,
    "timestamp-micros": TIMESTAMP,
    "uuid": pa.string(),
    # Refused, with the way on:
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "duration": pa.duration("ms"),
}


def avro_schema(given: Mapping[str, Any] | str | os.PathLike[str]) -> pa.Schema:
    """Return the columns of a record, from its parsed schema or the path of an ``.avsc`` file.

    Raises InvalidSchema. A field is required unless its type is a union with null; its ``doc`` is
    the comment. Named types may be in files beside the one of the path, as ``fastavro`` finds them.
    """
    try:
        from fastavro import schema as fastavro_schema
        from fastavro.repository.base import SchemaRepositoryError
    except ModuleNotFoundError as error:
        raise InvalidSchema(
            f"Avro schemas need the package fastavro ({error}): {install_extra('avro')}."
        ) from None
    try:
        if isinstance(given, Mapping):
            parsed = fastavro_schema.parse_schema(dict(given))
        else:
            parsed = fastavro_schema.load_schema(os.fspath(given))
        expanded: Any = fastavro_schema.expand_schema(parsed)
    except (
        fastavro_schema.SchemaParseException,
        fastavro_schema.UnknownType,
        SchemaRepositoryError,
        *(OSError, KeyError, TypeError, ValueError, RecursionError),
    ) as error:
        raise InvalidSchema(
            f"this is not a valid Avro schema: {shown(given)}: {type(error).__name__}: {error}."
        ) from None
    is_record = isinstance(expanded, Mapping) and expanded.get("type") == "record"
    if not is_record or not expanded["fields"]:
        raise InvalidSchema(
            f"the Avro schema {shown(given)} is not a record with fields; the fields are the "
            "columns."
        )
    return pa.schema(_fields(expanded, ()))


def _fields(record: Mapping[str, Any], path: tuple[str, ...]) -> list[pa.Field]:
    found = []
    for field in record["fields"]:
        kind, nullable = _type(field["type"], (*path, field["name"]))
        comment = field.get("doc")
        metadata = {"comment": comment} if comment else None
        found.append(pa.field(field["name"], kind, nullable, metadata))
    return found


def _type(given: Any, path: tuple[str, ...]) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of an Avro type, and whether it is a union with null."""
    if len(path) > MAX_COLUMN_DEPTH:
        raise _refused(path, given, "a record that does not contain itself")
    if isinstance(given, list):
        options = [option for option in given if option not in ("null", {"type": "null"})]
        if len(options) != 1:
            raise _refused(path, given, "a record with a nullable field for each alternative")
        return _type(options[0], path)[0], len(options) < len(given)
    if not isinstance(given, Mapping):
        if given not in _PLAIN:  # a name that expanding left: the record itself
            raise _refused(path, given, "a record that does not contain itself")
        return _PLAIN[given], given == "null"
    logical, kind = given.get("logicalType"), given["type"]
    if logical == "decimal":
        precision, scale = given["precision"], given.get("scale", 0)
        if not 0 < precision <= DECIMAL_DIGITS:
            raise _refused(path, given, f"a decimal of 1 to {DECIMAL_DIGITS} digits")
        return pa.decimal128(precision, scale), False
    if logical in _LOGICAL:
        return _LOGICAL[logical], False
    if kind == "record":
        return pa.struct(_fields(given, path)), False
    if kind == "array":
        return pa.list_(_type(given["items"], (*path, "element"))[0]), False
    if kind == "map":
        return pa.map_(pa.string(), _type(given["values"], (*path, "value"))[0]), False
    return _PLAIN[kind] if isinstance(kind, str) and kind in _PLAIN else _type(kind, path)[0], False


def _refused(path: tuple[str, ...], given: Any, way: str) -> InvalidSchema:
    return InvalidSchema(
        f"column {'.'.join(path[:MAX_COLUMN_DEPTH])} of the Avro schema has no type in Delta: "
        f"{shown(given)}; use {way}.",
        column=path[0],
    )
