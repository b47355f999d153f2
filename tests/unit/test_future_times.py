"""A host whose clock is a year ahead writes once: who looks later is told, and sees the silence."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.cli import main
from pravega_spark.manager import StreamManager
from pravega_spark.metrics.catalog import MetricValues
from pravega_spark.metrics.measurement import RootMeasurement
from tests.harness.fake_runtime import SkippingRuntime

YEAR = 365 * 86_400
Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A stream whose last commit, two hours old, is by a host whose clock was a year ahead."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a")
    manager.create_reader_group("s/g", ["s/a"])
    ahead = SkippingRuntime()
    ahead.skip(YEAR)
    with StreamManager(tmp_path, runtime=ahead).create_writer("s/a") as writer:
        writer.write_event(b"from the future").result()
    (*_, last) = sorted((tmp_path / "s/a/events/_delta_log").glob("*.json"))
    os.utime(last, (time.time() - 7_200, time.time() - 7_200))
    return manager


@pytest.fixture
def check(manager: StreamManager, capsys: pytest.CaptureFixture[str]) -> Check:
    def check(*argv: str) -> tuple[int, dict[str, Any]]:
        status = main(["check", *argv, "--root", manager.root, "--format", "json"])
        return status, {found["check"]: found for found in json.loads(capsys.readouterr().out)}

    return check


def test_silence_is_that_of_the_object_and_the_clock_is_said(check: Check) -> None:
    status, found = check("stream", "s/a", "--silent-critical", "1h")
    assert status == 2
    assert found["silent_seconds"]["value"] == pytest.approx(7_200, abs=600)
    assert found["clock_ahead_seconds"]["value"] == pytest.approx(YEAR, abs=600)
    assert "365.0 days in the future" in found["clock_ahead_seconds"]["text"]
    assert check("stream", "s/a")[0] == 1


def test_oldest_unread_event_from_the_future_is_said(check: Check, manager: StreamManager) -> None:
    status, found = check("group", "s/g", "--time-critical", "1h")
    assert (status, found["lag_seconds"]["status"]) == (1, "WARNING")
    assert "365.0 days in the future" in found["lag_seconds"]["text"]
    assert manager.reader_group("s/g").lag().seconds == pytest.approx(-YEAR, abs=600)


def test_age_of_the_next_event_counts_behind_one_from_the_future(
    check: Check, manager: StreamManager
) -> None:
    behind = SkippingRuntime()
    behind.skip(-7_200)
    with StreamManager(manager.root, runtime=behind).create_writer("s/a") as writer:
        writer.write_event(b"of today").result()
    assert manager.reader_group("s/g").lag().seconds == pytest.approx(7_200, abs=600)
    status, found = check("group", "s/g", "--time-critical", "1h")
    assert (status, found["lag_seconds"]["status"]) == (2, "CRITICAL")


def test_metrics_say_how_far_ahead_the_clock_was(manager: StreamManager) -> None:
    values = RootMeasurement(manager, 10, ()).measure()
    assert value(values, "pravega_stream_clock_ahead_seconds") == pytest.approx(YEAR, abs=600)
    silent = time.time() - value(values, "pravega_stream_last_commit_timestamp_seconds")
    assert silent == pytest.approx(7_200, abs=600)
    assert value(values, "pravega_group_lag_seconds") == pytest.approx(-YEAR, abs=600)


def value(values: MetricValues, name: str) -> float:
    (labels,) = values.labels(name)
    found = values.get(name, *labels)
    assert isinstance(found, float)
    return found
