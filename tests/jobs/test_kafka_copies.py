"""Topics of a real Kafka broker into streams and back, by Spark's own connector.

Skipped where Kafka's jars are missing: ``make setup`` fetches them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import StreamManager
from tests.harness.copy_jobs import Copies
from tests.harness.kafka_broker import start_kafka
from tests.harness.spark_jars import add_connector

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

Rows = dict[bytes | None, list[tuple[bytes | None, object]]]
"""Values and times of each key, in order."""


@pytest.fixture(scope="module")
def servers(spark: SparkSession) -> Iterator[str]:
    """The bootstrap servers of a broker whose topics have two partitions."""
    with start_kafka() as found:
        add_connector(spark)
        yield found
    spark.sparkContext.setLogLevel("OFF")  # Spark's producers would log that the broker has ended


def produce(spark: SparkSession, servers: str, topic: str, rows: str) -> None:
    """Write the rows of a query, in its order, with the columns key, value and headers."""
    frame = spark.sql(rows).coalesce(1)
    options = {"kafka.bootstrap.servers": servers, "topic": topic, "includeHeaders": "true"}
    frame.write.format("kafka").options(**options).save()


def topic_frame(spark: SparkSession, servers: str, topic: str, **more: str) -> DataFrame:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, **more}
    return spark.read.format("kafka").options(**options).load()


def by_key(frame: DataFrame) -> Rows:
    """Return the rows of a frame with Kafka's columns, those of each key in order."""
    found: Rows = defaultdict(list)
    for row in (
        frame.select("key", "value", "timestamp", "partition", "offset")
        .toArrow()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
        .to_pylist()
    ):
        found[row["key"]].append((row["value"], row["timestamp"]))
    return found


def stream_rows(copies: Copies, stream: str, **options: str) -> Rows:
    given = {"root": str(copies.root), "columnNames": "kafka", **options}
    return by_key(copies.spark.read.format("pravega").options(**given).load(stream))


NUMBERED = (
    "SELECT CAST(concat('k', id % 5) AS BINARY) AS key, CAST(id AS STRING) AS value FROM range({})"
)


def test_topic_is_a_stream_with_its_keys_times_and_order_and_comes_back(
    copies: Copies, servers: str
) -> None:
    spark = copies.spark
    produce(spark, servers, "orders", NUMBERED.format("0, 40"))
    given = ["--from", "kafka", "--servers", servers, "--topics", "orders", "--segments", 3]
    shown = copies.import_(*given, "--dry-run")
    assert (shown["rows"], shown["status"]) == (0, 0)
    assert re.search(r"\| *k\d\| *\d+\|", str(shown["output"]))
    assert copies.import_(*given)["rows"] == 40
    produce(spark, servers, "orders", NUMBERED.format("40, 60"))
    assert copies.import_(*given)["rows"] == 20
    expected = by_key(topic_frame(spark, servers, "orders"))
    assert stream_rows(copies, "s/in") == expected
    assert [value for value, _ in expected[b"k1"]] == [b"%d" % n for n in range(1, 60, 5)]

    back = ["--to", "kafka", "--servers", servers, "--topic", "copied"]
    assert copies.export(*back)["rows"] == 60
    copied = by_key(topic_frame(spark, servers, "copied"))
    values = {key: [value for value, _ in rows] for key, rows in expected.items()}
    assert {key: [value for value, _ in rows] for key, rows in copied.items()} == values


def test_what_a_stream_cannot_hold_ends_the_run_with_the_option_that_decides(
    copies: Copies, servers: str
) -> None:
    odd = (
        "SELECT unhex('ff00') AS key, CAST(NULL AS BINARY) AS value, "
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers UNION ALL "
        "SELECT unhex('ff00'), CAST('v' AS BINARY), array(struct('h', CAST('x' AS BINARY)))"
    )
    produce(copies.spark, servers, "odd", odd)
    produce(copies.spark, servers, "even", NUMBERED.format("0, 10"))
    given = ["--from", "kafka", "--servers", servers, "--topics", "odd"]
    failed = copies.import_(*given, "--null-values", "empty", "--key-encoding", "percent")
    assert (failed["status"], failed["failed"]) == (1, 1)
    assert "column headers is not empty in 1 of 2 rows" in str(failed["output"])
    assert not list(StreamManager(copies.root).read("s/in"))

    given = ["--from", "kafka", "--servers", servers, "--topics", "odd,even", "--drop-headers"]
    given += ["--key-encoding", "percent", "--null-values", "skip", "--scope", "s"]
    given += ["--checkpoint", str(copies.folder / "scope")]
    assert copies.import_(*given, stream="")["rows"] == 12
    found = stream_rows(copies, "s/odd", keyEncoding="percent")
    assert {key: [value for value, _ in rows] for key, rows in found.items()} == {b"\xff\0": [b"v"]}
    assert stream_rows(copies, "s/even") == by_key(topic_frame(copies.spark, servers, "even"))


def test_headers_and_tombstones_are_columns_of_a_typed_stream(copies: Copies, servers: str) -> None:
    rows = (
        "SELECT CAST('k' AS BINARY) AS key, CAST(NULL AS BINARY) AS value, "
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers UNION ALL "
        "SELECT CAST('k' AS BINARY), CAST('v' AS BINARY), array(struct('h', CAST('x' AS BINARY)))"
    )
    produce(copies.spark, servers, "headed", rows)
    given = ["--from", "kafka", "--servers", servers, "--topics", "headed", "--typed"]
    done = copies.import_(*given)
    assert done["rows"] == 2, done["output"]
    found = [(e.routing_key, e.data) for e in StreamManager(copies.root).read("s/in")]
    assert found == [
        ("k", {"payload": None, "headers": None}),
        ("k", {"payload": b"v", "headers": [{"key": "h", "value": b"x"}]}),
    ]
    back = copies.export("--to", "kafka", "--servers", servers, "--topic", "back")
    assert back["rows"] == 2, back["output"]
    frame = topic_frame(copies.spark, servers, "back", includeHeaders="true")
    assert sorted(frame.select("value", "headers").toArrow().to_pylist(), key=str) == [
        {"value": None, "headers": None},
        {"value": b"v", "headers": [{"key": "h", "value": b"x"}]},
    ]
