"""The metadata table ``Segments``: one row for each segment that has a record."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import BooleanType, DoubleType, IntegerType, LongType, StringType

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.manager import StreamManager
from pravega_spark.model import segment_epoch, segment_number, segment_text
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
)


def _segment_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    view = existing_view(open_stream(manager.root, name))
    active = set(view.active.segment_ids)
    lineage = view.lineage
    records = view.snapshot.names(SEGMENT_PREFIX)
    segment_ids = sorted(int(record.removeprefix(SEGMENT_PREFIX)) for record in records)
    for segment_id in segment_ids:
        record, keys = view.segment(segment_id), lineage.find(segment_id).key_range
        yield {
            **name_columns(name),
            "segment": segment_text(segment_id),
            "segment_id": segment_id,
            "number": segment_number(segment_id),
            "epoch": segment_epoch(segment_id),
            "key_low": keys.low,
            "key_high": keys.high,
            "active": segment_id in active,
            "sealed": record.is_sealed,
            "head_offset": view.head_offset(segment_id),
            "next_offset": record.next_offset,
            "size_bytes": record.size_bytes,
        }


SEGMENTS = MetadataTable(
    schema(
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
    rows_of_stream=_segment_rows,
)
