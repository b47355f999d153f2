"""Input partitions: a range of one segment with its chunks, and how a task reads it.

A partition carries the chunks that its planner found, so tasks do not read the log. A task looks
its range up again only if a file is missing, for instance because compaction replaced it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pravega_spark.engine.attached_objects import stored_bytes_of
from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.event_format import format_of
from pravega_spark.engine.chunks.routing import positions
from pravega_spark.engine.layout.read_plan import share
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import PravegaSparkError
from pravega_spark.limits import PARTITION_BYTES, READ_BATCH_EVENTS
from pravega_spark.model import KeyRange, SegmentRange
from pravega_spark.spark.kept_plans import FramePlan, warn_if_kept
from pravega_spark.spark.read.columns import projection
from pravega_spark.spark.read.event_filter import EventFilter, PlannedRange, neighbours
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.stream_schema import StreamSchema

logger = own_logger(__name__)

_ALL_EVENTS = EventFilter()


@dataclass(frozen=True, slots=True)
class KeyPart:
    """One of ``count`` equal parts of a segment's key range, so that a key's events stay together.

    Events without a key have no order; they are spread by offset.
    """

    key_range: KeyRange
    index: int
    count: int

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return this part's rows of a batch with the columns ``offset`` and ``routing_key``."""
        low, high = self.key_range.low, self.key_range.high
        key_positions = positions(batch.column("routing_key"))
        null = np.isnan(key_positions)
        scaled = np.where(null, 0.0, (key_positions - low) / (high - low) * self.count)
        parts = np.minimum(scaled.astype(np.int64), self.count - 1)
        offsets = numbers(batch.column("offset"))
        parts = np.where(null, offsets % self.count, parts)
        return batch.filter(mask(parts == self.index))


class EventPartition(InputPartition):
    """The events of one segment's range, or those of a part of its keys."""

    def __init__(
        self,
        rng: SegmentRange,
        refs: Sequence[ChunkRef],
        part: KeyPart | None = None,
        wanted: EventFilter = _ALL_EVENTS,
        schema: StreamSchema | None = None,
        where: Any = None,
    ) -> None:
        """Take the range, its chunks, the part of the keys (None: all), and the wanted events.

        The chunks hold the whole range, except those parts that have no wanted event. The schema
        is that of a typed stream when the read was planned; ``where`` is an expression over it.
        """
        super().__init__(None)
        self.rng = rng
        self.refs = tuple(refs)
        self.part = part
        self.wanted = wanted
        self.schema = schema
        self.where = where
        self.watermark_us: int | None = None
        """The watermark at the end of the micro-batch, if the query reads it."""
        self.plan: FramePlan | None = None
        """Of a batch read to the tail: the plan that it is a part of."""

    def __repr__(self) -> str:
        """Return the range and the number of chunks."""
        return f"EventPartition({self.rng}, {len(self.refs)} chunks, {self.part})"


def by_offset(
    one: PlannedRange, count: int, max_bytes: int = PARTITION_BYTES
) -> list[EventPartition]:
    """Split a range by offset into ``count`` parts, or if that is 1, about every ``max_bytes``."""
    rng, refs = one.rng, one.refs
    if count > 1:
        step = -(-len(rng) // count)
        borders = [*range(rng.start, rng.end, step), rng.end]
    else:
        borders, size = [rng.start], 0
        for ref in refs:
            stored = stored_bytes_of(ref.path, ref.size)
            if size and size + stored > max_bytes:
                borders.append(ref.base_offset)
                size = 0
            size += stored
        borders.append(rng.end)
    pieces = (_piece(one, a, b) for a, b in pairwise(borders) if a < b)
    return [piece for piece in pieces if piece.refs]


def _piece(one: PlannedRange, start: int, end: int) -> EventPartition:
    inside = [ref for ref in one.refs if ref.base_offset < end and ref.end > start]
    rng = replace(one.rng, start=start, end=end)
    return EventPartition(rng, inside, None, one.wanted, one.schema, one.where)


def by_key(one: PlannedRange, count: int, key_range: KeyRange) -> list[EventPartition]:
    """Split a range by routing key into ``count`` parts; each part reads all of the chunks."""
    parts = [KeyPart(key_range, i, count) for i in range(count)] if count > 1 else [None]
    return [
        EventPartition(one.rng, one.refs, part, one.wanted, one.schema, one.where) for part in parts
    ]


def partition_counts(ranges: Sequence[Sized], wanted: int) -> list[int]:
    """Share a number of partitions over the ranges by length; each range gets at least 1."""
    if wanted <= len(ranges):
        return [1] * len(ranges)
    shares = share(dict(enumerate(map(len, ranges))), wanted)
    return [shares[i] for i in range(len(ranges))]


def read_events(
    settings: ReadSettings, schema_json: str, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield all events of a partition, in Spark's columns, or raise an error.

    Runs in a task, for both sources. If no partition was planned Spark reads one of its own, which
    is empty. Raises DataLoss, TruncatedData or CorruptChunk with the range that cannot be read; if
    ``failOnDataLoss`` is false, the first two are logged and the range is skipped.
    """
    if not isinstance(partition, EventPartition):
        return
    from pravega_spark.engine.stream.range_reader import fail, read_range  # late: only tasks read

    rng, part, wanted = partition.rng, partition.part, partition.wanted
    event_format = format_of(partition.schema)
    rows = projection(
        settings.column_names,
        schema_json,
        rng.stream,
        rng.segment_id,
        settings.key_encoding,
        () if event_format.is_raw else event_format.payload,
    )
    columns = tuple(dict.fromkeys((*rows.source_columns, *wanted.columns)))
    if part is not None:
        columns = tuple(dict.fromkeys((*columns, "offset", "routing_key")))
    stream = open_stream(settings.root, rng.stream)
    warn_if_kept(partition.plan, f"stream {rng.stream}", stream)
    runs = neighbours(rng, partition.refs) if wanted.conditions else [(rng, partition.refs)]
    for held, refs in runs:
        batches = read_range(
            stream,
            held,
            refs,
            columns=columns,
            batch_rows=READ_BATCH_EVENTS,
            on_loss=fail if settings.fail_on_data_loss else partial(_skip, stream.store),
            payload_bytes=settings.max_event_bytes,
            event_format=event_format,
            where=partition.where,
            # A local file is decoded while Spark converts the batch before it, without a thread.
            ahead=not stream.store.is_local,
        )
        for batch in batches:
            selected = wanted.select(batch)
            selected = selected if part is None else part.select(selected)
            if selected.num_rows:
                yield rows(selected, partition.watermark_us)


def _skip(store: Store, lost: SegmentRange, error: PravegaSparkError) -> None:
    from pravega_spark.spark.read.data_loss import check_root  # late: few tasks lose events

    check_root(store)
    logger.warning(
        "failOnDataLoss=false: skipped %d events of %s: %s",
        len(lost),
        lost,
        error,
        extra=log_fields("read", lost.stream, lost=len(lost)),
    )
