"""What all jobs share, without Spark: the last line, tables, the missing extra, signals."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from pravega_spark.jobs import job_runner, retention, scaling, transactions
from pravega_spark.jobs.early_signals import SIGNALS
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.jobs.text_table import TextTable, bold

REPOSITORY = Path(__file__).resolve().parents[2]
NO_SPARK = cast(SparkSession, None)


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        (retention, "streams policies truncated events bytes sampled passed expired swept_files"),
        (scaling, "streams segments splits merges dropped"),
        (transactions, "streams open committed aborted cleared"),
    ],
    ids=["retention", "scaling", "transactions"],
)
def test_a_job_that_is_stopped_in_its_first_round_prints_all_sums(
    job: Any, fields: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = StopSignal()
    stop.disarm()
    stop._stop(NO_SPARK)

    def rounds(prog: str, arguments: Any, work: Any, zeros: dict[str, int]) -> int:
        return job_runner.rounds(prog, arguments, NO_SPARK, work, zeros, stop)

    monkeypatch.setattr(job_runner, "run", rounds)
    assert job.main(["--root", "unread", "--interval", "1s"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds") >= 0
    assert found == dict.fromkeys([*fields.split(), "failed", "rounds"], 0) | {"dry_run": False}


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


def test_a_hangup_that_is_ignored_stays_ignored(restored: None) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    StopSignal().listen(NO_SPARK)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


BARE = """
import runpy, sys
sys.modules["pyspark"] = sys.modules["rich"] = None  # as where they are not installed
runpy.run_module("pravega_spark.jobs.{job}", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("job", ["retention", "scaling", "transactions"])
def test_without_the_extra_a_job_names_it_in_one_line(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(job=job), "--root", "unread"],
        capture_output=True,
        text=True,
        check=False,
    )
    needs = "pyspark, rich not found: the job needs pip install 'pravega-spark[jobs]'."
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{job}: {needs}\n")


@pytest.mark.parametrize("job", ["retention", "scaling", "transactions"])
def test_the_file_for_spark_submit_is_the_job(job: str) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "jobs" / f"{job}.py", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {job} ")


def test_a_table_shows_what_looks_like_markup_as_it_is() -> None:
    table = TextTable({"keys": "left", "decision": "right"}, [["[0, 0.5)[/]", bold("[red]:x:")]])
    console = Console(width=60, file=io.StringIO(), record=True)
    console.print(table.render())
    assert re.search(r"\[0, 0\.5\)\[/\] +\[red\]:x:", console.export_text())
