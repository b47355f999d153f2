"""Chunks: the Parquet files that hold events, written once and read by ranges of offsets.

A chunk holds only what its writer knows before the commit. Columns (``FILE_SCHEMA``):

============  ==================  ========================================================
offset_delta  int32, required     0..n-1; the offset is the log's ``base_offset`` plus this
routing_key   string              null where the writer gave none
timestamp     timestamp[us, UTC]  the writer's clock; never null
event         binary              the payload; never null
============  ==================  ========================================================

Pages carry a CRC. Our readers verify it, so a damaged byte is never returned as data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from pravega_spark.engine.chunks.arrow_arrays import byte_ends, column, numbers, ready
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import EventTooLarge, InvalidInput
from pravega_spark.limits import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    COMPRESSION,
    MAX_EVENT_BYTES,
    ROW_GROUP_BYTES,
    ROW_GROUP_EVENTS,
)
from pravega_spark.model import segment_text

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_EVENT_FIELDS: Final = (
    pa.field("routing_key", pa.string()),
    pa.field("timestamp", _TIMESTAMP),
    pa.field("event", pa.binary()),
)
EVENT_SCHEMA: Final = pa.schema(_EVENT_FIELDS)
"""The columns of events that are not yet in a chunk."""
FILE_SCHEMA: Final = pa.schema((pa.field("offset_delta", pa.int32(), False), *_EVENT_FIELDS))
"""The columns of a chunk's file."""

SMALL_CHUNK_BYTES: Final = 16 << 10
"""Up to this payload zstd's set-up costs more than it saves: such chunks use snappy."""

_ZSTD_LEVEL: Final = 1
_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "version": "2.6",
    "use_dictionary": ["routing_key"],
    "column_encoding": dict.fromkeys(("offset_delta", "timestamp"), "DELTA_BINARY_PACKED"),
    "write_statistics": ["offset_delta", "timestamp", "routing_key"],
    "write_page_checksum": True,
    "store_schema": False,  # Parquet's own types are enough
}
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999: the dates that other Delta readers can parse."""


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """A stored chunk that no commit names yet; ``path`` is relative to the table."""

    path: str
    segment_id: int
    rows: int
    size: int
    event_bytes: int
    min_timestamp_us: int
    max_timestamp_us: int
    null_keys: int

    def stats(self) -> str:
        """Return Delta's statistics of the file as JSON, formatted by hand because commits wait.

        Delta's statistics have timestamps in milliseconds, so the bounds are rounded outwards.
        """
        bounds = ""
        low_ms, high_ms = self.min_timestamp_us // 1_000, -(-self.max_timestamp_us // 1_000)
        if low_ms >= _FIRST_MS and high_ms <= _LAST_MS:
            low, high = np.datetime64(low_ms, "ms"), np.datetime64(high_ms, "ms")
            bounds = f'"minValues":{{"timestamp":"{low}Z"}},"maxValues":{{"timestamp":"{high}Z"}},'
        # Delta Spark uses the bounds of a column only if its nulls are counted.
        nulls = f'"nullCount":{{"routing_key":{self.null_keys},"timestamp":0}}'
        return f'{{"numRecords":{self.rows},{bounds}{nulls}}}'


@dataclass(frozen=True, slots=True)
class ChunkRef:
    """A chunk that the log names, with its offsets and bytes in the segment."""

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
        """Name the chunk for error texts."""
        events = f"segment {segment_text(self.segment_id)} [{self.base_offset}, {self.end})"
        return f"chunk {self.path} of {events}"


def encode_events(
    keys: Sequence[str | None], timestamps_us: ArrayLike, events: Sequence[bytes]
) -> pa.Table:
    """Return a table of ``EVENT_SCHEMA`` from Python values; raise InvalidInput if they misfit."""
    ready()
    try:
        columns = [
            pa.array(keys, pa.string()),
            column(np.asarray(timestamps_us, np.int64), _TIMESTAMP),
            pa.array(events, pa.binary()),
        ]
        return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"{len(events)} events cannot be written: {error} Give keys as str or None, events as "
            "bytes, and timestamps in microseconds."
        ) from error


def as_events(table: pa.Table) -> pa.Table:
    """Return the events of ``table`` as ``EVENT_SCHEMA``: columns selected, types cast if needed.

    Raises InvalidInput if a column is missing or cannot be cast without loss, or if a timestamp or
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
                f"the table is not a table of events: {error} It needs the columns "
                f"{', '.join(map(str, EVENT_SCHEMA))}; got {', '.join(map(str, table.schema))}."
            ) from error
    for name in ("timestamp", "event"):
        nulls = table.column(name).null_count
        if nulls:
            raise InvalidInput(f"{nulls} of {table.num_rows} events have a null {name}.")
    return table


def encode(table: pa.Table, compression: str = COMPRESSION) -> pa.Buffer:
    """Return the Parquet file of one chunk with the events in the order of ``table``."""
    table = as_events(table)
    return _encode(table, _byte_ends(table), compression)


def version_folder(version: int) -> str:
    """Return the folder of chunks that are staged at a version of the log.

    A sweep deletes its unreferenced files after the horizon has passed that version.
    """
    return f"v{version}"


def stage(
    store: Store,
    table_path: str,
    folder: str,
    segment_id: int,
    events: pa.Table,
    *,
    name: str,
    compression: str = COMPRESSION,
) -> list[StagedChunk]:
    """Store events durably as chunks of one segment, which a commit must name in this order.

    The files are ``<table_path>/data/<folder>/<name>-<k>.parquet``; ``name`` must be unique.
    ``folder`` is a :func:`version_folder`, or the folder of a transaction. Without events no chunk
    is stored. Raises EventTooLarge above ``MAX_EVENT_BYTES``.
    """
    table = as_events(events)
    ends = _byte_ends(table)
    staged: list[StagedChunk] = []
    for first, last in _cuts(ends, CHUNK_EVENTS, CHUNK_BYTES):
        part = table.slice(first, last - first)
        before = int(ends[first - 1]) if first else 0
        data = _encode(part, ends[first:last] - before, compression)
        path = f"data/{folder}/{name}-{len(staged)}.parquet"
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
    """Return the timestamps as microseconds, without the cost of a cast."""
    chunks = [chunk.view(pa.int64()) for chunk in table.column("timestamp").chunks]
    return numbers(pa.chunked_array(chunks, pa.int64()))


def _byte_ends(table: pa.Table) -> NDArray[np.int64]:
    """Return the cumulative event bytes after each row."""
    ends = byte_ends(table.column("event"))
    if len(ends) and ends[-1] > MAX_EVENT_BYTES:  # otherwise no event can be longer
        lengths = np.diff(ends, prepend=0)
        row = int(lengths.argmax())
        if lengths[row] > MAX_EVENT_BYTES:
            raise EventTooLarge(
                f"event {row} of {len(lengths)} has {lengths[row]} bytes; at most "
                f"{MAX_EVENT_BYTES} are allowed. Store it elsewhere and write a reference.",
                size_bytes=int(lengths[row]),
                limit_bytes=MAX_EVENT_BYTES,
            )
    return ends


def _cuts(ends: NDArray[np.int64], most_rows: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [first, last) of parts within both limits; each part has at least one row."""
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
