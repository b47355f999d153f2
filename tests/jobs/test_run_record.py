"""A job's round is recorded: claimed while it runs, with its counts when it has finished."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pravega_spark import MaintenanceInfo, MaintenanceKind, StreamManager
from pravega_spark.config.root_settings import AUTO
from pravega_spark.engine.state.maintenance_table import JOB, MaintenanceTable
from pravega_spark.engine.store import open_store
from pravega_spark.errors import StoreError
from pravega_spark.jobs import job_runner, retention, scaling, transactions
from pravega_spark.jobs.job_runner import Report
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.maintenance import round

NO_SPARK = cast(SparkSession, object())
RETENTION = MaintenanceKind.RETENTION
ALL = (None,)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path / "root")
    for scope in ("a", "b"):
        manager.create_scope(scope)
        manager.create_stream(f"{scope}/t")
    return tmp_path / "root"


def recorded(root: Path) -> list[MaintenanceInfo]:
    return [info for info in StreamManager(root).maintenance() if info.finished_ms is not None]


def table_of(root: Path) -> MaintenanceTable:
    return MaintenanceTable(open_store(str(root)))


def run(
    root: Path,
    *arguments: str,
    job: Any = retention,
    report: Report | None = None,
    during: Callable[[], object] = lambda: None,
    stop: StopSignal | None = None,
) -> int:
    """Run rounds of a job whose work is only to return a report; return the exit status."""
    parsed = job.parse(["--root", str(root), *arguments])

    def work(spark: SparkSession, given: job_runner.RoundInput) -> Report:
        during()
        return report or Report(None, {"streams": len(given.streams)})

    return job_runner.rounds(job.PROG, parsed, NO_SPARK, work, {}, stop)


@pytest.mark.parametrize("job", [retention, scaling, transactions], ids=lambda job: job.PROG)
def test_round_is_claimed_while_it_runs_and_recorded_with_its_counts(root: Path, job: Any) -> None:
    seen = list[MaintenanceInfo]()
    report = Report(None, {"streams": 2}, {"stream a/t": "StoreError: disk full"})
    status = run(
        root, job=job, report=report, during=lambda: seen.extend(StreamManager(root).maintenance())
    )
    assert status == 1
    (claimed,) = (info for info in seen if info.claimed_by is not None)
    (done,) = recorded(root)
    assert claimed.kind == done.kind == MaintenanceKind(job.PROG)
    assert (done.streams, done.failed, done.scope) == (2, 1, None)
    assert done.failures == {"stream a/t": "StoreError: disk full"}
    assert (done.claimed_by, done.by) == (None, claimed.claimed_by)
    assert (done.by or "").startswith("job on ")
    assert done.started_ms is not None
    assert done.started_ms <= (done.finished_ms or 0)
    assert (done.age_seconds or 0) < 60


def test_each_round_of_a_job_that_keeps_running_is_recorded(root: Path) -> None:
    stop, rounds = StopSignal(), list[Any]()

    def during() -> None:
        rounds.append(recorded(root))
        if len(rounds) == 3:
            threading.Timer(0.5, stop._stopped.set).start()

    assert run(root, "--interval", "100ms", during=during, stop=stop) == 0
    finished = [[info.finished_ms for info in infos] for infos in rounds]
    assert finished[0] == []
    assert finished[1][0] < finished[2][0] < (recorded(root)[0].finished_ms or 0)


def test_dry_run_and_a_run_over_single_streams_leave_no_mark(root: Path) -> None:
    assert run(root, "--dry-run") == 0
    assert run(root, "--stream", "a/t") == 0
    assert not (root / "_maintenance").exists()


def test_run_over_scopes_is_recorded_for_them(root: Path) -> None:
    assert run(root, "--scope", "b", "--scope", "a", "--stream", "b/t") == 0
    assert [(info.scope, info.streams) for info in recorded(root)] == [("a", 2), ("b", 2)]
    assert run(root) == 0
    assert [info.scope for info in recorded(root)] == [None, "a", "b"]


def test_round_that_fails_or_is_stopped_is_not_recorded_and_releases_its_claim(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise StoreError("the storage is down")

    assert run(root, during=fail) == 1
    stop = StopSignal()
    assert run(root, "--interval", "1s", during=stop._stopped.set, stop=stop) == 0
    assert recorded(root) == []
    assert table_of(root).claim(RETENTION, ALL, JOB) is not None


def test_job_waits_for_the_share_of_another_process_and_not_for_another_job(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round, "_CHECK_SECONDS", 0.05)
    other = table_of(root)
    share = other.claim(RETENTION, ALL, AUTO)
    assert share is not None
    ended = threading.Event()

    def end() -> None:
        ended.set()
        other.release(share)

    threading.Timer(0.5, end).start()
    order = list[bool]()
    assert run(root, during=lambda: order.append(ended.is_set())) == 0
    job = other.claim(RETENTION, ALL, JOB)
    assert job is not None
    assert run(root, during=lambda: order.append(True)) == 0
    assert order == [True, True]
    (info,) = recorded(root)
    assert info.claimed_by is not None, "the other job is still at work"


def test_record_that_cannot_be_written_does_not_stop_the_job(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise StoreError("the folder _maintenance is read-only")

    monkeypatch.setattr(MaintenanceTable, "_change", refuse)
    worked = list[bool]()
    assert run(root, during=lambda: worked.append(True)) == 0
    assert worked == [True]
    assert "could not be claimed: the folder _maintenance is read-only" in caplog.text
    assert "could not be recorded: the folder _maintenance is read-only" in caplog.text


def test_last_line_of_a_job_is_as_before(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(root)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["streams"], found["failed"], found["rounds"]) == (2, 0, 1)
