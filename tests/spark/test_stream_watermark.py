"""The watermark of the source in real queries: slow segments, a scale, and several streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from pravega_spark import with_stream_watermark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.errors import InvalidInput
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager
from tests.spark.conftest import Load

Run = Callable[[DataFrame], StreamingQuery]
BEGIN = datetime(2026, 7, 1, tzinfo=timezone.utc)


def at(minute: float) -> datetime:
    return BEGIN + timedelta(minutes=minute)


class Feed:
    """A writer of events of one key, whose payload is the event's time."""

    def __init__(self, manager: StreamManager, stream: str, key: str) -> None:
        self.writer: EventStreamWriter = manager.create_writer(stream, f"feed-{key}")
        self.key, self.written = key, Counter[datetime]()

    def write(self, *minutes: float, notes: float) -> None:
        for minute in minutes:
            time = at(minute)
            self.writer.write_event(str(int(time.timestamp())), self.key)
            self.written[time.replace(minute=time.minute // 10 * 10, second=0)] += 1
        self.writer.note_time(at(notes)).result()


@pytest.fixture
def manager(root: str) -> StreamManager:
    made = StreamManager(root)
    made.create_scope("s")
    return made


def windows(frame: DataFrame) -> DataFrame:
    timed = F.timestamp_seconds(F.col("event").cast("string").cast("long"))
    return frame.withColumn("event_time", timed)


def counted(frame: DataFrame, name: str, checkpoint: Path) -> StreamingQuery:
    counts = frame.groupBy(F.window("event_time", "10 minutes")).count()
    return (
        counts.writeStream.format("memory")
        .queryName(name)
        .outputMode("append")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def result(spark: SparkSession, name: str) -> dict[datetime, int]:
    rows = spark.sql(f"SELECT window.start AS start, count FROM {name}").collect()
    return {row["start"].replace(tzinfo=timezone.utc): row["count"] for row in rows}


def dropped(query: StreamingQuery) -> int:
    states = [state for p in query.recentProgress for state in p["stateOperators"]]
    return sum(state["numRowsDroppedByWatermark"] for state in states)


def test_no_event_of_a_slow_segment_is_late_over_a_scale(
    spark: SparkSession, manager: StreamManager, follow: Load, tmp_path: Path
) -> None:
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2)))
    fast, slow = Feed(manager, "s/t", "fast"), Feed(manager, "s/t", "slow")
    first = manager.segments("s/t")
    frame = windows(follow("s/t", includeWatermark="true", startingOffsets="earliest"))
    safe = counted(with_stream_watermark(frame, "event_time"), "safe", tmp_path / "safe")
    plain = frame.withWatermark("event_time", "5 minutes")
    naive = counted(plain, "naive", tmp_path / "naive")
    try:
        for step in range(6):
            slow.write(2 * step, 2 * step + 1, notes=2 * step + 2)  # so it is no late newcomer
            fast.write(*range(20 * step, 20 * step + 20), notes=20 * step + 20)
            if step == 2:
                low, high = first
                manager.scale_stream("s/t", [low], [(0.0, 0.1), (0.1, 0.2), (0.2, 0.5)])
                manager.scale_stream("s/t", [high], [(0.5, 0.7), (0.7, 1.0)])
            for query in (safe, naive):
                query.processAllAvailable()
        assert dropped(naive) > 0, "a watermark of the rows alone loses events of the slow segment"
        assert dropped(safe) == 0
        for feed, minute in ((slow, 130), (fast, 131)):
            feed.write(minute, notes=minute)
        slow.write(135, notes=135)
        for _ in range(2):
            safe.processAllAvailable()
            fast.write(136, notes=136)
        safe.processAllAvailable()
        assert dropped(safe) == 0
        expected = {t: n for t, n in (fast.written + slow.written).items() if t < at(130)}
        assert result(spark, "safe") == expected
    finally:
        for query in (safe, naive):
            query.stop()
        manager.close()


def test_the_slowest_stream_holds_the_watermark(
    spark: SparkSession, manager: StreamManager, follow: Load, tmp_path: Path
) -> None:
    for name in ("s/a", "s/b", "s/done"):
        manager.create_stream(name)
    fast, slow = Feed(manager, "s/a", "k"), Feed(manager, "s/b", "k")
    done = Feed(manager, "s/done", "k")
    done.write(1, notes=2)
    done.writer.close()
    manager.seal_stream("s/done")
    frame = windows(
        follow(
            None, subscribe="s/a,s/b,s/done", includeWatermark="true", startingOffsets="earliest"
        )
    )
    seen = frame.select("stream", "watermark").writeStream.format("memory").queryName("seen")
    query = seen.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        fast.write(50, notes=60)
        slow.writer.write_event(b"0", "k").result()
        query.processAllAvailable()
        slow.write(20, notes=30)
        query.processAllAvailable()
        fast.write(70, notes=80)
        query.processAllAvailable()
        found = spark.sql("SELECT DISTINCT stream, watermark FROM seen ORDER BY 2, 1").collect()
        times = {
            row["watermark"] and row["watermark"].astimezone(timezone.utc)
            for row in found
            if row["stream"] != "done"
        }
        assert times == {None, at(30)}, "nothing before the slow stream has noted a time"
    finally:
        query.stop()
        manager.close()


