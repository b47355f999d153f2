"""What an export's target and checkpoint say of the exports before: it never begins over one.

Asked of Spark, since only it may reach the storage of a checkpoint. Spark's sink for Kafka leaves
nothing there that could be asked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pravega_spark.errors import InvalidInput
from pravega_spark.schemas.sql_types import quoted_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COMMITS: Final = 1_000
"""Newest commits of a table that are looked at: one of every ten seconds makes many."""
_COLUMNS: Final = frozenset({"routing_key", "timestamp", "segment_id", "offset"})
"""Columns of every export, by which a query's commits are known for those of one."""
_NO_TABLE: Final = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND")


def check_files(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Raise InvalidInput if files in a folder are of a query with another checkpoint.

    Spark's file sink drops batches whose numbers it knows, and says nothing. A client of Spark
    Connect cannot look.
    """
    if not hasattr(spark, "_jsparkSession"):
        return
    written = _last_number(spark, f"{path}/_spark_metadata")
    first, last = (_last_number(spark, f"{checkpoint}/{name}") for name in ("commits", "offsets"))
    if written < 0 or first <= written <= last:
        return
    raise InvalidInput(
        f"the files in {path} are those of batches up to {written}, and the checkpoint "
        f"{checkpoint} {f'is at batch {last}' if last >= 0 else 'has none'}: another checkpoint "
        "wrote them, and Spark would leave out the batches whose numbers are there. Give each "
        "export a folder of its own; or take the checkpoint that wrote these files; or delete "
        "them, and the checkpoint, to export again from --start."
    )


def emptied_text(spark: SparkSession, path: str, checkpoint: str, *, is_table: bool) -> str | None:
    """Return what to say of a checkpoint that has written batches, and whose target has none."""
    if not hasattr(spark, "_jsparkSession"):
        return None
    last = _last_number(spark, f"{checkpoint}/commits")
    is_there = (
        _is_written_table(spark, path)
        if is_table
        else _last_number(spark, f"{path}/_spark_metadata") >= 0
    )
    if last < 0 or is_there:
        return None
    return (
        f"{path} has nothing of the batches up to {last} that the checkpoint {checkpoint} has "
        "written: it was moved or deleted, and the export goes on after them. To export their "
        "events again, delete the checkpoint, too."
    )


def begin_files_again(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Give an emptied folder what Spark's file sink and reader expect of the batches before.

    Spark joins ten batches' lists of files into one, also if the folder had none of them: it, and
    each reader, then fail at the number of the first. So each of them gets an empty list.
    """
    if not hasattr(spark, "_jsparkSession"):
        return
    jvm: Any = spark._jvm
    last = _last_number(spark, f"{checkpoint}/commits")
    every = int(str(spark.conf.get("spark.sql.streaming.fileSink.log.compactInterval", "10")))
    first = max(0, (last + 1) // every * every - 1)
    unfinished, folder = (
        jvm.org.apache.hadoop.fs.Path(f"{path}/{name}")
        for name in ("_spark_metadata.unfinished", "_spark_metadata")
    )
    storage = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    storage.delete(unfinished, True)
    for batch in range(first, last + 1):
        name = f"{batch}.compact" if (batch + 1) % every == 0 else str(batch)
        file = storage.create(jvm.org.apache.hadoop.fs.Path(unfinished, name), False)
        file.write(bytearray(b"v1"))
        file.close()
    storage.rename(unfinished, folder)


def check_table(spark: SparkSession, path: str, checkpoint: str, *, may_append: bool) -> None:
    """Raise InvalidInput if a Delta table has rows of an export with another checkpoint.

    Each would be there twice. With ``may_append`` only a checkpoint that is behind the table is
    refused, since Delta drops batches whose numbers it knows of the query.
    """
    if not _is_written_table(spark, path):
        return
    written, own = _batches_of_queries(spark, path), _query_id(spark, checkpoint)
    if own in written:
        _check_not_behind(spark, path, checkpoint, written[own])
        return
    if may_append or not written:
        return
    query, batch = next(iter(written.items()))
    raise InvalidInput(
        f"the Delta table {path} has the rows of an export with another checkpoint, up to its "
        f"batch {batch}, and the checkpoint {checkpoint} has written none there: the export would "
        f"write rows again that are there. Take the checkpoint whose file metadata has {query}; or "
        "give each export a table of its own; or delete the table, and the checkpoint, to export "
        "again; or add the rows from --start on with --written-table append."
    )


def _check_not_behind(spark: SparkSession, path: str, checkpoint: str, written: int) -> None:
    if not hasattr(spark, "_jsparkSession"):
        return
    last = _last_number(spark, f"{checkpoint}/offsets")
    if last < written:
        raise InvalidInput(
            f"the Delta table {path} has batches up to {written} of this export, and the "
            f"checkpoint {checkpoint} is at batch {last}: it is an older copy, or was set back, "
            "and Delta would leave out the batches whose numbers are there. Take the checkpoint "
            "that wrote them; or a new one, and a table of its own."
        )


def _is_written_table(spark: SparkSession, path: str) -> bool:
    """Return whether there is a Delta table that has the columns of an export."""
    from pyspark.errors import AnalysisException

    try:
        columns = spark.read.format("delta").load(path).columns
    except AnalysisException as error:
        if error.getCondition() not in _NO_TABLE:
            raise
        return False
    return set(columns) >= _COLUMNS


def _batches_of_queries(spark: SparkSession, path: str) -> dict[str, int]:
    """Return the last batch of each query in a table's history, the newest query first."""
    rows = spark.sql(f"DESCRIBE HISTORY {quoted_text(path)} LIMIT {_COMMITS}").collect()
    found: dict[str, int] = {}
    for row in rows:
        given = row["operationParameters"] or {}
        if row["operation"] == "STREAMING UPDATE" and "queryId" in given:
            found.setdefault(given["queryId"], int(given["epochId"]))
    return found


def _query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of a checkpoint's query; None if it has none yet."""
    from pyspark.errors import AnalysisException

    try:
        rows = spark.read.text(f"{checkpoint}/metadata").collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return str(json.loads("".join(row["value"] for row in rows))["id"])


def _last_number(spark: Any, folder: str) -> int:
    """Return the highest batch that has a file in a folder of Spark's; -1 for none.

    By Hadoop's client: Spark reads no file in a folder whose name begins with ``_``.
    """
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)
    storage = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    found = storage.listStatus(path) if storage.exists(path) else []
    numbers = (each.getPath().getName().partition(".")[0] for each in found)
    return max((int(number) for number in numbers if number.isdigit()), default=-1)
