from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.manager import StreamManager
from pravega_spark.spark.session import session
from pravega_spark.values.segments import StreamCut, make_segment_id
from tests.harness.small_streams import scale, write
from tests.spark.conftest import Load

Make = Callable[..., StreamLog]


def numbers(spark: SparkSession, count: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('k', id % 7) AS routing_key", "CAST(id AS STRING) AS event"
    )


def save(frame: DataFrame, root: str, name: str = "s/a", **options: str) -> None:
    frame.write.format("pravega").mode("append").options(root=root, **options).save(name)


def values(frame: DataFrame) -> list[int]:
    return [int(row.event) for row in frame.select("event").collect()]


@pytest.mark.versions
def test_thread_that_asked_for_the_session_finds_the_source(
    spark: SparkSession, root: str, load: Load
) -> None:
    def write_one() -> None:
        session()
        save(numbers(spark, 1), root)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write_one).result()
    assert values(load()) == [0]


@pytest.mark.versions(short=True)
def test_frame_is_written_in_one_commit_and_read_back(
    spark: SparkSession, root: str, load: Load
) -> None:
    save(numbers(spark, 1_000), root, numSegments="3")
    created = open_stream(root, "s/a").view()
    assert created.version == 1, "one commit creates the stream, and one has the frame"
    found = load()
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
    rows = found.collect()
    assert sorted(int(row.event) for row in rows) == list(range(1_000))
    by_segment = defaultdict(list)
    by_key = defaultdict(list)
    for row in rows:
        by_segment[row.segment_id].append(row.offset)
        by_key[row.routing_key].append(int(row.event))
    assert sorted(by_segment) == [0, 1, 2]
    assert all(offsets == list(range(len(offsets))) for offsets in by_segment.values())
    assert all(events == sorted(events) for events in by_key.values())


@pytest.mark.versions
def test_sorted_frame_stays_sorted(spark: SparkSession, root: str, load: Load) -> None:
    frame = numbers(spark, 5_000, 4).withColumnRenamed("event", "n")
    ordered = frame.selectExpr("*", "hash(n) AS h").sort("h")
    save(ordered.selectExpr("routing_key", "to_json(struct(h)) AS event"), root)
    found = [json.loads(row.event)["h"] for row in load().sort("offset").collect()]
    assert found == sorted(found)
    assert len(found) == 5_000


@pytest.mark.versions
def test_python_client_and_spark_read_the_same(spark: SparkSession, root: str, load: Load) -> None:
    save(numbers(spark, 50), root)
    manager = StreamManager(root)
    with manager.create_writer("s/a") as writer:
        writer.write_event(b"50", routing_key="k").result()
    by_client = [(e.offset, e.routing_key, e.data, e.timestamp) for e in manager.read("s/a")]
    by_spark = [
        (r.offset, r.routing_key, bytes(r.event), r.timestamp.astimezone(by_client[0][3].tzinfo))
        for r in load().collect()
    ]
    assert by_spark == by_client


@pytest.mark.versions(short=True)
def test_options_select_range_columns_and_names(make: Make, load: Load) -> None:
    stream = make()
    write(stream, [(f"k{i}", b"%d" % i) for i in range(10)])
    assert load(columns="event,offset").columns == ["event", "offset"]
    one = load(startingOffsets='{"s/a": {"0#0": 3}}', endingOffsets='{"s/a": {"0": 5}}')
    assert values(one) == [3, 4]
    cut = str(StreamCut("s/a", 1, {0: 8}))
    assert values(load(startingStreamCut=cut)) == [8, 9]
    assert values(load(startingTimestamp="-1h", endingTimestamp="2100-01-01")) == list(range(10))
    kafka = load(columnNames="kafka").where("partition = 0 AND offset = 4").first()
    assert kafka is not None
    assert (kafka.topic, bytes(kafka.key), bytes(kafka.value)) == ("s/a", b"k4", b"4")


@pytest.mark.versions
def test_several_streams_are_read_by_list_and_by_pattern(make: Make, load: Load) -> None:
    for name in ("s/a1", "s/a2", "s/b"):
        write(make(name), [("k", name.encode())])
    found = load("", subscribe="s/a1,s/b").select("stream").collect()
    assert sorted(row.stream for row in found) == ["a1", "b"]
    found = load("", subscribePattern="s/a.*").select("stream").collect()
    assert sorted(row.stream for row in found) == ["a1", "a2"]


@pytest.mark.versions
def test_min_partitions_split_a_scaled_stream(make: Make, load: Load) -> None:
    stream = make(segments=2)
    write(stream, [(f"k{i}", b"%d" % i) for i in range(100)])
    scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    write(stream, [(f"k{i}", b"%d" % i) for i in range(100, 200)])
    for wanted, tasks in (("1", 1), ("3", 3), ("4", 4), ("8", 8)):
        frame = load(minPartitions=wanted)
        assert frame.rdd.getNumPartitions() == tasks
        assert sorted(values(frame)) == list(range(200))


