"""Columns as their schema wants them: the same values in another encoding, or a refusal.

Nothing is coerced. A text is not a number, a time without a zone is not a timestamp, 1.5 is not a
whole number, and 300 is not a byte. Accepted are other encodings of a type (large, view,
dictionary, run-end), whole numbers that the type holds, whole numbers in a decimal or a float that
has room for them exactly, the nearest float of four bytes to one of eight, UUIDs as texts,
timestamps of any zone and unit that are whole microseconds, and nulls of no type.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from pravega_spark.schemas.column_types import is_list
from pravega_spark.schemas.column_views import without_views
from pravega_spark.values.checks import MAX_TIME_US, MIN_TIME_US, shown

_FIRST_DAY: Final = MIN_TIME_US // 86_400_000_000
PAST_FLOAT32: Final = 3.4028235677973366e38
"""The least number whose nearest float of four bytes is infinite."""
_LAST_DAY: Final = MAX_TIME_US // 86_400_000_000
_TEXTS: Final = (types.is_string, types.is_large_string, types.is_string_view)
_BYTES: Final = (
    *(types.is_binary, types.is_large_binary, types.is_binary_view),
    types.is_fixed_size_binary,
)


_RULED: Final = (
    *(types.is_timestamp, types.is_date, types.is_string, types.is_decimal, types.is_map),
)


class Misfit(ValueError):
    """Values do not fit; the text says why, and ``path`` which nested field they are of.

    ``by_type`` is True if no value of this type fits, and False if others would.
    """

    def __init__(self, reason: str, path: str = "", *, by_type: bool = False) -> None:
        super().__init__(reason)
        self.path, self.by_type = path, by_type

    def within(self, name: str) -> Misfit:
        """Return the misfit as one of a field inside of ``name``."""
        path = f"{name}.{self.path}" if self.path else name
        return Misfit(str(self), path, by_type=self.by_type)


def fit_field(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values with the type of a field, none null if that is required; raise Misfit.

    Returns the same object if nothing has to be done.
    """
    if not field.nullable and values.null_count:
        raise Misfit("null, and the column is required")
    return _fit(values, field.type)


def _fit(values: pa.Array, kind: pa.DataType) -> pa.Array:
    found = values.type
    if types.is_null(found):
        return pa.nulls(len(values), kind)
    if types.is_dictionary(found):
        return _fit(_decoded(values), kind)
    if _is_uuid(found) and types.is_string(kind):
        return _uuid_texts(values)
    if types.is_run_end_encoded(found):
        return _fit(pc.run_end_decode(values), kind)
    if found == kind and not _has_rules(kind):
        return values
    if types.is_struct(kind):
        return _fit_struct(values, kind)
    if types.is_map(kind):
        return _fit_map(values, kind)
    if types.is_list(kind):
        return _fit_list(values, kind)
    return _valid(values if found == kind else _cast(values, kind))


def _decoded(values: pa.Array) -> pa.Array:
    """Return the values of a dictionary, also of views, as Polars has them."""
    held = without_views(values.dictionary)
    return pa.DictionaryArray.from_arrays(values.indices, held, safe=False).dictionary_decode()


