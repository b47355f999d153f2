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

from pravega_spark.engine.chunks import chunk_reader
from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.routing import positions
from pravega_spark.engine.layout.read_plan import share
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import events_path, open_stream
from pravega_spark.errors import DataLoss, TruncatedData
from pravega_spark.model import KeyRange, SegmentRange
from pravega_spark.spark.read.columns import projection
from pravega_spark.spark.settings import ReadSettings

logger = logging.getLogger(__name__)

BATCH_ROWS = 65_536
PARTITION_BYTES = 128 << 20
"""A batch read splits a segment's files about here, as Spark does with files of its own."""
LOOK_UPS = 3
"""So often a task asks the log again for a file that is not there before it calls it lost."""


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
    reading = _TaskReader(settings.root, partition, columns, settings.fail_on_data_loss)
    for batch in reading.batches():
        selected = batch if part is None else part.select(batch)
        if selected.num_rows:
            yield rows(selected)


class _TaskReader:
    """One task's way through its range, whatever becomes of the files meanwhile."""

    def __init__(
        self, root: str, partition: EventPartition, columns: Sequence[str], strict: bool
    ) -> None:
        self._root = root
        self._rng = partition.rng
        self._refs: Sequence[ChunkRef] = partition.refs
        self._columns = columns
        self._strict = strict
        self._store = open_store(root)
        self._path = events_path(self._rng.stream)
        self._at = self._rng.start

    def batches(self) -> Iterator[pa.RecordBatch]:
        misses, last = 0, -1
        while self._at < self._rng.end:
            try:
                yield from self._range(self._refs)
            except FileNotFoundError:
                misses, last = (misses + 1 if self._at == last else 1), self._at
                self._look_up()
                if misses == LOOK_UPS:
                    yield from self._one_by_one()
            except DataLoss as error:
                self._lose(self._rng.end, error)

    def _rest(self, end: int | None = None) -> SegmentRange:
        rng = self._rng
        return SegmentRange(
            rng.stream, rng.life, rng.segment_id, self._at, rng.end if end is None else end
        )

    def _range(self, refs: Sequence[ChunkRef], end: int | None = None) -> Iterator[pa.RecordBatch]:
        found = chunk_reader.read_range(
            self._store,
            self._path,
            refs,
            self._rest(end),
            columns=self._columns,
            batch_rows=BATCH_ROWS,
        )
        for batch in found:
            self._at += batch.num_rows
            yield batch

    def _look_up(self) -> None:
        """Find the chunks of the rest in the newest log: compaction moves events, not offsets."""
        stream = open_stream(self._root, self._rng.stream)
        view = stream.view()
        view.check_life(self._rng.life)
        while self._at < self._rng.end:
            try:
                self._refs = stream.chunks(self._rest())
                return
            except TruncatedData as error:
                head, segment_id = self._rng.end, self._rng.segment_id
                if segment_id in view.record.head:
                    head = view.head_offset(segment_id)
                self._lose(min(self._rng.end, max(head, self._at + 1)), error)
            except DataLoss as error:
                self._lose(self._rng.end, error)

    def _one_by_one(self) -> Iterator[pa.RecordBatch]:
        """Read chunk by chunk where the log names files that are not there."""
        for ref in self._refs:
            end = min(ref.end, self._rng.end)
            try:
                yield from self._range([ref], end)
            except FileNotFoundError:
                error = DataLoss(
                    f"{self._rest(end)} is lost: the log names {ref}, whose file is gone; restore "
                    "it from a copy."
                )
                self._lose(end, error)

    def _lose(self, end: int, error: Exception) -> None:
        if self._strict:
            raise error
        logger.warning(
            "failOnDataLoss=false: %d events of %s are skipped: %s",
            end - self._at,
            self._rest(end),
            error,
        )
        self._at = end
