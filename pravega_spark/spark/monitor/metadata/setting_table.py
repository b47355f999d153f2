"""The metadata table ``Settings``: one row for each stream and setting that holds for it."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import LongType, StringType

from pravega_spark.manager import StreamManager
from pravega_spark.root_settings import STREAM_SETTING_NAMES, rule_of
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
)


def _setting_rows(manager: StreamManager, name: str) -> Iterator[Row]:
    settings = manager.stream_settings(name)
    for setting in STREAM_SETTING_NAMES:
        value = settings.value(setting)
        yield {
            **name_columns(name),
            "setting": setting,
            "value": settings.text(setting),
            "value_ms": value if isinstance(value, int) else None,
            "origin": settings.origin(setting).value,
            "default": rule_of(setting).default,
        }


SETTINGS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        setting=StringType(),
        value=StringType(),
        value_ms=LongType(),
        origin=StringType(),
        default=StringType(),
    ),
    rows_of_stream=_setting_rows,
)
