"""The tables that a catalog has: a name must never show the events of another stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pravega_spark.errors import IllegalState, InvalidInput
from pravega_spark.limits import DELTA_PACKAGE
from pravega_spark.table_statements import quoted

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

    try:
        yield
    except PySparkException as error:
        if error.getCondition() == _NO_CATALOG:
            raise InvalidInput(
                f"the session has no such catalog: {wanted}. Configure it by "
                "spark.sql.catalog.NAME, or leave the option catalog out."
            ) from error
        if error.getCondition() not in _NO_DELTA:
            raise
        raise IllegalState(
            "this session has no Delta Lake, so its catalog cannot hold streams: create the "
            f"session by pravega_spark.session(), or start Spark with --packages {DELTA_PACKAGE}. "
            "Native frames need none: frame(...).createOrReplaceTempView(name)."
        ) from error


def _location(spark: SparkSession, table: str) -> str | None:
    """Return the URL of a table, "" for a view, None for a name that is free."""
    from pyspark.errors import AnalysisException

    name = quoted(table)
    try:
        with explained(name):
            if not spark.catalog.tableExists(name):
                return None
            rows = spark.sql(f"DESCRIBE EXTENDED {name}").collect()
    except AnalysisException as error:
        if error.getCondition() in _FILES_ARE_GONE:
            return (error.getMessageParameters() or {}).get("path", "files that are gone")
        raise
    return next((row.data_type for row in reversed(rows) if row.col_name == "Location"), "")


def _plain(url: str) -> str:
    """Return a URL as Hadoop writes it."""
    return url.replace("file:///", "file:/", 1)
