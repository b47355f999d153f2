"""A query's filters select the files that it reads, without losing an event."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import eq, ge, gt, le, lt
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from tests.harness import delta_engines
from tests.harness.story import START_US, Clock, Story
from tests.harness.tiers import sized

pytestmark = pytest.mark.spark


def paths(frame: DataFrame) -> set[str]:
    return {url.rsplit("/", 1)[-1] for url in frame.inputFiles()}


def test_filter_on_the_segment_reads_only_its_files(story: Story, spark: SparkSession) -> None:
    frame = delta_engines.spark_frame(spark, story.table)
    adds = pa.table(DeltaTable(story.table).get_add_actions(flatten=True)).to_pylist()
    total = 0
    for segment_id in {add["partition.segment_id"] for add in adds}:
        own = {
            add["path"].rsplit("/", 1)[-1]
            for add in adds
            if add["partition.segment_id"] == segment_id
        }
        assert paths(frame.where(f"segment_id = {segment_id}")) == own
        total += len(own)
    assert total == len(adds) == len(paths(frame))
    assert not paths(frame.where("segment_id = 99"))


BORDERS_US = [0, 1, 999, 1_000, 1_001, 1_500, 2_000, 3_000]
"""Times of events, one per file, around whole milliseconds: the precision of Delta's statistics."""


@pytest.fixture(scope="module")
def borders(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a stream with one segment and one event in each file."""

    class SettableClock(Clock):
        time_us = START_US

        def now_ns(self) -> int:
            return self.time_us * 1_000

    clock = SettableClock()
    root = tmp_path_factory.mktemp("borders")
    manager = StreamManager(root, runtime=clock)
    manager.create_scope("nyc")
    manager.create_stream("nyc/borders", StreamConfiguration(ScalingPolicy.fixed(1)))
    with manager.create_writer("nyc/borders") as writer:
        for border in BORDERS_US:
            clock.time_us = START_US + border
            writer.write_event(str(border).encode()).result()
    return str(Path(root, "nyc/borders/events"))


@pytest.mark.long
@pytest.mark.parametrize("operator", ["<=", ">", "=", "<", ">="][: sized(2, 5)])
def test_filter_on_the_timestamp_loses_no_event_at_any_border(
    borders: str, spark: SparkSession, operator: str
) -> None:
    compare = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}
    limits = sorted({border + step for border in BORDERS_US for step in (-1, 0)})
    expected = Counter(
        (limit, str(border).encode())
        for limit in limits
        for border in BORDERS_US
        if compare[operator](border, limit)
    )
    # Each limit has its own scan, with its own filter and so its own files.
    frame = delta_engines.spark_frame(spark, borders)
    scans = [
        frame.where(f"timestamp {operator} timestamp_micros({START_US + limit})").select(
            F.lit(limit).alias("limit"), "event"
        )
        for limit in limits
    ]
    by_spark = reduce(DataFrame.unionAll, scans).toArrow().to_pylist()
    assert Counter((row["limit"], row["event"]) for row in by_spark) == expected
    with delta_engines.connect_duckdb() as connection:
        by_duckdb = Counter(
            (limit, event)
            for limit in limits
            for (event,) in connection.execute(
                f"SELECT event FROM delta_scan('{borders}') WHERE timestamp {operator} "
                f"make_timestamptz({START_US + limit})"
            ).fetchall()
        )
    assert by_duckdb == expected
    symbol = "==" if operator == "=" else operator
    table = DeltaTable(borders)
    by_delta_rs = Counter(
        (limit, event)
        for limit in limits
        for event in table.to_pyarrow_table(
            filters=[("timestamp", symbol, pa.scalar(START_US + limit, pa.timestamp("us", "UTC")))]
        )
        .column("event")
        .to_pylist()
    )
    assert by_delta_rs == expected


def test_filter_on_the_timestamp_skips_files(borders: str, spark: SparkSession) -> None:
    frame = delta_engines.spark_frame(spark, borders)
    late = frame.where(f"timestamp >= timestamp_micros({START_US + 2_001})")
    assert len(paths(frame)) == len(BORDERS_US)
    assert (
        len(paths(late)) == 4
    )  # Delta Spark knows that statistics are truncated to the millisecond


def test_segment_of_a_key_is_plain_sql(story: Story, spark: SparkSession) -> None:
    view = story.stream.view()
    layouts = [view.epoch(number) for number in range(view.active.number + 1)]
    ranges = {
        segment.segment_id: (segment.segment_id, segment.key_range.low, segment.key_range.high)
        for epoch in layouts
        for segment in epoch.segments
    }
    spark.createDataFrame(
        list(ranges.values()), "segment_id long, low double, high double"
    ).createOrReplaceTempView("segments")
    delta_engines.spark_frame(spark, story.table).createOrReplaceTempView("events")
    position = "shiftrightunsigned(xxhash64(routing_key), 11) / 9007199254740992D"
    counts = spark.sql(
        f"""SELECT count(*) AS keyed, count_if(position >= low AND position < high) AS inside
        FROM (SELECT segment_id, {position} AS position FROM events WHERE routing_key IS NOT NULL)
        JOIN segments USING (segment_id)"""
    ).first()
    keyed = sum(row[2] is not None for row in story.rows[story.version].elements())
    assert counts is not None
    assert counts.keyed == counts.inside == keyed > 100
