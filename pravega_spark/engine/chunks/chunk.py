"""Chunks: the Parquet files that hold events, written once and read by ranges of offsets.

A chunk holds only what its writer knows before the commit. Columns of a raw stream
(``FILE_SCHEMA``); a typed stream has its own ones instead of ``event`` (``format``):

============  ==================  ========================================================
offset_delta  int32, required     0..n-1; the offset is the log's ``base_offset`` plus this
routing_key   string              null where the writer gave none
timestamp     timestamp[us, UTC]  the writer's clock; never null
event         binary              the payload; never null
============  ==================  ========================================================

Pages carry a CRC. Our readers verify it, so a damaged byte is never returned as data.

Delta's statistics of a chunk: what the log tells every reader of Delta about a file's rows. A file
whose columns have no bounds that are certain has none at all: where others of the table have them,
delta-rs takes a missing bound for null, and would skip the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from pravega_spark.engine.chunks.arrow_arrays import column, ready
from pravega_spark.engine.runtime.json_codec import quoted
from pravega_spark.errors import InvalidInput
from pravega_spark.values.segments import SegmentRange, segment_text

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999: the dates that other Delta readers can parse."""


class ColumnBounds(NamedTuple):
    """The lowest and highest values of typed columns, and their nulls, as members of JSON objects.

    A column that is null in all rows has no values.
    """

    low: str
    high: str
    nulls: str


NO_BOUNDS: Final = ColumnBounds("", "", "")
"""What a typed chunk has if its bounds are not known, or if those of one column are none."""


def stats_text(
    rows: int, null_keys: int, first_us: int, last_us: int, columns: ColumnBounds | None
) -> str:
    """Return the statistics of a file as JSON, formatted by hand because commits wait.

    ``columns`` are those of a typed chunk, or None. Delta's statistics have timestamps in
    milliseconds, so the bounds are rounded outwards.
    """
    bounds = ""
    low, high = low_time(first_us), high_time(last_us)
    if low is not None and high is not None and columns != NO_BOUNDS:
        lows, highs = ("", "") if columns is None else columns[:2]
        bounds = (
            f'"minValues":{{"timestamp":{_joined(low, lows)}}},'
            f'"maxValues":{{"timestamp":{_joined(high, highs)}}},'
        )
    # Delta Spark uses the bounds of a column only if its nulls are counted.
    nulls = _joined("0", "" if columns is None else columns.nulls)
    return (
        f'{{"numRecords":{rows},{bounds}'
        f'"nullCount":{{"routing_key":{null_keys},"timestamp":{nulls}}}}}'
    )


def low_time(time_us: int) -> str | None:
    """Return a time in microseconds as Delta writes a lower bound; None if it cannot."""
    return _time_text(time_us // 1_000)


def high_time(time_us: int) -> str | None:
    """Return a time in microseconds as Delta writes an upper bound; None if it cannot."""
    return _time_text(-(-time_us // 1_000))


@lru_cache(maxsize=512)
def _time_text(time_ms: int) -> str | None:
    """Return a time as a JSON text; the chunks of one commit have few different ones."""
    is_known = _FIRST_MS <= time_ms <= _LAST_MS
    return f'"{np.datetime64(time_ms, "ms")}Z"' if is_known else None


def _joined(first: str, rest: str) -> str:
    return f"{first},{rest}" if rest else first


TIMESTAMP: Final = pa.timestamp("us", "UTC")
"""The type of the time of an event."""
_EVENT_FIELDS: Final = (
    pa.field("routing_key", pa.string()),
    pa.field("timestamp", TIMESTAMP),
    pa.field("event", pa.binary()),
)
EVENT_SCHEMA: Final = pa.schema(_EVENT_FIELDS)
"""The columns of raw events that are not yet in a chunk."""
FILE_SCHEMA: Final = pa.schema((pa.field("offset_delta", pa.int32(), False), *_EVENT_FIELDS))
"""The columns of the file of a chunk of raw events."""


class _Formatted:
    """Room for a text that is formatted once; no field, so copies and comparisons leave it out."""

    __slots__ = ("_stats_json",)
    _stats_json: str


@dataclass(frozen=True, slots=True)
class StagedChunk(_Formatted):
    """A stored chunk that no commit names yet; ``path`` is relative to the table."""

    path: str
    segment_id: int
    rows: int
    size: int
    event_bytes: int
    min_timestamp_us: int
    max_timestamp_us: int
    null_keys: int
    footer: str = ""
    """The digest of the file's footer; empty in manifests of earlier versions."""
    attachment: str = ""
    """Size and digest of the object whose reference is the only event; else empty."""

    columns: ColumnBounds | None = None
    """The bounds of the columns of a typed chunk; None for a raw or an encrypted one."""

    def stats(self) -> str:
        """Return Delta's statistics of the file as JSON."""
        return stats_text(
            self.rows, self.null_keys, self.min_timestamp_us, self.max_timestamp_us, self.columns
        )

    def stats_json(self) -> str:
        """Return the statistics as a JSON text, formatted once.

        A caller that stages chunks asks for it early, so that the commit does not format it.
        """
        try:
            return self._stats_json
        except AttributeError:
            text = quoted(self.stats())
            object.__setattr__(self, "_stats_json", text)
            return text


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
    footer: str = ""
    """The digest of the file's footer; empty for chunks that earlier versions wrote."""
    attachment: str = ""
    """Size and digest of the object whose reference is the only event; else empty."""

    @property
    def end(self) -> int:
        """The offset after its last event."""
        return self.base_offset + self.rows

    def __str__(self) -> str:
        """Name the chunk for error texts."""
        events = f"segment {segment_text(self.segment_id)} [{self.base_offset}, {self.end})"
        return f"chunk {self.path} of {events}"


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


def encode_events(
    keys: Sequence[str | None], timestamps_us: ArrayLike, events: Sequence[bytes]
) -> pa.Table:
    """Return a table of ``EVENT_SCHEMA`` from Python values; raise InvalidInput if they misfit."""
    ready()
    try:
        columns = [
            pa.array(keys, pa.string()),
            column(np.asarray(timestamps_us, np.int64), TIMESTAMP),
            pa.array(events, pa.binary()),
        ]
        return pa.Table.from_arrays(columns, schema=EVENT_SCHEMA)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"{len(events)} events cannot be written: {error} Give keys as str or None, events as "
            "bytes, and timestamps in microseconds."
        ) from error


def as_raw_events(table: pa.Table) -> pa.Table:
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
