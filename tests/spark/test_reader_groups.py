"""Streaming queries in reader groups: position, retention, and one query at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.spark.groups.group_listener import GroupListener
from pravega_spark.spark.versions import HAS_TRIGGERS
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import scale, write
from tests.spark.conftest import Load, finish

Make = Callable[..., StreamLog]
GROUP = "s/g"


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[None]:
    """Add the listener that ``session()`` adds to its sessions; these tests use a copy of one."""
    listener = GroupListener()
    spark.streams.addListener(listener)
    yield
    spark.streams.removeListener(listener)


class Collecting:
    """A query that collects its rows in memory, with the checkpoint folder given to each run."""

    def __init__(self, folder: Path, frame: DataFrame) -> None:
        self.folder, self.frame = folder, frame
        self.rows: list[int] = []

    def start(self, checkpoint: str, **trigger: Any) -> StreamingQuery:
        def keep(batch: DataFrame, _: int) -> None:
            self.rows += [int(row.event) for row in batch.select("event").collect()]

        writer = self.frame.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.folder / checkpoint))
        query: StreamingQuery = writer.trigger(**trigger).start()
        return query

    def run(self, checkpoint: str, **trigger: Any) -> list[int]:
        """Run the query to its end and return its rows."""
        self.rows = []
        finish(self.start(checkpoint, **(trigger or {"availableNow": True})))
        return sorted(self.rows)


def fill(stream: StreamLog, first: int, last: int) -> None:
    write(stream, [(f"k{i % 7}", b"%d" % i) for i in range(first, last)])


def group_of(root: str) -> ReaderGroup:
    return StreamManager(root).reader_group(GROUP)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.02)


@pytest.mark.versions(short=True)
def test_position_survives_the_checkpoint_folder_and_consumed_events_are_truncated(
    root: str, make: Make, follow: Load, tmp_path: Path, listening: None
) -> None:
    stream = make(segments=2)
    manager = StreamManager(root)
    policy = RetentionPolicy.by_consumption()
    manager.update_stream("s/a", StreamConfiguration(ScalingPolicy.fixed(2), policy))
    fill(stream, 0, 60)
    reading = Collecting(tmp_path, follow(readerGroup=GROUP, readerGroupMode="subscriber"))
    assert reading.run("c1") == list(range(60))
    group = group_of(root)
    if HAS_TRIGGERS:
        assert group.lag().events == 0, "the last batch is acknowledged as well"
        assert group.online_readers() == []
    until(lambda: group.lag().events == 0)  # without triggers by the listener
    fill(stream, 60, 80)
    scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    fill(stream, 80, 100)
    run = manager.retention("s/a").run()
    assert run.truncated is not None
    assert sorted(int(e.data) for e in manager.read("s/a")) == list(range(60, 100))
    assert reading.run("c2") == list(range(60, 100)), (
        "a new folder continues at the group's position"
    )
    until(lambda: group.lag().events == 0)
    fill(stream, 100, 110)
    assert reading.run("c2") == list(range(100, 110))


@pytest.mark.versions
def test_listener_acknowledges_the_last_batch_of_a_query(
    root: str, make: Make, follow: Load, tmp_path: Path, listening: None
) -> None:
    stream = make()
    fill(stream, 0, 10)
    reading = Collecting(tmp_path, follow(readerGroup=GROUP))
    assert reading.run("c", once=True) == list(range(10))
    group = group_of(root)
    until(lambda: group.lag().events == 0)
    fill(stream, 10, 30)
    query = reading.start("c", processingTime="1 hour")
    try:
        until(lambda: group.lag().events == 0)
    finally:
        query.stop()
    begun = time.monotonic()
    assert reading.run("c") == []
    assert time.monotonic() - begun < 25, "the group does not wait for a stopped query"


@pytest.mark.versions
def test_group_has_one_query_at_a_time_and_a_reset_ends_it(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    stream = make()
    fill(stream, 0, 20)
    reading = Collecting(tmp_path, follow(readerGroup=GROUP, readerGroupInterval="100ms"))
    query = reading.start("c", processingTime="100 milliseconds")
    try:
        until(lambda: len(reading.rows) == 20)
        until(lambda: group_of(root).lag().events == 0)
        with pytest.raises(PySparkException, match="s/g is read by streaming-query, which is aliv"):
            finish(reading.start("other", availableNow=True))
        assert query.isActive
        group_of(root).reset({"s/a": StreamCut("s/a", 1, {0: 15})})
        with pytest.raises(PySparkException, match="ReinitializationRequired"):
            finish(query)
    finally:
        query.stop()
    with pytest.raises(PySparkException, match="s/g was reset, or streams were added"):
        reading.run("c")
    assert reading.run("new") == list(range(15, 20))


def test_query_continues_through_an_update_of_its_group(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    stream = make()
    fill(stream, 0, 20)
    reading = Collecting(tmp_path, follow(readerGroup=GROUP, readerGroupInterval="100ms"))
    query = reading.start("c", processingTime="100 milliseconds")
    try:
        until(lambda: len(reading.rows) == 20)
        group = group_of(root)
        assert group.update(retention="automatic") == 1
        fill(stream, 20, 40)
        until(lambda: len(reading.rows) == 40)
        until(lambda: group.lag().events == 0)
        assert query.isActive
    finally:
        query.stop()
    assert sorted(reading.rows) == list(range(40)), "nothing is read again"
    (held,) = StreamManager(root).list_subscribers("s/a")
    assert held.cut == stream.view().tail
    group.update(retention="none")
    fill(stream, 40, 50)
    assert reading.run("c") == list(range(40, 50)), "its checkpoint folder stays valid"


SCRIPT = """
import sys
import pravega_spark as pravega

conf = {"spark.master": "local[1]", "spark.ui.enabled": "false"}
spark = pravega.session(delta=False, **conf)
frame = spark.readStream.format("pravega").option("root", sys.argv[1])
frame = frame.option("startingOffsets", "earliest").option("readerGroup", "s/g").load("s/a")
writer = frame.writeStream.format("noop").option("checkpointLocation", sys.argv[2])
writer.trigger(once=True).start().awaitTermination()
"""


def test_script_that_ends_with_its_query_acknowledges_the_last_batch_silently(
    root: str, make: Make, tmp_path: Path
) -> None:
    fill(make(), 0, 10)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, root, str(tmp_path / "c")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert group_of(root).lag().events == 0
    assert "py4j" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.versions
def test_batch_read_in_a_group_is_refused(load: Load, make: Make) -> None:
    make()
    with pytest.raises(PySparkException, match="readerGroup=s/g is for readStream"):
        load(readerGroup=GROUP).count()
