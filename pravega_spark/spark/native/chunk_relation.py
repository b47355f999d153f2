"""A frame over planned ranges, whose rows Spark's vectorised Parquet reader reads.

A chunk is a file with constant columns: its segment, its base offset, and which of its rows belong
to the read. Chunks that a bound cuts are filtered by these; all others are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.errors import InvalidOption
from pravega_spark.limits import ROW_GROUP_EVENTS
from pravega_spark.model import KeyRange, segment_text
from pravega_spark.spark.hadoop_url import hadoop_url
from pravega_spark.spark.native.jvm_bridge import chunk_reads, java_schema
from pravega_spark.spark.native.native_columns import (
    CONSTANTS,
    END_ROW,
    FIRST_ROW,
    NativeColumns,
)
from pravega_spark.spark.read.input_partitions import EventPartition
from pravega_spark.spark.read.planned_ranges import PlannedRange
from pravega_spark.spark.settings import ReadSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "parquet.page.verify-checksum.enabled": "true",
}
"""Whatever the session says: no event is skipped, and a damaged page is an error."""


_CUT_SCANS = 16
"""Up to this number of large chunks that a bound cuts, each is scanned by itself."""


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """The rows of one chunk that belong to a read."""

    stream: str
    ref: ChunkRef
    first_row: int
    end_row: int
    key_range: KeyRange

    @property
    def is_cut(self) -> bool:
        """Whether the chunk has rows that do not belong to the read."""
        return self.end_row - self.first_row < self.ref.rows

    @property
    def is_worth_a_scan(self) -> bool:
        """Whether a scan of its own can skip row groups of the chunk."""
        return self.is_cut and self.ref.rows > ROW_GROUP_EVENTS

    def line(self, url: str) -> str:
        """Return the fields of a ``ChunkFile`` of ``ChunkReads.java``."""
        ref, (scope, _, stream) = self.ref, self.stream.partition("/")
        bounds = ref.min_timestamp_us, ref.max_timestamp_us, self.key_range.low, self.key_range.high
        place = scope, stream, ref.segment_id, ref.base_offset, self.first_row, self.end_row
        path = f"{url}/{quote(f'{events_path(self.stream)}/{ref.path}')}"
        return "\t".join(map(str, (path, ref.size, *place, *bounds)))


class ChunkRelation:
    """Makes frames of planned ranges, batch or streaming, in one session."""

    def __init__(
        self,
        spark: SparkSession,
        settings: ReadSettings,
        columns: NativeColumns,
        *,
        streaming: bool,
    ) -> None:
        """Take what all frames of a read share; the root becomes a URL that Spark can read."""
        self._spark = spark
        self._settings = settings
        self._columns = columns
        self._streaming = streaming
        self._reads = chunk_reads(spark)
        self._url = _escaped(hadoop_url(spark, settings.root))

    def frame(self, partitions: Iterable[Any]) -> DataFrame:
        """Return the events of planned partitions.

        Raises IllegalState for an encrypted stream, and InvalidOption for a large event whose
        payload ``format("pravega")`` would read.
        """
        parts, watermark_us = list[ChunkPart](), None
        for partition in partitions:
            assert isinstance(partition, EventPartition)
            for one in partition.ranges:
                parts += self._parts(one)
            watermark_us = partition.watermark_us
        cut = [part for part in parts if part.is_cut]
        scans = [[part for part in parts if not part.is_cut]]
        large = [part for part in cut if part.is_worth_a_scan]
        if len(large) <= _CUT_SCANS:
            scans += [[part] for part in large]
            cut = [part for part in cut if not part.is_worth_a_scan]
        scans.append(cut)
        frames = [self._scan(scan, watermark_us) for scan in scans if scan]
        return reduce(_union, frames) if frames else self._scan([], watermark_us)

    def failed(self, error: Exception) -> DataFrame:
        """Return a frame that raises an error when Spark plans its files, and not before."""
        rows = self._rows([], f"{type(error).__name__}: {error}")
        return rows.selectExpr(*self._columns.select_list())

    def _parts(self, one: PlannedRange) -> list[ChunkPart]:
        rng = one.rng
        view = open_stream(self._settings.root, rng.stream).view(refresh=False)
        self._columns.check(view)
        key_range = view.lineage.find(rng.segment_id).key_range
        parts = []
        for ref in one.refs:
            self._check_payload(rng.stream, ref)
            first, end = max(0, rng.start - ref.base_offset), min(ref.end, rng.end)
            parts.append(ChunkPart(rng.stream, ref, first, end - ref.base_offset, key_range))
        return parts

    def _check_payload(self, stream: str, ref: ChunkRef) -> None:
        attached = attached_object(ref.path) if ref.attachment else None
        if attached is None or not self._columns.has_event:
            return
        if attached[1] <= self._settings.max_event_bytes:
            raise InvalidOption(
                f"event {ref.base_offset} of segment {segment_text(ref.segment_id)} of stream "
                f"{stream} is a large event of {attached[1]} bytes, which Spark's Parquet reader "
                "cannot fetch: read the stream with format('pravega'); or set maxEventBytes to 8m, "
                "to read large events as their references; or leave the column out by columns."
            )

    def _scan(self, parts: Sequence[ChunkPart], watermark_us: int | None) -> DataFrame:
        rows = self._rows(parts)
        if any(part.is_cut for part in parts):
            first, end = min(p.first_row for p in parts), max(p.end_row for p in parts)
            # The literals skip row groups, the columns are exact for each chunk.
            rows = rows.where(f"offset_delta >= {first} AND offset_delta < {end}").where(
                f"offset_delta >= `{FIRST_ROW}` AND offset_delta < `{END_ROW}`"
            )
        if self._settings.routing_keys:
            rows = rows.where(rows["routing_key"].isin(*self._settings.routing_keys))
        return rows.selectExpr(*self._columns.select_list(watermark_us))

    def _rows(self, parts: Sequence[ChunkPart], error: str = "") -> DataFrame:
        from pyspark.sql import DataFrame

        made = self._reads.rows(
            self._spark._jsparkSession,
            java_schema(self._spark, CONSTANTS),
            java_schema(self._spark, self._columns.file_schema),
            _OPTIONS,
            "\n".join(part.line(self._url) for part in parts),
            error,
            self._streaming,
        )
        return DataFrame(made, self._spark)


def _union(left: DataFrame, right: DataFrame) -> DataFrame:
    return left.unionAll(right)


def _escaped(url: str) -> str:
    """Return a URL whose path has no character that Java would refuse, or read as another."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(rest, safe='/@:')}"
