"""A Python data source that has nothing to do: what Spark itself takes for any of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

ROWS = 100
ARCHIVE = "archive"
"""The part of an offset that tells whether PySpark was imported from Spark's zip archive."""


class EmptySource(DataSource):
    """A stream of rows that are made in the task; it imports and reads nothing."""

    @classmethod
    def name(cls) -> str:
        return "empty_python_source"

    def schema(self) -> str:
        return "event binary"

    def streamReader(self, schema: Any) -> EmptyStreamReader:
        return EmptyStreamReader()


class EmptyStreamReader(DataSourceStreamReader):
    """Plans one partition from the beginning to a constant end."""

    def initialOffset(self) -> dict[str, Any]:
        return {"position": 0}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return {"position": ROWS, ARCHIVE: ".zip" in pyspark.__file__}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return iter([(b"e" * 100,)] * ROWS)
