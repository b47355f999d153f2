"""Reads ranges of offsets from chunks, all columns or some, and checks them against the log.

Pages carry a CRC, which is verified, so a damaged byte is never returned as data.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Final

import numpy as np
import pyarrow as pa

from pravega_spark.engine.chunks.arrow_arrays import column
from pravega_spark.engine.chunks.block_reader import open_blocks
from pravega_spark.engine.chunks.chunk import ChunkRef, first_gap
from pravega_spark.engine.chunks.chunk_file import ChunkFile, open_chunk
from pravega_spark.engine.chunks.event_format import (
    RAW,
    EventFormat,
    widened,
)
from pravega_spark.engine.chunks.reference_batches import marked, marked_ref
from pravega_spark.engine.chunks.row_events import row_events
from pravega_spark.engine.chunks.small_chunks import Fetched, read_together, runs
from pravega_spark.engine.chunks.tiny_reader import tiny_columns
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import DataLoss, InvalidInput
from pravega_spark.limits import (
    PREFETCH_BYTES,
    PREFETCH_CHUNK_BYTES,
    PREFETCH_CHUNKS,
    READ_AHEAD_BYTES,
    READ_AHEAD_PARTS,
    READ_BATCH_EVENTS,
    ROW_GROUP_BYTES,
)
from pravega_spark.model import Event, SegmentRange

BATCH_SCHEMA: Final = RAW.batch
"""The columns of raw events that :func:`read` yields if all are requested."""
BATCH_COLUMNS: Final = RAW.batch_names
_ONLY_EVENTS: Final = pa.schema([BATCH_SCHEMA.field("event")])
_FEW_ROWS: Final = 512
"""Below this many rows an Arrow array costs more than its copy into a larger one."""


def read(
    store: Store,
    table_path: str,
    ref: ChunkRef,
    start: int,
    end: int,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = READ_BATCH_EVENTS,
    event_format: EventFormat = RAW,
) -> Iterator[pa.RecordBatch]:
    """Yield the events at offsets [start, end) of a chunk, in order, as batches.

    ``columns`` are some of the format's ``batch_names``, in the order wanted (None: all). Only
    these are read, and only from the row groups that hold the range; one row group at a time is in
    memory. Columns that the chunk, of an older schema, does not have are null.

    Raises CorruptChunk if the file does not match the log, and Python's FileNotFoundError if it is
    missing: compaction may have replaced it, so look the range up again.
    """
    if not ref.base_offset <= start <= end <= ref.end:
        raise InvalidInput(f"the offsets [{start}, {end}) are not a part of {ref}.")
    names = checked_names(columns, event_format)
    return _read(store, table_path, ref, start, end, names, batch_rows, None, event_format)


def read_range(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = READ_BATCH_EVENTS,
    event_format: EventFormat = RAW,
    ahead: Runtime | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of ``rng`` from its chunks, given in offset order.

    Small files are fetched several at a time, and small batches are joined. The event of a large
    one is its reference, in a batch of its own that is ``marked``. With ``ahead``, later chunks
    are fetched and decoded in its background meanwhile, as by :func:`read_ahead`. Raises DataLoss
    where the chunks leave a gap or end before the range does, and what :func:`read` raises.
    """
    names = checked_names(columns, event_format)
    if ahead is None:
        batches = _read_range(store, table_path, refs, rng, names, batch_rows, event_format)
    else:
        batches = read_ahead(
            ahead, store, table_path, [*refs], rng, columns=names, event_format=event_format
        )
    return _joined(batches, batch_rows)


def read_ahead(
    runtime: Runtime,
    store: Store,
    table_path: str,
    refs: Sequence[ChunkRef],
    rng: SegmentRange,
    *,
    columns: Sequence[str] | None = None,
    event_format: EventFormat = RAW,
) -> Generator[pa.Table | pa.RecordBatch, None, None]:
    """Yield the events of :func:`read_range`; the next ones are read in the background.

    ``READ_AHEAD_PARTS`` are read at the same time, each of about ``READ_AHEAD_BYTES`` or of a row
    group of a large chunk. Close the generator to end the reads.
    """
    names = checked_names(columns, event_format)
    wanted = [ref for ref in refs if ref.end > rng.start and ref.base_offset < rng.end]
    gap = first_gap(rng, wanted)
    if gap:
        raise _lost(rng, gap.start)
    parts = (
        _read_range(
            store, table_path, part, _common(rng, part), names, READ_BATCH_EVENTS, event_format
        )
        for part in parts_of(wanted)
    )
    return runtime.read_ahead(parts, READ_AHEAD_PARTS)


