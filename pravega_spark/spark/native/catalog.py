"""Streams in the catalog of a session, as tables, views and a function."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pravega_spark.errors import IllegalState, InvalidInput
from pravega_spark.manager import StreamManager
from pravega_spark.schemas.sql import quoted_text
from pravega_spark.spark.hadoop_url import hadoop_scheme
from pravega_spark.spark.jars import start_with_delta
from pravega_spark.table_statements import (
    quoted,
    streams_like,
    table_location,
    table_names,
    table_statements,
)
from pravega_spark.values.segments import Segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_NO_DELTA = frozenset(
    {"DATA_SOURCE_NOT_FOUND", "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"}
)
_NO_CATALOG = "REQUIRES_SINGLE_PART_NAMESPACE"
_FILES_ARE_GONE = frozenset({"DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND"})


def check_free(spark: SparkSession, locations: Mapping[str, str]) -> None:
    """Raise IllegalState if a name of a table is taken by anything but the table at its URL."""
    for table, url in locations.items():
        found = _location(spark, table)
        if found is not None and _plain(found) != _plain(url):
            raise IllegalState(
                f"{table} is taken in the catalog, by {found or 'a view or another table'}, and "
                f"the stream's table is {url}: choose another catalog, or take the name from it, "
                f"by DROP VIEW IF EXISTS {table}_events and DROP TABLE {table}, which leave the "
                "files of streams as they are."
            )


@contextmanager
def explained(wanted: str) -> Iterator[None]:
    """Turn Spark's errors about a missing catalog or a missing Delta into the package's.

    Raises IllegalState if the session has no Delta, InvalidInput if it lacks the catalog.
    """
    from pyspark.errors import PySparkException

    from pravega_spark.spark.versions import error_condition, spark_release

    try:
        yield
    except PySparkException as error:
        if error_condition(error) == _NO_CATALOG:
            raise InvalidInput(
                f"the session has no such catalog: {wanted}. Configure it by "
                "spark.sql.catalog.NAME, or leave the option catalog out."
            ) from error
        if error_condition(error) not in _NO_DELTA:
            raise
        raise IllegalState(
            "this session has no Delta Lake, so its catalog cannot hold streams: create the "
            f"session by pravega_spark.session(), or {start_with_delta(spark_release())}. "
            "Native frames need none: frame(...).createOrReplaceTempView(name)."
        ) from error


def _location(spark: SparkSession, table: str) -> str | None:
    """Return the URL of a table, "" for a view, None for a name that is free."""
    from pyspark.errors import AnalysisException

    from pravega_spark.spark.versions import error_condition

    name = quoted(table)
    try:
        with explained(name):
            if not spark.catalog.tableExists(name):
                return None
            rows = spark.sql(f"DESCRIBE EXTENDED {name}").collect()
    except AnalysisException as error:
        if error_condition(error) in _FILES_ARE_GONE:
            return (error.getMessageParameters() or {}).get("path", "files that are gone")
        raise
    return next((row.data_type for row in reversed(rows) if row.col_name == "Location"), "")


def _plain(url: str) -> str:
    """Return a URL as Hadoop writes it."""
    return url.replace("file:///", "file:/", 1)


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
    from pravega_spark.spark.monitor.metadata.reader import TABLES

    if not patterns:
        raise InvalidInput("name the streams to register, such as 'nyc/*'.")
    manager = StreamManager(root)
    scheme = scheme or hadoop_scheme(spark, manager.root)
    names = list(streams_like(manager, patterns))
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
