"""Decodes the file of a few events without Arrow's reader.

A Parquet reader is set up for each file, and touches so much code that it takes a millisecond
in a process that slept: most of what a reader at the tail computes. The layout of a file that
``tiny_chunk`` has written is known, so its values are cut out, and encoding them again shows that
the whole file is what they make. Any other file, damaged or not, is left to Arrow's reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from struct import Struct
from struct import error as StructError
from typing import Final

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import FILE_SCHEMA, ChunkRef
from pravega_spark.engine.chunks.footer import has_digest, length_of
from pravega_spark.engine.chunks.tiny_chunk import TINY_ROWS, encode_tiny

_MOST_BYTES: Final = 4_096
_LENGTH: Final = Struct("<I")
MAGIC_BYTES: Final = 4
_TIME_BYTES: Final = 8
_TYPES: Final = {field.name: field.type for field in FILE_SCHEMA}
_PAGE_END: Final = b"\x15\x00\x15\x06\x15\x06\x00\x00"
"""The last bytes of a page's header: its encodings."""


def tiny_columns(ref: ChunkRef, data: bytes) -> dict[str, pa.Array] | None:
    """Return the columns of a chunk's file; None if Arrow's reader must read it.

    A file that is returned is complete, undamaged, and the one that the log records.
    """
    rows = ref.rows
    if not (0 < rows <= TINY_ROWS and len(data) == ref.size <= _MOST_BYTES and ref.footer):
        return None
    if not has_digest(memoryview(data)[-length_of(ref.footer) :], ref.footer):
        return None
    try:
        deltas, keys_page, times_page, events_page = _pages(data)
        times = times_page[-_TIME_BYTES * rows :]
        events = list(_values(events_page, rows))
        keys = _keys(keys_page, rows)
        again = encode_tiny(keys, Struct(f"<{rows}q").unpack(times), events)
        b"".join(filter(None, keys)).decode()
    except (StructError, ValueError, IndexError):
        return None
    if again != data or sum(map(len, events)) != ref.event_bytes:
        return None
    return {
        "offset_delta": _fixed("offset_delta", rows, deltas),
        "routing_key": _texts("routing_key", keys),
        "timestamp": _fixed("timestamp", rows, times),
        "event": _texts("event", events),
    }


def _pages(data: bytes) -> Iterator[bytes]:
    """Yield the content of the page of each column."""
    at = MAGIC_BYTES
    for _ in FILE_SCHEMA:
        begin, size = page_at(data, at)
        at = begin + size
        yield data[begin:at]


def page_at(data: bytes, at: int) -> tuple[int, int]:
    """Return where the content begins of the page whose header is at a place, and its size."""
    size, shift, byte = 0, 0, at + 3
    while data[byte] & 0x80:
        size |= (data[byte] & 0x7F) << shift
        shift, byte = shift + 7, byte + 1
    size = (size | data[byte] << shift) >> 1  # zigzag: a length is not negative
    return data.index(_PAGE_END, byte) + len(_PAGE_END), size


def _values(page: bytes, count: int) -> Iterator[bytes]:
    """Yield the byte arrays of a page, which follow the definition levels."""
    at = _LENGTH.size + _LENGTH.unpack_from(page)[0]
    for _ in range(count):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(page, at)[0]
        yield page[begin:at]


def _keys(page: bytes, rows: int) -> list[bytes | None]:
    """Return the keys of a page; its levels are one run, or a bit for each row."""
    levels = page[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(page)[0]]
    if not levels[0] & 1:
        return [*_values(page, rows)]
    bits = int.from_bytes(levels[1:], "little")
    present = [bool(bits >> row & 1) for row in range(rows)]
    values = _values(page, sum(present))
    return [next(values) if is_present else None for is_present in present]


def _fixed(name: str, rows: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(_TYPES[name], rows, [None, pa.py_buffer(data)])


def _texts(name: str, values: list[bytes | None] | list[bytes]) -> pa.Array:
    rows, bits = len(values), None
    if None in values:
        present = sum(1 << row for row, value in enumerate(values) if value is not None)
        bits = pa.py_buffer(present.to_bytes(-(-rows // 8), "little"))
    ends = accumulate([0 if value is None else len(value) for value in values], initial=0)
    offsets = pa.py_buffer(Struct(f"<{rows + 1}i").pack(*ends))
    content = pa.py_buffer(b"".join(filter(None, values)))
    return pa.Array.from_buffers(_TYPES[name], rows, [bits, offsets, content])
