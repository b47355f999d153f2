"""Input partitions: the ranges that one task reads, each with its chunks.

A partition carries the chunks that its planner found, so tasks do not read the log. A task looks
a range up again only if a file is missing, for instance because compaction replaced it, or if it
reads a part of the keys of very many chunks.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, fields, replace
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from math import ceil
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.attached_objects import stored_bytes_of
from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.format import format_of
from pravega_spark.engine.chunks.routing import positions
from pravega_spark.engine.layout.read_plan import share
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import PravegaSparkError
from pravega_spark.spark.kept_plans import FramePlan, warn_if_kept
from pravega_spark.spark.read.columns import constants_of, projection
from pravega_spark.spark.read.filters import EventFilter
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.versions import InputPartition
from pravega_spark.values.limits import (
    PACKED_BYTES,
    PACKED_CHUNKS,
    PACKED_READS,
    PACKED_ROWS,
    PARTITION_BYTES,
    PARTITION_CHUNKS,
    READ_BATCH_EVENTS,
)
from pravega_spark.values.segments import KeyRange, SegmentRange

_values = attrgetter(*(field.name for field in fields(ChunkRef)))


class PlannedChunks(tuple[ChunkRef, ...]):
    """Chunks in offset order. Pickled as compressed columns, once for all ranges that share them.

    So a plan of many parts, each of which reads all chunks, costs the driver no more than one.
    """

    def __reduce__(self) -> tuple[Callable[[bytes], PlannedChunks], tuple[bytes]]:
        """Return the columns; copies of the plan that are pickled later take the same bytes."""
        kept: dict[str, Any] = self.__dict__
        if "packed" not in kept:
            columns = [*zip(*map(_values, self), strict=True)]
            kept["packed"] = zlib.compress(json.dumps(columns).encode(), 1)
        return _unpacked, (kept["packed"],)


def _unpacked(packed: bytes) -> PlannedChunks:
    columns = json.loads(zlib.decompress(packed))
    return PlannedChunks(map(ChunkRef, *columns)) if columns else PlannedChunks()


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


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """A range to read, the chunks that may hold wanted events, and what they are compared with.

    The chunks hold the whole range, except those parts that have no wanted event.
    """

    rng: SegmentRange
    refs: PlannedChunks
    wanted: EventFilter
    schema: StreamSchema | None = None
    """The schema of a typed stream, by the view that the range was planned with."""
    where: Any = None
    """What else all wanted events satisfy, as an expression over the columns of the schema."""
    part: KeyPart | None = None
    """The part of the keys that is read; None is all of them. Its chunks may be the first ones."""
    plan: FramePlan | None = None
    """Of a batch read to the tail: the plan that the range is a part of."""

    def __len__(self) -> int:
        """Return the number of events that are read, or in which those of a part are."""
        return sum(len(rng) for rng, _ in self.runs())

    def runs(self) -> Iterator[tuple[SegmentRange, Sequence[ChunkRef]]]:
        """Yield the parts of the range without a gap, each with its chunks."""
        if not self.wanted.conditions or self.part is not None:
            yield self.rng, self.refs
            return
        run: list[ChunkRef] = []
        for ref in self.refs:
            if run and ref.base_offset > run[-1].end:
                yield _clipped(self.rng, run), run
                run = []
            run.append(ref)
        if run:
            yield _clipped(self.rng, run), run


def _clipped(rng: SegmentRange, refs: Sequence[ChunkRef]) -> SegmentRange:
    return replace(rng, start=max(rng.start, refs[0].base_offset), end=min(rng.end, refs[-1].end))


def planned(
    rng: SegmentRange,
    wanted: EventFilter,
    constants: Mapping[str, Any],
    key_range: KeyRange,
    find: Callable[[SegmentRange], Sequence[ChunkRef]],
) -> PlannedRange | None:
    """Return a range of a segment with the chunks that ``find`` returns; None if none is wanted."""
    rest = wanted.within(constants, key_range)
    if rest is None:
        return None
    refs = PlannedChunks(rest.chunks(rng, find(rng)))
    return PlannedRange(_clipped(rng, refs), refs, rest) if refs else None


def by_offset(
    one: PlannedRange, count: int, max_bytes: int = PARTITION_BYTES
) -> list[PlannedRange]:
    """Split a range by offset into ``count`` parts, or if that is 1, about every ``max_bytes``."""
    rng = one.rng
    if count > 1:
        borders = [rng.start + place * len(rng) // count for place in range(count + 1)]
    else:
        borders, size = [rng.start], 0
        for ref in one.refs:
            stored = stored_bytes_of(ref.path, ref.size)
            if size and size + stored > max_bytes:
                borders.append(ref.base_offset)
                size = 0
            size += stored
        borders.append(rng.end)
    pieces = (_piece(one, a, b) for a, b in pairwise(borders) if a < b)
    return [piece for piece in pieces if piece.refs]


def _piece(one: PlannedRange, start: int, end: int) -> PlannedRange:
    first = bisect_right(one.refs, start, key=attrgetter("end"))
    last = bisect_left(one.refs, end, first, key=attrgetter("base_offset"))
    refs = PlannedChunks(one.refs[first:last])
    return replace(one, rng=replace(one.rng, start=start, end=end), refs=refs)


@dataclass(frozen=True, slots=True)
class OrderedRanges:
    """Ranges of a micro-batch whose keys overlap, predecessors first, and all of their keys.

    They are of segments that replaced one another, so one task reads all events of a key.
    """

    ranges: tuple[PlannedRange, ...]
    key_range: KeyRange

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def by_key(self, count: int) -> list[tuple[PlannedRange, ...]]:
        """Split the ranges by routing key into ``count`` parts, each of which reads all chunks.

        Each carries the first chunks, at most PARTITION_CHUNKS, and finds all others in the log.
        """
        if count == 1:
            return [self.ranges]
        held = [replace(one, refs=_first(one.refs)) for one in self.ranges]
        parts = (KeyPart(self.key_range, i, count) for i in range(count))
        return [tuple(replace(one, part=part) for one in held) for part in parts]


def _first(refs: PlannedChunks) -> PlannedChunks:
    return PlannedChunks(refs[:PARTITION_CHUNKS]) if len(refs) > PARTITION_CHUNKS else refs


def in_order(ranges: Iterable[tuple[PlannedRange, KeyRange]]) -> list[OrderedRanges]:
    """Return ranges of one stream, given predecessors first, by keys that do not overlap."""
    groups: list[tuple[list[int], float, float]] = []
    found = list(ranges)
    for place in sorted(range(len(found)), key=lambda place: found[place][1].low):
        key_range = found[place][1]
        if groups and key_range.low < groups[-1][2]:
            places, low, high = groups.pop()
            groups.append(([*places, place], low, max(high, key_range.high)))
        else:
            groups.append(([place], key_range.low, key_range.high))
    return [
        OrderedRanges(tuple(found[place][0] for place in sorted(places)), KeyRange(low, high))
        for places, low, high in groups
    ]


logger = own_logger(__name__)


class EventPartition(InputPartition):
    """The events of some ranges, which one task reads one after the other."""

    def __init__(self, ranges: Sequence[PlannedRange]) -> None:
        """Take the ranges, in the order in which they are read."""
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.watermark_us: int | None = None
        """The watermark at the end of the micro-batch, if the query reads it."""

    def pinned(self) -> EventPartition:
        """Return the partition of a frame whose every action shall read this plan."""
        found = EventPartition([replace(one, plan=None) for one in self.ranges])
        found.watermark_us = self.watermark_us
        return found

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

    If no partition was planned, Spark reads an empty one.
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
    from pravega_spark.engine.stream.read import fail, read_range  # late: only tasks read

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
            shared=False,  # no two tasks of a process read the same events
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
