"""The size of an event of columns: the sum of the sizes of its values, in bytes.

A value of fixed width has its width (a boolean 1, a decimal 16), a text or bytes their length in
UTF-8, a struct, an array or a map the sum of what is in it, and a null has none. So an event has
the same size before and after columns are added, and in any chunk.

``to_numpy`` is not used here: it imports pandas, which a reader can do without.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

DECIMAL_BYTES: Final = 16
Sizes = NDArray[np.int64]


def event_sizes(table: pa.Table | pa.RecordBatch) -> Sizes:
    """Return the size of each row of columns of canonical types, without a Python object a row."""
    total, width = np.zeros(table.num_rows, np.int64), 0
    for values in table.columns:
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        sizes = [value_sizes(chunk) for chunk in chunks]
        if len(sizes) == 1 and isinstance(sizes[0], int):
            width += sizes[0]  # one sum for all such columns
            continue
        start = 0
        for chunk, found in zip(chunks, sizes, strict=True):
            total[start : start + len(chunk)] += found
            start += len(chunk)
    total += width
    return total


def width_of(kind: pa.DataType) -> int | None:
    """Return the size of each value of a type that is not null; None if it depends on the value."""
    if types.is_boolean(kind):
        return 1
    if types.is_decimal(kind):
        return DECIMAL_BYTES
    return kind.bit_width // 8 if types.is_primitive(kind) else None


def value_sizes(values: pa.Array) -> Sizes | int:
    """Return the size of each value; or one number, if all have that."""
    kind = values.type
    if values.null_count == len(values):
        return 0
    width = width_of(kind)
    if width is not None:
        return width if not values.null_count else width * _is_valid(values)
    if types.is_struct(kind):
        total = np.zeros(len(values), np.int64)
        for child in values.flatten():  # null where the struct is
            total += value_sizes(child)
        return total
    if types.is_map(kind):
        first, last = _bounds(values)
        inner = _spread(value_sizes(_part(values.keys, first, last)), last - first)
        inner = inner + value_sizes(_part(values.items, first, last))
        return _by_list(values, inner)
    if types.is_list(kind):
        first, last = _bounds(values)
        return _by_list(
            values, _spread(value_sizes(_part(values.values, first, last)), last - first)
        )
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    lengths = np.diff(offsets).astype(np.int64)
    return np.asarray(lengths * _is_valid(values), np.int64) if values.null_count else lengths


def _by_list(values: pa.Array, inner: Sizes) -> Sizes:
    """Return the sum of the sizes of the elements of each list."""
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(inner)))
    offsets = np.from_dlpack(values.offsets).astype(np.int64)
    sizes = ends[offsets[1:] - offsets[0]] - ends[offsets[:-1] - offsets[0]]
    return np.asarray(sizes * _is_valid(values) if values.null_count else sizes, np.int64)


def _bounds(values: pa.Array) -> tuple[int, int]:
    offsets = values.offsets
    return offsets[0].as_py(), offsets[-1].as_py()


def _part(inner: pa.Array, first: int, last: int) -> pa.Array:
    return inner.slice(first, last - first)


def _spread(sizes: Sizes | int, count: int) -> Sizes:
    return np.full(count, sizes, np.int64) if isinstance(sizes, int) else sizes


def _is_valid(values: pa.Array) -> Sizes:
    return np.from_dlpack(values.is_valid().cast(pa.int8())).astype(np.int64)
