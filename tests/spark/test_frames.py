"""Frames without the data source: batch reads and writes by ``mapInArrow``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import (
    KeyValueTableConfiguration,
    StreamManager,
    errors,
    key_value_frame,
    read_frame,
    write_frame,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.spark.versions import HAS_DATA_SOURCES
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import scale, write
from tests.spark.conftest import finish

pytestmark = pytest.mark.versions(since="3.5")

Make = Callable[..., StreamLog]


def numbers(spark: SparkSession, first: int, last: int, partitions: int = 2) -> DataFrame:
    return spark.range(first, last, 1, partitions).selectExpr(
        "concat('k', id % 7) AS routing_key", "CAST(id AS STRING) AS event"
    )


def values(frame: DataFrame) -> list[int]:
    return [int(row.event) for row in frame.select("event").collect()]


def stored(root: str, name: str = "s/a") -> list[int]:
    return [int(event.data) for event in StreamManager(root).read(name)]


def test_frame_is_written_in_one_commit_and_read_back(spark: SparkSession, root: str) -> None:
    write_frame(numbers(spark, 0, 1_000), "s/a", root=root, numSegments=3)
    assert StreamManager(root).stream_info("s/a").version == 1, "a commit creates it, one has rows"
    found = read_frame(spark, "s/a", root=root, minPartitions=4)
    assert found.dtypes == [
        ("scope", "string"),
        ("stream", "string"),
        ("segment_id", "bigint"),
        ("offset", "bigint"),
        ("routing_key", "string"),
        ("event", "binary"),
        ("timestamp", "timestamp"),
        ("timestamp_type", "int"),
    ]
    by_key = defaultdict(list)
    for row in found.collect():
        by_key[row.routing_key].append(int(row.event))
    assert all(events == sorted(events) for events in by_key.values())
    assert sum(map(len, by_key.values())) == 1_000


def test_frame_of_a_table_says_where_spark_lacks_the_data_source(
    spark: SparkSession, root: str
) -> None:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_key_value_table("s/stock", KeyValueTableConfiguration(key_type="string"))
    manager.key_value_table("s/stock").put("k", b"v").result()
    if HAS_DATA_SOURCES:
        assert key_value_frame(spark, "s/stock", root=root).count() == 1
    else:
        with pytest.raises(errors.IllegalState, match=r"format\('pravega_kvt'\) are for Spark 4"):
            key_value_frame(spark, "s/stock", root=root)


def test_every_action_reads_the_plan_of_the_call(spark: SparkSession, root: str) -> None:
    write_frame(numbers(spark, 0, 10), "s/a", root=root)
    frame = read_frame(spark, "s/a", root=root)
    assert frame.count() == 10
    write_frame(numbers(spark, 10, 20), "s/a", root=root)
    assert frame.count() == 10
    assert read_frame(spark, "s/a", root=root).count() == 20


def test_options_select_range_columns_and_names(spark: SparkSession, root: str, make: Make) -> None:
    write(make(), [(f"k{i}", b"%d" % i) for i in range(10)])
    assert read_frame(spark, "s/a", root=root, columns="event,offset").columns == [
        "event",
        "offset",
    ]
    end = '{"s/a": {"0": 5}}'
    two = read_frame(
        spark,
        root=root,
        stream="s/a",
        startingStreamCut=StreamCut("s/a", 1, {0: 3}),
        endingOffsets=end,
    )
    assert values(two) == [3, 4]
    assert values(read_frame(spark, "s/a", root=root, routingKeys="k4,k6")) == [4, 6]
    kafka = read_frame(spark, "s/a", root=root, columnNames="kafka", includeHeaders=True)
    row = kafka.where("partition = 0 AND offset = 4").first()
    assert row is not None
    assert (row.topic, bytes(row.key), bytes(row.value), row.headers) == ("s/a", b"k4", b"4", None)


def test_columns_of_any_name_are_told_apart(spark: SparkSession, root: str) -> None:
    rows = spark.sql("SELECT 'k' AS routing_key, '1' AS event, 2 AS `x.y`, 3 AS `a``b`")
    write_frame(rows, "s/a", root=root)
    assert stored(root) == [1]


def test_stream_without_events_is_an_empty_frame(
    spark: SparkSession, root: str, make: Make
) -> None:
    make()
    assert read_frame(spark, "s/a", root=root).collect() == []
    write_frame(numbers(spark, 0, 0), "s/a", root=root)
    assert read_frame(spark, "s/a", root=root).count() == 0


def test_typed_stream_keeps_every_type_over_a_session_elsewhere(
    spark: SparkSession, root: str
) -> None:
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", "America/New_York")
    frame = other.sql(
        "SELECT 'k' AS routing_key, 1 AS a, CAST(2.5 AS DECIMAL(9, 2)) AS b, "
        "TIMESTAMP '2013-01-01 05:17:00 UTC' AS at, DATE '2013-01-01' AS day, "
        "array(named_struct('x', 1, 'y', 'z')) AS deep, map('p', 1L) AS m, "
        "CAST(NULL AS DOUBLE) AS d, X'00ff' AS bytes"
    )
    write_frame(frame, "s/t", root=root, schema="infer")
    own = "a, b, at, day, deep, m, d, bytes"
    found = read_frame(other, "s/t", root=root).selectExpr(*own.split(", "))
    assert found.collect() == frame.selectExpr(*own.split(", ")).collect()
    data = next(iter(StreamManager(root).read("s/t"))).data
    assert isinstance(data, dict)
    assert data["at"] == datetime(2013, 1, 1, 5, 17, tzinfo=timezone.utc)


def test_number_that_comes_again_is_skipped(spark: SparkSession, root: str) -> None:
    for last in (10, 10, 12):
        write_frame(numbers(spark, 0, last), "s/a", root=root, txn_app_id="app", txn_version=1)
    write_frame(numbers(spark, 10, 20), "s/a", root=root, txn_app_id="app", txn_version=2)
    assert sorted(stored(root)) == list(range(20))
    with pytest.raises(errors.InvalidOption, match="txnAppId and txnVersion need each other"):
        write_frame(numbers(spark, 0, 1), "s/a", root=root, txn_app_id="app")


def test_for_each_batch_writes_once_and_refuses_other_rows(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    source, folder, attempts = tmp_path / "in", tmp_path / "checkpoint", list[int]()
    source.mkdir()
    (source / "1.txt").write_text("\n".join(map(str, range(10))))

    def sink(batch: DataFrame, number: int) -> None:
        rows = batch.withColumnRenamed("value", "event")
        write_frame(rows, "s/a", root=root, txn_app_id="app", txn_version=number)
        attempts.append(number)
        if len(attempts) == 1:
            raise RuntimeError("after the write")
        if len(attempts) == 3:
            write_frame(rows.limit(1), "s/a", root=root, txn_app_id="app", txn_version=number)

    def run() -> None:
        writer = spark.readStream.text(str(source)).writeStream.foreachBatch(sink)
        finish(writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start())

    with pytest.raises(Exception, match="after the write"):
        run()
    run()
    assert sorted(stored(root)) == list(range(10))
    (source / "2.txt").write_text("10\n11")
    with pytest.raises(Exception, match="repeats it with other rows"):
        run()
    assert sorted(stored(root)) == list(range(12))


def test_rows_name_their_streams_and_bad_ones_are_letters(spark: SparkSession, root: str) -> None:
    rows = spark.range(6).selectExpr(
        "concat('s/', element_at(array('x', 'y'), CAST(id % 2 + 1 AS INT))) AS stream",
        "CAST(id AS STRING) AS event",
    )
    write_frame(rows, root=root)
    assert (stored(root, "s/x"), stored(root, "s/y")) == ([0, 2, 4], [1, 3, 5])
    write_frame(spark.sql("SELECT 1 AS a"), "s/t", root=root, schema="infer")
    write_frame(spark.sql("SELECT 9999999999 AS a"), "s/t", root=root, badRecords="dlq")
    assert len(list(StreamManager(root).read("s/t-dlq"))) == 1


def test_scaled_and_truncated_stream_is_read_from_its_head(
    spark: SparkSession, root: str, make: Make
) -> None:
    stream = make(segments=2)
    write(stream, [(f"k{i}", b"%d" % i) for i in range(50)])
    scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    write(stream, [(f"k{i}", b"%d" % i) for i in range(50, 100)])
    assert sorted(values(read_frame(spark, "s/a", root=root))) == list(range(100))
    manager = StreamManager(root)
    start = str(manager.stream_info("s/a").head)
    frame = read_frame(spark, "s/a", root=root)
    manager.truncate_stream("s/a", manager.stream_info("s/a").tail)
    assert read_frame(spark, "s/a", root=root).collect() == []
    with pytest.raises(errors.TruncatedData):
        read_frame(spark, "s/a", root=root, startingStreamCut=start)
    assert sorted(values(frame)) == list(range(100)), "planned before, and no file is gone"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pushFilters": True}, "without the data source"),
        ({"metadata": "Streams"}, "a frame without the data source has events"),
        ({"readerGroup": "s/g"}, "is for for_each_range"),
        ({"startingOfset": "x"}, "did you mean startingOffsets"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    spark: SparkSession, root: str, options: dict[str, object], told: str
) -> None:
    with pytest.raises(errors.InvalidOption, match=told):
        read_frame(spark, "s/a", root=root, **options)
