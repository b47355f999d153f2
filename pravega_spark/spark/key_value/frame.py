"""Frames of key-value tables that Spark reads itself, and writes of queries in update mode.

A Python source hands its rows to the JVM through Arrow. The folded rows are a Delta table, which
Spark reads without that, so only the changes that follow them take the longer way.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.store.root_url import root_as_text
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import IllegalState, InvalidInput
from pravega_spark.key_value.entry import translated
from pravega_spark.key_value.snapshot import TableSnapshot, table_snapshot
from pravega_spark.spark.jars import start_with_delta
from pravega_spark.spark.key_value.changed_range import merged_range
from pravega_spark.spark.option_values import named
from pravega_spark.values.limits import SCAN_CHANGED_BYTES
from pravega_spark.values.names import folded_path, split_table, table_log
from pravega_spark.values.segments import segment_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

    from pravega_spark.key_value.key_value_table import KeyValueTable

_FORMAT = "pravega_kvt"
_QUERY_ID = "sql.streaming.queryId"
_KNOWN_SEGMENTS = 8
_LISTED_KEYS = 1_000
_BARRIER = "monotonically_increasing_id() >= 0"
"""True of every row; Spark compares it where it stands, and pushes no condition below it."""


def key_value_frame(
    spark: SparkSession,
    table: str | KeyValueTable,
    *former: Any,
    root: str | os.PathLike[str] | None = None,
    version: int | None = None,
) -> DataFrame:
    """Return the entries of a table as a frame, exact at one version and at Spark's own speed.

    ``table`` is a name ``scope/table`` with its ``root``, or the table's handle, which brings its
    root along. ``key_value_frame(spark, root, table)`` is the former order, and deprecated.

    The version is pinned by the call: the newest one, or ``version`` of the change log. The frame
    is the folded Delta table at a version, without the keys that changed after it, and the newest
    changes of those. Columns are those of ``format("pravega_kvt")``. Raises IllegalState
    if the frame needs Delta or the data source and this Spark has none, NoSuchTable, and
    TruncatedData if the version can no longer be read.
    """
    if former:
        table, root = _reordered("key_value_frame(spark, table, root=root)", table, former, root)
    table, where = _table_in(table, root)
    stream = open_stream(where, table_log(*split_table(table)))
    found = table_snapshot(stream, version)
    if found.folded is None or (found.changed_bytes > SCAN_CHANGED_BYTES and found.expires):
        reader = _reader(spark).option("root", where)
        if not found.expires or version is not None:
            reader = reader.option("versionAsOf", found.view.version)
        return reader.load(table)
    return _over_folded(spark, where, table, found)


def _reordered(
    now: str, root: Any, former: tuple[Any, ...], given: object
) -> tuple[Any, str | os.PathLike[str]]:
    """Return the table and the root of a call whose root came first, and warn of it."""
    if len(former) != 1 or given is not None:
        raise InvalidInput(f"write {now}: too many arguments stand before the named ones.")
    message = f"the root is given by its name: write {now}."
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return former[0], root


def _table_in(table: str | KeyValueTable, root: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Return the name of a table, and the root as an absolute path or a URL."""
    name, where = named(table, root)
    if where is None:
        raise InvalidInput(f"table {name} needs its root: give root=.")
    where = root_as_text(where, "format('pravega_kvt')")
    return name, where if ":/" in where else os.path.abspath(where)


def _over_folded(spark: SparkSession, root: str, table: str, found: TableSnapshot) -> DataFrame:
    from pyspark.sql import functions as sql

    assert found.folded is not None
    path = f"{root.rstrip('/')}/{folded_path(found.stream.name)}"
    reader = spark.read.format("delta").option("versionAsOf", found.folded.version)
    try:
        rows = reader.load(path)
    except Exception as error:  # Spark 4.3 raises the JVM's own
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        from pravega_spark.spark.versions import spark_release

        raise IllegalState(
            f"this session has no Delta Lake, which holds the folded entries of table {table}: "
            f"{start_with_delta(spark_release())}. format('pravega_kvt') reads them without it."
        ) from error
    keys = ["key", "secondary_key"] if found.table.layout.has_secondary else ["key"]
    if found.changes and found.changed_bytes <= SCAN_CHANGED_BYTES:
        rows = _with_few(spark, rows, found, keys)
    elif found.changes:
        changes = _newest(spark, root, table, found, keys)
        rows = rows.join(changes.select(*keys), keys, "left_anti")
        rows = rows.unionByName(changes.where("value IS NOT NULL").select(*rows.columns))
        rows = rows.where(_BARRIER)
    if found.expired_us is not None:
        rows = rows.where(sql.col("timestamp") > sql.timestamp_micros(sql.lit(found.expired_us)))
    return rows.select(*keys, "value", "timestamp", _version(found).alias("version"))


