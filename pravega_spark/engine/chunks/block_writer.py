"""Stores a few long events without keys as one chunk of blocks, as they are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa

from pravega_spark.engine.chunks.arrow_arrays import offsets_of
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.chunk_encoder import SMALL_CHUNK_BYTES, times_of
from pravega_spark.engine.chunks.footer import digest_of
from pravega_spark.engine.chunks.tiny_chunk import TINY_BYTES, TINY_ROWS, encode_blocks
from pravega_spark.engine.store.base import Store
from pravega_spark.limits import ROW_GROUP_BYTES


def are_blocks(events: pa.Table) -> bool:
    """Return whether :func:`stage_blocks` takes these events: few long ones without keys."""
    return bool(
        events.num_rows <= TINY_ROWS
        and TINY_BYTES < events.nbytes <= ROW_GROUP_BYTES + SMALL_CHUNK_BYTES
        and events.column("routing_key").null_count == events.num_rows
    )


def _blocks(events: pa.Array) -> Iterator[memoryview]:
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
    blocks = [block for part in column.chunks for block in _blocks(part)]
    parts = encode_blocks(times, blocks)
    path = f"data/{folder}/{name}.parquet"
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
