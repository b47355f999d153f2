"""The metadata table ``Maintenance``: one row for each kind over all streams, or over a scope."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, TimestampType

from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    schema,
    utc_time,
)


def _maintenance_rows(manager: StreamManager) -> Iterator[Row]:
    for info in manager.maintenance():
        started_ms, finished_ms, until_ms = (
            info.started_ms,
            info.finished_ms,
            info.claimed_until_ms,
        )
        yield {
            "kind": info.kind.value,
            "scope": info.scope,
            "overdue": info.is_overdue,
            "started": None if started_ms is None else utc_time(started_ms),
            "finished": None if finished_ms is None else utc_time(finished_ms),
            "age_seconds": info.age_seconds,
            "interval_seconds": info.interval_seconds,
            "by": info.by,
            "streams": info.streams,
            "failed": info.failed,
            "failures": json.dumps(dict(info.failures)),
            "claimed_by": info.claimed_by,
            "claimed_until": None if until_ms is None else utc_time(until_ms),
            "streams_so_far": info.streams_so_far,
        }


MAINTENANCE = MetadataTable(
    schema(
        kind=StringType(),
        scope=StringType(),
        overdue=BooleanType(),
        started=TimestampType(),
        finished=TimestampType(),
        age_seconds=DoubleType(),
        interval_seconds=DoubleType(),
        by=StringType(),
        streams=LongType(),
        failed=LongType(),
        failures=StringType(),
        claimed_by=StringType(),
        claimed_until=TimestampType(),
        streams_so_far=LongType(),
    ),
    rows_of_root=_maintenance_rows,
)
