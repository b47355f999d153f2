"""Streams in the catalog of a session, as tables, views and a function: :func:`register`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pravega_spark.errors import InvalidInput
from pravega_spark.manager import StreamManager
from pravega_spark.model import Segment
from pravega_spark.schemas.sql_types import quoted_text
from pravega_spark.spark.hadoop_url import hadoop_scheme
from pravega_spark.spark.native.registered_tables import check_free, explained
from pravega_spark.table_statements import (
    matching_streams,
    table_location,
    table_names,
    table_statements,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_FUNCTION = "pravega_segment"
_ROUTES = "_pravega_spark_routes"
_POSITION = "shiftrightunsigned(xxhash64(key), 11) / 9007199254740992D"


def register(
    spark: SparkSession,
    *patterns: str,
    root: str | os.PathLike[str],
    scheme: str | None = None,
    catalog: str | None = None,
    metadata: bool = True,
) -> list[str]:
    """Put the streams that match patterns such as ``nyc/*`` into the catalog; return its names.

    Each stream is a Delta table ``scope.stream``, and a view ``scope.stream_events`` that has the
    column ``offset``, comments, and no truncated events; ``_`` stands for ``-`` and ``.``. They
    stay where the catalog does: in a Hive metastore, in Unity Catalog, or with the session;
    ``catalog`` names another one than the current. Of the session alone are the function
    ``pravega_segment(stream, key)``, the active segment of a key, and, unless ``metadata`` is
    False, the metadata frames of the root, as views ``pravega_segments`` and so on. Safe to repeat:
    call it again after a truncation (for the views) or a scale (for the function).

    Raises NoSuchStream for a pattern without a match, InvalidInput without a pattern and for
    streams that would have one table, and IllegalState for a session without Delta or a client of
    the storage, and for a name that is taken; nothing is registered then.
    """
    from pravega_spark.spark.monitor.metadata.metadata_reader import TABLES

    if not patterns:
        raise InvalidInput("name the streams to register, such as 'nyc/*'.")
    manager = StreamManager(root)
    scheme = scheme or hadoop_scheme(spark, manager.root)
    names = list(matching_streams(manager, patterns))
    statements = list(table_statements(manager, names, scheme=scheme, catalog=catalog))
    tables = {name: table_names(name, catalog)[0] for name in names}
    check_free(spark, {t: table_location(manager, n, scheme=scheme) for n, t in tables.items()})
    for statement in statements:
        with explained(statement):
            spark.sql(statement)
    routes: dict[str, str] = getattr(spark, _ROUTES, {})
    routes |= {name: _route(manager.stream(name).segments()) for name in names}
    setattr(spark, _ROUTES, routes)
    spark.sql(_function(routes))
    found = [table for name in names for table in table_names(name, catalog)]
    for table in TABLES if metadata else ():
        view = f"pravega_{_snake(table)}"
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {view} USING pravega "
            f"OPTIONS (root {quoted_text(manager.root)}, metadata '{table}')"
        )
        found.append(view)
    return found


def _function(routes: dict[str, str]) -> str:
    cases = " ".join(
        f"WHEN {quoted_text(name)} THEN {route}" for name, route in sorted(routes.items())
    )
    unknown = "raise_error(concat('register the stream ', stream, ' first'))"
    return (
        f"CREATE OR REPLACE TEMPORARY FUNCTION {SEGMENT_FUNCTION}(stream STRING, key STRING) "
        "RETURNS BIGINT COMMENT 'the active segment that a routing key belongs to' RETURN "
        f"CASE WHEN key IS NULL THEN NULL ELSE CASE stream {cases} "
        f"ELSE CAST({unknown} AS BIGINT) END END"
    )


def _route(segments: Sequence[Segment]) -> str:
    """Return SQL of the segment of ``key``: the last one that begins at or below its position."""
    ordered = sorted(segments, key=lambda segment: segment.key_range.low)
    ids = ", ".join(f"{segment.segment_id}L" for segment in ordered)
    if len(ordered) == 1:
        return ids
    lows = ", ".join(f"{segment.key_range.low!r}D" for segment in ordered)
    segment = f"element_at(array({ids}), size(filter(array({lows}), low -> low <= place)))"
    # The outer lambda names the position, which would else be computed for each border.
    return f"transform(array({_POSITION}), place -> {segment})[0]"


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