def _with_few(
    spark: SparkSession, rows: DataFrame, found: TableSnapshot, keys: list[str]
) -> DataFrame:
    """Return the folded rows under the newest change of each key, which the driver reads.

    No condition on the result sees a folded row whose key has changed. Of a few keys, and of keys
    that fill a range, these rows are left out by a condition, which is the first of all, so Spark
    still pushes what is asked for into the files.
    """
    from pyspark.sql import functions as sql

    from pravega_spark.spark.key_value.scan import changed_rows

    layout = found.table.layout
    with translated():
        changes = changed_rows(found)
        is_few = len(keys) == 1 and changes.num_rows <= _LISTED_KEYS
        merged = None if is_few else merged_range(found, changes)
    changed: Any = layout.columns_of_rows(changes)
    newest = spark.createDataFrame(changed if merged is None else layout.columns_of_rows(merged))
    first, last = (sql.lit(changed.column("key")[at].as_py()) for at in (0, -1))
    if is_few:
        gone = ", ".join(map(_literal, changed.column("key").to_pylist()))
        rows = rows.where(f"key NOT IN ({gone})")
    elif merged is not None:
        rows = rows.where((sql.col("key") < first) | (sql.col("key") > last))
    else:
        rows = _without(rows, newest.select(keys), sql.col("key").between(first, last))
    if changed.column("value").null_count:
        newest = newest.where("value IS NOT NULL")
    return rows.unionByName(newest.select(*rows.columns))


def _without(rows: DataFrame, gone: DataFrame, is_near: Column) -> DataFrame:
    """Return the folded rows of all other keys; no condition on the result sees the rest.

    Rows that may be among them are looked up: by a hash, since Spark probes a number faster than a
    text, and by the key where the hash agrees.
    """
    from pyspark.sql import functions as sql

    names = gone.columns
    changed = gone.select(
        sql.xxhash64(*names).alias("changed_hash"),
        *(sql.col(name).alias(f"changed_{name}") for name in names),
    )
    is_same = sql.when(is_near, sql.xxhash64(*names)) == sql.col("changed_hash")
    for name in names:  # an equality would be hashed, too
        is_same &= sql.col(name).between(sql.col(f"changed_{name}"), sql.col(f"changed_{name}"))
    return rows.join(sql.broadcast(changed), is_same, "left_anti").where(_BARRIER)


def _literal(key: int | str | bytes) -> str:
    """Return a key as SQL."""
    if isinstance(key, int):
        return f"CAST('{key}' AS BIGINT)"
    if isinstance(key, str):
        return f"CAST(X'{key.encode().hex()}' AS STRING)"
    return f"X'{key.hex()}'"


def _reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader of the data source; raise IllegalState if this Spark has none."""
    from pravega_spark.spark.versions import check_spark

    check_spark()
    return spark.read.format(_FORMAT)


def _newest(
    spark: SparkSession, root: str, table: str, found: TableSnapshot, keys: list[str]
) -> DataFrame:
    """Return the newest change of each key, which tasks read."""
    from pyspark.sql import functions as sql

    changes = (
        _reader(spark)
        .options(root=root, readChangeFeed="true")
        .options(startingStreamCut=str(found.start), endingStreamCut=str(found.view.tail))
        .load(table)
    )
    rest = [name for name in changes.columns if name not in keys]
    newest = sql.max_by(sql.struct(*rest), sql.struct("segment_id", "offset")).alias("newest")
    return changes.groupBy(*keys).agg(newest).select(*keys, "newest.*")


def _version(found: TableSnapshot) -> Column:
    """Return the text of ``KeyVersion`` as Spark makes it of the place of a change.

    Numbers become texts slowly, so the heads of the segments that most rows have are constants.
    """
    from pyspark.sql import functions as sql

    life, segment = found.view.life, sql.col("segment_id")
    number, epoch = segment.bitwiseAND(sql.lit(0xFFFFFFFF)), sql.shiftright(segment, 32)
    places = [sql.lit(f"{life}:"), number, sql.lit("#"), epoch, sql.lit("=")]
    head = sql.concat(*(place.cast("string") for place in places))
    for known in found.view.active.segment_ids[:_KNOWN_SEGMENTS]:
        constant = sql.lit(f"{life}:{segment_text(known)}=")
        head = sql.when(segment == known, constant).otherwise(head)
    return sql.concat(head, sql.col("offset").cast("string"))


def upsert_batches(
    table: str | KeyValueTable,
    *former: Any,
    root: str | os.PathLike[str] | None = None,
    **options: str,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes every micro-batch to a table once.

    Spark refuses update mode for Python sinks, and ``foreachBatch`` takes it: the rows of an
    aggregation that changed are put. A batch is numbered by the query and the batch id, so one that
    is repeated after a crash adds nothing. ``options`` are those of the write; with
    ``checkpointLocation``, that of the query, a batch is known by the ends of its sources, too.
    ``table`` and ``root`` are those of :func:`key_value_frame`; ``upsert_batches(root, table)`` is
    deprecated.
    """
    if former:
        table, root = _reordered("upsert_batches(table, root=root)", table, former, root)
    name, where = _table_in(table, root)
    split_table(name)

    def upsert(frame: DataFrame, batch_id: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise IllegalState(
                f"no streaming query runs this write to table {name}, so a repeated batch could "
                "not be recognized: give upsert_batches(...) to writeStream.foreachBatch."
            )
        (
            frame.write.format(_FORMAT)
            .mode("append")
            .options(root=where, table=name, txnAppId=f"query:{query}", txnVersion=batch_id)
            .options(**options)
            .save()
        )

    return upsert
