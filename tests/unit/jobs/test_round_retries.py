"""A maintenance job that keeps running: failed rounds are tried again; the lines of failures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream import stream_log
from pravega_spark.errors import RootChanged, StoreError
from pravega_spark.jobs import job_runner, maintenance
from pravega_spark.jobs.job_runner import Report
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.maintenance.work import RoundTask, WorkOptions, do_task
from pravega_spark.manager import StreamManager
from tests.harness.folder_state import wait_for_maintenance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("recovers", "status"), [(True, 0), (False, 1)])
def test_failed_rounds_are_tried_less_and_less_often_and_recovered_ones_are_no_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    recovers: bool,
    status: int,
) -> None:
    StreamManager(tmp_path / "root").create_scope("s")
    outcomes: list[Any] = [RootChanged("away")] * 3 + [StoreError("refused", url="u")] * 2
    outcomes += [Report(None, {"streams": 1}, pause_seconds=5.0)] if recovers else []
    parsed, stop, pauses = (
        maintenance.parse(["--root", str(tmp_path / "root"), "--interval"]),
        StopSignal(),
        list[float](),
    )
    stop.disarm()

    def work(*_: Any) -> Report:
        done = outcomes.pop(0)
        if isinstance(done, Exception):
            raise done
        assert isinstance(done, Report)
        return done

    def wait(seconds: float) -> None:
        pauses.append(seconds)
        if not outcomes:
            stop.request()

    monkeypatch.setattr(stop, "wait", wait)
    spark: Any = object()
    assert job_runner.rounds(maintenance.PROG, parsed, spark, work, {}, stop) == status
    out, err = capfd.readouterr()
    record = json.loads(out.splitlines()[-1])
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0] + [5.0] * recovers
    assert err.splitlines() == ["maintenance: away", "maintenance: refused"]
    assert (record["failed"], record["rounds"]) == (status, int(recovers))


def test_kinds_that_failed_by_one_error_share_a_line_and_count_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/bad")
    wait_for_maintenance()
    log = tmp_path / "root/s/bad/events/_delta_log"
    max(log.glob("*.json")).write_text("garbage")
    stream_log._open.reset()

    def spread(
        _: Any, root: str, tasks: Sequence[RoundTask], options: WorkOptions, **_told: Any
    ) -> Any:
        return [done for task in tasks for done in do_task(open_store(root), task, options)]

    monkeypatch.setattr(maintenance, "spread", spread)
    argv = ["--root", str(tmp_path / "root"), "--kinds", "retention", "--kinds", "scaling"]
    parsed = maintenance.parse(argv)
    work = partial(maintenance.maintain_streams, parsed, maintenance._Schedules())
    stop = StopSignal()
    stop.disarm()
    spark = cast("SparkSession", object())
    assert job_runner.rounds(maintenance.PROG, parsed, spark, work, {}, stop) == 1
    out, err = capfd.readouterr()
    assert json.loads(out.splitlines()[-1])["failed"] == 2
    (line,) = (line for line in err.splitlines() if line.startswith("maintenance: "))
    assert line.startswith("maintenance: scaling, retention of stream s/bad: CorruptLog")
