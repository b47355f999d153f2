"""Chunks: the Parquet files that hold events, written once and read by ranges of offsets.

A chunk holds only what its writer knows. Columns (``FILE_SCHEMA``):

============  ==================  ========================================================
offset_delta  int32, required     0..n-1; the offset is the log's ``base_offset`` plus this
routing_key   string              null where the writer gave none
timestamp     timestamp[us, UTC]  the writer's clock; never null
event         binary              the payload; never null
============  ==================  ========================================================

Pages carry a CRC, which readers here verify, so that a damaged byte is never handed out as data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from pravega_spark.config import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    COMPRESSION,
    MAX_EVENT_BYTES,
    ROW_GROUP_BYTES,
    ROW_GROUP_EVENTS,
)
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.vectors import column, numbers
from pravega_spark.errors import CorruptChunk, DataLoss, EventTooLarge, InvalidInput, StoreError
from pravega_spark.model import Event, SegmentRange, segment_text

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_EVENT_FIELDS: Final = (
    pa.field("routing_key", pa.string()),
    pa.field("timestamp", _TIMESTAMP),
    pa.field("event", pa.binary()),
)
EVENT_SCHEMA: Final = pa.schema(_EVENT_FIELDS)
"""Events before they are in a chunk."""
FILE_SCHEMA: Final = pa.schema((pa.field("offset_delta", pa.int32(), False), *_EVENT_FIELDS))
"""The columns of a chunk's file."""
BATCH_SCHEMA: Final = pa.schema((pa.field("offset", pa.int64()), *_EVENT_FIELDS))
"""Events as :func:`read` yields them, if all columns are asked for."""
BATCH_COLUMNS: Final = tuple(BATCH_SCHEMA.names)
BATCH_ROWS: Final = 65_536

SMALL_CHUNK_BYTES: Final = 16 << 10
"""Up to so much payload zstd's set-up costs more than it saves: such chunks take snappy."""
PREFETCH_BYTES: Final = 8 << 20
PREFETCH_CHUNKS: Final = 64
PREFETCH_CHUNK_BYTES: Final = 1 << 20
"""Files of at most this size are fetched whole, together with others that follow them."""

