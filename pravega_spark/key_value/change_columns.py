"""Events of a change log as columns: all changes of a batch are decoded at once.

The lengths before the parts of the keys say where everything begins. A batch with a long key is
decoded one by one, with the codec.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import (
    column,
    constant,
    mask,
    offsets_of,
    ready,
)
from pravega_spark.key_value.change_codec import PUT, REMOVE, decode_change
from pravega_spark.key_value.folded_rows import ENTRY_SCHEMA

_SHORT: Final = 0x80
_LEAST: Final = 3
"""Bytes of a change without a key: the operation and two lengths."""
_LONG: Final = 1_024
"""Parts that are longer than that on average are copied one by one."""
_TOGETHER: Final = 8_192
"""Otherwise so many are copied together, with the places of all of their bytes in memory."""


def entries_of_events(
    segment_id: int, events: pa.RecordBatch, times_us: NDArray[np.int64] | None = None
) -> pa.Table:
    """Return the changes of a segment's events (``offset``, ``timestamp``, ``event``) as entries.

    ``times_us`` stand for the timestamps if they are given. Raises CorruptChunk for an event that
    is no change.
    """
    ready()
    payloads = events.column("event")
    if times_us is None:
        times = events.column("timestamp")
    else:
        times = column(times_us, pa.timestamp("us", "UTC"))
    parts = _columns(payloads) or _one_by_one(payloads)
    place = constant(segment_id, pa.int64(), len(payloads)), events.column("offset")
    return pa.Table.from_arrays([*parts, times, *place], schema=ENTRY_SCHEMA)


def _columns(payloads: pa.Array) -> list[pa.Array] | None:
    """Return keys, secondary keys and values; None if one by one is needed, or tells what is wrong.

    Only lengths below 128 are read here, which take one byte.
    """
    if not len(payloads):
        return None
    ends = offsets_of(payloads)
    data = np.frombuffer(payloads.buffers()[2] or b"", np.uint8)
    starts, sizes = ends[:-1], np.diff(ends)
    if sizes.min() < _LEAST:
        return None
    operation, first = data[starts], data[starts + 1].astype(np.int64)
    if first.max() >= _SHORT or (first + _LEAST > sizes).any():
        return None
    second = data[starts + 2 + first].astype(np.int64)
    heads = _LEAST + first + second
    if second.max() >= _SHORT or (heads > sizes).any():
        return None
    is_put, is_removal = operation == PUT, operation == REMOVE
    if not (is_put | (is_removal & (heads == sizes))).all():
        return None
    keys = _cut_out(data, starts + 2, first)
    secondary = _cut_out(data, starts + _LEAST + first, second)
    values = _cut_out(data, starts + heads, sizes - heads)
    if is_removal.any():
        values = pc.if_else(mask(is_put), values, pa.scalar(None, pa.binary()))
    return [keys, secondary, values]


def _cut_out(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> pa.Array:
    """Return the parts of the data that begin somewhere and have some sizes."""
    ends = np.cumsum(sizes)
    found = np.empty(int(ends[-1]), np.uint8)
    if len(found) > _LONG * len(sizes):
        befores = ends - sizes
        for start, before, end in zip(
            starts.tolist(), befores.tolist(), ends.tolist(), strict=True
        ):
            found[before:end] = data[start : start + end - before]
    else:
        for first in range(0, len(sizes), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            before, end = int(ends[some][0] - sizes[some][0]), int(ends[some][-1])
            shifts = np.repeat(starts[some] - (ends[some] - sizes[some]), sizes[some])
            found[before:end] = data[shifts + np.arange(before, end)]
    offsets = np.concatenate([np.zeros(1, np.int32), ends.astype(np.int32)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(found)]
    return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


def _one_by_one(payloads: pa.Array) -> list[pa.Array]:
    """Return what :func:`_cut_out` does; raise CorruptChunk."""
    changes = [decode_change(payload) for payload in payloads.to_pylist()]
    columns = (
        [key.primary for key, _ in changes],
        [key.secondary for key, _ in changes],
        [value for _, value in changes],
    )
    return [pa.array(part, pa.binary()) for part in columns]