@lru_cache(maxsize=1_024)
def _has_rules(kind: pa.DataType) -> bool:
    """Return True if not every array of an Arrow type is allowed.

    Arrow itself checks neither texts nor decimals, nor whether the keys of a map differ.
    """
    if any(has_rules(kind) for has_rules in _RULED):
        return True
    fields = [kind.field(number) for number in range(kind.num_fields)]
    is_strict = types.is_struct(kind) and not all(field.nullable for field in fields)
    return is_strict or any(_has_rules(field.type) for field in fields)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return plain values with the type; raise Misfit if one is not the same in it."""
    found = values.type
    if not _is_castable(found, kind):
        raise _other_type(found, kind)
    if types.is_floating(kind):
        return _as_float(values, kind)
    values = without_views(values)
    try:
        if types.is_decimal(kind) and types.is_integer(found):
            wide = pa.decimal256(20 + kind.scale, kind.scale)  # has room for every whole number
            values = values.cast(wide)
        return values.cast(kind)
    except pa.ArrowInvalid as error:
        raise Misfit(str(error)) from None


def _is_uuid(kind: pa.DataType) -> bool:
    return getattr(kind, "extension_name", None) == "arrow.uuid"


def _is_castable(found: pa.DataType, kind: pa.DataType) -> bool:
    """Return True if values of a plain type may be the same values in another type."""
    if types.is_integer(kind):
        return bool(types.is_integer(found))
    if types.is_floating(kind):
        return bool(types.is_floating(found) or types.is_integer(found))
    if types.is_decimal(kind):
        return bool(types.is_decimal(found) or types.is_integer(found))
    if types.is_string(kind):
        return any(is_text(found) for is_text in _TEXTS)
    if types.is_binary(kind):
        return any(is_bytes(found) for is_bytes in _BYTES)
    if types.is_date(kind):
        return bool(types.is_date(found))
    return bool(types.is_timestamp(kind) and types.is_timestamp(found) and found.tz is not None)


def _as_float(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return numbers as floats: the nearest one to a float, and a whole number exactly."""
    if types.is_integer(values.type):
        whole = values.fill_null(0).to_numpy(zero_copy_only=False)
        floats = whole.astype(kind.to_pandas_dtype()).astype(np.float64)
        is_low = floats < float(np.iinfo(whole.dtype).max) + 1  # else the way back would overflow
        if not (is_low & (np.where(is_low, floats, 0).astype(whole.dtype) == whole)).all():
            raise Misfit(f"{kind} cannot hold this whole number exactly")
    elif kind.bit_width < values.type.bit_width:
        numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
        if (np.isfinite(numbers) & (np.abs(numbers) >= PAST_FLOAT32)).any():
            raise Misfit(f"it is out of the range of {kind}")
    return values.cast(kind, safe=False)


def _uuid_texts(values: pa.Array) -> pa.Array:
    """Return UUIDs as the texts that Python has for them."""
    size, raw = len(values), values.storage.cast(pa.binary()).fill_null(bytes(16))
    octets = np.frombuffer(b"".join(raw.to_pylist()), np.uint8)
    digits = np.frombuffer(octets.tobytes().hex().encode(), np.uint8).reshape(size, 32)
    texts = np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)
    found = pa.Array.from_buffers(pa.binary(36), size, [None, pa.py_buffer(texts.tobytes())])
    return pc.if_else(values.is_valid(), found.cast(pa.binary()).cast(pa.string()), None)


def _valid(values: pa.Array) -> pa.Array:
    """Return plain values; raise Misfit if one is not what its type says, for all readers."""
    kind = values.type
    if types.is_decimal(kind) or (types.is_string(kind) and not _is_ascii(values)):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            text, number = "the text is not UTF-8", f"the number has more digits than {kind}"
            raise Misfit(text if types.is_string(kind) else number) from None
    return _in_years(values)


def _is_ascii(texts: pa.Array) -> bool:
    """Return whether all bytes are ASCII: then texts are UTF-8 wherever one ends. Most are so."""
    _, places, data = texts.buffers()
    if not len(texts) or places is None or data is None:
        return False
    offsets = np.frombuffer(places, np.int32, len(texts) + 1, 4 * texts.offset)
    if offsets[0] < 0 or offsets[-1] > data.size or np.any(offsets[1:] < offsets[:-1]):
        return False
    held = np.frombuffer(data, np.int8)[offsets[0] : offsets[-1]]
    return bool(held.min(initial=0) >= 0)


def _in_years(values: pa.Array) -> pa.Array:
    """Return values; raise Misfit for a time outside of the years that all readers can show."""
    if types.is_timestamp(values.type):
        numbers, first, last = values.view(pa.int64()), MIN_TIME_US, MAX_TIME_US
    elif types.is_date(values.type):
        numbers, first, last = values.view(pa.int32()), _FIRST_DAY, _LAST_DAY
    else:
        return values
    extremes = pc.min_max(numbers)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    if low is not None and (low < first or high > last):
        raise Misfit("it is beyond the years 1 to 9999")
    return values


def _fit_struct(values: pa.Array, kind: pa.DataType) -> pa.Array:
    found = values.type
    if not types.is_struct(found):
        raise _other_type(found, kind)
    names = [field.name for field in found]
    for name in names:
        if kind.get_field_index(name) < 0 or names.count(name) > 1:
            known = ", ".join(field.name for field in kind)
            raise Misfit(f"the fields of the struct are {known}, each once", name, by_type=True)
    given = dict(zip(names, values.flatten(), strict=True))  # null where the struct is
    children = []
    for field in kind:
        child = given.get(field.name)
        if child is None and not field.nullable:
            raise Misfit("the struct lacks this required field", field.name, by_type=True)
        if child is None:
            children.append(pa.nulls(len(values), field.type))
            continue
        if not field.nullable and child.null_count > values.null_count:
            raise Misfit("null, and the field is required", field.name)
        children.append(_fit_inner(child, field.type, field.name))
    if found == kind:
        return values
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=_mask(values))


