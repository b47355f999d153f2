"""Every other Delta writer refuses to write, by its own check of the table's features."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest
from delta.tables import DeltaTable as SparkTable
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from pravega_spark.engine.log.sweep import delete_unreferenced_files
from tests.harness import delta_engines
from tests.harness.story import Story, digests

pytestmark = pytest.mark.spark

ORPHAN = re.compile(r"/events/([a-z_]+=[^/]+/)*(part-|\.part-|duckdb_)[^/]+$")
UNSUPPORTED = "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE"
UNSUPPORTED_STREAM = rf"(?s){UNSUPPORTED}.*pravega-stream"
STATEMENTS = {
    "insert": "INSERT INTO {table} SELECT * FROM {table} LIMIT 1",
    "delete": "DELETE FROM {table} WHERE routing_key = 'carrier-1'",
    "update": "UPDATE {table} SET routing_key = 'z'",
    "merge": "MERGE INTO {table} t USING (SELECT 'carrier-1' AS k) s ON t.routing_key = s.k "
    "WHEN MATCHED THEN DELETE",
    "truncate": "TRUNCATE TABLE {table}",
    "restore": "RESTORE TABLE {table} TO VERSION AS OF 3",
    "vacuum": "VACUUM {table}",
    "vacuum lite": "VACUUM {table} LITE",
    "properties": "ALTER TABLE {table} SET TBLPROPERTIES ('delta.appendOnly' = 'true')",
    "add column": "ALTER TABLE {table} ADD COLUMNS (z int)",
    "constraint": "ALTER TABLE {table} ADD CONSTRAINT c CHECK (offset_delta >= 0)",
    "comment": "COMMENT ON TABLE {table} IS 'mine'",
    "replace by rows": "CREATE OR REPLACE TABLE {table} USING delta AS SELECT 1 AS a",
    "replace by rows in folders": "CREATE OR REPLACE TABLE {table} USING delta "
    "PARTITIONED BY (a) AS SELECT 1 AS a, 2 AS b",
    "drop feature": "ALTER TABLE {table} DROP FEATURE domainMetadata",
}
REFUSED_OTHERWISE = {
    "replace": (
        "CREATE OR REPLACE TABLE {table} (a int) USING delta",
        "DELTA_CREATE_TABLE_SCHEME_MISMATCH",
    ),
    "drop our feature": (
        "ALTER TABLE {table} DROP FEATURE `pravega-stream`",
        "DELTA_FEATURE_DROP_UNSUPPORTED_CLIENT_FEATURE",
    ),
}


@pytest.fixture
def untouched(story: Story) -> Iterator[Story]:
    """The story; afterwards, check that no byte of its log and files has changed.

    Delta Spark and DuckDB write data files before they check the features, so they may leave
    orphan files.
    """
    before = digests(story.root)
    yield story
    after = digests(story.root)
    assert [path for path in before if after.get(path) != before[path]] == []
    assert [path for path in after if path not in before and not ORPHAN.search(path)] == []


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_delta_spark_refuses_to_run(untouched: Story, spark: SparkSession, statement: str) -> None:
    with pytest.raises(Py4JJavaError, match=UNSUPPORTED_STREAM):
        spark.sql(statement.format(table=f"delta.`{untouched.table}`"))


@pytest.mark.parametrize(
    ("statement", "error"), REFUSED_OTHERWISE.values(), ids=REFUSED_OTHERWISE.keys()
)
def test_delta_spark_cannot(
    untouched: Story, spark: SparkSession, statement: str, error: str
) -> None:
    with pytest.raises((Py4JJavaError, PySparkException), match=error):
        spark.sql(statement.format(table=f"delta.`{untouched.table}`"))


def test_sweep_deletes_orphan_files_of_refused_writers(story: Story, spark: SparkSession) -> None:
    def orphans() -> list[str]:
        folder = Path(story.table)
        found = (str(path.relative_to(folder)) for path in folder.rglob("*part-*"))
        return [path for path in found if not re.search(r"^data/|(^|/)\.", path)]

    for statement in ("replace by rows", "replace by rows in folders"):
        with pytest.raises(Py4JJavaError, match=UNSUPPORTED_STREAM):
            spark.sql(STATEMENTS[statement].format(table=f"delta.`{story.table}`"))
    assert {path.partition("=")[0].partition("-")[0] for path in orphans()} >= {"part", "a"}
    before = digests(story.root)
    delete_unreferenced_files(story.stream.log, grace_ms=0)
    assert orphans() == []
    assert [path for path in before.keys() - digests(story.root) if not ORPHAN.search(path)] == []


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_delta_spark_refuses_a_frame(untouched: Story, spark: SparkSession, mode: str) -> None:
    frame = delta_engines.spark_frame(spark, untouched.table).limit(1)
    with pytest.raises(Py4JJavaError, match=UNSUPPORTED):
        frame.write.format("delta").mode(mode).save(untouched.table)


def test_delta_spark_refuses_a_streaming_query(
    untouched: Story, spark: SparkSession, tmp_path: Any
) -> None:
    frame = spark.readStream.format("delta").load(untouched.table)
    writer = frame.writeStream.format("delta").option("checkpointLocation", str(tmp_path))
    with pytest.raises((StreamingQueryException, Py4JJavaError), match=UNSUPPORTED):
        writer.trigger(availableNow=True).start(untouched.table).awaitTermination()


def test_delta_spark_refuses_its_python_api(untouched: Story, spark: SparkSession) -> None:
    table = SparkTable.forPath(spark, untouched.table)
    with pytest.raises(Py4JJavaError, match=UNSUPPORTED):
        table.delete()
    with pytest.raises(Py4JJavaError, match=UNSUPPORTED):
        table.upgradeTableProtocol(3, 7)


ROWS = pa.table(
    {
        "segment_id": pa.array([0], pa.int64()),
        "base_offset": pa.array([1_000], pa.int64()),
        "offset_delta": pa.array([0], pa.int32()),
        "routing_key": ["carrier-1"],
        "timestamp": pa.array([0], pa.timestamp("us", "UTC")),
        "event": [b"foreign"],
    }
)


def _merge(table: DeltaTable) -> Any:
    condition = "t.routing_key = s.routing_key"
    merger = table.merge(ROWS, condition, source_alias="s", target_alias="t")
    return merger.when_matched_delete().execute()


def _vacuum(table: str, *, full: bool) -> None:
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=full)


DELTA_RS_WRITES: dict[str, Callable[[DeltaTable], Any]] = {
    "append": lambda table: write_deltalake(table, ROWS, mode="append"),
    "overwrite": lambda table: write_deltalake(table, ROWS, mode="overwrite"),
    "delete": lambda table: table.delete(),
    "delete where": lambda table: table.delete("segment_id = 1"),
    "update": lambda table: table.update(updates={"routing_key": "'z'"}),
    "merge": _merge,
    "compact": lambda table: table.optimize.compact(),
    "z-order": lambda table: table.optimize.z_order(["routing_key"]),
    "restore": lambda table: table.restore(3),
    "properties": lambda table: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    "add column": lambda table: table.alter.add_columns(
        [deltalake.Field("z", PrimitiveType("string"))]
    ),
    "constraint": lambda table: table.alter.add_constraint({"c": "offset_delta >= 0"}),
    "feature": lambda table: table.alter.add_feature(deltalake.TableFeatures.AppendOnly),
    "name": lambda table: table.alter.set_table_name("mine"),
}


@pytest.mark.parametrize("write", DELTA_RS_WRITES.values(), ids=DELTA_RS_WRITES.keys())
def test_delta_rs_refuses_to(untouched: Story, write: Callable[[DeltaTable], Any]) -> None:
    with pytest.raises(CommitFailedError, match=r"Unsupported table features.*pravega-stream"):
        write(DeltaTable(untouched.table))


@pytest.mark.parametrize("full", [False, True], ids=["lite", "full"])
def test_delta_rs_refuses_to_vacuum_before_it_deletes(untouched: Story, full: bool) -> None:
    # The scope's table has many removed files, and the stream's table has a staged file.
    with pytest.raises(CommitFailedError, match="pravega-stream"):
        _vacuum(untouched.scope_table, full=full)
    if full:
        with pytest.raises(CommitFailedError, match="pravega-stream"):
            _vacuum(untouched.table, full=True)


DUCKDB_WRITES = {
    "delete": ("DELETE FROM t", "Can only delete from base table"),
    "update": ("UPDATE t SET event = NULL", "Can only update base table"),
    "truncate": ("TRUNCATE t", "Can only delete from base table"),
    "merge": (
        "MERGE INTO t USING (SELECT 'carrier-1' AS k) s ON t.routing_key = s.k "
        "WHEN MATCHED THEN DELETE",
        "Can only merge into base tables",
    ),
    "alter": ("ALTER TABLE t ADD COLUMN z INT", "do not support altering"),
    "drop": ("DROP TABLE t", "do not support dropping"),
    "vacuum": ("VACUUM t", "Can only vacuum or analyze base tables"),
}


@pytest.mark.parametrize(("statement", "error"), DUCKDB_WRITES.values(), ids=DUCKDB_WRITES.keys())
def test_duckdb_refuses_to(untouched: Story, statement: str, error: str) -> None:
    with delta_engines.connect_duckdb() as connection:
        connection.execute(f"ATTACH '{untouched.table}' AS t (TYPE delta)")
        with pytest.raises(duckdb.Error, match=error):
            connection.execute(statement)


def test_duckdb_refuses_the_commit_of_an_insert(untouched: Story) -> None:
    with delta_engines.connect_duckdb() as connection:
        connection.execute(f"ATTACH '{untouched.table}' AS t (TYPE delta)")
        with pytest.raises(duckdb.Error, match="Feature 'pravega-stream' is not supported"):
            connection.execute("INSERT INTO t SELECT * FROM t LIMIT 1")