def parts_of(refs: Iterable[ChunkRef]) -> Iterator[list[ChunkRef]]:
    """Yield what is read ahead at once: neighbouring chunks of one batch, or a large chunk."""
    part: list[ChunkRef] = []
    rows = size = 0
    for ref in refs:
        rows, size = rows + ref.rows, size + ref.event_bytes
        if part and (rows > READ_BATCH_EVENTS or size > READ_AHEAD_BYTES):
            yield part
            part, rows, size = [], ref.rows, ref.event_bytes
        part.append(ref)
    if part:
        yield part


def _common(rng: SegmentRange, part: Sequence[ChunkRef]) -> SegmentRange:
    """Return the events of the range that a part holds."""
    start, end = max(rng.start, part[0].base_offset), min(rng.end, part[-1].end)
    return replace(rng, start=start, end=end)


def _read_range(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    names: tuple[str, ...],
    batch_rows: int,
    event_format: EventFormat,
) -> Generator[pa.Table | pa.RecordBatch, None, None]:
    at = rng.start
    wanted = (ref for ref in refs if ref.end > rng.start and ref.base_offset < rng.end)
    for run in runs(fetched(store, table_path, wanted), batch_rows):
        is_whole = run[0][0].base_offset == at and run[-1][0].end <= rng.end
        if event_format.is_raw and len(run) > 1 and is_whole:
            events = _together(run, rng.segment_id, names)
            if events is not None:
                yield events
                at = run[-1][0].end
                continue
        for ref, data in run:
            if ref.base_offset > at or ref.segment_id != rng.segment_id:
                raise _lost(rng, at)
            end = min(ref.end, rng.end)
            if end > at:
                yield from _read(
                    store, table_path, ref, at, end, names, batch_rows, data, event_format
                )
                at = end
    if at < rng.end:
        raise _lost(rng, at)


def _together(run: Sequence[Fetched], segment_id: int, names: tuple[str, ...]) -> pa.Table | None:
    """Return all events of a run; None if its chunks are to be read one by one."""
    if any(ref.segment_id != segment_id for ref, _ in run):
        return None
    events = read_together(run, [name for name in names if name != "offset"])
    if events is None:
        return None
    if events.num_rows < _FEW_ROWS * len(run):
        events = events.combine_chunks()
    if "offset" not in names:
        return events.select(names)
    offsets = column(np.arange(events.num_rows) + run[0][0].base_offset, pa.int64())
    return events.append_column(BATCH_SCHEMA.field("offset"), offsets).select(names)


def _lost(rng: SegmentRange, at: int) -> DataLoss:
    return DataLoss(
        f"{rng} cannot be read: no chunk holds the event at offset {at}. Restore the table "
        "from a copy.",
        lost=replace(rng, start=at),
        stream=rng.stream,
    )


def events_of(batch: pa.RecordBatch, stream: str, life: int, segment_id: int) -> Iterator[Event]:
    """Yield the batch's rows as events; the batch has all columns.

    The data of a raw event is its bytes, that of a typed one a dict of its columns.
    """
    if "event" not in batch.schema.names:
        return row_events(batch, stream, life, segment_id)
    return map(
        Event,
        repeat(stream),
        repeat(life),
        repeat(segment_id),
        batch.column("offset").to_pylist(),
        batch.column("event").to_pylist(),
        batch.column("routing_key").to_pylist(),
        batch.column("timestamp").view(pa.int64()).to_pylist(),
    )


def checked_names(columns: Sequence[str] | None, event_format: EventFormat) -> tuple[str, ...]:
    """Return the columns to read; raise InvalidInput unless the format has them."""
    known = event_format.batch_names
    names = known if columns is None else tuple(columns)
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise InvalidInput(f"columns {names} must be some of {known}, each once.")
    return names


def fetched(store: Store, table_path: str, refs: Iterable[ChunkRef]) -> Iterator[Fetched]:
    """Yield each chunk; small ones with their file, fetched together with their neighbours."""
    group: list[ChunkRef] = []
    size = 0
    for ref in refs:
        small = ref.size <= PREFETCH_CHUNK_BYTES
        size += ref.size
        if group and (not small or size > PREFETCH_BYTES or len(group) == PREFETCH_CHUNKS):
            yield from _fetch(store, table_path, group)
            group, size = [], ref.size
        if small:
            group.append(ref)
        else:
            yield ref, None
            size = 0
    if group:
        yield from _fetch(store, table_path, group)


