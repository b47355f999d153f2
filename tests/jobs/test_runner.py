"""What all jobs share, without Spark: the last line, the missing extra, signals, the session."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from pravega_spark.jobs import job_runner, maintenance
from pravega_spark.jobs.early_signals import SIGNALS
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.manager import StreamManager

EVERY_JOB = ["retention", "scaling", "transactions", "compaction", "maintenance"]
NO_SPARK = cast(SparkSession, None)


def test_job_that_is_stopped_before_its_first_round_prints_all_sums(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    StreamManager(tmp_path).create_scope("s")
    stop = StopSignal()
    stop.request()
    argv = ["--root", str(tmp_path), "--interval", "1s"]
    arguments = maintenance.parse(argv, "scaling")
    assert maintenance.maintain(arguments, None, stop) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds") >= 0
    names = "streams idle left scaling_splits scaling_merges failed rounds repeated"
    assert found == dict.fromkeys(names.split(), 0) | {"dry_run": False, "settings": ""}
    assert maintenance.maintain(maintenance.parse(argv[:2], "scaling"), None, stop) == 130


@pytest.fixture
def restored() -> Iterator[None]:
    """Restore the signal handlers after the test."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_stops_a_job(number: signal.Signals, restored: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    stop = StopSignal()
    stop.disarm()
    stop.listen(NO_SPARK)
    assert not stop.is_set
    cast(Callable[[], None], signal.getsignal(number))()
    assert stop.wait(10)


def test_hangup_that_is_ignored_stays_ignored(restored: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    StopSignal().listen(NO_SPARK)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


BARE = """
import runpy, sys
sys.modules["pyspark"] = sys.modules["pandas"] = None  # as where they are not installed
for job in sys.argv[1:]:
    sys.argv = [job, "--root", "unread"]
    sys.modules.pop(f"pravega_spark.jobs.{job}", None)  # another job may need it
    try:
        runpy.run_module(f"pravega_spark.jobs.{job}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        print(job, end.code)
"""


@pytest.mark.medium
def test_without_the_extra_a_job_names_it_in_one_line() -> None:
    command = [sys.executable, "-c", BARE, *EVERY_JOB]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    needs = "pandas, pyspark not found: the job needs pip install 'pravega-spark[jobs]'."
    assert done.stdout.splitlines() == [f"{job} 1" for job in EVERY_JOB]
    assert done.stderr.splitlines() == [f"{job}: {needs}" for job in EVERY_JOB]


class SharedSession:
    """Counts how often a job stops the session."""

    stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.mark.parametrize(("variable", "stops"), [("DATABRICKS_RUNTIME_VERSION", 0), ("NONE", 1)])
def test_job_leaves_the_session_of_databricks_running(
    variable: str, stops: int, monkeypatch: pytest.MonkeyPatch, restored: None
) -> None:
    session = SharedSession()
    monkeypatch.setenv(variable, "17.3")
    monkeypatch.setattr(job_runner, "launcher_stderr", lambda: sys.stderr)
    monkeypatch.setattr(job_runner, "start_spark", lambda prog, packages: session)
    assert job_runner.run_job("retention", (), lambda: None, lambda *given: 0) == 0
    assert session.stops == stops
