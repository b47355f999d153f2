"""Ranges of segments to read, with the chunks that hold them, and how one is divided. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from pravega_spark.engine.attached_objects import stored_bytes_of
from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.routing import positions
from pravega_spark.limits import PARTITION_BYTES, PARTITION_CHUNKS
from pravega_spark.model import KeyRange, SegmentRange
from pravega_spark.spark.kept_plans import FramePlan
from pravega_spark.spark.read.event_filter import EventFilter
from pravega_spark.spark.read.planned_chunks import PlannedChunks
from pravega_spark.stream_schema import StreamSchema


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
        """Return the number of events that are read."""
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
