"""Schemas of typed streams, and rows that fit them, for Hypothesis."""

from __future__ import annotations

import string
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import types

_PLAIN = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), pa.timestamp("us", "UTC")),
)
_NAMES = st.text(string.ascii_letters + "_äß.-", min_size=1, max_size=6).map("c{}".format)
_DECIMALS = st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: pa.decimal128(digits, scale))
)
_PLAIN_TYPES = st.sampled_from(_PLAIN) | _DECIMALS


def _fields(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    comments = st.none() | st.text(min_size=1, max_size=5).map(lambda text: {"comment": text})
    field = st.builds(pa.field, _NAMES, kinds, st.booleans(), comments)
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda found: found.name.lower())


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    maps = st.builds(pa.map_, _PLAIN_TYPES, inner)
    return inner.map(pa.list_) | maps | _fields(inner).map(pa.struct)


TYPES = st.recursive(_PLAIN_TYPES, _nested, max_leaves=5)
SCHEMAS = _fields(TYPES).map(pa.schema)
"""Canonical schemas, with nested, required and commented columns."""


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a canonical type that are not null, as a user gives them."""
    if types.is_boolean(kind):
        return st.booleans()
    if types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1) - 1
        return st.integers(-most - 1, most)
    if types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda number: _decimal(number, kind.scale))
    if types.is_string(kind):
        return st.text(max_size=5)
    if types.is_binary(kind):
        return st.binary(max_size=5)
    if types.is_date(kind):
        return st.dates(date(1, 1, 1), date(9999, 12, 31))
    if types.is_timestamp(kind):
        zones = st.sampled_from([timezone.utc, timezone(timedelta(hours=-5))])
        return st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)
    if types.is_map(kind):
        keys = values(kind.key_type)
        return st.dictionaries(keys, st.none() | values(kind.item_type), max_size=3)
    if types.is_list(kind):
        return st.lists(st.none() | values(kind.value_type), max_size=3)
    return rows(list(kind))


def rows(fields: list[pa.Field] | pa.Schema) -> st.SearchStrategy[dict[str, Any]]:
    """Rows that fit: required fields have a value, and others may be null."""
    return st.fixed_dictionaries(
        {
            field.name: values(field.type) if not field.nullable else st.none() | values(field.type)
            for field in fields
        }
    )


def as_read(kind: pa.DataType, value: Any) -> Any:
    """Return a value as Arrow returns it to Python."""
    if value is None:
        return None
    if types.is_map(kind):
        return [
            (as_read(kind.key_type, key), as_read(kind.item_type, item))
            for key, item in value.items()
        ]
    if types.is_list(kind):
        return [as_read(kind.value_type, element) for element in value]
    if types.is_struct(kind):
        return {field.name: as_read(field.type, value[field.name]) for field in kind}
    return value


def _decimal(number: int, scale: int) -> Decimal:
    sign, digits, _ = Decimal(number).as_tuple()
    return Decimal((sign, digits, -scale))
