"""The metadata table ``Segments``: one row for each segment that has a record.

The load is what the scaling job stored at its last run, ``load_time``. It is null for sealed
segments, for streams with a fixed number of segments, and where the job never ran.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import (
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
)

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.manager import StreamManager
from pravega_spark.model import segment_epoch, segment_number, segment_text
from pravega_spark.scaling.rate_store import last_rates
from pravega_spark.scaling.scale_events import StreamRates
from pravega_spark.scaling.scale_reasons import AVERAGE_NAMES
from pravega_spark.scaling.segment_load import segment_load
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)

_EVENT_RATES = tuple(f"events_{name}" for name in AVERAGE_NAMES)
_BYTE_RATES = tuple(f"bytes_{name}" for name in AVERAGE_NAMES)


def _segment_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    stream = open_stream(manager.root, name)
    view = begun_view(stream)
    rates = last_rates(stream, view)
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
            **(_load_columns(stream, view, rates, segment_id) if segment_id in active else {}),
        }


def _load_columns(
    stream: StreamLog, view: StreamView, rates: StreamRates | None, segment_id: int
) -> Row:
    """Return the columns of a segment's load as of the stored rates, or as of now.

    While the rates are of the newest version, silence since then counts.
    """
    if rates is None:
        return {}
    is_newest = rates.version == view.version
    time_ms = stream.now_ms() if is_newest else rates.time_ms
    load = segment_load(rates, segment_number(segment_id), time_ms)
    if load is None:
        return {}
    return {
        **dict(zip(_EVENT_RATES, load.events, strict=True)),
        **dict(zip(_BYTE_RATES, load.size_bytes, strict=True)),
        "hot": load.hot,
        "cold": load.cold,
        "muted_until": load.muted_until_ms and utc_time(load.muted_until_ms),
        "cooldown_until": load.cooldown_until_ms and utc_time(load.cooldown_until_ms),
        "load_time": utc_time(load.time_ms),
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
        **dict.fromkeys((*_EVENT_RATES, *_BYTE_RATES), DoubleType()),
        hot=BooleanType(),
        cold=BooleanType(),
        muted_until=TimestampType(),
        cooldown_until=TimestampType(),
        load_time=TimestampType(),
    ),
    rows_of_stream=_segment_rows,
)
