"""The columns of a native frame: those of ``format("pravega")``, computed from those of files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from pravega_spark.engine.log.file_index import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import IllegalState, NoSuchScope, NoSuchStream
from pravega_spark.schemas.sql_types import quoted_name
from pravega_spark.spark.read.columns import HEADERS, WATERMARK, Column, columns_of, schema_of
from pravega_spark.spark.read.stream_discovery import planned_view
from pravega_spark.spark.read.typed_reads import check_columns, typed_columns
from pravega_spark.spark.settings import ReadSettings

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
        self.schema = schema_of(
            settings.column_names,
            settings.columns,
            self._own,
            include_watermark=settings.include_watermark,
            include_headers=settings.include_headers,
        )
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
