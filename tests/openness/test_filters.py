"""A filter on any column returns the same events through each reader of Delta tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.log import checkpoint
from pravega_spark.manager import root_of
from tests.harness import delta_engines

HIGH = "\U0010ffff" * 40
KEYS = [None, "", "UA", "B6", "é", HIGH, "k" * 300]
FILTERS = {
    "routing_key = 'UA'": pc.field("routing_key") == "UA",
    "routing_key >= 'UA'": pc.field("routing_key") >= "UA",
    "routing_key <> 'UA'": pc.field("routing_key") != "UA",
    "routing_key = ''": pc.field("routing_key") == "",
    f"routing_key = '{HIGH}'": pc.field("routing_key") == HIGH,
    "routing_key IS NULL": pc.field("routing_key").is_null(),
    "routing_key IS NOT NULL": pc.field("routing_key").is_valid(),
    "offset_delta = 0": pc.field("offset_delta") == 0,
    "offset_delta > 1": pc.field("offset_delta") > 1,
    "event = CAST('7' AS {binary})": pc.field("event") == b"7",
    "timestamp > CAST('2001-01-01T00:00:00Z' AS {time})": pc.field("timestamp")
    > pa.scalar(1_000_000_000_000_000, pa.timestamp("us", "UTC")),
    "timestamp < CAST('2001-01-01T00:00:00Z' AS {time})": pc.field("timestamp")
    < pa.scalar(1_000_000_000_000_000, pa.timestamp("us", "UTC")),
}


@pytest.fixture(scope="module", params=["commits", "checkpoint"])
def table(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    """A table of files of one event and of many, of one key and of many, and of a transaction."""
    root = tmp_path_factory.mktemp("filters")
    manager = StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights", StreamConfiguration(ScalingPolicy.fixed(1)))
    with manager.create_writer("nyc/flights") as writer:
        for number, key in enumerate(KEYS * 4):
            writer.write_event(b"%d" % number, key).result()
        for key in KEYS:
            writer.write_events([b"7"] * 20, key).result()
        rows = pa.table({"event": [b"table"] * 70, "routing_key": KEYS * 10})
        writer.write_table(rows).result()
    transactional = manager.create_transactional_writer("nyc/flights")
    with transactional, transactional.begin_transaction() as transaction:
        transaction.write_event(b"7", "UA")
    if request.param == "checkpoint":
        log = root_of(manager).stream("nyc/flights").log
        snapshot = log.refresh()
        assert snapshot is not None
        checkpoint.maintain(log.reader, snapshot.version, checkpoint=True)
    return str(Path(root, "nyc/flights/events"))


def by_delta_rs(table: str) -> Iterator[tuple[str, list[bytes]]]:
    dataset = DeltaTable(table).to_pyarrow_dataset()
    for text, condition in FILTERS.items():
        yield text, dataset.to_table(filter=condition).column("event").to_pylist()


def by_delta_rs_queries(table: str) -> Iterator[tuple[str, list[bytes]]]:
    queries = QueryBuilder().register("events", DeltaTable(table))
    for text in FILTERS:
        where = text.format(binary="BYTEA", time="TIMESTAMP")
        rows = queries.execute(f"SELECT event FROM events WHERE {where}").read_all()
        yield text, pa.table(rows).column("event").to_pylist()


def by_duckdb(table: str) -> Iterator[tuple[str, list[bytes]]]:
    dataset = DeltaTable(table).to_pyarrow_dataset()
    with delta_engines.connect_duckdb() as connection:
        connection.register("dataset", dataset)
        for text in FILTERS:
            where = text.format(binary="BLOB", time="TIMESTAMPTZ")
            found = [
                connection.execute(f"SELECT event FROM {source} WHERE {where}").fetchall()
                for source in (f"delta_scan('{table}')", "dataset")
            ]
            assert Counter(found[0]) == Counter(found[1]), text
            yield text, [event for (event,) in found[0]]


def by_polars(table: str) -> Iterator[tuple[str, list[bytes]]]:
    frame = pl.scan_pyarrow_dataset(DeltaTable(table).to_pyarrow_dataset())
    conditions = {
        "routing_key = 'UA'": pl.col("routing_key") == "UA",
        "routing_key IS NULL": pl.col("routing_key").is_null(),
        "offset_delta = 0": pl.col("offset_delta") == 0,
    }
    for text, condition in conditions.items():
        yield text, frame.filter(condition).collect()["event"].to_list()


READERS = [by_delta_rs, by_delta_rs_queries, by_duckdb, by_polars]


@pytest.mark.medium
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_a_filter_on_any_column_loses_no_event(table: str, reader: Any) -> None:
    events = DeltaTable(table).to_pyarrow_table()
    assert events.num_rows == 28 + 140 + 70 + 1
    for text, found in reader(table):
        expected = events.filter(FILTERS[text]).column("event").to_pylist()
        assert bool(expected) != text.startswith("timestamp <")
        assert Counter(found) == Counter(expected), text


@pytest.mark.spark
def test_spark_filters_any_column_and_its_aggregates_are_exact(
    table: str, spark: SparkSession
) -> None:
    events = DeltaTable(table).to_pyarrow_table()
    frame = delta_engines.spark_frame(spark, table)
    counts = [
        frame.where(text.format(binary="BINARY", time="TIMESTAMP")).select(F.lit(text).alias("by"))
        for text in FILTERS
    ]
    found = reduce(DataFrame.unionAll, counts).toArrow().column("by").to_pylist()
    sizes = {text: events.filter(condition).num_rows for text, condition in FILTERS.items()}
    assert Counter(found) == +Counter(sizes)
    columns = ("routing_key", "offset_delta", "timestamp")
    query = ", ".join(f"MIN({name}), MAX({name})" for name in columns)
    frame.createOrReplaceTempView("filtered_events")
    bounds = spark.sql(f"SELECT {query} FROM filtered_events").toArrow()
    expected = [
        cell.as_py() for name in columns for cell in pc.min_max(events.column(name)).values()
    ]
    assert [column[0].as_py() for column in bounds.columns] == expected


def test_delta_rs_filters_a_table_without_bounds(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights")
    dataset = DeltaTable(tmp_path / "nyc/_scope").to_pyarrow_dataset()
    named = dataset.to_table(filter=pc.field("name") == "flights")
    assert named.column("kind").to_pylist() == ["stream"]
