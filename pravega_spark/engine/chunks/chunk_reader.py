"""Reads ranges of offsets from chunks, all columns or some, and checks them against the log.

Pages carry a CRC, which is verified, so a damaged byte is never returned as data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pravega_spark.engine.chunks.arrow_arrays import column, numbers
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, FILE_SCHEMA, ChunkRef
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import CorruptChunk, DataLoss, InvalidInput, StoreError
from pravega_spark.limits import (
    MAX_EVENT_BYTES,
    PREFETCH_BYTES,
    PREFETCH_CHUNK_BYTES,
    PREFETCH_CHUNKS,
    READ_BATCH_EVENTS,
    ROW_GROUP_BYTES,
)
from pravega_spark.model import Event, SegmentRange

BATCH_SCHEMA: Final = pa.schema((pa.field("offset", pa.int64()), *EVENT_SCHEMA))
"""The columns of events that :func:`read` yields if all are requested."""
BATCH_COLUMNS: Final = tuple(BATCH_SCHEMA.names)

_EVENT_INDEX: Final = FILE_SCHEMA.get_field_index("event")
_PLAIN: Final = frozenset(("PLAIN", "RLE", "BIT_PACKED"))
"""Encodings in which an event takes as many bytes as it has."""
_PAGE_HEADERS: Final = 64 << 10
_SAFE_BYTES: Final = 64 << 20
"""Bytes that may be unpacked before the footer's sizes are checked."""


def read(
    store: Store,
    table_path: str,
    ref: ChunkRef,
    start: int,
    end: int,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = READ_BATCH_EVENTS,
) -> Iterator[pa.RecordBatch]:
    """Yield the events at offsets [start, end) of a chunk, in order, as batches.

    ``columns`` are some of ``BATCH_COLUMNS``, in the order wanted (None: all). Only these are
    read, and only from the row groups that hold the range; one row group at a time is in memory.

    Raises CorruptChunk if the file does not match the log, and Python's FileNotFoundError if it is
    missing: compaction may have replaced it, so look the range up again.
    """
    if not ref.base_offset <= start <= end <= ref.end:
        raise InvalidInput(f"the offsets [{start}, {end}) are not a part of {ref}.")
    return _read(store, table_path, ref, start, end, _checked(columns), batch_rows, None)


