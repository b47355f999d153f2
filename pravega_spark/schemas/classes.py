"""Schemas of dataclasses and of pydantic models, from the types of their fields.

A field is required unless its type allows None. ``Annotated[int, pyarrow.int32()]`` says another
type than the default, which is the widest. A comment is the ``description`` of a field of
pydantic, and the entry ``comment`` of the metadata of a dataclass's field.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pyarrow as pa

from pravega_spark.errors import InvalidSchema
from pravega_spark.schemas.column_types import MAX_COLUMN_DEPTH, TIMESTAMP
from pravega_spark.values.checks import shown

_PLAIN: Final[dict[Any, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    bytearray: pa.binary(),
    date: pa.date32(),
    datetime: TIMESTAMP,
    UUID: pa.string(),
    time: pa.time64("us"),  # refused, with the way on
    timedelta: pa.duration("us"),  # likewise
}
_LISTS: Final = (list, tuple, Sequence)
_MAPS: Final = (dict, Mapping)


def is_row_class(given: Any) -> bool:
    """Return True for a dataclass, and for a model class of pydantic."""
    return isinstance(given, type) and (
        dataclasses.is_dataclass(given) or isinstance(getattr(given, "model_fields", None), Mapping)
    )


def class_schema(given: type) -> pa.Schema:
    """Return the Arrow schema of the rows of a class; raise InvalidSchema."""
    return pa.schema(_fields(given, ()))


def _fields(given: type, path: tuple[str, ...]) -> list[pa.Field]:
    if len(path) > MAX_COLUMN_DEPTH:
        raise InvalidSchema(
            f"column {path[0]} contains the class {given.__name__} in itself, and columns cannot "
            "nest without end; keep the inner part as a JSON text in a str field.",
            column=path[0],
        )
    found = []
    for name, hint, comment, extras in _members(given):
        kind, nullable = _type(hint, (*path, name), extras)
        found.append(pa.field(name, kind, nullable, {"comment": comment} if comment else None))
    return found


def _members(given: type) -> Iterator[tuple[str, Any, str | None, tuple[Any, ...]]]:
    """Return the name of each field, its type, its comment, and what is annotated besides."""
    model = getattr(given, "model_fields", None)
    if isinstance(model, Mapping):  # of pydantic, which has found the types
        for name, info in model.items():
            yield name, info.annotation, info.description, tuple(info.metadata)
        return
    try:
        hints = get_type_hints(given, include_extras=True)
    except NameError as error:
        raise InvalidSchema(
            f"the types of class {given.__name__} cannot be found: {error}; define the class where "
            "its types are imported, at the top of a module."
        ) from None
    for member in dataclasses.fields(given):
        yield member.name, hints[member.name], member.metadata.get("comment"), ()


def _type(
    hint: Any, path: tuple[str, ...], extras: tuple[Any, ...] = ()
) -> tuple[pa.DataType, bool]:
    """Return the Arrow type of an annotation, and whether it allows None."""
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        extras = (*rest, *extras)
    options, nullable = [hint], False
    if get_origin(hint) in {Union, types.UnionType}:
        options = [option for option in get_args(hint) if option is not type(None)]
        nullable = len(options) < len(get_args(hint))
    given = next((extra for extra in extras if isinstance(extra, pa.DataType)), None)
    if given is not None:
        return given, nullable
    if len(options) != 1:
        raise _refused(path, hint, "one type, or a class with a field for each alternative")
    if get_origin(options[0]) is Annotated:
        kind, inner = _type(options[0], path)
        return kind, nullable or inner
    return _plain_type(options[0], extras, path), nullable


def _plain_type(hint: Any, extras: tuple[Any, ...], path: tuple[str, ...]) -> pa.DataType:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _type_of_values(hint, arguments, path)
    if origin in _LISTS and arguments:
        if origin is tuple and arguments[1:] != (...,):
            raise _refused(path, hint, "list[...], whose elements have one type")
        return pa.list_(_type(arguments[0], (*path, "element"))[0])
    if origin in _MAPS and arguments:
        key, nullable = _type(arguments[0], (*path, "key"))
        if nullable:
            raise _refused(path, hint, "a key that is never None")
        return pa.map_(key, _type(arguments[1], (*path, "value"))[0])
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is Decimal:
        return _decimal(hint, extras, path)
    if getattr(hint, "__name__", "") in {"AwareDatetime", "PastDatetime", "FutureDatetime"}:
        return TIMESTAMP  # of pydantic
    if is_row_class(hint):
        return pa.struct(_fields(hint, path))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _type_of_values(hint, tuple(member.value for member in hint), path)
    for base in (int, float, str, bytes):  # NewType's and others' own classes
        if isinstance(hint, type) and issubclass(hint, base):
            return _PLAIN[base]
    inner = getattr(hint, "__supertype__", None)
    if inner is not None:
        return _type(inner, path)[0]
    raise _refused(path, hint, "a type such as int, list[str], or Annotated[..., pyarrow.int32()]")


def _decimal(hint: Any, extras: tuple[Any, ...], path: tuple[str, ...]) -> pa.DataType:
    """Return the type of a Decimal whose digits pydantic's constraints say."""
    digits = next((n for n in (getattr(e, "max_digits", None) for e in extras) if n), None)
    places = [getattr(extra, "decimal_places", None) for extra in extras]
    scale = next((number for number in places if number is not None), None)
    if digits is None or scale is None:
        raise _refused(
            path, hint, "Annotated[Decimal, pyarrow.decimal128(38, 9)], which says its digits"
        )
    return pa.decimal128(digits, scale)


def _type_of_values(hint: Any, values: tuple[Any, ...], path: tuple[str, ...]) -> pa.DataType:
    """Return the type of the members of an enumeration or a Literal."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1 or (kind := kinds.pop()) not in _PLAIN:
        raise _refused(path, hint, "values of one type")
    return _PLAIN[kind]


def _refused(path: tuple[str, ...], hint: Any, way: str) -> InvalidSchema:
    text = hint.__name__ if isinstance(hint, type) else shown(hint)
    return InvalidSchema(
        f"column {'.'.join(path)} of type {text} has no type in Delta; use {way}.", column=path[0]
    )
