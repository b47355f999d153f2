"""Converts between numpy and Arrow without ``pa.array``, ``pa.scalar`` and ``to_numpy``.

The first call of any of those imports pandas if it is installed, which costs a fifth of a second
and 40 MB in every Spark worker and every process that only reads.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_COMPUTE = "pyarrow._compute"
"""The module that computes, which Python imports at the first computation."""


class _FirstUse:
    """Arrow's first conversion of Python values; no process forks while it runs.

    The first conversion sets up state that later ones share. A child that is forked in between
    would inherit half of that state, and its own first conversion would wait for a thread that it
    does not have.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._done = self._has_computed = False
        if hasattr(os, "register_at_fork"):
            release = self._lock.release
            os.register_at_fork(
                before=self._before_fork, after_in_parent=release, after_in_child=release
            )

    def __call__(self) -> None:
        if self._done:
            return
        with self._lock:
            pa.array([None], pa.string())
            self._done = True

    def _before_fork(self) -> None:
        """End what the first computation sets up, too, which another thread may have begun.

        Arrow sets it up under locks of its own, outside of Python's, so the call here waits for
        that thread. The child's first ``dictionary_encode``, say, would do so forever. So would its
        first array, if that thread was amid the first allocation.
        """
        self._lock.acquire()
        pa.nulls(1, pa.string())
        if not self._has_computed and _COMPUTE in sys.modules:
            numbers = column(np.zeros(1, np.int64), pa.int64())
            numbers.dictionary_encode().indices.take(numbers).cast(pa.int64())
            self._has_computed = True


ready = _FirstUse()
"""Call this before ``pa.array`` and ``from_pylist``; it costs as much as their first call, once."""


def numbers(array: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """Return numbers without nulls as a numpy view; several chunks are joined in a copy."""
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    if len(chunks) == 1:
        return np.from_dlpack(chunks[0])
    if not chunks:
        return np.empty(0, array.type.to_pandas_dtype())
    return np.concatenate([np.from_dlpack(chunk) for chunk in chunks])


def byte_ends(array: pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the cumulative bytes after each value of ``binary`` values without nulls."""
    parts, before = [], 0
    for chunk in array.chunks:
        if len(chunk):
            offsets = np.frombuffer(chunk.buffers()[1], np.int32, len(chunk) + 1, 4 * chunk.offset)
            parts.append(offsets[1:].astype(np.int64) + (before - int(offsets[0])))
            before = int(parts[-1][-1])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def offsets_of(chunk: pa.Array) -> NDArray[np.int64]:
    """Return where each text or binary value begins in the data, and where the last one ends."""
    large = pa.types.is_large_binary(chunk.type) or pa.types.is_large_string(chunk.type)
    buffer = chunk.buffers()[1]
    if not len(chunk) or buffer is None:
        return np.zeros(1, np.int64)
    kind = np.dtype(np.int64 if large else np.int32)
    found = np.frombuffer(buffer, kind, len(chunk) + 1, chunk.offset * kind.itemsize)
    return found.astype(np.int64)


def lengths_of(array: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the bytes of each of these text or binary values; a null may have any number.

    ``pyarrow.compute`` does so, too, but takes as long to import as the rest of Arrow.
    """
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    found = [np.diff(offsets_of(chunk)) for chunk in chunks]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def first_longer(texts: pa.Array, characters: int) -> int | None:
    """Return the first row of a string array with more characters than that; None without one."""
    sizes = np.diff(offsets_of(texts))
    for row in np.flatnonzero(sizes > characters):  # a character has a byte or more
        if len(texts[int(row)].as_py() or "") > characters:
            return int(row)
    return None


def column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return numpy numbers as an Arrow view of a type of the same width."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def mask(chosen: NDArray[np.bool_]) -> pa.Array:
    """Return booleans as an Arrow array."""
    bits = np.packbits(chosen, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(chosen), [None, pa.py_buffer(bits)])


def constant(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    """Return an array of ``rows`` times the same text or number."""
    if isinstance(value, str):
        data = value.encode()
        ends = np.arange(rows + 1, dtype=np.int32) * len(data)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(data * rows)]
        return pa.Array.from_buffers(kind, rows, buffers)
    width = np.dtype(f"i{kind.bit_width // 8}")
    return column(np.full(rows, value, width), kind)


def own_memory(rows: pa.Table) -> pa.Table:
    """Return a copy of rows: a slice keeps all of its table in memory."""
    if all(column.num_chunks > 1 for column in rows.columns):
        return rows.combine_chunks()
    # Through Arrow's wire format, one buffer a batch: ``take`` needs six times as long.
    copies = (pa.ipc.read_record_batch(b.serialize(), b.schema) for b in rows.to_batches())
    return pa.Table.from_batches(copies, rows.schema)