def read_range(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = READ_BATCH_EVENTS,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of ``rng`` from its chunks, given in offset order.

    Small files are fetched several at a time, and small batches are joined. Raises DataLoss where
    the chunks leave a gap or end before the range does, and what :func:`read` raises.
    """
    names = _checked(columns)
    batches = _read_range(store, table_path, refs, rng, names, batch_rows)
    return _joined(batches, batch_rows)


def _read_range(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    names: tuple[str, ...],
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    at = rng.start
    wanted = (ref for ref in refs if ref.end > rng.start and ref.base_offset < rng.end)
    for ref, data in _fetched(store, table_path, wanted):
        if ref.base_offset > at or ref.segment_id != rng.segment_id:
            break
        end = min(ref.end, rng.end)
        if end > at:
            yield from _read(store, table_path, ref, at, end, names, batch_rows, data)
            at = end
    if at < rng.end:
        raise DataLoss(
            f"{rng} cannot be read: no chunk holds the event at offset {at}. Restore the table "
            "from a copy.",
            lost=replace(rng, start=at),
            stream=rng.stream,
        )


def first_gap(rng: SegmentRange, refs: Iterable[ChunkRef]) -> SegmentRange | None:
    """Return the first part of the range that none of the chunks (in offset order) holds."""
    at = rng.start
    for ref in refs:
        if at >= rng.end:
            return None
        if ref.base_offset > at:
            return replace(rng, start=at, end=min(rng.end, ref.base_offset))
        at = max(at, ref.end)
    return replace(rng, start=at) if at < rng.end else None


def first_at_or_after(
    store: Store, table_path: str, ref: ChunkRef, timestamp_us: int
) -> int | None:
    """Return the offset of the chunk's first event at or after the time, or None."""
    if timestamp_us > ref.max_timestamp_us:
        return None
    if timestamp_us <= ref.min_timestamp_us:
        return ref.base_offset
    at = ref.base_offset
    for batch in read(store, table_path, ref, at, ref.end, columns=("timestamp",)):
        late = np.flatnonzero(numbers(batch.column(0).view(pa.int64())) >= timestamp_us)
        if len(late):
            return at + int(late[0])
        at += batch.num_rows
    return None


def bytes_before(store: Store, table_path: str, ref: ChunkRef, offset: int) -> int:
    """Return the exact event bytes of the segment before ``offset``; reads the shorter side."""
    if not ref.base_offset <= offset <= ref.end:
        raise InvalidInput(f"offset {offset} is not a part of {ref}.")
    if offset - ref.base_offset <= ref.end - offset:
        return ref.base_bytes + _event_bytes(store, table_path, ref, ref.base_offset, offset)
    after = _event_bytes(store, table_path, ref, offset, ref.end)
    return ref.base_bytes + ref.event_bytes - after


def offset_after(store: Store, table_path: str, ref: ChunkRef, size_bytes: int) -> tuple[int, int]:
    """Return the first offset with at least ``size_bytes`` of the chunk before it, and that size.

    If the chunk is smaller, returns its end and its size.
    """
    at, size = ref.base_offset, 0
    for batch in read(store, table_path, ref, at, ref.end, columns=("event",)):
        sizes = size + np.cumsum(numbers(pc.binary_length(batch.column(0))))
        found = int(np.searchsorted(sizes, size_bytes))
        if found < len(sizes):
            return at + found + 1, int(sizes[found])
        at, size = at + batch.num_rows, int(sizes[-1])
    return ref.end, size


def events_of(batch: pa.RecordBatch, stream: str, life: int, segment_id: int) -> Iterator[Event]:
    """Yield the batch's rows as events; the batch has all of ``BATCH_COLUMNS``."""
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


def _event_bytes(store: Store, table_path: str, ref: ChunkRef, start: int, end: int) -> int:
    return sum(
        pc.sum(pc.binary_length(batch.column(0))).as_py()
        for batch in read(store, table_path, ref, start, end, columns=("event",))
    )


def _checked(columns: Sequence[str] | None) -> tuple[str, ...]:
    names = BATCH_COLUMNS if columns is None else tuple(columns)
    if not names or len(set(names)) < len(names) or not set(names) <= set(BATCH_COLUMNS):
        raise InvalidInput(f"columns {names} must be some of {BATCH_COLUMNS}, each once.")
    return names


def _fetched(
    store: Store, table_path: str, refs: Iterable[ChunkRef]
) -> Iterator[tuple[ChunkRef, bytes | None]]:
    """Yield each chunk; small ones with their file, fetched together with their neighbours."""
    group: list[ChunkRef] = []
    for ref in refs:
        small = ref.size <= PREFETCH_CHUNK_BYTES
        total = ref.size + sum(held.size for held in group)
        if group and (not small or total > PREFETCH_BYTES or len(group) == PREFETCH_CHUNKS):
            yield from _fetch(store, table_path, group)
            group = []
        if small:
            group.append(ref)
        else:
            yield ref, None
    if group:
        yield from _fetch(store, table_path, group)


def _fetch(
    store: Store, table_path: str, group: Sequence[ChunkRef]
) -> Iterator[tuple[ChunkRef, bytes]]:
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
) -> Iterator[pa.RecordBatch]:
    if start == end:
        return
    schema = pa.schema([BATCH_SCHEMA.field(name) for name in names])
    first, last = start - ref.base_offset, end - ref.base_offset
    with _checked_file(store, table_path, ref):
        source = store.open(f"{table_path}/{ref.path}") if data is None else pa.BufferReader(data)
        with source:
            for at, batch in _rows(source, ref, first, last, names, batch_rows, store.is_local):
                offsets = np.arange(at, at + batch.num_rows, dtype=np.int64) + ref.base_offset
                arrays = [
                    column(offsets, pa.int64()) if name == "offset" else batch.column(name)
                    for name in names
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(
    source: pa.NativeFile,
    ref: ChunkRef,
    first: int,
    last: int,
    names: tuple[str, ...],
    batch_rows: int,
    is_local: bool,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (first delta, rows) of the checked parts of rows [first, last) of a chunk's file."""
    if source.size() != ref.size:
        raise _Mismatch(f"has {source.size()} bytes; the log records {ref.size}.")
    # Remote storage: one request for a row group's columns. No threads: they do not survive a fork.
    file = pq.ParquetFile(source, pre_buffer=not is_local, page_checksum_verification=True)
    if not file.schema_arrow.equals(FILE_SCHEMA):
        raise _Mismatch(f"has the columns {file.schema_arrow}, not those of a chunk.")
    if file.metadata.num_rows != ref.rows:
        raise _Mismatch(f"holds {file.metadata.num_rows} events; the log records {ref.rows}.")
    columns = ["offset_delta", *(name for name in names if name != "offset")]
    unchecked = "event" in names
    if unchecked and not _is_safe_to_unpack(file.metadata):
        _check_sizes(file.metadata, ref)
        unchecked = False
    at = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if at + rows <= first:
            at += rows
            continue
        for batch in file.iter_batches(batch_rows, [group], columns, use_threads=False):
            if unchecked:
                _check_sizes(file.metadata, ref)
                unchecked = False
            deltas = numbers(batch.column("offset_delta"))
            if not np.array_equal(deltas, np.arange(at, at + len(deltas), dtype=np.int32)):
                raise _Mismatch(
                    f"numbers its events {deltas[0]}..{deltas[-1]} instead of {at}.."
                    f"{at + len(deltas) - 1}."
                )
            if "event" in names:
                _check_events(batch.column("event"), ref)
            low, high = max(first, at), min(last, at + len(deltas))
            if low < high:
                yield low, batch.slice(low - at, high - low)
            at += len(deltas)
            if at >= last:
                return
    raise _Mismatch(f"ends after {at} events.")


def _is_safe_to_unpack(metadata: pq.FileMetaData) -> bool:
    """Return True for a file with little data even if each event had all stored bytes.

    pyarrow ends the process at a column's metadata if that is damaged, unless a read of the column
    has found the damage before. So the sizes of such files are checked after their first batch.
    """
    if metadata.num_row_groups != 1:
        return False
    group = metadata.row_group(0)
    most: int = group.num_rows * group.total_byte_size
    return 0 <= most <= _SAFE_BYTES


def _check_sizes(metadata: pq.FileMetaData, ref: ChunkRef) -> None:
    """Raise CorruptChunk if the events would take, or have taken, too much memory.

    Each event that is not stored plainly may be as long as all stored bytes together.
    """
    size = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        events = group.column(_EVENT_INDEX)
        plain = _PLAIN.issuperset(events.encodings)
        size += events.total_uncompressed_size * (1 if plain else group.num_rows)
    expected = min(ref.event_bytes, ref.rows * MAX_EVENT_BYTES) + 16 * ref.rows
    if size > 2 * expected + _PAGE_HEADERS:
        raise _Mismatch(
            f"would unpack to {size} bytes of events; the log records {ref.event_bytes}, and "
            f"an event has at most {MAX_EVENT_BYTES}."
        )


def _check_events(events: pa.Array, ref: ChunkRef) -> None:
    data = events.buffers()[2]
    if not events.null_count and (data is None or data.size <= MAX_EVENT_BYTES):
        return  # no event is longer than all events together
    longest = pc.max(pc.binary_length(events)).as_py() or 0
    if events.null_count or longest > MAX_EVENT_BYTES:
        raise _Mismatch(
            f"has an event that is null or has {longest} bytes; writers write at most "
            f"{MAX_EVENT_BYTES}."
        )


_RESTORE = "Restore the file from a copy."


class _Mismatch(ValueError):
    """A file that is not what the log records; the text continues a sentence about the chunk."""


@contextmanager
def _checked_file(store: Store, table_path: str, ref: ChunkRef) -> Iterator[None]:
    """Convert the errors of a damaged file to CorruptChunk, and the disk's to StoreError."""
    where = f"{store.url.rstrip('/')}/{table_path}/{ref.path}"
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    except _Mismatch as error:
        raise CorruptChunk(f"{where}: {ref} {error} {_RESTORE}", path=where) from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
            raise StoreError(f"{where}: {ref} cannot be read: {error}.", url=where) from error
        raise CorruptChunk(
            f"{where}: {ref} is not a valid Parquet file: {error}. {_RESTORE}", path=where
        ) from error


def _joined(batches: Iterator[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Join consecutive small batches up to ``batch_rows`` rows or the bytes of a row group."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if held and (rows + batch.num_rows > batch_rows or size + batch.nbytes > ROW_GROUP_BYTES):
            yield _join(held)
            held, rows, size = [], 0, 0
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= batch_rows:
            yield _join(held)
            held, rows, size = [], 0, 0
    if held:
        yield _join(held)


def _join(held: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1:
        return held[0]
    return pa.Table.from_batches(held).combine_chunks().to_batches()[0]
