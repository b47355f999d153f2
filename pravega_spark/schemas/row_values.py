"""Python values as the columns of a schema want them: checked one by one, never coerced.

``value_check(type)`` returns a function that takes a value that is not None and returns it in the
form that Arrow takes, with its size (``value_sizes``). It raises Misfit for a value that does not
fit: a text where a number is wanted, a naive datetime, a number out of range.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timezone
from decimal import Context, Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import types

from pravega_spark.names import has_utf8
from pravega_spark.schemas.column_casts import (
    PAST_FLOAT32,
    Misfit,
    check_distinct,
    repeated_key,
)
from pravega_spark.schemas.column_types import DECIMAL_DIGITS
from pravega_spark.schemas.value_sizes import DECIMAL_BYTES

Checked = tuple[Any, int]
Check = Callable[[Any], Checked]
_EXACT: Final = Context(prec=2 * DECIMAL_DIGITS)


def as_mapping(row: Any) -> Mapping[str, Any] | None:
    """Return a mapping, a dataclass or a pydantic model as a mapping; None for anything else."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    fields = getattr(type(row), "model_fields", None)
    if isinstance(fields, Mapping):
        return {name: getattr(row, name) for name in fields}
    return None


@lru_cache(maxsize=1_024)
def value_check(kind: pa.DataType) -> Check:
    """Return the check of values of a canonical type that are not null."""
    if types.is_struct(kind):
        return _struct_check(kind)
    if types.is_map(kind):
        return _map_check(kind)
    if types.is_list(kind):
        return _list_check(kind)
    if types.is_integer(kind):
        return _whole_check(kind)
    if types.is_decimal(kind):
        return _decimal_check(kind)
    if types.is_floating(kind):
        return _float_check(kind)
    return _PLAIN[kind]


def _refused(value: Any, kind: object) -> Misfit:
    return Misfit(f"a value of type {type(value).__name__} is not {kind}")


def _plain(value: Any) -> Any:
    """Return the plain value of a member of an enumeration, or of a scalar of numpy."""
    if isinstance(value, Enum):
        return value.value
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


def _boolean(value: Any) -> Checked:
    value = _plain(value)
    if value is not True and value is not False:
        raise _refused(value, "bool")
    return value, 1


def _whole_check(kind: pa.DataType) -> Check:
    width = kind.bit_width // 8
    most = 2 ** (kind.bit_width - 1) - 1
    least = -most - 1

    def check(value: Any) -> Checked:
        if type(value) is not int:
            value = _plain(value)
            if not isinstance(value, int) or isinstance(value, bool):
                raise _refused(value, kind)
        if not least <= value <= most:
            raise Misfit(f"it is out of the range of {kind}, {least} to {most}")
        return value, width

    return check


def _float_check(kind: pa.DataType) -> Check:
    width = kind.bit_width // 8

    def check(value: Any) -> Checked:
        if type(value) is not float:
            given = _plain(value)
            if isinstance(given, bool) or not isinstance(given, (int, float)):
                raise _refused(value, kind)
            value = _exact_float(given, kind)
        if width == 4 and abs(value) >= PAST_FLOAT32 and math.isfinite(value):
            raise Misfit(f"it is out of the range of {kind}")
        return value, width

    return check


def _exact_float(given: float, kind: pa.DataType) -> float:
    try:
        value = float(given)
    except OverflowError:
        raise Misfit(f"it is out of the range of {kind}") from None
    is_narrow = kind.bit_width == 32 and abs(value) < PAST_FLOAT32
    if isinstance(given, int) and (float(np.float32(value)) if is_narrow else value) != given:
        raise Misfit(f"{kind} cannot hold this whole number exactly")
    return value


def _decimal_check(kind: pa.DataType) -> Check:
    unit = Decimal(1).scaleb(-kind.scale)

    def check(value: Any) -> Checked:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
            raise _refused(value, kind)
        try:
            exact = Decimal(value).quantize(unit, context=_EXACT)
        except InvalidOperation:
            raise Misfit(f"it is no number of {kind}") from None
        if exact != value or len(exact.as_tuple().digits) > kind.precision:
            raise Misfit(f"{kind} cannot hold this number exactly")
        return exact, DECIMAL_BYTES

    return check


