"""The metadata table ``Lag``: one row for each segment that a reader group has still to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pyspark.sql.types import DoubleType, LongType, StringType

from pravega_spark.engine.store import Store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import Damaged, NoSuchStream
from pravega_spark.reader_groups import group_description
from pravega_spark.reader_groups.group_description import GroupVersion, SegmentPosition
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
)


def _lag_rows(store: Store, group: GroupVersion, streams: Sequence[str]) -> Iterator[Row]:
    state = group_description.with_heartbeats(store, group.state)
    opened = partial(open_stream, store)

    def look(stream: str) -> tuple[str | None, list[SegmentPosition]]:
        overdue = _overdue(opened(stream))
        return overdue, group_description.segment_positions(state, stream, opened)

    found = in_rounds(store, look, streams)
    for stream, (overdue, positions) in zip(streams, found, strict=True):
        for segment in positions:
            yield {
                "group": group.state.group,
                **name_columns(stream),
                "segment_id": segment.segment_id,
                **segment.to_record(),
                "overdue": overdue,
            }


def _overdue(stream: StreamLog) -> str | None:
    """Return which maintenance of a stream is overdue; None if none is, or without a stream."""
    try:
        texts = overdue_maintenance(stream, stream.view())
    except (NoSuchStream, Damaged):
        return None
    return "; ".join(texts.values()) or None


LAG = MetadataTable(
    schema(
        group=StringType(),
        scope=StringType(),
        stream=StringType(),
        segment=StringType(),
        segment_id=LongType(),
        state=StringType(),
        reader=StringType(),
        current_offset=LongType(),
        head_offset=LongType(),
        next_offset=LongType(),
        lag=LongType(),
        lag_bytes=LongType(),
        lag_seconds=DoubleType(),
        overdue=StringType(),
    ),
    rows_of_group=_lag_rows,
)
