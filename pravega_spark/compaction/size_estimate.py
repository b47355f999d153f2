"""Estimates for a dry run how large merged chunks will be, by merging samples of their events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from pravega_spark.compaction.merge_plan import CHUNK_OVERHEAD_BYTES
from pravega_spark.compaction.merge_range import MergeRange
from pravega_spark.engine.chunks import chunk_reader
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.chunk_writer import ChunkWriter
from pravega_spark.engine.chunks.event_format import columns_with_nan, payload_names
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import Damaged, TruncatedData

_RANGES: Final = 4
"""So many of the largest ranges are sampled; the others are like them."""
_PLACES: Final = 4
"""A sample is from so many places of a range."""
_PLACE_BYTES: Final = 512 << 10
_PLACE_FILES: Final = 64
_ROW_BYTES: Final = 16
"""About what an event takes besides its bytes, before compression."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Events of a range as one merged file: its size without overhead, and their raw bytes."""

    size: int
    raw_bytes: int


def estimate_bytes(stream: StreamLog, ranges: Sequence[MergeRange]) -> int:
    """Return about how many bytes a merge of the ranges would write.

    Reads up to 256 files of each of the four largest ranges. Where they cannot be read, the
    estimate is the size that the data has now.
    """
    chunks = {rng: stream.known_chunks(rng.events) for rng in ranges}
    sampled = sorted(ranges, key=_size, reverse=True)[:_RANGES]
    samples = {rng: _sample(stream, rng, chunks[rng]) for rng in sampled}
    known = [sample for sample in samples.values() if sample is not None]
    raw = sum(sample.raw_bytes for sample in known)
    usual = sum(sample.size for sample in known) / raw if raw else None
    total = 0
    for rng, refs in chunks.items():
        sample = samples.get(rng)
        ratio = usual if sample is None else sample.size / sample.raw_bytes
        if ratio is None:
            total += present_bytes(rng)
        else:
            total += CHUNK_OVERHEAD_BYTES + int(ratio * _raw_bytes(rng, refs))
    return total


def present_bytes(rng: MergeRange) -> int:
    """Return the size of a merged chunk if its data stays as large as it is."""
    saved = CHUNK_OVERHEAD_BYTES * (rng.files - 1)
    return max(CHUNK_OVERHEAD_BYTES, rng.size_bytes - saved)


def _size(rng: MergeRange) -> int:
    return rng.size_bytes


def _raw_bytes(rng: MergeRange, refs: Sequence[ChunkRef]) -> int:
    """Return about the bytes of a range's events, before compression."""
    rows = sum(ref.rows for ref in refs) or 1
    event_bytes = sum(ref.event_bytes for ref in refs)
    wanted = rng.end - rng.start
    return event_bytes * wanted // rows + _ROW_BYTES * wanted


def _sample(stream: StreamLog, rng: MergeRange, refs: Sequence[ChunkRef]) -> _Sample | None:
    """Return a part of a range's events as a merge would write it; None if it cannot be read."""
    try:
        batches = [batch for part in _parts(rng, refs) for batch in _read(stream, part, refs)]
    except (Damaged, FileNotFoundError, TruncatedData):
        return None
    if not batches:
        return None
    table = pa.Table.from_batches(batches)
    payload = table.select(list(payload_names(table.schema)))
    raw = int(payload.nbytes) + _ROW_BYTES * table.num_rows
    size = _merged_size(stream.runtime, table) - _merged_size(stream.runtime, table.slice(0, 1))
    return _Sample(max(1, size), raw)


def _parts(rng: MergeRange, refs: Sequence[ChunkRef]) -> Iterator[MergeRange]:
    """Yield the parts of a range that are read, spread evenly over it."""
    if not refs:
        return
    wanted = rng.end - rng.start
    rows = max(1, wanted * _PLACE_BYTES // _raw_bytes(rng, refs))
    rows = min(rows, max(1, wanted * _PLACE_FILES // len(refs)))
    places = 1 if rows * _PLACES >= wanted else _PLACES
    rows = wanted if places == 1 else rows
    for place in range(places):
        start = rng.start + place * (wanted - rows) // max(1, places - 1)
        yield replace(rng, start=start, end=start + rows)


def _read(
    stream: StreamLog, part: MergeRange, refs: Sequence[ChunkRef]
) -> Iterator[pa.RecordBatch]:
    event_format = stream.event_format
    return chunk_reader.read_range(
        stream.store,
        stream.path,
        refs,
        part.events,
        columns=event_format.events.names,
        event_format=event_format,
    )


def _merged_size(runtime: Runtime, table: pa.Table) -> int:
    with ChunkWriter(
        MemoryStore(),
        "sample",
        "sample",
        0,
        name="sample",
        columns=table.schema,
        unbounded=columns_with_nan(table),
        runtime=runtime,
    ) as writer:
        writer.write(table)
        return writer.close().size
