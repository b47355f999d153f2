"""What every metadata table consists of: a schema, and the functions that make its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql.types import DataType, StructField, StructType

from pravega_spark.engine.store import Store
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.description import GroupVersion

Row = dict[str, Any]

RowsOfStream = Callable[[StreamManager, str], Iterable[Row]]
"""From a stream's name to its rows; raises NoSuchStream."""

RowsOfGroup = Callable[[Store, GroupVersion, Sequence[str]], Iterable[Row]]
"""From a group, and those of its streams that the options select, to its rows."""


RowsOfRoot = Callable[[StreamManager], Iterable[Row]]


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A table with rows for each stream, for each reader group, for both, or for the root."""

    schema: StructType
    rows_of_stream: RowsOfStream | None = None
    rows_of_group: RowsOfGroup | None = None
    rows_of_root: RowsOfRoot | None = None


def schema(**columns: DataType) -> StructType:
    """Return a schema of nullable columns."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def name_columns(stream: str) -> Row:
    """Return the columns ``scope`` and ``stream`` for a stream's full name."""
    scope, _, name = stream.partition("/")
    return {"scope": scope, "stream": name}


def utc_time(ms: int) -> datetime:
    """Return milliseconds since 1970 as a value of a timestamp column."""
    return datetime.fromtimestamp(ms / 1_000, timezone.utc)
