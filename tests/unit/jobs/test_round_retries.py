"""A maintenance job that keeps running: rounds that could not be done are tried again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.errors import RootChanged, StoreError
from pravega_spark.jobs import job_runner, maintenance
from pravega_spark.jobs.job_runner import Report
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.manager import StreamManager


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
