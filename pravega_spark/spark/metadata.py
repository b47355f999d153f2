"""``metadata`` frames: tables about the streams under a root, one row each, for SQL and people."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pravega_spark.engine.epochs import Lineage
from pravega_spark.engine.records import SEGMENT_PREFIX
from pravega_spark.engine.stream import open_stream
from pravega_spark.errors import NoSuchStream
from pravega_spark.manager import StreamManager
from pravega_spark.model import END, segment_epoch, segment_number, segment_text
from pravega_spark.spark.settings import ReadSettings

STREAMS_OF_TASK = 200
"""Streams that one task describes."""

Row = dict[str, Any]


def _schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


SCHEMAS = {
    "Streams": _schema(
        scope=StringType(), stream=StringType(), tags=ArrayType(StringType()), state=StringType()
    ),
    "StreamInfo": _schema(
        scope=StringType(),
        stream=StringType(),
        state=StringType(),
        life=IntegerType(),
        version=LongType(),
        epoch=IntegerType(),
        segments=IntegerType(),
        events=LongType(),
        size_bytes=LongType(),
        head=StringType(),
        tail=StringType(),
        created=TimestampType(),
        tags=ArrayType(StringType()),
        configuration=StringType(),
    ),
    "Segments": _schema(
        scope=StringType(),
        stream=StringType(),
        segment=StringType(),
        segment_id=LongType(),
        number=IntegerType(),
        epoch=IntegerType(),
        key_low=DoubleType(),
        key_high=DoubleType(),
        active=BooleanType(),
        sealed=BooleanType(),
        head_offset=LongType(),
        next_offset=LongType(),
        size_bytes=LongType(),
    ),
}


class StreamsPartition(InputPartition):
    """Names of streams for one task to describe."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Take the names."""
        super().__init__(None)
        self.names = names


class MetadataReader(DataSourceReader):
    """Reads one of the tables; the streams are spread over tasks."""

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        """Take the settings and the schema that Spark wants."""
        self.settings = settings
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """List the streams: of the named ones, of a scope, matching a pattern, or all."""
        names = self._names()
        step = STREAMS_OF_TASK
        return [StreamsPartition(names[i : i + step]) for i in range(0, len(names), step)]

    def _names(self) -> tuple[str, ...]:
        settings = self.settings
        if settings.streams:
            return settings.streams
        manager = StreamManager(settings.root)
        scopes = manager.list_scopes() if settings.scope is None else [settings.scope]
        names = (name for scope in scopes for name in manager.list_streams(scope))
        if settings.pattern is not None:
            wanted = re.compile(settings.pattern)
            names = (name for name in names if wanted.fullmatch(name))
        return tuple(names)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition's streams; runs in a task."""
        if not isinstance(partition, StreamsPartition):
            return
        table = self.settings.metadata or "Streams"
        manager = StreamManager(self.settings.root)
        rows: list[Row] = []
        for name in partition.names:
            try:
                rows += list(_ROWS[table](manager, name))
            except NoSuchStream:
                if self.settings.streams:
                    raise
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        yield pa.RecordBatch.from_pylist(rows, schema=arrow)


def _streams(manager: StreamManager, name: str) -> Iterator[Row]:
    record = open_stream(manager.root, name).view().record
    tags = sorted(record.configuration.tags)
    yield {**_name(name), "tags": tags, "state": record.state.value}


def _stream_info(manager: StreamManager, name: str) -> Iterator[Row]:
    info = manager.stream_info(name)
    yield {
        **_name(name),
        "state": info.state,
        "life": info.life,
        "version": info.version,
        "epoch": info.epoch,
        "segments": len(info.segments),
        "events": info.events,
        "size_bytes": info.size_bytes,
        "head": str(info.head),
        "tail": str(info.tail),
        "created": datetime.fromtimestamp(info.created_ms / 1_000, timezone.utc),
        "tags": sorted(info.configuration.tags),
        "configuration": json.dumps(info.configuration.to_json()),
    }


def _segments(manager: StreamManager, name: str) -> Iterator[Row]:
    view = open_stream(manager.root, name).view()
    active = set(view.active.segment_ids)
    lineage = Lineage(view)
    found = (int(n.removeprefix(SEGMENT_PREFIX)) for n in view.snapshot.names(SEGMENT_PREFIX))
    for segment_id in sorted(found):
        record, keys = view.segment(segment_id), lineage.find(segment_id).key_range
        head = view.head.positions.get(segment_id, 0)
        yield {
            **_name(name),
            "segment": segment_text(segment_id),
            "segment_id": segment_id,
            "number": segment_number(segment_id),
            "epoch": segment_epoch(segment_id),
            "key_low": keys.low,
            "key_high": keys.high,
            "active": segment_id in active,
            "sealed": record.is_sealed,
            "head_offset": record.next_offset if head == END else max(0, head),
            "next_offset": record.next_offset,
            "size_bytes": record.size_bytes,
        }


def _name(name: str) -> Row:
    scope, _, stream = name.partition("/")
    return {"scope": scope, "stream": stream}


_ROWS = {"Streams": _streams, "StreamInfo": _stream_info, "Segments": _segments}
