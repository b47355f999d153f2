"""A frame over planned ranges, whose rows Spark's vectorised Parquet reader reads.

A chunk is a file with constant columns: its segment, its base offset, and which of its rows belong
to the read. Chunks that a bound cuts are filtered by these; all others are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.log.files import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.stream_log import events_path, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import IllegalState, InvalidOption, NoSuchScope, NoSuchStream
from pravega_spark.schemas.sql import quoted_name
from pravega_spark.spark.hadoop_url import hadoop_url
from pravega_spark.spark.native.jvm_bridge import chunk_reads, java_schema
from pravega_spark.spark.read.columns import HEADERS, WATERMARK, Column, columns_of, frame_schema
from pravega_spark.spark.read.discovery import planned_view
from pravega_spark.spark.read.partitions import EventPartition, PlannedRange
from pravega_spark.spark.read.typed_reads import check_columns, typed_columns
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.values.limits import ROW_GROUP_EVENTS
from pravega_spark.values.segments import KeyRange, segment_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_DELTA = "offset_delta"
_STORED = ("routing_key", "timestamp", "event")
FIRST_ROW, END_ROW, FULL_NAME = "pravega.first_row", "pravega.end_row", "pravega.stream"

CONSTANTS = StructType(
    [
        StructField("scope", StringType(), False),
        StructField("stream", StringType(), False),
        StructField(FULL_NAME, StringType(), False),
        StructField(SEGMENT_COLUMN, LongType(), False),
        StructField(OFFSET_COLUMN, LongType(), False),
        StructField(FIRST_ROW, IntegerType(), False),
        StructField(END_ROW, IntegerType(), False),
    ]
)
"""What is constant in a file, in the order of the values of ``ChunkReads.java``.

``pravega.first_row`` and ``pravega.end_row`` are the rows of the file that belong to the read.
"""

_SQL = {
    "=scope": "scope",
    "=stream": "stream",
    "=name": f"`{FULL_NAME}`",
    "=segment_id": SEGMENT_COLUMN,
    "=segment_number": f"CAST({SEGMENT_COLUMN} & 4294967295 AS INT)",
    "=timestamp_type": "0",
    HEADERS.source: f"CAST(NULL AS {HEADERS.type.simpleString()})",
    "offset": f"{OFFSET_COLUMN} + {_DELTA}",
}


class NativeColumns:
    """The columns of a read, in its files and in its frame; fixed when the frame is made."""

    def __init__(self, settings: ReadSettings) -> None:
        """Look up the columns of the streams; ``since`` is when.

        Raises InvalidOption if they make no frame together, IllegalState if one is encrypted.
        """
        self.since, store = SYSTEM.monotonic(), open_store(settings.root)

        def check(name: str) -> None:
            with suppress(NoSuchStream, NoSuchScope):  # the reader says it
                check_not_encrypted(planned_view(store, name, self.since)[1])

        in_rounds(store, check, settings.streams)
        self._names = settings.column_names
        self._own = typed_columns(settings, self.since)
        self.schema = frame_schema(settings, self._own)
        known = {column.name: column for column in columns_of(settings.column_names, self._own)}
        self._chosen = [known[field.name] for field in self.schema.fields]

    def check(self, view: StreamView) -> None:
        """Raise InvalidOption for other columns than the frame has, IllegalState if encrypted."""
        check_columns(view, self.schema, self._names)
        check_not_encrypted(view)

    @property
    def has_event(self) -> bool:
        """Whether the frame has the bytes of the events."""
        return any(column.source == "event" for column in self._chosen)

    @property
    def file_schema(self) -> StructType:
        """The columns that are stored in the files; one that an old file lacks is read as null."""
        raw = {column.source: column for column in columns_of("pravega")}
        stored = [raw[source] for source in _STORED if source != "event" or not self._own]
        fields = [_field(column) for column in (*stored, *self._own)]
        return StructType([StructField(_DELTA, IntegerType(), False), *fields])

    def select_list(self, watermark_us: int | None = None) -> Sequence[str]:
        """Return the columns of the frame as SQL over the columns of the files."""
        time = "CAST(NULL AS TIMESTAMP)"
        if watermark_us is not None:
            time = f"timestamp_micros({watermark_us})"
        return [
            f"{self._sql(column, time)} AS {quoted_name(column.name)}" for column in self._chosen
        ]

    def _sql(self, column: Column, watermark: str) -> str:
        if column.source == WATERMARK.source:
            return watermark
        if column in self._own:
            return quoted_name(column.source)
        if column.name == column.source and column.name in _STORED:
            return column.name
        return _SQL.get(column.source) or f"CAST({column.source} AS {column.type.simpleString()})"


def _field(column: Column) -> StructField:
    comment = {"comment": column.comment} if column.comment else None
    return StructField(column.source, column.type, column.nullable, comment)


def check_not_encrypted(view: StreamView) -> None:
    """Raise IllegalState for a stream whose chunks Spark's reader has no key for."""
    if view.record.configuration.encryption is not None:
        raise IllegalState(
            f"stream {view.stream} is encrypted, and Spark's Parquet reader has no key for it: "
            "read it with format('pravega'), whose tasks ask your KMS."
        )


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
        """Whether a separate scan can skip row groups of the chunk."""
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
            parts.append(
                ChunkPart(
                    rng.stream,
                    ref,
                    first_row=first,
                    end_row=end - ref.base_offset,
                    key_range=key_range,
                )
            )
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