def _text(value: Any) -> Checked:
    if type(value) is not str:
        value = str(value) if isinstance(value, UUID) else _plain(value)
        if not isinstance(value, str):
            raise _refused(value, "string")
        value = str(value)
    if value.isascii():
        return value, len(value)
    if not has_utf8(value):
        raise Misfit("it has a lone surrogate, and so no UTF-8 form")
    return value, len(value.encode())


def _binary(value: Any) -> Checked:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _refused(value, "binary")
    value = bytes(value)
    return value, len(value)


def _date(value: Any) -> Checked:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _refused(value, "a date")
    return value, 4


def _timestamp(value: Any) -> Checked:
    if not isinstance(value, datetime):
        raise _refused(value, "a timestamp: give a datetime with a time zone")
    if value != value:  # noqa: PLR0124 - pandas' NaT
        raise Misfit("it is no time: give None")
    if value.utcoffset() is None:
        raise Misfit("the datetime has no time zone: add one, such as datetime.timezone.utc")
    if getattr(value, "nanosecond", 0):  # of pandas
        raise Misfit("it has nanoseconds, and a timestamp microseconds: round it")
    if value.year in (datetime.min.year, datetime.max.year):
        try:
            value.astimezone(timezone.utc)
        except OverflowError:
            raise Misfit("it is beyond the years 1 to 9999 in UTC") from None
    return value, 8


def _list_check(kind: pa.DataType) -> Check:
    check_element = value_check(kind.value_type)

    def check(value: Any) -> Checked:
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # of numpy
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise _refused(value, kind)
        elements, size = [], 0
        for given in value:
            element, width = _checked(check_element, given, "element")
            elements.append(element)
            size += width
        return elements, size

    return check


def _map_check(kind: pa.DataType) -> Check:
    check_key, check_item = value_check(kind.key_type), value_check(kind.item_type)
    is_plain = not (types.is_floating(kind.key_type) or types.is_nested(kind.key_type))

    def check_keys(keys: list[Any]) -> None:
        if is_plain and len(set(keys)) < len(keys):
            raise Misfit(repeated_key(next(key for key in keys if keys.count(key) > 1)))
        if not is_plain and len(keys) > 1:
            check_distinct(pa.array(keys, kind.key_type), np.array([len(keys)], np.int32))

    def check(value: Any) -> Checked:
        entries, size = [], 0
        for given_key, given in _pairs(value, kind):
            if given_key is None:
                raise Misfit("None, and the key of a map is required", "key")
            key, key_size = _checked(check_key, given_key, "key")
            item, item_size = _checked(check_item, given, "value")
            entries.append((key, item))
            size += key_size + item_size
        check_keys([key for key, _ in entries])
        return entries, size

    return check


def _pairs(value: Any, kind: pa.DataType) -> Iterable[tuple[Any, Any]]:
    """Return the entries of a mapping, or of a list of pairs, as tables of Arrow give maps."""
    if isinstance(value, Mapping):
        return value.items()
    pairs = value.tolist() if hasattr(value, "dtype") and hasattr(value, "tolist") else value
    if isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        return pairs
    raise _refused(value, f"{kind}: give a dict, or a list of pairs of a key and a value")


def _struct_check(kind: pa.DataType) -> Check:
    checks = {field.name: (value_check(field.type), field.nullable) for field in kind}

    def check(value: Any) -> Checked:
        given = as_mapping(value)
        if given is None:
            raise _refused(value, "a struct: give a dict, a dataclass or a pydantic model")
        if not given.keys() <= checks.keys():
            name = next(iter(given.keys() - checks.keys()))
            raise Misfit(f"the struct has no field {name!r}, only {', '.join(checks)}")
        fields, size = {}, 0
        for name, (check_field, nullable) in checks.items():
            found = given.get(name)
            if found is None and not nullable:
                raise Misfit("null, and the field is required", name)
            fields[name], width = _checked(check_field, found, name)
            size += width
        return fields, size

    return check


def _checked(check: Check, value: Any, name: str) -> Checked:
    if value is None:
        return None, 0
    try:
        return check(value)
    except Misfit as misfit:
        raise misfit.within(name) from None


_PLAIN: Final[dict[pa.DataType, Check]] = {
    pa.bool_(): _boolean,
    pa.string(): _text,
    pa.binary(): _binary,
    pa.date32(): _date,
    pa.timestamp("us", "UTC"): _timestamp,
}
