"""Finds offsets in a chunk by time or by bytes; reads one row group of a large chunk."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import lengths_of, numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.format import typed_sizes
from pravega_spark.engine.chunks.open_file import ChunkFile, open_chunk
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import InvalidInput


def first_at_or_after(
    store: Store, table_path: str, ref: ChunkRef, timestamp_us: int, start: int
) -> int | None:
    """Return the offset of the chunk's first event at or after the time, or None.

    Events before the offset ``start`` do not count: they are truncated, or were searched before.
    """
    if timestamp_us > ref.max_timestamp_us:
        return None
    if timestamp_us <= ref.min_timestamp_us:
        return max(start, ref.base_offset)
    before = max(0, start - ref.base_offset)
    with open_chunk(store, table_path, ref) as chunk:
        for first, last, latest_us in chunk.parts():
            if last <= before:
                continue
            if latest_us is not None and latest_us < timestamp_us:
                continue
            for at, batch in chunk.rows(max(first, before), last, ("timestamp",)):
                times = numbers(batch.column("timestamp").view(pa.int64()))
                late = np.flatnonzero(times >= timestamp_us)
                if len(late):
                    return ref.base_offset + at + int(late[0])
    return None


def bytes_before(store: Store, table_path: str, ref: ChunkRef, offset: int) -> int:
    """Return the exact event bytes of the segment before ``offset``."""
    if not ref.base_offset <= offset <= ref.end:
        raise InvalidInput(f"offset {offset} is not a part of {ref}.")
    if offset == ref.base_offset:
        return ref.base_bytes
    if offset == ref.end:
        return ref.base_bytes + ref.event_bytes
    row = offset - ref.base_offset
    with open_chunk(store, table_path, ref) as chunk:
        sums = chunk.sums()
        at = bisect_right(sums, row, key=_row) - 1
        (first, before), (last, after) = sums[at], sums[at + 1]
        if row - first <= last - row:  # the shorter side
            return ref.base_bytes + before + _size(chunk, first, row)
        return ref.base_bytes + after - _size(chunk, row, last)


def offset_after(store: Store, table_path: str, ref: ChunkRef, size_bytes: int) -> tuple[int, int]:
    """Return the first offset with at least ``size_bytes`` of the chunk before it, and that size.

    If the chunk is smaller, returns its end and its size.
    """
    if size_bytes > ref.event_bytes or ref.attachment:  # a large event is the only one
        return ref.end, ref.event_bytes
    with open_chunk(store, table_path, ref) as chunk:
        sums = chunk.sums()
        first, before = sums[max(0, bisect_left(sums, size_bytes, key=_bytes) - 1)]
        for at, lengths in _lengths(chunk, first, ref.rows):
            ends = before + np.cumsum(lengths)
            found = int(np.searchsorted(ends, size_bytes))
            if found < len(ends):
                return ref.base_offset + at + found + 1, int(ends[found])
            before = int(ends[-1])
    return ref.end, before


def row_group_with(store: Store, table_path: str, ref: ChunkRef, at: int) -> tuple[int, int]:
    """Return the first offset of the row group that holds byte ``at`` of the chunk's events.

    With it comes the number of bytes before it, in the chunk. Only the footer is read.
    """
    with open_chunk(store, table_path, ref) as chunk:
        sums = chunk.sums()
        row, before = sums[min(bisect_right(sums, at, key=_bytes), len(sums) - 1) - 1]
        return ref.base_offset + row, before


def _row(entry: tuple[int, int]) -> int:
    return entry[0]


def _bytes(entry: tuple[int, int]) -> int:
    return entry[1]


def _size(chunk: ChunkFile, first: int, last: int) -> int:
    return sum(int(lengths.sum()) for _, lengths in _lengths(chunk, first, last))


def _lengths(chunk: ChunkFile, first: int, last: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (first row, the lengths of its events) of parts of rows [first, last)."""
    if first < last:
        for at, batch in chunk.rows(first, last, chunk.payload):
            is_raw = chunk.payload == ("event",)
            yield at, lengths_of(batch.column("event")) if is_raw else typed_sizes(batch)
