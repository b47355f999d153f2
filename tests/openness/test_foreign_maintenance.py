"""Maintenance by other engines that is not refused does no harm.

Not refused, since they commit nothing, are: Delta Spark's OPTIMIZE (each file has its own
partition, so it finds nothing to merge), DROP TABLE of a path, GENERATE, and checkpoints;
delta-rs's checkpoints, log compaction and cleanup, GENERATE, repair, and a vacuum that finds no
file; DuckDB's CHECKPOINT.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pravega_spark import StreamCut, StreamManager
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.log.sweep import delete_old_commits, mark_has_aged
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS
from tests.harness import delta_engines
from tests.harness.small_tables import raise_marks
from tests.harness.small_tables import versions as stored
from tests.harness.story import STREAM, Clock, Row, Story, create_story, digests

pytestmark = pytest.mark.spark


@pytest.fixture
def open_story(tmp_path: Path) -> Story:
    """A story for this test alone, with a stream that is not sealed."""
    return create_story(tmp_path / "root", sealed=False)


def delta_rs_checkpoint(story: Story, spark: SparkSession) -> None:
    DeltaTable(story.table).create_checkpoint()


def delta_rs_housekeeping(story: Story, spark: SparkSession) -> None:
    for table in (story.table, story.scope_table):
        opened = DeltaTable(table)
        opened.create_checkpoint()
        opened.cleanup_metadata()
        opened.compact_logs(0, opened.version())
        opened.generate()
        assert opened.vacuum(dry_run=False) == []
        assert opened.repair()["files_removed"] == []


def delta_spark_housekeeping(story: Story, spark: SparkSession) -> None:
    for table in (story.table, story.scope_table):
        path = f"delta.`{table}`"
        (optimized,) = spark.sql(f"OPTIMIZE {path}").collect()
        assert optimized.metrics.numFilesAdded == optimized.metrics.numFilesRemoved == 0
        spark.sql(f"GENERATE symlink_format_manifest FOR TABLE {path}")
        spark.sql(f"DROP TABLE {path}")
        jvm: Any = spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
        nothing, snapshot = jvm.scala.Option.empty(), log.unsafeVolatileSnapshot()
        log.checkpointAndCleanUpDeltaLog(snapshot, nothing)
        # A table property disables the cleanup; called directly it finds no expired file.
        reason = getattr(log, "cleanUpExpiredLogs$default$4")()
        log.cleanUpExpiredLogs(snapshot, nothing, nothing, reason)


def duckdb_checkpoint(story: Story, spark: SparkSession) -> None:
    with delta_engines.connect_duckdb() as connection:
        connection.execute(f"ATTACH '{story.table}' AS t (TYPE delta)")
        connection.execute("CHECKPOINT t")


def reopen(story: Story) -> StreamManager:
    """Return a manager that shares only the storage with earlier managers."""
    return StreamManager(story.root, runtime=Clock(story.clock.now_us()))


def read(manager: StreamManager) -> Counter[Row]:
    return Counter(
        (event.segment_id, event.offset, event.routing_key, event.timestamp_us, event.data)
        for event in manager.read(STREAM, StreamCut.EARLIEST)
    )


@pytest.mark.parametrize(
    "maintain",
    [
        delta_rs_checkpoint,
        delta_rs_housekeeping,
        delta_spark_housekeeping,
        duckdb_checkpoint,
    ],
)
def test_stream_survives(
    open_story: Story, spark: SparkSession, maintain: Callable[[Story, SparkSession], None]
) -> None:
    story = open_story
    # Files that are fifty years old: no part of a log expires by age alone.
    before = digests(story.root)
    for path in before:
        os.utime(story.root / path, (0, 0))
    rows = read(story.manager)
    version, domains = story.version, dict(story.stream.view().snapshot.domains)

    maintain(story, spark)

    after = digests(story.root)
    changed = {path for path in before if after.get(path) != before[path]}
    assert changed <= {f"{STREAM}/events/_delta_log/_last_checkpoint"}
    assert foreign_domains(story, version) == domains
    manager = reopen(story)
    assert read(manager) == rows
    with manager.create_writer(STREAM, writer_id="ingest") as writer:
        assert writer.last_event_number == story.written["ingest"]
        writer.write_event(b"afterwards", "carrier-1").result()
    snapshot = story.stream.view().snapshot
    assert snapshot.version == version + 2
    now = read(reopen(story))
    assert now - rows == Counter(row for row in now if row[4] == b"afterwards")
    assert delta_engines.deltalake_rows(story.table, version + 2) == now
    assert delta_engines.duckdb_rows(story.table, version + 2) == now
    assert delta_engines.spark_rows(spark, story.table, version + 2) == now
    assert delta_engines.deltalake_rows(story.table, version) == rows
    assert manager.list_streams("nyc") == ["nyc/flights", "nyc/other"]


def foreign_domains(story: Story, version: int) -> dict[str, str]:
    file = Path(story.table, "_delta_log", f"{version:020d}.checkpoint.parquet")
    records = pq.read_table(file, columns=["domainMetadata"]).column(0).to_pylist()
    return {record["domain"]: record["configuration"] for record in records if record}


def test_foreign_checkpoint_instead_of_the_packages_loses_no_data(open_story: Story) -> None:
    story = open_story
    story.maintain_log(checkpoint=True)
    rows = read(story.manager)
    log = Path(story.table, "_delta_log")
    checkpoint = log / f"{story.version:020d}.checkpoint.parquet"
    checkpoint.unlink()
    (log / "_last_checkpoint").unlink()  # delta-rs fails on a hint to a missing file
    DeltaTable(story.table).create_checkpoint()
    assert checkpoint.exists()
    assert story.stream.log.reader.checkpoint(story.version) is None
    assert read(reopen(story)) == rows
    for state in Path(story.table, "_pravega", "state").iterdir():
        state.unlink()
    assert read(reopen(story)) == rows


def test_cleaned_log_is_readable_by_all_from_the_retention_mark(
    open_story: Story, spark: SparkSession
) -> None:
    story, log = open_story, open_story.stream.log
    story.maintain_log(checkpoint=True)
    retained = list(delta_engines.snapshots(story))
    first, retention_mark = story.checkpoints[-2:][0], 8
    assert 1 < first <= retention_mark < story.version
    raise_marks(log, story.version, retention_mark)
    story.record("SWEEP")
    newest = log.refresh()
    assert newest is not None
    now_ms = newest.timestamp_ms + int(CLEANUP_WAIT_SECONDS * 1_000)
    for version in stored(log):  # the files get the times of the story's clock
        commit = log.reader.commit(version, light=True)
        assert commit is not None
        named = Path(story.table, "_delta_log", f"{version:020d}.json")
        os.utime(named, (0, commit.timestamp_ms / 1_000))
    assert not mark_has_aged(log, VersionAges.read(log, now_ms=now_ms))
    for seen in Path(story.table, "_pravega", "mark").iterdir():
        os.utime(seen, (0, 0))
    assert delete_old_commits(log, VersionAges.read(log, now_ms=now_ms)) == first - 1
    assert not Path(story.table, "_delta_log", f"{first - 1:020d}.json").exists()

    for snapshot in retained[retention_mark:]:
        rows = delta_engines.package_rows(story, snapshot)
        written = story.rows.get(snapshot.version)  # unknown within a write of several commits
        assert written is None or rows.total() == written.total()
        assert delta_engines.deltalake_rows(story.table, snapshot.version) == rows
        assert delta_engines.duckdb_rows(story.table, snapshot.version) == rows
        assert delta_engines.spark_rows(spark, story.table, snapshot.version) == rows
        assert delta_engines.duckdb_domains(story.table, snapshot.version) == dict(snapshot.domains)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{story.table}`").collect()
    versions = [row.version for row in history]
    assert versions == [*range(story.version, first - 1, -1), 0]
    assert read(reopen(story)) == rows
    with reopen(story).create_writer(STREAM, writer_id="ingest") as writer:
        assert writer.last_event_number == story.written["ingest"]
