"""Typed streams with Spark: columns as they are, in batches, micro-batches and transactions."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import expr

from pravega_spark import StreamSchema
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.chunks import encoder
from pravega_spark.manager import StreamManager
from pravega_spark.spark.native.frame import frame as native_frame
from tests.spark.conftest import Load, finish

EVERY_TYPE = """
    CAST(id AS INT) AS flight, id % 3 = 0 AS late, CAST(id AS TINYINT) AS tiny,
    CAST(id AS SMALLINT) AS small, id AS big, CAST(id AS FLOAT) / 4 AS real, id / 8D AS double,
    CAST(id AS DECIMAL(10, 2)) AS fare, concat('c', id % 5) AS carrier,
    CAST(concat('b', id) AS BINARY) AS blob, date_add(DATE'2013-01-01', CAST(id AS INT)) AS day,
    timestamp_micros(1357034400000001 + id) AS departure,
    IF(id % 2 = 0, NULL, named_struct('tail', concat('N', id), 'seats', array(1, NULL))) AS plane,
    map('a', id, 'b', NULL) AS codes, array(named_struct('x', id)) AS legs
"""


def flights(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr(*_expressions(EVERY_TYPE))


def _expressions(text: str) -> list[str]:
    """Split a list of SQL at the commas outside of brackets."""
    found, depth = [""], 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return [part.strip() for part in found]


def save(frame: DataFrame, root: str, name: str = "s/a", **options: str) -> None:
    frame.write.format("pravega").mode("append").options(root=root, **options).save(name)


@pytest.mark.versions
def test_every_type_is_written_and_read_as_it_is(
    spark: SparkSession, root: str, load: Load
) -> None:
    frame = flights(spark, 40)
    save(frame, root, schema="infer", routingKey="carrier", eventTime="departure", numSegments="2")
    found = load()
    own = found.select(*frame.columns)
    assert own.schema.simpleString() == frame.schema.simpleString()
    expected = frame.orderBy("flight").collect()
    assert own.orderBy("flight").collect() == expected
    assert found.where("routing_key = carrier AND timestamp = departure").count() == 40
    pruned = load(columns="carrier,legs").where("carrier = 'c1'").selectExpr("legs[0].x")
    assert sorted(row[0] for row in pruned.collect()) == [1, 6, 11, 16, 21, 26, 31, 36]


CONDITIONS = [
    "fare IN (1.00, 2.00) AND carrier LIKE 'c1%'",
    "NOT fare <= 37.5 AND day > DATE'2013-01-06' AND NOT late",
    "departure > TIMESTAMP'2013-01-01 10:00:00.000036Z' AND real > 9",
    "odd > 2",
    "odd <=> double('NaN') AND tiny <=> 7 AND nothing IS NULL",
    "blob = CAST('b7' AS BINARY) AND plane.tail = 'N7' AND small < 8",
]
"""``odd`` is NaN in the eighth row of ten."""


@pytest.mark.versions
@pytest.mark.parametrize(
    "native", [pytest.param(False, marks=pytest.mark.versions(since="4.1")), True]
)
def test_pushed_conditions_and_native_frames_skip_row_groups_and_keep_every_row(
    spark: SparkSession,
    root: str,
    load: Load,
    monkeypatch: pytest.MonkeyPatch,
    native: bool,
) -> None:
    """The row groups of ten rows are made here: the writers of a frame are other processes."""
    monkeypatch.setattr(encoder, "ROW_GROUP_EVENTS", 10)
    odd = "IF(id % 10 = 7, double('NaN'), id / 20D) AS odd", "CAST(NULL AS INT) AS nothing"
    table = flights(spark, 40).withColumn("id", F.col("big")).selectExpr("*", *odd).drop("id")
    save(table, root, "s/given", schema="infer")
    manager = StreamManager(root)
    given_rows = manager.read_table("s/given", columns=table.columns).sort_by("flight")
    manager.create_stream("s/a", StreamConfiguration(schema=StreamSchema.of(table)))
    with manager.create_writer("s/a") as writer:
        writer.write_table(given_rows).result()
    answers = [f"coalesce({condition}, false)" for condition in CONDITIONS]
    every = load().selectExpr("flight", *answers).collect()
    places = range(1, len(CONDITIONS) + 1)
    expected = {(place, row[0]) for row in every for place in places if row[place]}
    assert {place for place, _ in expected} == {*places}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        parts = [
            (native_frame(spark, "s/a", root=root) if native else load(pushFilters="true"))
            .where(condition)
            .select(F.lit(place).alias("place"), "flight")
            for place, condition in enumerate(CONDITIONS, 1)
        ]
        found = {(row[0], row[1]) for row in reduce(DataFrame.unionAll, parts).collect()}
        assert found == expected
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    skipping = (("flight >= 35", 10), ("fare < 1", 10), ("odd > 100", 40)) if native else ()
    for condition, rows in skipping:
        assert scanned_rows(native_frame(spark, "s/a", root=root).where(condition)) == rows, (
            condition
        )


def scanned_rows(frame: DataFrame) -> int:
    """Run a frame, and return the rows that Spark's Parquet reader returned."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    scan = plan.collectLeaves().head()
    return int(scan.metrics().apply("numOutputRows").value())


