"""The columns of a native frame: those of ``format("pravega")``, as Spark computes them from files.

The stream's table says which columns its events have, so a raw and a typed stream are one case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.engine.log.file_index import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import IllegalState, InvalidOption
from pravega_spark.spark.read.columns import HEADERS, WATERMARK, columns_of
from pravega_spark.spark.read.stream_discovery import matching_streams
from pravega_spark.spark.settings import ReadSettings

_RAW = "event"
_KEY, _TIME, _DELTA = "routing_key", "timestamp", "offset_delta"
_SYSTEM = (SEGMENT_COLUMN, OFFSET_COLUMN, _DELTA, _KEY, _TIME)
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

RAW_PAYLOAD = (StructField(_RAW, BinaryType()),)
"""The payload's columns of a raw stream."""

_WATERMARK_SQL = "the watermark of the batch"
_SQL = {
    "=scope": "scope",
    "=stream": "stream",
    "=name": f"`{FULL_NAME}`",
    "=segment_id": SEGMENT_COLUMN,
    "=segment_number": f"CAST({SEGMENT_COLUMN} & 4294967295 AS INT)",
    "=timestamp_type": "0",
    HEADERS.source: f"CAST(NULL AS {HEADERS.type.simpleString()})",
    WATERMARK.source: _WATERMARK_SQL,
    "offset": f"{OFFSET_COLUMN} + {_DELTA}",
}


def payload_fields(view: StreamView) -> list[StructField]:
    """Return the columns of the events of a stream: ``event``, or those of a typed stream."""
    fields = StructType.fromJson(json.loads(view.snapshot.metadata["schemaString"])).fields
    return [field for field in fields if field.name not in _SYSTEM]


@dataclass(frozen=True, slots=True)
class NativeColumn:
    """A column of a frame, and the SQL that computes it from the columns of the files."""

    field: StructField
    sql: str
    is_payload: bool = False


class NativeColumns:
    """The columns of a read, in its files and in its frame."""

    def __init__(self, settings: ReadSettings, payload: Sequence[StructField]) -> None:
        """Take the options of the read and the payload's columns; raise InvalidOption."""
        self._payload = payload
        self._is_raw = [field.name for field in payload] == [_RAW]
        found = {column.field.name: column for column in self._all(settings.column_names)}
        of_any_case = {name.lower(): name for name in found}
        unknown = [name for name in settings.columns if name.lower() not in of_any_case]
        if unknown:
            raise InvalidOption(
                f"option columns names {', '.join(unknown)}, but the columns are "
                f"{', '.join(found)}."
            )
        asked = {
            HEADERS.name: settings.include_headers,
            WATERMARK.name: settings.include_watermark,
        }
        listed = [of_any_case[name.lower()] for name in settings.columns]
        listed = listed or [name for name in found if name not in asked]
        names = dict.fromkeys([*listed, *(name for name, is_asked in asked.items() if is_asked)])
        self._chosen = [found[name] for name in names]

    def _all(self, names: str) -> Iterator[NativeColumn]:
        for column in columns_of(names):
            field = StructField(column.name, column.type, column.nullable)
            if column.source != _RAW:
                sql = (
                    _SQL.get(column.source)
                    or f"CAST({column.source} AS {field.dataType.simpleString()})"
                )
                yield NativeColumn(field, sql)
            elif self._is_raw:
                yield NativeColumn(field, _RAW, is_payload=True)
            else:
                for each in self._payload:
                    yield NativeColumn(each, f"`{each.name}`", is_payload=True)

    @property
    def schema(self) -> StructType:
        """The columns of the frame."""
        return StructType([column.field for column in self._chosen])

    @property
    def has_payload(self) -> bool:
        """Whether the frame has a column of the events themselves."""
        return any(column.is_payload for column in self._chosen)

    @property
    def file_schema(self) -> StructType:
        """The columns that are stored in the files; one that an old file lacks is read as null."""
        payload = [StructField(f.name, f.dataType, not self._is_raw) for f in self._payload]
        return StructType(
            [
                StructField(_DELTA, IntegerType(), False),
                StructField(_KEY, StringType()),
                StructField(_TIME, TimestampType(), False),
                *payload,
            ]
        )

    def select_list(self, watermark_us: int | None = None) -> list[str]:
        """Return the columns of the frame as SQL over the columns of the files."""
        time = (
            "CAST(NULL AS TIMESTAMP)"
            if watermark_us is None
            else f"timestamp_micros({watermark_us})"
        )
        return [
            f"{time if c.sql == _WATERMARK_SQL else c.sql} AS `{c.field.name}`"
            for c in self._chosen
        ]


def native_columns(settings: ReadSettings) -> NativeColumns:
    """Return the columns of a read; streams that are read together have the same payload."""
    names = settings.streams
    if settings.pattern is not None:
        names = tuple(matching_streams(settings.root, settings.pattern))
    found = {name: payload_fields(stream_view(settings.root, name)) for name in names}
    first = next(iter(found), None)
    for name, fields in found.items():
        if first is not None and fields != found[first]:
            raise InvalidOption(
                f"streams {first} and {name} have different columns and make no frame together; "
                "read each by a frame of its own."
            )
    return NativeColumns(settings, RAW_PAYLOAD if first is None else found[first])


def stream_view(root: str, name: str) -> StreamView:
    """Return the newest view of a stream; raise NoSuchStream, or IllegalState if encrypted."""
    view = existing_view(open_stream(root, name))
    check_not_encrypted(view)
    return view


def check_not_encrypted(view: StreamView) -> None:
    """Raise IllegalState for a stream whose chunks Spark's reader has no key for."""
    if view.record.configuration.encryption is not None:
        raise IllegalState(
            f"stream {view.stream} is encrypted, and Spark's Parquet reader has no key for it: "
            "read it with format('pravega'), whose tasks ask your KMS."
        )