def _fetch(store: Store, table_path: str, group: Sequence[ChunkRef]) -> Iterator[Fetched]:
    files = store.get_many([f"{table_path}/{ref.path}" for ref in group])
    for ref, data in zip(group, files, strict=True):
        if data is None:
            raise FileNotFoundError(f"{store.url}: {table_path}/{ref.path} does not exist.")
        yield ref, data


def _read(
    store: Store,
    table_path: str,
    ref: ChunkRef,
    start: int,
    end: int,
    names: tuple[str, ...],
    batch_rows: int,
    data: bytes | None,
    event_format: EventFormat,
) -> Iterator[pa.RecordBatch]:
    if start == end:
        return
    # Of a large event the log records the size of the payload, not that of the row.
    can_be_tiny = event_format.is_raw and data is not None and not ref.attachment
    held = tiny_columns(ref, data) if can_be_tiny and data is not None else None
    if held is not None:
        schema = pa.schema([BATCH_SCHEMA.field(name) for name in names])
        held["offset"] = column(np.arange(ref.base_offset, ref.end, dtype=np.int64), pa.int64())
        batch = pa.RecordBatch.from_arrays([held[name] for name in names], schema=schema)
        if start > ref.base_offset or end < ref.end:
            batch = batch.slice(start - ref.base_offset, end - start)
        yield from (batch.slice(at, batch_rows) for at in range(0, end - start, batch_rows))
        return
    if names == ("event",):
        for batch in _block_batches(store, table_path, ref, start, end, data):
            yield batch
            start += 1
        if start == end:
            return
    with open_chunk(store, table_path, ref, data) as chunk:
        for _, batch in read_rows(chunk, ref, start, end, names, batch_rows, event_format):
            yield batch


def read_rows(
    chunk: ChunkFile,
    ref: ChunkRef,
    start: int,
    end: int,
    names: tuple[str, ...],
    batch_rows: int,
    event_format: EventFormat,
    groups: frozenset[int] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (first offset, columns) of the events at offsets [start, end) of an open chunk.

    Events of row groups that are not among ``groups``, if that is given, are left out.
    """
    chunk.expect(event_format)
    schema = pa.schema([event_format.batch.field(name) for name in names])
    held = [name for name in names if chunk.schema.get_field_index(name) >= 0]
    first, last = start - ref.base_offset, end - ref.base_offset
    for at, batch in chunk.rows(first, last, held, batch_rows, groups):
        offsets = np.arange(at, at + batch.num_rows, dtype=np.int64) + ref.base_offset
        arrays = [
            column(offsets, pa.int64())
            if field.name == "offset"
            else widened(batch.column(field.name), field.type)
            if field.name in held
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        found = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield ref.base_offset + at, marked(found, ref)


def _block_batches(
    store: Store, table_path: str, ref: ChunkRef, start: int, end: int, data: bytes | None
) -> Iterator[pa.RecordBatch]:
    """Yield each event of a chunk of blocks, without a copy, until Arrow must read the next one."""
    with open_blocks(store, table_path, ref, data) as blocks:
        if blocks is None:
            return
        for block in blocks.events(start - ref.base_offset, end - ref.base_offset):
            ends = pa.py_buffer(np.array([0, block.size], np.int32))
            event = pa.Array.from_buffers(pa.binary(), 1, [None, ends, block])
            yield pa.RecordBatch.from_arrays([event], schema=_ONLY_EVENTS)


def _joined(
    parts: Iterable[pa.Table | pa.RecordBatch], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Join consecutive small parts up to ``batch_rows`` rows or the bytes of a row group."""
    held: list[pa.Table | pa.RecordBatch] = []
    rows = size = 0
    for part in parts:
        if isinstance(part, pa.RecordBatch) and marked_ref(part) is not None:
            if held:
                yield _join(held)
                held, rows, size = [], 0, 0
            yield part
            continue
        if held and (rows + part.num_rows > batch_rows or size + part.nbytes > ROW_GROUP_BYTES):
            yield _join(held)
            held, rows, size = [], 0, 0
        held.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if rows >= batch_rows:
            yield _join(held)
            held, rows, size = [], 0, 0
    if held:
        yield _join(held)


def _join(held: Sequence[pa.Table | pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1 and isinstance(held[0], pa.RecordBatch):
        return held[0]
    tables = [
        pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part for part in held
    ]
    return pa.concat_tables(tables).combine_chunks().to_batches()[0]
