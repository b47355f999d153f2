"""The metadata table ``Schemas``: one row for each schema of a typed stream, the oldest first."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, TimestampType

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.table_schema import schema_versions
from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
    utc_time,
)


def _schema_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    view = begun_view(open_stream(manager.root, name))
    found = schema_versions(view.snapshot)
    for number, one in enumerate(found, 1):
        yield {
            **name_columns(name),
            "number": number,
            "version": one.version,
            "created": utc_time(one.time_ms),
            "active": number == len(found),
            "columns": str(one.schema),
            "schema": one.schema.to_json(),
        }


SCHEMAS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        number=IntegerType(),
        version=LongType(),
        created=TimestampType(),
        active=BooleanType(),
        columns=StringType(),
        schema=StringType(),
    ),
    rows_of_stream=_schema_rows,
)