@pytest.mark.versions
def test_the_watermark_survives_a_restart_of_the_query(
    spark: SparkSession, manager: StreamManager, follow: Load, tmp_path: Path
) -> None:
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2)))
    feed = Feed(manager, "s/t", "k")
    frame = with_stream_watermark(
        windows(follow("s/t", includeWatermark="true", startingOffsets="earliest")), "event_time"
    )
    for step in range(3):
        counts = frame.groupBy(F.window("event_time", "10 minutes")).count()
        noop = counts.writeStream.format("noop").outputMode("append")
        query = noop.option("checkpointLocation", str(tmp_path / "c")).start()
        feed.write(20 * step + 1, 20 * step + 9, notes=20 * step + 15)
        query.processAllAvailable()
        watermark = query.lastProgress["eventTime"]["watermark"]  # type: ignore[index]
        query.stop()
        assert dropped(query) == 0
        assert datetime.fromisoformat(watermark.replace("Z", "+00:00")) <= at(20 * step + 15)
    assert datetime.fromisoformat(watermark.replace("Z", "+00:00")) >= at(30)
    manager.close()


@pytest.mark.versions
def test_the_sink_hands_event_time_on_to_the_next_query(
    spark: SparkSession, manager: StreamManager, follow: Load, root: str, tmp_path: Path
) -> None:
    """A query notes the times of what it writes, and the next one closes its windows by these."""
    manager.create_stream("s/raw")
    source = manager.create_writer("s/raw")
    raw = windows(follow("s/raw", startingOffsets="earliest")).select("event", "event_time")
    sink = raw.writeStream.format("pravega").option("root", root).option("eventTime", "event_time")
    first = (
        sink.option("eventTimeDelay", "5 minutes")
        .option("checkpointLocation", str(tmp_path / "first"))
        .start("s/timed")
    )
    try:
        for minutes in ((1, 14), (12, 36)):
            for minute in minutes:
                source.write_event(str(int(at(minute).timestamp()))).result()
            first.processAllAvailable()
        (mark,) = manager.event_time("s/timed").marks()
        assert (mark.writer_id, mark.time) == (f"spark.{first.id}", at(31))
    finally:
        first.stop()
    frame = follow("s/timed", includeWatermark="true", startingOffsets="earliest")
    timed = with_stream_watermark(frame, "timestamp").withColumnRenamed("timestamp", "event_time")
    second = counted(timed, "handed_on", tmp_path / "second")
    try:
        second.processAllAvailable()
        assert result(spark, "handed_on") == {at(0): 1, at(10): 2}
    finally:
        second.stop()
        manager.close()


def test_the_helper_says_what_a_frame_lacks(manager: StreamManager, follow: Load) -> None:
    manager.create_stream("s/t")
    with pytest.raises(InvalidInput, match="includeWatermark"):
        with_stream_watermark(follow("s/t"))
    frame = follow("s/t", includeWatermark="true")
    assert frame.columns[-1] == "watermark"
    with pytest.raises(InvalidInput, match="'other'"):
        with_stream_watermark(frame, "other")
    tagged = with_stream_watermark(frame, delay="3 minutes").schema
    assert tagged.names[-1] == "timestamp"
    assert "watermark" not in tagged.names
    assert tagged["timestamp"].metadata == {"spark.watermarkDelayMs": 180_000}


def test_the_metadata_frame_shows_watermarks_and_writers(
    manager: StreamManager, load: Load
) -> None:
    manager.create_stream("s/t")
    feed = Feed(manager, "s/t", "k")
    feed.write(1, notes=2)
    manager.event_time("s/t").update()
    feed.write(3, notes=4)
    rows = load("s/t", metadata="Watermarks").orderBy("version").collect()
    found = {(row["kind"], row["writer"], row["events"]) for row in rows}
    assert found == {("recorded", None, 1), ("present", None, 0), ("writer", "feed-k", 0)}
    (info,) = load("s/t", metadata="StreamInfo").collect()
    assert info["watermark"].astimezone(timezone.utc) == at(4)
    manager.close()
