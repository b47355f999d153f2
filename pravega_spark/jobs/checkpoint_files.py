"""Which files of an import have changed since its checkpoint says that they were read.

Read by Spark, since only it may reach the storage of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_LISTING: Final = ("pathglobfilter", "recursivefilelookup")
"""Options of Spark's, in lower case, that decide which files of a folder are read."""
_SHOWN: Final = 3
_MOST: Final = 1_000


def changed_files(
    spark: SparkSession, path: str, options: Mapping[str, str], checkpoint: str
) -> list[str]:
    """Return the files that a query has read and that have changed since; it reads none again."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    kept = {name: value for name, value in options.items() if name.lower() in _LISTING}
    line = F.col("value")
    try:
        log = spark.read.text(f"{checkpoint}/sources/0").where(line.startswith("{"))
        found = spark.read.format("binaryFile").options(**kept).load(path).select("_metadata.*")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return []  # nothing was read yet, or the import itself says that nothing is there
    read = (
        log.withColumn("path", _one_form(F.get_json_object(line, "$.path")))
        .withColumn("read_ms", F.get_json_object(line, "$.timestamp").cast("bigint"))
        .groupBy("path")
        .agg(F.max("read_ms").alias("read_ms"))
    )
    present = found.withColumn("path", _one_form(F.col("file_path")))
    changed = F.unix_millis("file_modification_time") != F.col("read_ms")
    rows = present.join(read, "path").where(changed).select("path").limit(_MOST).collect()
    return sorted(unquote(row["path"]) for row in rows)


def _one_form(path: Column) -> Column:
    """Return the URL of a local file as Hadoop's client writes it, in place of Spark's file:///."""
    from pyspark.sql import functions as F

    return F.regexp_replace(path, "^file:/+", "file:/")


def changed_text(files: list[str]) -> str:
    """Return what has happened to files, of which some are named."""
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return (
        f"{', '.join(files[:_SHOWN])}{more}: changed after it was read, and what is new in it is "
        "not imported, since Spark reads each file once"
    )
