"""Chunks of blocks: a few long events without keys, stored and read as they are in memory.

Arrow decodes a page of long events into another buffer, event by event, after a CRC-32 that takes
longer than the read. Here a page is read, its digest is compared with the one that the footer
records, and each event is a view of it. The layout of such a file is known: encoding its first
pages and its footer again shows that the file is one. Any other, damaged or not, is Arrow's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from struct import Struct
from struct import error as StructError
from typing import Final

import pyarrow as pa

from pravega_spark.engine.chunk_paths import file_path
from pravega_spark.engine.chunks.arrow_arrays import offsets_of
from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk
from pravega_spark.engine.chunks.encoder import SMALL_CHUNK_BYTES, times_of
from pravega_spark.engine.chunks.footer import digest_of, has_digest, length_of
from pravega_spark.engine.chunks.tiny import (
    PAGE_ROWS,
    PAGES_KEY,
    TINY_BYTES,
    TINY_ROWS,
    all_present,
    author_of,
    block_frame,
    encode_blocks,
)
from pravega_spark.engine.store.base import Store
from pravega_spark.values.limits import MAX_EVENT_BYTES, ROW_GROUP_BYTES


def are_blocks(events: pa.Table) -> bool:
    """Return whether :func:`stage_blocks` takes these events: few long ones without keys."""
    return bool(
        events.num_rows <= TINY_ROWS
        and TINY_BYTES < events.nbytes <= ROW_GROUP_BYTES + SMALL_CHUNK_BYTES
        and events.column("routing_key").null_count == events.num_rows
    )


def _blocks_of_events(events: pa.Array) -> Iterator[memoryview]:
    """Yield the bytes of each event, without a copy."""
    data = events.buffers()[2]
    held = memoryview(data if data is not None else b"").cast("B")
    for first, last in pairwise(offsets_of(events).tolist()):
        yield held[first:last]


def stage_blocks(
    store: Store, table_path: str, folder: str, segment_id: int, events: pa.Table, *, name: str
) -> StagedChunk:
    """Store blocks of bytes durably as one chunk, as they are, without a copy in memory."""
    times: list[int] = times_of(events).tolist()
    column = events.column("event")
    blocks = [block for part in column.chunks for block in _blocks_of_events(part)]
    parts = encode_blocks(times, blocks)
    path = file_path(folder, name)
    with store.writer(f"{table_path}/{path}") as file:
        for part in parts:
            file.write(part)
    return StagedChunk(
        path,
        segment_id,
        rows=len(times),
        size=sum(map(len, parts)),
        event_bytes=sum(map(len, blocks)),
        min_timestamp_us=min(times),
        max_timestamp_us=max(times),
        null_keys=len(times),
        footer=digest_of(bytes(parts[-1])),
    )


_FRAME_BYTES: Final = 2_048
"""More than all of a file but the bytes of its events: pages of other columns, headers, footer."""
_HEAD_BYTES: Final = 512
"""More than the pages before the first event."""
_HEADER_BYTES: Final = 64
"""More than the header of a page."""
_PAGES: Final = re.compile(
    re.escape(PAGES_KEY) + rb"\x18.((?:[1-9][0-9]{0,9}-[0-9a-f]{16},?)+)", re.DOTALL
)
_TIME: Final = 8
_LENGTH: Final = Struct("<I")
_ReadAt = Callable[[int, int], pa.Buffer]


class BlockFile:
    """The open file of a chunk of blocks, whose layout was proved; rows are counted from 0."""

    def __init__(self, read_at: _ReadAt, ref: ChunkRef, start: int, pages: Sequence[str]) -> None:
        """Take where the pages of events begin, and their digests."""
        self._read_at = read_at
        self._ref = ref
        self._start = start
        self._pages = pages

    def events(self, first: int, last: int) -> Iterator[pa.Buffer]:
        """Yield the events of rows [first, last) that are proved; stop before any other.

        A page is in memory at a time. One that holds no such row is not read.
        """
        at = self._start
        for row, digest in zip(range(0, last, PAGE_ROWS), self._pages, strict=False):
            size = length_of(digest)
            if row + PAGE_ROWS > first:
                page = self._read_at(at, size)
                rows = min(PAGE_ROWS, self._ref.rows - row)
                blocks = _blocks_of_page(page, rows) if has_digest(page, digest) else None
                if blocks is None:
                    return
                yield from blocks[max(0, first - row) : last - row]
            at += size


@contextmanager
def open_blocks(
    store: Store, table_path: str, ref: ChunkRef, data: bytes | None
) -> Iterator[BlockFile | None]:
    """Yield the file of a chunk, or of ``data``, its fetched bytes; None if Arrow must read it."""
    if not (store.is_local and may_be_blocks(ref)):  # elsewhere each read of a page is a request
        yield None
    elif data is not None:
        held = pa.py_buffer(data)
        yield _proved(held.slice, ref) if held.size == ref.size else None
    else:
        with store.open(f"{table_path}/{ref.path}") as file:

            def read_at(start: int, size: int) -> pa.Buffer:
                file.seek(start)
                return file.read_buffer(size)

            yield _proved(read_at, ref) if file.size() == ref.size else None


def may_be_blocks(ref: ChunkRef) -> bool:
    """Return whether the log's record of a chunk is one that ``stage_blocks`` makes."""
    return bool(
        0 < ref.rows <= TINY_ROWS
        and ref.footer
        and not ref.attachment
        and ref.event_bytes <= ROW_GROUP_BYTES
        and ref.event_bytes < ref.size <= ref.event_bytes + _FRAME_BYTES
    )


def _proved(read_at: _ReadAt, ref: ChunkRef) -> BlockFile | None:
    """Return the file if its first pages and its footer are those of ``stage_blocks``."""
    end = ref.size - length_of(ref.footer)
    footer = read_at(end, ref.size - end)
    recorded = _PAGES.search(memoryview(footer)) if has_digest(footer, ref.footer) else None
    if recorded is None:
        return None
    pages = recorded[1].decode().split(",")
    start = end - sum(map(length_of, pages))
    head = read_at(0, min(_HEAD_BYTES, end)).to_pybytes()
    try:
        stamps = Struct(f"<{ref.rows}q").unpack_from(head, start - _TIME * ref.rows)
        found = block_frame(stamps, pages, author_of(footer.to_pybytes()))
    except (StructError, ValueError, IndexError):
        return None
    if (head[:start], footer.to_pybytes()) != found or len(pages) != -(-ref.rows // PAGE_ROWS):
        return None
    return BlockFile(read_at, ref, start, pages)


def _blocks_of_page(page: pa.Buffer, rows: int) -> list[pa.Buffer] | None:
    """Return the events of a page, each of which follows its length; None for any other page."""
    held = memoryview(page).cast("B")
    levels = all_present(rows)
    at = bytes(held[:_HEADER_BYTES]).find(levels) + len(levels)
    blocks = []
    for _ in range(rows):
        if at + _LENGTH.size > len(held):
            return None
        (size,) = _LENGTH.unpack_from(held, at)
        at += _LENGTH.size
        if size > MAX_EVENT_BYTES or at + size > len(held):
            return None
        blocks.append(page.slice(at, size))
        at += size
    return blocks if at == len(held) else None
