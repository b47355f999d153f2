"""Whether a write that comes again within one run has the rows that are there already.

The order of a frame's rows may differ each time, and so may times that are those of writing. So the
digest is a sum over the rows, of their keys and payloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import xxhash

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream.range_reader import read_range
from pravega_spark.engine.stream.stream_log import StreamLog, chunk_ref
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.reroute import read_staged
from pravega_spark.errors import DataLoss, TruncatedData
from pravega_spark.model import SegmentRange

_LIMIT = 1 << 128


def staged_digest(stream: StreamLog, chunks: Iterable[StagedChunk]) -> str:
    """Return the digest of the rows in staged chunks."""
    view = stream.known_view()
    names = _columns(view)
    return _digest(batch for c in chunks for batch in read_staged(stream, view, c, names))


def committed_digest(stream: StreamLog, version: int) -> str | None:
    """Return the digest of the rows that a version appended; None if they are no longer there."""
    view = stream.known_view()
    names = _columns(view)

    def batches(commit: Commit) -> Iterator[pa.RecordBatch]:
        for add in commit.adds:
            ref = chunk_ref(add, stream.path)
            rng = SegmentRange(view.stream, view.life, ref.segment_id, ref.base_offset, ref.end)
            yield from read_range(stream, rng, [ref], columns=names)

    try:
        commit = stream.log.reader.commit(version, light=False)
        return None if commit is None else _digest(batches(commit))
    except (TruncatedData, DataLoss):
        return None


def _columns(view: StreamView) -> list[str]:
    return [name for name in view.event_format.events.names if name != "timestamp"]


def _digest(batches: Iterable[pa.RecordBatch]) -> str:
    total = rows = 0
    for batch in batches:
        columns = [_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            total = (total + xxhash.xxh3_128_intdigest(repr(row).encode())) % _LIMIT
            rows += 1
    return f"{rows} rows {total:032x}"


def _values(column: pa.Array) -> list[Any]:
    """Return a column's values; times as numbers, since Python does not hold all of them."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
