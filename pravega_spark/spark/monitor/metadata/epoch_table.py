"""The metadata table ``Epochs``: one row for each epoch of a stream's life, the oldest first."""

from __future__ import annotations

from collections.abc import Iterator

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

from pravega_spark.engine.stream.epoch_history import epochs_between
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.manager import StreamManager
from pravega_spark.model import Segment
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)


def _epoch_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    stream = open_stream(manager.root, name)
    view = begun_view(stream)
    found = epochs_between(stream, view)
    ends = [utc_time(epoch.created_ms) for epoch in found[1:]]
    for epoch, ended in zip(found, [*ends, None], strict=True):
        yield {
            **name_columns(name),
            "epoch": epoch.number,
            "reference": epoch.reference,
            "created": utc_time(epoch.created_ms),
            "ended": ended,
            "active": epoch.number == view.active.number,
            "truncated": epoch.number < view.oldest_epoch,
            "splits": epoch.splits,
            "merges": epoch.merges,
            "segments": [_segment(segment) for segment in epoch.segments],
        }


def _segment(segment: Segment) -> Row:
    keys = segment.key_range
    return {
        "segment": str(segment),
        "segment_id": segment.segment_id,
        "key_low": keys.low,
        "key_high": keys.high,
    }


EPOCHS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        epoch=IntegerType(),
        reference=IntegerType(),
        created=TimestampType(),
        ended=TimestampType(),
        active=BooleanType(),
        truncated=BooleanType(),
        splits=IntegerType(),
        merges=IntegerType(),
        segments=ArrayType(
            StructType(
                [
                    StructField("segment", StringType()),
                    StructField("segment_id", LongType()),
                    StructField("key_low", DoubleType()),
                    StructField("key_high", DoubleType()),
                ]
            )
        ),
    ),
    rows_of_stream=_epoch_rows,
)
