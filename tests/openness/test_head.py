"""With the documented filter other readers return the package's events after a truncation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamCut, StreamManager
from pravega_spark.table_statements import table_statements
from tests.harness import delta_engines

pytestmark = pytest.mark.spark

Row = tuple[int, int, str | None, bytes]
"""(segment id, offset, routing key, event)."""


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A stream with two truncated segments of one chunk each, the first of them split later."""
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(ScalingPolicy.fixed(2)))
    write(manager)
    middle = {segment_id: offset // 2 for segment_id, offset in manager.tail("s/a")}
    assert all(middle.values())
    manager.truncate_stream("s/a", StreamCut("s/a", manager.tail("s/a").life, middle))
    manager.scale_stream("s/a", seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
    write(manager)
    return manager


def write(manager: StreamManager) -> None:
    with manager.create_writer("s/a") as writer:
        futures = [writer.write_event(b"%d" % n, routing_key=str(n)) for n in range(100)]
        writer.flush()
        assert all(future.done() for future in futures)


def package_rows(manager: StreamManager) -> Counter[Row]:
    return Counter(
        (e.segment_id, e.offset, e.routing_key, bytes(e.data)) for e in manager.read("s/a")
    )


def rows_of(table: pa.Table) -> Counter[Row]:
    """Return the rows of a table without their times."""
    return Counter(
        (s, o, key, event) for s, o, key, _, event in delta_engines.rows_of(table).elements()
    )


def test_head_filter_gives_every_reader_the_events_of_the_package(
    manager: StreamManager, spark: SparkSession
) -> None:
    table = str(Path(manager.root.removeprefix("file://"), "s/a/events"))
    expected, where = package_rows(manager), manager.head_filter("s/a")
    everything = delta_engines.spark_frame(spark, table).select(delta_engines.COLUMNS)
    assert rows_of(everything.toArrow()) > expected, "truncated events are still in the files"
    assert rows_of(everything.where(where).toArrow()) == expected, "Spark"

    columns = ", ".join(delta_engines.COLUMNS)
    with delta_engines.connect_duckdb() as connection:
        query = f"SELECT {columns} FROM delta_scan('{table}') WHERE {where}"
        assert rows_of(connection.execute(query).to_arrow_table()) == expected, "DuckDB"
    builder = QueryBuilder().register("events", DeltaTable(table))
    found = builder.execute(f"SELECT {columns} FROM events WHERE {where}").read_all()
    assert rows_of(pa.table(found)) == expected, "delta-rs"


def test_untruncated_stream_needs_no_filter(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a")
    assert manager.head_filter("s/a") == "TRUE"


def test_the_registered_view_has_the_events_with_their_offsets(
    manager: StreamManager, spark: SparkSession
) -> None:
    for _ in range(2):  # safe to repeat
        for statement in table_statements(manager, ["s/*"]):
            spark.sql(statement)
    try:
        rows = spark.sql(
            "SELECT segment_id, `offset`, routing_key, event FROM s.a_events"
        ).collect()
        found = Counter((r.segment_id, r.offset, r.routing_key, bytes(r.event)) for r in rows)
        assert found == package_rows(manager)
        assert spark.table("s.a").count() >= len(rows)
    finally:
        spark.sql("DROP SCHEMA s CASCADE")
