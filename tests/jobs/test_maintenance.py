"""The jobs of maintenance, in the tests' Spark session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pravega_spark import (
    MaintenanceKind,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
)
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.jobs import compaction, maintenance
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.maintenance.round import MaintenanceRound
from pravega_spark.maintenance.work import WORKS
from tests.harness.folder_state import folder_state

KINDS = [kind.value for kind in WORKS]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class AnHourAgo(Runtime):
    """Chunks of this moment are not compacted yet."""

    def now_ms(self) -> int:
        return super().now_ms() - 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A stream of many old chunks, one that keeps a byte, an idle one, and one in a group."""
    manager = StreamManager(tmp_path / "root", runtime=AnHourAgo())
    for name, policy in (
        ("s/many", None),
        ("s/kept", RetentionPolicy.by_size(1)),
        ("t/idle", None),
    ):
        manager.create_scope(name.partition("/")[0])
        segments = ScalingPolicy.fixed(2 if name == "s/many" else 1)
        manager.create_stream(name, StreamConfiguration(segments, policy))
        with manager.create_writer(name) as writer:
            for number in range(40 if name == "s/many" else 2):
                writer.write_event(b"%d" % number, f"{number}")
                writer.flush()
    manager.create_reader_group("t/g", ["t/idle"])
    return tmp_path / "root"


def run(
    spark: SparkSession,
    capfd: pytest.CaptureFixture[str],
    job: Any,
    root: Path,
    *arguments: str,
    stop: StopSignal | None = None,
) -> tuple[int, Mapping[str, Any], str]:
    """Run the rounds of a job; return the exit status, the last line, and all output."""
    parsed = job.parse(["--root", str(root), *arguments])
    capfd.readouterr()
    status = maintenance.maintain(parsed, spark, stop or StopSignal())
    out, err = capfd.readouterr()
    return status, json.loads(out.splitlines()[-1]), out + err


@pytest.mark.versions(since="3.5")
def test_one_round_does_all_kinds_and_idle_streams_are_left_in_the_next(
    spark: SparkSession, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    status, record, out = run(spark, capfd, maintenance, root, "--once")
    assert (status, record["failed"], record["streams"], record["rounds"]) == (0, 0, 3, 1)
    assert record["retention_events"] == 1
    assert record["dry_run"] is False
    assert "truncated 1 event" in out
    manager = StreamManager(root)
    assert [event.data for event in manager.read("s/kept")] == [b"1"]
    recorded = {info.kind.value: info for info in manager.maintenance()}
    assert all(recorded[kind].streams == 3 for kind in KINDS)
    run(spark, capfd, maintenance, root)
    status, record, _ = run(spark, capfd, maintenance, root, "--kinds", "transactions", "retention")
    assert (status, record["idle"], record["streams"]) == (0, 3, 3)


def test_dry_run_changes_nothing(
    spark: SparkSession, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = folder_state(root)
    status, record, out = run(spark, capfd, maintenance, root, "--dry-run")
    assert (status, record["dry_run"], record["retention_events"]) == (0, True, 1)
    assert "would truncate 1 event" in out
    status, record, _ = run(spark, capfd, compaction, root, "--dry-run")
    assert (status, record["streams"], record["compaction_files_before"]) == (0, 3, 44)
    assert folder_state(root) == before


def test_failing_stream_has_its_exit_code(
    spark: SparkSession, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = root / "s/many/events/_delta_log"
    (log / f"{0:020d}.json").write_text("garbage")
    for hint in (root / "s/many/events/_pravega").rglob("*.json"):
        hint.unlink()
    status, record, out = run(spark, capfd, maintenance, root, "--kinds", "retention", "compaction")
    assert (status, record["failed"], record["retention_events"]) == (1, 2, 1)
    assert "maintenance: retention, compaction of stream s/many: CorruptLog" in out


@pytest.mark.versions(since="3.5")
def test_ranges_of_one_stream_are_merged_on_executors(
    spark: SparkSession, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(root)
    manager.seal_stream("s/many")
    events = [event.data for event in manager.read("s/many")]
    files = manager.stream_info("s/many").files.files
    status, record, out = run(spark, capfd, compaction, root, "--stream", "s/many", "--dry-run")
    assert (status, record["compaction_files_after"]) == (0, 2)
    assert "would merge 40 events; files 40 -> 2" in out
    status, record, out = run(spark, capfd, compaction, root, "--stream", "s/many")
    assert (status, record["failed"], record["compaction_files_before"]) == (0, 0, files)
    assert record["compaction_files_after"] == 2
    assert [event.data for event in manager.read("s/many")] == events
    status, record, _ = run(spark, capfd, compaction, root, "--stream", "s/many")
    assert (status, record["compaction_files_before"], record["compaction_bytes_read"]) == (0, 2, 0)


def test_kinds_of_a_job_that_keeps_running_follow_their_intervals(
    spark: SparkSession, root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manager, stop = StreamManager(root), StopSignal()
    stop.disarm()
    manager.update_settings(scaling_interval="1 s")
    rounds = list[tuple[MaintenanceKind, ...]]()
    original = MaintenanceRound.run

    def count(one: MaintenanceRound) -> Any:
        rounds.append(tuple(one._request.kinds))
        if len(rounds) == 2:
            stop.request()
        return original(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MaintenanceRound, "run", count)
        status, _, _ = run(spark, capfd, maintenance, root, "--interval", stop=stop)
    assert status == 0
    assert [kind.value for kind in rounds[0]] == KINDS
    assert rounds[1] == (MaintenanceKind.SCALING,)
