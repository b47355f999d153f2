"""The metadata tables ``Streams`` and ``StreamInfo``: one row for each stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, TimestampType

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)


def _stream_row(manager: StreamManager, name: str) -> Iterator[Row]:
    record = begun_view(open_stream(manager.root, name)).record
    tags = sorted(record.configuration.tags)
    yield {**name_columns(name), "tags": tags, "state": record.state.value}


STREAMS = MetadataTable(
    schema(
        scope=StringType(), stream=StringType(), tags=ArrayType(StringType()), state=StringType()
    ),
    rows_of_stream=_stream_row,
)


def _stream_info_row(manager: StreamManager, name: str) -> Iterator[Row]:
    info = manager.stream_info(name)
    yield {
        **name_columns(name),
        "state": info.state,
        "life": info.life,
        "version": info.version,
        "epoch": info.epoch,
        "segments": len(info.segments),
        "events": info.events,
        "size_bytes": info.size_bytes,
        "files": info.files.files,
        "file_bytes": info.files.size_bytes,
        "head": str(info.head),
        "tail": str(info.tail),
        "created": utc_time(info.created_ms),
        "tags": sorted(info.configuration.tags),
        "configuration": json.dumps(info.configuration.to_json()),
        "configuration_version": info.configuration_version,
        "watermark": None if info.watermark is None else info.watermark.lower,
    }


STREAM_INFO = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        state=StringType(),
        life=LongType(),
        version=LongType(),
        epoch=IntegerType(),
        segments=IntegerType(),
        events=LongType(),
        size_bytes=LongType(),
        files=LongType(),
        file_bytes=LongType(),
        head=StringType(),
        tail=StringType(),
        created=TimestampType(),
        tags=ArrayType(StringType()),
        configuration=StringType(),
        configuration_version=LongType(),
        watermark=TimestampType(),
    ),
    rows_of_stream=_stream_info_row,
)