@pytest.mark.versions(since="4.1")
def test_pushed_conditions_skip_files_and_give_the_same_rows(
    spark: SparkSession, make: Make, load: Load
) -> None:
    stream = make(segments=2)
    for i in range(6):
        write(stream, [(f"k{j}" if j else None, b"%d" % (10 * i + j)) for j in range(10)])
    late = sorted(row.timestamp for row in load().select("timestamp").collect())[-15]
    conditions = [
        F.col("timestamp") >= F.lit(late),
        (F.col("routing_key") == "k3") & (F.col("offset") < 8),
        F.col("routing_key").isNull() & (F.col("segment_id") == 0),
        F.col("event") == F.encode(F.lit("33"), "UTF-8"),
    ]
    with pytest.raises(PySparkException, match=r"filterPushdown\.enabled"):
        load(pushFilters="true").collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition in conditions:
            expected = load().where(condition).sort("segment_id", "offset").collect()
            frame = load(pushFilters="true").where(condition)
            assert frame.sort("segment_id", "offset").collect() == expected
            assert expected
        reused = load(pushFilters="true")
        assert reused.where("offset < 2").count() == 4
        assert reused.count() == 4, "Spark has mended this: docs/spark.md need not warn of it"
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.versions
def test_empty_stream_reads_as_no_rows(make: Make, load: Load) -> None:
    make()
    assert load().collect() == []


@pytest.mark.versions
def test_temporary_view_in_sql(spark: SparkSession, root: str, make: Make) -> None:
    write(make(), [("k", b"x"), ("k", b"y")])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW a USING pravega OPTIONS (root '{root}', stream 's/a')"
    )
    found = spark.sql("SELECT offset, CAST(event AS STRING) AS e FROM a ORDER BY offset").collect()
    assert [(row.offset, row.e) for row in found] == [(0, "x"), (1, "y")]


@pytest.mark.versions(short=True)
def test_version_of_an_application_is_skipped_the_second_time(
    spark: SparkSession, root: str, load: Load
) -> None:
    for version, _ in (("1", 1), ("1", 2), ("2", 3), ("1", 4)):
        save(numbers(spark, 10), root, txnAppId="job", txnVersion=version)
    assert sorted(values(load())) == sorted([*range(10)] * 2)


@pytest.mark.versions
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"retention": "7 days"}, "retention is not available in this version"),
        ({"columns": "color"}, "the columns are scope, stream"),
    ],
)
def test_bad_option_is_a_clear_error(
    make: Make, load: Load, options: dict[str, str], message: str
) -> None:
    make()
    with pytest.raises(PySparkException, match=message):
        load(**options)


@pytest.mark.versions
def test_missing_stream_is_a_clear_error(load: Load) -> None:
    with pytest.raises(PySparkException, match="NoSuchStream: stream s/none does not exist"):
        load("s/none").collect()


@pytest.mark.versions
def test_frame_without_event_column_and_other_modes_are_clear_errors(
    spark: SparkSession, root: str
) -> None:
    with pytest.raises(PySparkException, match=r"row_json\(frame\) \+ \" AS event"):
        save(spark.range(3).toDF("n"), root)
    writer = numbers(spark, 3).write.format("pravega").option("root", root)
    with pytest.raises(PySparkException, match="a stream is append-only"):
        writer.mode("overwrite").save("s/a")


@pytest.mark.versions
def test_metadata_frames(spark: SparkSession, root: str, make: Make) -> None:
    stream = make("s/a", segments=2)
    write(stream, [(f"k{i}", b"12345") for i in range(10)])
    scale(stream, [0, 1], [(0.0, 1.0)])
    make("s/b")
    reader = spark.read.format("pravega").option("root", root)
    found = reader.option("metadata", "Streams").load().collect()
    assert [(r.scope, r.stream, r.state) for r in found] == [
        ("s", "a", "ACTIVE"),
        ("s", "b", "ACTIVE"),
    ]
    info = reader.option("metadata", "StreamInfo").load("s/a").first()
    assert info is not None
    assert (info.events, info.size_bytes, info.segments, info.epoch) == (10, 50, 1, 1)
    assert StreamCut.parse(info.tail) == stream.view().tail
    assert json.loads(info.configuration)["scaling"]["minimum"] == 2
    segments = reader.option("metadata", "Segments").load("s/a").sort("segment_id").collect()
    assert [(r.segment, r.key_low, r.key_high, r.active, r.sealed) for r in segments] == [
        ("0#0", 0.0, 0.5, False, True),
        ("1#0", 0.5, 1.0, False, True),
        ("2#1", 0.0, 1.0, True, False),
    ]
    assert sum(r.next_offset for r in segments) == 10
    assert segments[2].segment_id == make_segment_id(2, 1)


@pytest.mark.versions(needs="delta")
def test_session_returns_the_active_session_which_has_delta(
    spark: SparkSession, root: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    write(make(), [("k", b"x")])
    found = session(**{"spark.sql.shuffle.partitions": "2"})
    assert found.sparkContext is spark.sparkContext
    assert not caplog.records
    assert found.read.format("delta").load(f"{root}/s/a/events").count() == 1


@pytest.mark.versions
def test_sql_view_of_the_written_columns_takes_inserts(
    spark: SparkSession, root: str, make: Make, load: Load
) -> None:
    make()
    options = f"root '{root}', stream 's/a', columns 'routing_key,event'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW inserted USING pravega OPTIONS ({options})")
    spark.sql("INSERT INTO inserted VALUES ('k', X'61'), ('k', X'62')")
    spark.sql("INSERT INTO inserted SELECT routing_key, cast('c' AS binary) FROM inserted LIMIT 1")
    found = load().orderBy("offset").select("routing_key", "event").collect()
    assert [(row.routing_key, bytes(row.event)) for row in found] == [
        ("k", b"a"),
        ("k", b"b"),
        ("k", b"c"),
    ]
    with pytest.raises(PySparkException, match="a stream is append-only"):
        spark.sql("INSERT OVERWRITE inserted VALUES ('k', X'61')")


@pytest.mark.versions
def test_create_table_is_refused(spark: SparkSession, root: str) -> None:
    with pytest.raises(AnalysisException, match="TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE made USING pravega OPTIONS (root '{root}', stream 's/a')")
