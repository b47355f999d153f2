"""What Spark's checkpoints and file sinks say they have done, and which files changed since.

Read by Spark, since only it may reach the storage of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pravega_spark.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_LISTING: Final = ("pathglobfilter", "recursivefilelookup")
"""Options of Spark's, in lower case, that decide which files of a folder are read."""
_SHOWN: Final = 3
_MOST: Final = 1_000


def last_number(spark: Any, folder: str) -> int:
    """Return the highest batch that has a file in a folder of Spark's; -1 for none.

    By Hadoop's client: Spark reads no file in a folder whose name begins with ``_``.
    """
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)
    storage = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    found = storage.listStatus(path) if storage.exists(path) else []
    numbers = (each.getPath().getName().partition(".")[0] for each in found)
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def check_target(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Raise InvalidInput if files in a folder are of a query with another checkpoint.

    Spark's file sink drops batches whose numbers it knows, and says nothing. A client of Spark
    Connect cannot look.
    """
    if not hasattr(spark, "_jsparkSession"):
        return
    written = last_number(spark, f"{path}/_spark_metadata")
    first, last = (last_number(spark, f"{checkpoint}/{name}") for name in ("commits", "offsets"))
    if written < 0 or first <= written <= last:
        return
    raise InvalidInput(
        f"the files in {path} are those of batches up to {written}, and the checkpoint "
        f"{checkpoint} {f'is at batch {last}' if last >= 0 else 'has none'}: another checkpoint "
        "wrote them, and Spark would leave out the batches whose numbers are there. Give each "
        "export a folder of its own; or take the checkpoint that wrote these files; or delete "
        "them, and the checkpoint, to export again from --start."
    )


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
