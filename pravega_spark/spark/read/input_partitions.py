"""Input partitions: a range of one segment with its chunks, and how a task reads it.

A partition carries the chunks that its planner found, so that tasks read no log. Only where a file
is gone, since compaction replaced it, does a task look its range up again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.routing import positions
from pravega_spark.engine.layout.read_plan import share
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.range_reader import fail, read_range
from pravega_spark.errors import PravegaSparkError
from pravega_spark.model import KeyRange, SegmentRange
from pravega_spark.spark.read.columns import projection
from pravega_spark.spark.settings import ReadSettings

logger = logging.getLogger(__name__)

BATCH_ROWS = 65_536
PARTITION_BYTES = 128 << 20
"""A batch read splits a segment's files about here, as Spark does with files of its own."""


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One of ``count`` equal parts of a segment's keys: what keeps order where a segment is split.

    Null keys have no order; they go by offset.
    """

    key_range: KeyRange
    index: int
    count: int

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the part's rows of a batch with the columns ``offset`` and ``routing_key``."""
        low, high = self.key_range.low, self.key_range.high
        places = positions(batch.column("routing_key"))
        null = np.isnan(places)
        share_of = np.where(null, 0.0, (places - low) / (high - low) * self.count)
        parts = np.minimum(share_of.astype(np.int64), self.count - 1)
        offsets = numbers(batch.column("offset"))
        parts = np.where(null, offsets % self.count, parts)
        return batch.filter(mask(parts == self.index))


class EventPartition(InputPartition):
    """Events of a range of one segment, or a part of them by key."""

    def __init__(
        self, rng: SegmentRange, refs: Sequence[ChunkRef], part: KeyPart | None = None
    ) -> None:
        """Take the range, the chunks that cover it, and the part of the keys (None: all)."""
        super().__init__(None)
        self.rng = rng
        self.refs = tuple(refs)
        self.part = part

    def __repr__(self) -> str:
        """Name the range."""
        return f"EventPartition({self.rng}, {len(self.refs)} chunks, {self.part})"


def by_offset(
    rng: SegmentRange, refs: Sequence[ChunkRef], count: int, most_bytes: int = PARTITION_BYTES
) -> list[EventPartition]:
    """Split a range at offsets: into ``count`` parts, or where ``most_bytes`` of files are full."""
    if count > 1:
        step = -(-len(rng) // count)
        borders = [*range(rng.start, rng.end, step), rng.end]
    else:
        borders, size = [rng.start], 0
        for ref in refs:
            if size and size + ref.size > most_bytes:
                borders.append(ref.base_offset)
                size = 0
            size += ref.size
        borders.append(rng.end)
    return [_piece(rng, refs, a, b) for a, b in pairwise(borders) if a < b]


def _piece(rng: SegmentRange, refs: Sequence[ChunkRef], start: int, end: int) -> EventPartition:
    inside = [ref for ref in refs if ref.base_offset < end and ref.end > start]
    return EventPartition(SegmentRange(rng.stream, rng.life, rng.segment_id, start, end), inside)


def by_key(
    rng: SegmentRange, refs: Sequence[ChunkRef], count: int, key_range: KeyRange
) -> list[EventPartition]:
    """Split a range by routing key into ``count`` parts; each part reads all of the chunks."""
    if count <= 1:
        return [EventPartition(rng, refs)]
    return [EventPartition(rng, refs, KeyPart(key_range, i, count)) for i in range(count)]


def counts(ranges: Sequence[SegmentRange], wanted: int) -> list[int]:
    """Share a wanted number of partitions over the ranges by their lengths, at least 1 each."""
    if wanted <= len(ranges):
        return [1] * len(ranges)
    shares = share(dict(enumerate(map(len, ranges))), wanted)
    return [shares[i] for i in range(len(ranges))]


def read_events(
    settings: ReadSettings, schema_json: str, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield a partition's events as Spark wants them; every one up to its end, or an error.

    Runs in a task, for the batch and the streaming source alike. Where nothing was planned Spark
    reads a partition of its own, which holds nothing. Raises DataLoss, TruncatedData or
    CorruptChunk with the range that cannot be read; the first two are logged and skipped if
    ``failOnDataLoss`` is false.
    """
    if not isinstance(partition, EventPartition):
        return
    rng, part = partition.rng, partition.part
    rows = projection(settings.column_names, schema_json, rng.stream, rng.segment_id)
    columns = rows.columns
    if part is not None:
        columns = tuple(dict.fromkeys((*columns, "offset", "routing_key")))
    batches = read_range(
        open_stream(settings.root, rng.stream),
        rng,
        partition.refs,
        columns=columns,
        batch_rows=BATCH_ROWS,
        on_loss=fail if settings.fail_on_data_loss else _skip,
    )
    for batch in batches:
        selected = batch if part is None else part.select(batch)
        if selected.num_rows:
            yield rows(selected)


def _skip(lost: SegmentRange, error: PravegaSparkError) -> None:
    logger.warning("failOnDataLoss=false: skipped %d events of %s: %s", len(lost), lost, error)
