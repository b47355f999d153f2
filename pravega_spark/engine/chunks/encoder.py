"""Encodes events as the Parquet file of a chunk, one row group after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import byte_ends, column, numbers
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, ColumnBounds, StagedChunk
from pravega_spark.engine.chunks.columns import column_bounds, encrypted_columns, file_options
from pravega_spark.engine.chunks.footer import KEY_NAME, encode_sums
from pravega_spark.engine.chunks.format import columns_with_nan, file_schema, is_raw, typed_sizes
from pravega_spark.engine.key_management import ChunkKey, encryption_properties
from pravega_spark.errors import EventTooLarge, InvalidInput
from pravega_spark.values.limits import MAX_EVENT_BYTES, ROW_GROUP_BYTES, ROW_GROUP_EVENTS

SMALL_CHUNK_BYTES: Final = 16 << 10
"""Up to this payload zstd's set-up costs more than it saves: such chunks use snappy."""
UNCOMPRESSED: Final = "none"
MAX_ROWS: Final = (1 << 31) - 1
"""``offset_delta`` is an int32."""

_ZSTD_LEVEL: Final = 1
_BLOCK_PAGE_BYTES: Final = 4 << 20
"""Pages of blocks of bytes: events of a page of 1 MiB each are slower to write and to read."""


class UnexpectedNaN(Exception):
    """Columns of a file that has begun have a NaN, and so must not have bounds: begin again."""

    def __init__(self, columns: frozenset[str]) -> None:
        super().__init__(f"NaN in {', '.join(sorted(columns))}")
        self.columns = columns


class ChunkEncoder:
    """Writes row groups into a file and sums up what a commit needs to know of them."""

    __slots__ = (
        "_events",
        "_key",
        "_schema",
        "_sums",
        "_unbounded",
        "_writer",
        "columns",
        "event_bytes",
        "max_timestamp_us",
        "min_timestamp_us",
        "null_keys",
        "rows",
    )

    def __init__(
        self,
        sink: pa.NativeFile,
        compression: str,
        *,
        columns: pa.Schema = EVENT_SCHEMA,
        small: bool = False,
        key: ChunkKey | None = None,
        unbounded: frozenset[str] = frozenset(),
    ) -> None:
        """Begin a file of events with these columns.

        ``small`` chunks, up to ``SMALL_CHUNK_BYTES``, do not use zstd. With a key, events and
        routing keys are encrypted. Only the columns ``unbounded`` may have NaN. Raises
        KeyUnavailable.
        """
        codec, level = compression, _ZSTD_LEVEL if compression == "zstd" else None
        if small and compression == "zstd":
            codec, level = "snappy", None
        page_bytes = _BLOCK_PAGE_BYTES if compression == UNCOMPRESSED else None
        self._key = key
        self._unbounded = unbounded
        self._events = columns
        self._schema = file_schema(columns)
        self._writer = pq.ParquetWriter(
            sink,
            self._schema,
            compression=codec,
            compression_level=level,
            data_page_size=page_bytes,
            encryption_properties=(
                None if key is None else encryption_properties(key, encrypted_columns(columns))
            ),
            **file_options(columns, is_encrypted=key is not None, small=small, unbounded=unbounded),
        )
        self._sums: list[int] = []
        self.columns: ColumnBounds | None = None
        """The bounds of the columns of a typed file that is not encrypted, once it is finished."""
        self.rows = self.event_bytes = self.null_keys = 0
        self.min_timestamp_us = self.max_timestamp_us = 0

    def write(self, events: pa.Table, event_bytes: int) -> None:
        """Write one row group of events, checked by ``as_events``.

        Raises UnexpectedNaN for columns that were to have none.
        """
        count = events.num_rows
        surprises = columns_with_nan(events) - self._unbounded
        if surprises:
            raise UnexpectedNaN(surprises)
        if self.rows + count > MAX_ROWS:
            raise InvalidInput(
                f"a chunk of {self.rows + count} events cannot be written: at most {MAX_ROWS} "
                "events fit. Write several chunks."
            )
        deltas = column(np.arange(self.rows, self.rows + count, dtype=np.int32), pa.int32())
        rows = pa.Table.from_arrays([deltas, *events.columns], schema=self._schema)
        self._writer.write_table(rows, row_group_size=count)
        self._sums.append(self.event_bytes)
        times = times_of(events)
        low, high = int(times.min()), int(times.max())
        self.min_timestamp_us = min(self.min_timestamp_us, low) if self.rows else low
        self.max_timestamp_us = max(self.max_timestamp_us, high) if self.rows else high
        self.null_keys += events.column("routing_key").null_count
        self.event_bytes += event_bytes
        self.rows += count

    def finish(self) -> None:
        """Write the footer; with several row groups it records the event bytes before each."""
        if len(self._sums) > 1:
            self._writer.add_key_value_metadata(encode_sums(self._sums))
        if self._key is not None:
            self._writer.add_key_value_metadata({KEY_NAME: self._key.name.encode()})
        self._writer.close()
        if self._key is None and not is_raw(self._events):
            self.columns = column_bounds(self._writer.writer.metadata, self._events)

    def staged(self, path: str, segment_id: int, size: int, footer: str) -> StagedChunk:
        """Return the description of the finished file for a commit."""
        return StagedChunk(
            path,
            segment_id,
            rows=self.rows,
            size=size,
            event_bytes=self.event_bytes,
            min_timestamp_us=self.min_timestamp_us,
            max_timestamp_us=self.max_timestamp_us,
            null_keys=self.null_keys,
            footer=footer,
            columns=self.columns,
        )

    def abandon(self) -> None:
        """Give up on the file, so that the writer's finalizer does not write a footer."""
        self._writer.is_open = False


def checked_ends(events: pa.Table) -> NDArray[np.int64]:
    """Return the cumulative event bytes after each row; raise EventTooLarge."""
    raw = is_raw(events.schema)
    ends = byte_ends(events.column("event")) if raw else np.cumsum(typed_sizes(events))
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


def row_groups(ends: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
    """Yield [first, last) of each row group, and its event bytes."""
    return cuts(ends, ROW_GROUP_EVENTS, ROW_GROUP_BYTES)


def cuts(
    ends: NDArray[np.int64], most_rows: int, most_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Yield [first, last) and the bytes of parts within both limits, each of at least one row."""
    first, done = 0, 0
    while first < len(ends):
        fits = int(np.searchsorted(ends, done + most_bytes, side="right"))
        last = max(first + 1, min(fits, first + most_rows))
        after = int(ends[last - 1])
        yield first, last, after - done
        first, done = last, after


def times_of(table: pa.Table) -> NDArray[np.int64]:
    """Return the timestamps as microseconds, without the cost of a cast."""
    chunks = [chunk.view(pa.int64()) for chunk in table.column("timestamp").chunks]
    return numbers(pa.chunked_array(chunks, pa.int64()))