_ZSTD_LEVEL: Final = 1
_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "version": "2.6",
    "use_dictionary": ["routing_key"],
    "column_encoding": dict.fromkeys(("offset_delta", "timestamp"), "DELTA_BINARY_PACKED"),
    "write_statistics": ["offset_delta", "timestamp", "routing_key"],
    "write_page_checksum": True,
    "store_schema": False,  # Parquet's own types say it all
}
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999: what other Delta readers can parse."""


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A chunk that is stored but that no commit names yet; ``path`` is relative to the table."""

    path: str
    segment_id: int
    rows: int
    size: int
    event_bytes: int
    min_timestamp_us: int
    max_timestamp_us: int
    null_keys: int

    def stats(self) -> str:
        """Return Delta's statistics of the file as JSON.

        Delta's timestamps here have milliseconds, so the bounds are rounded outwards.
        """
        stats: dict[str, Any] = {"numRecords": self.rows}
        low_ms, high_ms = self.min_timestamp_us // 1_000, -(-self.max_timestamp_us // 1_000)
        if low_ms >= _FIRST_MS and high_ms <= _LAST_MS:
            stats["minValues"] = {"timestamp": f"{np.datetime64(low_ms, 'ms')}Z"}
            stats["maxValues"] = {"timestamp": f"{np.datetime64(high_ms, 'ms')}Z"}
        # Delta Spark uses the bounds of a column only if its nulls are counted too.
        stats["nullCount"] = {"routing_key": self.null_keys, "timestamp": 0}
        return json.dumps(stats, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk that the log names: where its events are in the segment and in bytes."""

    path: str
    segment_id: int
    base_offset: int
    rows: int
    size: int
    event_bytes: int
    base_bytes: int
    min_timestamp_us: int
    max_timestamp_us: int

    @property
    def end(self) -> int:
        """The offset after its last event."""
        return self.base_offset + self.rows

    def __str__(self) -> str:
        """Name the chunk as errors do."""
        place = f"segment {segment_text(self.segment_id)} [{self.base_offset}, {self.end})"
        return f"chunk {self.path} of {place}"


# ------------------------------------------------------------------------------------- writing


def encode_events(
    keys: Sequence[str | None], timestamps_us: ArrayLike, events: Sequence[bytes]
) -> pa.Table:
    """Return a table of ``EVENT_SCHEMA`` from Python values; InvalidInput if they do not fit."""
    try:
        columns = [
            pa.array(keys, pa.string()),
            column(np.asarray(timestamps_us, np.int64), _TIMESTAMP),
            pa.array(events, pa.binary()),
        ]
        return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"{len(events)} events cannot be written: {error} Keys are str or None, events bytes, "
            "timestamps microseconds."
        ) from error


def as_events(table: pa.Table) -> pa.Table:
    """Return the events of ``table`` as ``EVENT_SCHEMA``: columns selected, types cast if need be.

    Raise InvalidInput if a column is missing, cannot be cast without loss, or if a timestamp or
    an event is null.
    """
    if not table.schema.equals(EVENT_SCHEMA):
        try:
            table = pa.Table.from_arrays(
                [table.column(field.name).cast(field.type) for field in EVENT_SCHEMA],
                schema=EVENT_SCHEMA,
            )
        except (KeyError, pa.ArrowException) as error:
            raise InvalidInput(
                f"no events: {error} Needed are {', '.join(map(str, EVENT_SCHEMA))}; "
                f"got {', '.join(map(str, table.schema))}."
            ) from error
    for name in ("timestamp", "event"):
        nulls = table.column(name).null_count
        if nulls:
            raise InvalidInput(f"{nulls} of {table.num_rows} events have a null {name}.")
    return table


def encode(table: pa.Table, compression: str = COMPRESSION) -> pa.Buffer:
    """Return the Parquet file of one chunk that holds the events in the order of ``table``."""
    table = as_events(table)
    return _encode(table, _byte_ends(table), compression)


def stage(
    store: Store,
    table_path: str,
    staging_version: int,
    segment_id: int,
    events: pa.Table,
    *,
    name: str,
    compression: str = COMPRESSION,
    folder: str | None = None,
) -> list[StagedChunk]:
    """Store events as chunks of one segment, durably, for a commit to name them in this order.

    The files are ``<table_path>/data/v<staging_version>/<name>-<k>.parquet``; ``name`` must be
    unique. ``folder`` replaces ``v<staging_version>``: a transaction's chunks have their own.
    No events, no chunk. Raise EventTooLarge above ``MAX_EVENT_BYTES``.
    """
    table = as_events(events)
    ends = _byte_ends(table)
    staged: list[StagedChunk] = []
    for first, last in _cuts(ends, CHUNK_EVENTS, CHUNK_BYTES):
        part = table.slice(first, last - first)
        before = int(ends[first - 1]) if first else 0
        data = _encode(part, ends[first:last] - before, compression)
        path = f"data/{folder or f'v{staging_version}'}/{name}-{len(staged)}.parquet"
        store.put(f"{table_path}/{path}", data)
        times = _times(part)
        staged.append(
            StagedChunk(
                path,
                segment_id,
                rows=part.num_rows,
                size=data.size,
                event_bytes=int(ends[last - 1]) - before,
                min_timestamp_us=int(times.min()),
                max_timestamp_us=int(times.max()),
                null_keys=part.column("routing_key").null_count,
            )
        )
    return staged


def _times(table: pa.Table) -> NDArray[np.int64]:
    """Return the timestamps as microseconds, without the detour through a cast."""
    chunks = [chunk.view(pa.int64()) for chunk in table.column("timestamp").chunks]
    return numbers(pa.chunked_array(chunks, pa.int64()))


def _byte_ends(table: pa.Table) -> NDArray[np.int64]:
    """Return the cumulative event bytes after each row."""
    lengths = numbers(pc.binary_length(table.column("event")))
    if len(lengths) and lengths.max() > MAX_EVENT_BYTES:
        row = int(lengths.argmax())
        raise EventTooLarge(
            f"event {row} of {len(lengths)} has {lengths[row]} bytes; at most {MAX_EVENT_BYTES} "
            "are allowed: store it elsewhere and write a reference."
        )
    return np.cumsum(lengths, dtype=np.int64)


def _cuts(ends: NDArray[np.int64], most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of parts within both limits; a part has at least one row."""
    first, done = 0, 0
    while first < len(ends):
        fits = int(np.searchsorted(ends, done + most_bytes, side="right"))
        last = max(first + 1, min(fits, first + most_rows))
        yield first, last
        first, done = last, int(ends[last - 1])


def _encode(table: pa.Table, ends: NDArray[np.int64], compression: str) -> pa.Buffer:
    deltas = column(np.arange(table.num_rows, dtype=np.int32), pa.int32())
    rows = pa.Table.from_arrays([deltas, *table.columns], schema=FILE_SCHEMA)
    codec, level = compression, _ZSTD_LEVEL if compression == "zstd" else None
    if compression == "zstd" and (not len(ends) or ends[-1] <= SMALL_CHUNK_BYTES):
        codec, level = "snappy", None
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, FILE_SCHEMA, compression=codec, compression_level=level, **_WRITER_OPTIONS
    ) as writer:
        for first, last in _cuts(ends, ROW_GROUP_EVENTS, ROW_GROUP_BYTES):
            writer.write_table(rows.slice(first, last - first), row_group_size=last - first)
    return sink.getvalue()


