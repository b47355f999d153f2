"""Other readers of Delta before, during and after compaction: the same rows, each once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamCut, StreamManager
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import root_of
from tests.harness import delta_engines
from tests.harness.delta_engines import DeltaQuery
from tests.harness.story import START_US, Clock, Row

pytestmark = pytest.mark.spark

NAME = "s/a"


@dataclass
class World:
    """A stream of two segments, the time, and Delta's queries over its table."""

    folder: Path

    def __post_init__(self) -> None:
        self.clock, self.minutes = Clock(), 0
        self.manager = StreamManager(self.folder / "root", runtime=self.clock)
        self.manager.create_scope("s")
        self.manager.create_stream(NAME, StreamConfiguration(ScalingPolicy.fixed(2)))
        self.table = f"{self.folder}/root/{NAME}/events"
        self.stream = StreamLog(root_of(self.manager).store, NAME, self.clock)

    def write(self, label: str, chunks: int = 30) -> None:
        with self.manager.create_writer(NAME) as writer:
            for n in range(chunks):  # a table is one batch, so two chunks, however slow this is
                keys = ["a", "b", "c", "d"]
                events = [f"{label} {n} {key}".encode() for key in keys]
                writer.write_table(pa.table({"event": events, "routing_key": keys})).result()
        self.later()

    def later(self) -> None:
        """Ten minutes pass, so that no chunk is new."""
        self.minutes += 10
        self.clock.set(START_US + self.minutes * 60_000_000)

    def compact(self) -> int:
        """Compact the stream; return the newest version."""
        assert self.manager.compact_stream(NAME).ranges == 2
        self.later()
        return self.version

    @property
    def version(self) -> int:
        return self.stream.view().version

    def rows(self) -> Counter[Row]:
        """What the package reads."""
        return Counter(
            (e.segment_id, e.offset, e.routing_key, e.timestamp_us, bytes(e.data))
            for e in self.manager.read(NAME)
        )

    def assert_all_read(self, spark: SparkSession, version: int, rows: Counter[Row]) -> None:
        assert delta_engines.deltalake_rows(self.table, version) == rows
        assert delta_engines.duckdb_rows(self.table, version) == rows
        assert delta_engines.spark_rows(spark, self.table, version) == rows

    def files(self, version: int) -> int:
        return len(delta_engines.DeltaTable(self.table, version=version).file_uris())


def test_a_merge_changes_no_row_for_any_reader_at_any_version(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = World(tmp_path)
    world.write("first")
    before, early = world.version, world.version - 10
    rows, earlier = world.rows(), delta_engines.deltalake_rows(world.table, early)
    after = world.compact()
    assert (world.files(before), world.files(after)) == (60, 2)
    for version in (before, after):
        world.assert_all_read(spark, version, rows)
    world.assert_all_read(spark, early, earlier)
    checkpoint.maintain(world.stream.log.reader, after, checkpoint=True)
    world.write("second", chunks=1)
    world.assert_all_read(spark, world.version, world.rows())
    history = delta_engines.DeltaTable(world.table).history()
    (compact,) = [entry for entry in history if entry["operation"] == "COMPACT"]
    assert json.loads(compact["operationMetrics"]["numRemovedFiles"]) == 60


def test_delta_streams_that_run_or_lag_get_no_row_of_a_merge(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = World(tmp_path)
    world.write("first")
    lagging = DeltaQuery(spark, world.table, tmp_path / "lagging")
    early = lagging.run()
    world.write("second")
    running = DeltaQuery(spark, world.table, tmp_path / "running")
    first = running.run()
    assert first == world.rows() > early
    world.compact()
    assert running.run() == Counter()
    world.write("third", chunks=3)
    everything = world.rows()
    assert first + running.run() == everything
    assert early + lagging.run(maxFilesPerTrigger=9) == everything
    behind = DeltaQuery(spark, world.table, tmp_path / "behind")
    assert behind.run(startingVersion=0) == everything
    assert DeltaQuery(spark, world.table, tmp_path / "new").run() == everything


def test_the_rewrite_of_a_head_takes_truncated_rows_from_readers_and_sends_none_twice(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = World(tmp_path)
    world.write("first")
    running = DeltaQuery(spark, world.table, tmp_path / "running")
    everything = running.run()
    before = world.compact()
    tail = world.manager.tail(NAME)
    head = StreamCut(NAME, tail.life, {s: offset - 11 for s, offset in tail})
    world.manager.truncate_stream(NAME, head)
    left = world.rows()
    assert left.total() == 22
    assert delta_engines.deltalake_rows(world.table, world.version) == everything
    after = world.compact()
    world.assert_all_read(spark, after, left)
    world.assert_all_read(spark, before, everything)

    with pytest.raises(StreamingQueryException, match="DELTA_SOURCE_IGNORE_DELETE"):
        running.run()
    assert running.run(ignoreDeletes=True) == Counter()
    world.write("second", chunks=2)
    assert running.run(ignoreDeletes=True) == world.rows() - left
    behind = DeltaQuery(spark, world.table, tmp_path / "behind")
    found = behind.run(startingVersion=0, ignoreDeletes=True)
    assert found == everything + (world.rows() - left)


def test_a_delta_stream_that_lags_by_more_than_retain_fails_and_begins_again_from_a_snapshot(
    tmp_path: Path, spark: SparkSession
) -> None:
    world = World(tmp_path)
    world.write("first")
    lagging = DeltaQuery(spark, world.table, tmp_path / "lagging")
    early = lagging.run()
    world.write("second")
    world.compact()
    everything = world.rows()
    swept = [world.manager.sweep_stream(NAME, grace=0, retain=0).files for _ in range(2)]
    assert sum(swept) >= 120
    with pytest.raises(
        StreamingQueryException, match=r"FILE_NOT_EXIST|does not exist|FileNotFound"
    ):
        lagging.run()
    assert early < everything
    again = DeltaQuery(spark, world.table, tmp_path / "again")
    assert again.run() == everything
    world.write("last", chunks=1)
    assert everything + again.run() == world.rows()
