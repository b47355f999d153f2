"""Every reader reads the same events at every version."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.harness import delta_engines
from tests.harness.delta_engines import DeltaQuery
from tests.harness.story import SCOPE, START_US, STREAM, Story, copy_story, start_next_life

pytestmark = pytest.mark.spark


def assert_all_agree(story: Story, spark: SparkSession, after: int = -1) -> None:
    """Compare all readers at each version above ``after``, and the package with the writes."""
    compared = 0
    for snapshot in delta_engines.snapshots(story):
        version = snapshot.version
        if version <= after:
            continue
        rows = delta_engines.package_rows(story, snapshot)
        if version in story.rows:
            written = Counter((s, o, key, event) for s, o, key, _, event in rows.elements())
            assert written == story.rows[version], f"the package at version {version}"
        assert delta_engines.deltalake_rows(story.table, version) == rows, f"delta-rs at {version}"
        assert delta_engines.duckdb_rows(story.table, version) == rows, f"DuckDB at {version}"
        assert delta_engines.spark_rows(spark, story.table, version) == rows, f"Spark at {version}"
        assert delta_engines.duckdb_domains(story.table, version) == dict(snapshot.domains)
        compared += 1
    assert compared == story.version - after


def test_every_version_has_the_same_events_for_every_reader(
    story: Story, spark: SparkSession
) -> None:
    assert len(story.checkpoints) >= 2
    assert_all_agree(story, spark)


def test_next_life_has_the_same_events_for_every_reader(
    story: Story, spark: SparkSession, tmp_path: Path
) -> None:
    # The deletion moves the retention mark, so earlier versions are not retained.
    moved = copy_story(story, tmp_path / "root")
    deleted = start_next_life(moved)
    assert_all_agree(moved, spark, after=deleted - 1)


def commits(story: Story) -> list[Path]:
    folder = Path(story.table, "_delta_log")
    return [folder / f"{version:020d}.json" for version in range(story.version + 1)]


def commit_time_ms(commit: Path) -> int:
    info = json.loads(commit.read_bytes().splitlines()[0])["commitInfo"]
    assert info["timestamp"] == info["inCommitTimestamp"]
    return int(info["inCommitTimestamp"])


def utc(time_ms: int) -> datetime.datetime:
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    return start + datetime.timedelta(milliseconds=time_ms)


def test_time_travel_by_timestamp_uses_the_commit_times(story: Story, spark: SparkSession) -> None:
    times = [commit_time_ms(commit) for commit in commits(story)]
    # Times are the story's, not the files', and rise although its clock was set back once.
    assert START_US // 1_000 <= times[0] < times[-1] < START_US // 1_000 + 2 * 3_600_000
    assert times == sorted(set(times))
    # delta-rs 1.6 ignores commit times and uses the files' times: make them equal.
    for commit, time_ms in zip(commits(story), times, strict=True):
        os.utime(commit, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    gap = next(v for v in range(story.version) if times[v + 1] > times[v] + 1_000)
    for version, time_ms in [(gap, times[gap]), (gap, times[gap + 1] - 1), (9, times[9])]:
        table = DeltaTable(story.table)
        table.load_as_version(utc(time_ms))
        assert table.version() == version, f"delta-rs at {time_ms}"
        text = utc(time_ms).strftime("%Y-%m-%d %H:%M:%S.%f")
        frame = delta_engines.spark_frame(spark, story.table, timestampAsOf=text)
        assert frame.count() == table.to_pyarrow_table().num_rows, f"Spark at {text}"


def test_delta_source_reads_every_event_once_over_restart_scale_and_new_life(
    story: Story, spark: SparkSession, tmp_path: Path
) -> None:
    moved = copy_story(story, tmp_path / "root")
    hidden = tmp_path / "later"
    hidden.mkdir()
    log = Path(moved.table, "_delta_log")
    versions = sorted(path.name for path in log.iterdir() if path.name[:20].isdigit())
    later = [name for name in versions if int(name[:20]) >= 7] + ["_last_checkpoint"]
    assert f"{story.version:020d}.json" in later
    for name in later:
        shutil.move(log / name, hidden / name)
    query = DeltaQuery(spark, moved.table, tmp_path / "checkpoint")

    first = query.run(maxFilesPerTrigger=5)
    assert len(query.batches) > 1
    assert first == delta_engines.deltalake_rows(story.table, 6)
    for name in later:
        shutil.move(hidden / name, log / name)
    second = query.run()
    assert first + second == delta_engines.deltalake_rows(story.table, story.version)

    # The next life starts with the removal of all files, which Delta's source reports.
    start_next_life(moved)
    with pytest.raises(StreamingQueryException, match="DELTA_SOURCE_IGNORE_DELETE"):
        query.run()
    assert query.run(ignoreDeletes=True) == delta_engines.deltalake_rows(moved.table, moved.version)


def test_scope_table_has_the_same_rows_for_every_reader(story: Story, spark: SparkSession) -> None:
    names = ["flights", "other"]
    assert story.manager.list_streams(SCOPE) == [f"{SCOPE}/{name}" for name in names]
    table = DeltaTable(story.scope_table)
    last = table.version()
    assert last >= 3
    for version in range(last + 1):
        by_spark = delta_engines.spark_frame(spark, story.scope_table, versionAsOf=version)
        by_delta_rs = DeltaTable(story.scope_table, version=version).to_pyarrow_table()
        with delta_engines.connect_duckdb() as connection:
            query = f"SELECT * FROM delta_scan('{story.scope_table}', version={version})"
            by_duckdb = connection.execute(query).to_arrow_table().to_pylist()
        rows = sorted(by_delta_rs.to_pylist(), key=lambda row: row["name"])
        assert sorted(by_duckdb, key=lambda row: row["name"]) == rows
        assert by_spark.orderBy("name").toArrow().to_pylist() == rows
    assert [row["name"] for row in rows] == names
    assert rows[0]["tags"] == sorted(story.manager.tags(STREAM))