# ------------------------------------------------------------------------------------- reading


def read(
    store: Store,
    table_path: str,
    ref: ChunkRef,
    start: int,
    end: int,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the events at offsets [start, end) of a chunk, in order, as batches.

    ``columns`` are some of ``BATCH_COLUMNS``, in the order wanted (None: all). Only these are
    read, and only of the row groups that hold the range; one row group at a time is in memory.

    Raise CorruptChunk if the file is not what the log says. A missing file is Python's own
    FileNotFoundError: compaction may have replaced it, so look the range up again.
    """
    if not ref.base_offset <= start <= end <= ref.end:
        raise InvalidInput(f"[{start}, {end}) is not a part of {ref}.")
    return _read(store, table_path, ref, start, end, _checked(columns), batch_rows, None)


def read_range(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of ``rng`` from its chunks, given in offset order.

    Small files are fetched several at a time, small batches are joined. Raise DataLoss where the
    chunks leave a gap or end before the range does; otherwise as :func:`read`.
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
        raise DataLoss(f"{rng} has no event at offset {at}: no chunk of the log holds it.")


def first_at_or_after(
    store: Store, table_path: str, ref: ChunkRef, timestamp_us: int
) -> int | None:
    """Return the offset of the chunk's first event not before the time, None if there is none."""
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
    """Return the segment's event bytes before ``offset``, exactly; reads the shorter side."""
    if not ref.base_offset <= offset <= ref.end:
        raise InvalidInput(f"offset {offset} is not in {ref}.")
    if offset - ref.base_offset <= ref.end - offset:
        return ref.base_bytes + _event_bytes(store, table_path, ref, ref.base_offset, offset)
    after = _event_bytes(store, table_path, ref, offset, ref.end)
    return ref.base_bytes + ref.event_bytes - after


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
    """Yield each chunk, small ones with their file, fetched together with their neighbours."""
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
    with _sound(ref):
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
        raise CorruptChunk(f"{ref} has {source.size()} bytes; the log says {ref.size}.")
    # Far storage is asked once for a row group's columns; no threads, which do not survive a fork.
    file = pq.ParquetFile(source, pre_buffer=not is_local, page_checksum_verification=True)
    if not file.schema_arrow.equals(FILE_SCHEMA):
        raise CorruptChunk(f"{ref} has the columns {file.schema_arrow}, not those of a chunk.")
    if file.metadata.num_rows != ref.rows:
        raise CorruptChunk(f"{ref} holds {file.metadata.num_rows} events; the log says {ref.rows}.")
    columns = ["offset_delta", *(name for name in names if name != "offset")]
    at = 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if at + rows <= first:
            at += rows
            continue
        for batch in file.iter_batches(batch_rows, [group], columns, use_threads=False):
            deltas = numbers(batch.column("offset_delta"))
            if not np.array_equal(deltas, np.arange(at, at + len(deltas), dtype=np.int32)):
                raise CorruptChunk(
                    f"{ref} counts its events {deltas[0]}..{deltas[-1]} where {at}.."
                    f"{at + len(deltas) - 1} were written."
                )
            low, high = max(first, at), min(last, at + len(deltas))
            if low < high:
                yield low, batch.slice(low - at, high - low)
            at += len(deltas)
            if at >= last:
                return
    raise CorruptChunk(f"{ref} ends after {at} events.")


@contextmanager
def _sound(ref: ChunkRef) -> Iterator[None]:
    """Turn what pyarrow says of broken files into CorruptChunk, and the disk's into StoreError."""
    try:
        yield
    except (FileNotFoundError, StoreError):
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, MemoryError):
            raise
        if isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError):
            raise StoreError(f"{ref} cannot be read: {error}.") from error
        raise CorruptChunk(f"{ref} is no sound Parquet file: {error}") from error


def _joined(batches: Iterator[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Join consecutive small batches, up to ``batch_rows`` rows or a row group's bytes."""
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