def _fit_list(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not is_list(values.type):
        raise _other_type(values.type, kind)
    inner = values.flatten()  # without what is behind null lists
    fitted = _fit_inner(inner, kind.value_type, "element")
    if values.type == kind:
        return values
    return pa.ListArray.from_arrays(_offsets(values), fitted, kind, mask=_mask(values))


def _fit_map(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a map, also from a list of structs of ``key`` and ``value``, as Polars has them."""
    found, lists = values.type, values
    if types.is_map(found):
        entry = (pa.field("key", found.key_type, False), pa.field("value", found.item_type))
        lists = values.cast(pa.list_(pa.struct(entry)))
    inner = lists.type.value_type if is_list(lists.type) else None
    if inner is None or not types.is_struct(inner) or [f.name for f in inner] != ["key", "value"]:
        raise _other_type(found, kind)
    keys, items = lists.flatten().flatten()
    if keys.null_count:
        raise Misfit("null, and the key of a map is required", "key")
    keys = _fit_inner(keys, kind.key_type, "key")
    items = _fit_inner(items, kind.item_type, "value")
    offsets = _offsets(lists)
    check_distinct(keys, np.diff(offsets.to_numpy()))
    if found == kind:
        return values
    return pa.MapArray.from_arrays(offsets, keys, items, kind, mask=_mask(values))


def check_distinct(keys: pa.Array, lengths: NDArray[np.int32]) -> None:
    """Raise Misfit if a map has one key twice; ``lengths`` counts the keys of each map.

    As in Spark 0.0 and -0.0 are one key, and all NaN are, also inside of a key.
    """
    if not len(lengths) or lengths.max() < 2:
        return
    if keys.type.num_fields:  # Arrow has no hash of nested values
        seen = dict[Any, int]()
        found = (seen.setdefault(_form(key), len(seen)) for key in keys.to_pylist())
        codes = np.fromiter(found, np.int64, len(keys))
    else:
        plain = keys
        if types.is_floating(keys.type):
            zero = pa.scalar(0.0, keys.type)
            plain = pc.if_else(pc.is_nan(keys), pa.scalar(math.nan, keys.type), pc.add(keys, zero))
        codes = plain.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = np.repeat(np.arange(len(lengths)), lengths) * (codes.max() + 1) + codes
    if pc.count_distinct(pa.array(pairs)).as_py() < len(pairs):
        values, counts = np.unique(pairs, return_counts=True)
        again = int(np.flatnonzero(pairs == values[counts > 1][0])[0])
        raise Misfit(repeated_key(keys[again]))


def _form(key: Any) -> Any:
    """Return a nested key in a form that can be hashed, in which equal keys are equal."""
    if isinstance(key, dict):
        return tuple(_form(value) for value in key.values())
    if isinstance(key, (list, tuple)):
        return tuple(map(_form, key))
    if isinstance(key, float):
        return key + 0.0 if key == key else "NaN"  # noqa: PLR0124
    return key


def repeated_key(key: object) -> str:
    """Return why a map with a key twice is refused."""
    key = key.as_py() if isinstance(key, pa.Scalar) else key
    return f"the map has the key {shown(key)} twice, and readers would keep one of its values"


def _fit_inner(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return _fit(values, kind)
    except Misfit as misfit:
        raise misfit.within(name) from None


def _offsets(lists: pa.Array) -> pa.Array:
    """Return where each list begins in the flattened elements, and where the last one ends."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
    if ends[-1] > np.iinfo(np.int32).max:
        raise Misfit(f"{ends[-1]} elements are more than an array of Arrow holds")
    return pa.array(ends.astype(np.int32))


def _mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None


def _other_type(found: pa.DataType, kind: pa.DataType) -> Misfit:
    hint = ""
    if types.is_floating(found) and types.is_integer(kind):
        hint = " (pandas holds whole numbers with gaps as floats, unless their dtype is Int64)"
    elif types.is_timestamp(found) and types.is_timestamp(kind):
        hint = " (its times lack a time zone)"
    return Misfit(f"{found} is not {kind}{hint}", by_type=True)