@pytest.mark.versions(short=True)
def test_query_copies_a_typed_stream_with_keys_times_and_nulls(
    spark: SparkSession, root: str, follow: Load, load: Load, tmp_path: Path
) -> None:
    frame = flights(spark, 20)
    save(frame, root, schema="infer", routingKey="carrier", eventTime="departure")
    for _ in range(2):  # the second run finds only what came after the first
        query = (
            follow().writeStream.format("pravega")
            .options(root=root, schema="infer", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start("s/copy")
        )  # fmt: skip
        finish(query)
        save(frame.limit(1), root)
    columns = ["routing_key", "offset", "timestamp", *frame.columns]
    assert load("s/copy").count() == 21
    first = load("s/a").where("offset < 20").select(columns).orderBy("offset").collect()
    copied = load("s/copy").where("offset < 20").select(columns).orderBy("offset").collect()
    assert copied == first


@pytest.fixture
def typed(root: str) -> StreamManager:
    """A root whose stream ``s/a`` needs a carrier, and whose flights have 8 bits."""
    import pyarrow as pa

    manager = StreamManager(root)
    schema = pa.schema([pa.field("carrier", pa.string(), False), ("flight", pa.int8())])
    manager.create_stream("s/a", StreamConfiguration(schema=schema))
    return manager


def mixed(spark: SparkSession) -> DataFrame:
    """Return 300 rows: every hundredth has no carrier, and the number of most has no 8 bits."""
    return spark.range(0, 300, 1, 2).selectExpr(
        "IF(id % 100 = 7, NULL, 'UA') AS carrier", "id AS flight", "concat('k', id % 2) AS key"
    )


def test_bad_record_fails_a_write_and_leaves_stream_and_transaction_as_they_were(
    spark: SparkSession, root: str, typed: StreamManager
) -> None:
    with pytest.raises(PySparkException) as found:
        save(mixed(spark).coalesce(1), root, routingKey="key")
    assert "SchemaMismatch: a write to stream s/a: partition" in str(found.value)
    assert "column carrier: null, and the column is required; got None" in str(found.value)
    good = mixed(spark).where("carrier IS NOT NULL AND flight < 100")
    with typed.create_transactional_writer("s/a") as writer:
        txn = writer.begin_transaction()
        save(good, root, transaction=txn.id, routingKey="key")
        with pytest.raises(PySparkException, match="SchemaMismatch"):
            save(mixed(spark), root, transaction=txn.id, routingKey="key")
        assert list(typed.read("s/a")) == []
        txn.commit()
    assert len(list(typed.read("s/a"))) == 99


def test_frame_with_other_columns_fails_before_its_tasks(
    spark: SparkSession, root: str, typed: StreamManager
) -> None:
    with pytest.raises(PySparkException, match=r"SchemaMismatch: .* no column 'Gate'"):
        save(mixed(spark).selectExpr("carrier", "flight", "'A' AS Gate"), root)
    with pytest.raises(PySparkException, match=r"InvalidSchema: .*column at of type timestamp_ntz"):
        save(spark.sql("SELECT TIMESTAMP_NTZ'2013-01-01' AS at"), root, "s/new", schema="infer")
    assert not typed.stream_exists("s/new")


def test_rows_go_to_the_typed_streams_that_they_name_with_the_key_of_an_expression(
    spark: SparkSession, root: str, typed: StreamManager
) -> None:
    rows = spark.range(0, 20, 1, 2).selectExpr(
        "IF(id % 2 = 0, 's/a', 's/new') AS stream", "concat('c', id % 3) AS carrier", "id AS flight"
    )

    def save_each(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("pravega").mode("append").option("root", root)
        writer.options(schema="infer", **options).save()

    with pytest.raises(PySparkException, match=r'"routing_key", expr\(\'upper\(carrier\)\'\)'):
        save_each(rows, routingKey="upper(carrier)")
    keyed = rows.withColumn("routing_key", expr("upper(carrier)"))
    save_each(keyed, routingKey="routing_key")
    with pytest.raises(PySparkException, match=r"s/a: .* row \d, column flight: .*; got 1\d\d"):
        save_each(keyed.withColumn("flight", expr("flight + 120")))
    for name, first in (("s/a", 0), ("s/new", 1)):
        events = list(typed.read(name))
        assert [event.data["flight"] for event in events] == list(range(first, 20, 2))
        assert all(event.routing_key == event.data["carrier"].upper() for event in events)


@pytest.mark.versions
def test_query_sends_bad_records_to_dead_letters_once(
    spark: SparkSession, root: str, typed: StreamManager, follow: Load, tmp_path: Path
) -> None:
    source = mixed(spark).selectExpr("to_json(struct(*)) AS event", "key AS routing_key")
    save(source, root, "s/raw")
    parsed = follow("s/raw", maxOffsetsPerTrigger="100").selectExpr(
        "from_json(CAST(event AS STRING), 'carrier STRING, flight BIGINT') AS row", "routing_key"
    )
    query = (
        parsed.select("row.*", "routing_key").writeStream.format("pravega")
        .options(root=root, badRecords="dlq", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start("s/a")
    )  # fmt: skip
    finish(query)
    good = [event.data["flight"] for event in typed.read("s/a")]
    letters = [(event.routing_key, json.loads(event.data)) for event in typed.read("s/a-dlq")]
    assert good == [number for number in range(128) if number % 100 != 7]
    bad = [record["row"]["flight"] for _, record in letters]
    assert bad == [number for number in range(300) if number > 127 or number % 100 == 7]
    assert all(key == f"k{number % 2}" for (key, _), number in zip(letters, bad, strict=True))
    assert {record["column"] for _, record in letters} == {"carrier", "flight"}
