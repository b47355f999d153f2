"""The metadata table ``Watermarks``: the watermarks of streams, and the times of their writers."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import BooleanType, LongType, StringType, TimestampType

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.time_marks import REMOVED_US, marks_of
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import known_watermarks
from pravega_spark.manager import StreamManager
from pravega_spark.model import Watermark, WriterMark
from pravega_spark.spark.monitor.metadata.metadata_table import (
    MetadataTable,
    Row,
    name_columns,
    schema,
)


def _rows(manager: StreamManager, name: str) -> Iterator[Row]:
    view = begun_view(open_stream(manager.root, name))
    for found in known_watermarks(view):
        yield _row(view, "present" if found.version is None else "recorded", found)
    for mark in marks_of(view):
        if mark.time_us != REMOVED_US:
            yield _row(view, "writer", mark)


def _row(view: StreamView, kind: str, found: Watermark | WriterMark) -> Row:
    """Return a row; of a writer both bounds are the time that it noted last."""
    mark = found if isinstance(found, WriterMark) else None
    bounds = (
        (found.time, found.time) if isinstance(found, WriterMark) else (found.lower, found.upper)
    )
    start = locate(view, found.cut).above_head()
    return {
        **name_columns(view.stream),
        "kind": kind,
        "writer": None if mark is None else mark.writer_id,
        "alive": None if mark is None else mark.is_alive,
        "lower": bounds[0],
        "upper": bounds[1],
        "cut": str(found.cut),
        "version": found.version,
        "events": start.events_to(view.located_tail),
    }


WATERMARKS = MetadataTable(
    schema(
        scope=StringType(),
        stream=StringType(),
        kind=StringType(),
        writer=StringType(),
        alive=BooleanType(),
        lower=TimestampType(),
        upper=TimestampType(),
        cut=StringType(),
        version=LongType(),
        events=LongType(),
    ),
    rows_of_stream=_rows,
)
