"""The metadata table ``Storage``: one row for each stream and kind of stored objects."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import LongType, StringType, TimestampType

from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)


def _storage_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    for part in manager.stream_storage(name).parts:
        yield {
            **name_columns(name),
            "kind": part.kind.value,
            "files": part.files,
            "size_bytes": part.size_bytes,
            "large_events": part.large_events,
            "large_bytes": part.large_bytes,
            "deletable": None if part.deletable_ms is None else utc_time(part.deletable_ms),
            "reason": part.reason or None,
        }


STORAGE = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        kind=StringType(),
        files=LongType(),
        size_bytes=LongType(),
        large_events=LongType(),
        large_bytes=LongType(),
        deletable=TimestampType(),
        reason=StringType(),
    ),
    rows_of_stream=_storage_rows,
)
