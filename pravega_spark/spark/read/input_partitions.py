"""Input partitions: the ranges that one task reads, each with its chunks, and how it reads them.

A partition carries the chunks that its planner found, so tasks do not read the log. A task looks
a range up again only if a file is missing, for instance because compaction replaced it, or if it
reads a part of the keys of very many chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from functools import partial
from heapq import heappop, heappush
from math import ceil

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pravega_spark.engine.attached_objects import stored_bytes_of
from pravega_spark.engine.chunks.event_format import format_of
from pravega_spark.engine.layout.read_plan import share
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import PravegaSparkError
from pravega_spark.limits import (
    PACKED_BYTES,
    PACKED_CHUNKS,
    PACKED_READS,
    PACKED_ROWS,
    READ_BATCH_EVENTS,
)
from pravega_spark.model import SegmentRange
from pravega_spark.spark.kept_plans import warn_if_kept
from pravega_spark.spark.read.columns import constants_of, projection
from pravega_spark.spark.read.planned_ranges import PlannedRange
from pravega_spark.spark.settings import ReadSettings

logger = own_logger(__name__)


class EventPartition(InputPartition):
    """The events of some ranges, which one task reads one after the other."""

    def __init__(self, ranges: Sequence[PlannedRange]) -> None:
        """Take the ranges, in the order in which they are read."""
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.watermark_us: int | None = None
        """The watermark at the end of the micro-batch, if the query reads it."""

    def __repr__(self) -> str:
        """Return the ranges and the number of their chunks."""
        ranges = ", ".join(f"{one.rng} of {len(one.refs)} chunks" for one in self.ranges)
        return f"EventPartition({ranges})"


def partition_counts(ranges: Sequence[Sized], wanted: int) -> list[int]:
    """Share a number of partitions over the ranges by length; each range gets at least 1."""
    if wanted <= len(ranges):
        return [1] * len(ranges)
    shares = share(dict(enumerate(map(len, ranges))), wanted)
    return [shares[i] for i in range(len(ranges))]


def packed(parts: Sequence[Sequence[PlannedRange]], wanted: int) -> list[EventPartition]:
    """Return the partitions that read ranges: a large part of a plan alone, small ones together.

    The ranges of a part stay together, in their order. There are at least ``wanted`` partitions if
    there are as many parts. Small ones are spread evenly.
    """
    if len(parts) <= wanted:
        return [EventPartition(part) for part in parts]
    weights = [sum(map(_weight, part)) for part in parts]
    groups = [[place] for place, weight in enumerate(weights) if weight >= 1]
    small = [place for place, weight in enumerate(weights) if weight < 1]
    needed = ceil(sum(weights[place] for place in small))
    count = min(len(small), max(needed, wanted - len(groups)))
    lightest = [(0.0, number) for number in range(count)]
    shared: list[list[int]] = [[] for _ in range(count)]
    for place in sorted(small, key=lambda place: -weights[place]):
        load, number = heappop(lightest)
        shared[number].append(place)
        heappush(lightest, (load + weights[place], number))
    groups += [sorted(group) for group in shared]
    return [
        EventPartition([one for place in group for one in parts[place]]) for group in sorted(groups)
    ]


def _weight(one: PlannedRange) -> float:
    """Return what a range is of all that ranges which share a task may be; at most 1."""
    if len(one.refs) >= PACKED_CHUNKS:
        return 1.0
    size = sum(stored_bytes_of(ref.path, ref.size) for ref in one.refs)
    shares = len(one) / PACKED_ROWS, size / PACKED_BYTES, len(one.refs) / PACKED_CHUNKS
    return min(1.0, max(shares))


ReadRange = Callable[[PlannedRange, int | None], Generator[pa.RecordBatch, None, None]]
"""Yields the events of a range, with the watermark of its micro-batch."""


def read_events(
    settings: ReadSettings, schema_json: str, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield all events of a partition, in Spark's columns, or raise an error.

    Runs in a task, for both sources. Raises DataLoss, TruncatedData or CorruptChunk with the range
    that cannot be read; if ``failOnDataLoss`` is false, the first two are logged and the range is
    skipped.
    """
    return read_ranges(settings, partition, partial(read_range_events, settings, schema_json))


def read_ranges(
    settings: ReadSettings, partition: InputPartition, read: ReadRange
) -> Iterator[pa.RecordBatch]:
    """Yield what ``read`` does of each range of a partition; on an object store, of some at once.

    If no partition was planned Spark reads one of its own, which is empty.
    """
    if not isinstance(partition, EventPartition):
        return
    for name, plan in {one.rng.stream: one.plan for one in partition.ranges}.items():
        stream = open_stream(settings.root, name)
        warn_if_kept(plan, f"stream {name}", stream)
    parts = (read(one, partition.watermark_us) for one in partition.ranges)
    if len(partition.ranges) == 1 or stream.store.is_local:
        for part in parts:
            yield from part
    else:
        yield from stream.runtime.read_ahead(parts, PACKED_READS)


def read_range_events(
    settings: ReadSettings, schema_json: str, one: PlannedRange, watermark_us: int | None = None
) -> Generator[pa.RecordBatch, None, None]:
    """Yield all events of a range, as :func:`read_events` does."""
    from pravega_spark.engine.stream.range_reader import fail, read_range  # late: only tasks read

    rng, part, wanted = one.rng, one.part, one.wanted
    event_format = format_of(one.schema)
    rows = projection(
        settings.column_names,
        schema_json,
        settings.key_encoding,
        () if event_format.is_raw else event_format.payload,
    )
    columns = tuple(dict.fromkeys((*rows.source_columns, *wanted.columns)))
    if part is not None:
        columns = tuple(dict.fromkeys((*columns, "offset", "routing_key")))
    constants = constants_of(rng.stream, rng.segment_id)
    stream = open_stream(settings.root, rng.stream)
    for held, refs in one.runs():
        batches = read_range(
            stream,
            held,
            refs,
            columns=columns,
            batch_rows=READ_BATCH_EVENTS,
            on_loss=fail if settings.fail_on_data_loss else partial(_skip, stream.store),
            payload_bytes=settings.max_event_bytes,
            event_format=event_format,
            where=one.where,
            # A local file is decoded while Spark converts the batch before it, without a thread.
            ahead=not stream.store.is_local,
        )
        for batch in batches:
            selected = wanted.select(batch)
            selected = selected if part is None else part.select(selected)
            if selected.num_rows:
                yield rows(selected, constants, watermark_us)


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
