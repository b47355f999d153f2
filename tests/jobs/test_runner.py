"""What all jobs share, without Spark: the last line, tables, the missing extra, signals."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from pravega_spark.engine.state.settings_table import _opened
from pravega_spark.errors import NotFound
from pravega_spark.jobs import compaction, job_runner, maintenance, retention, scaling, transactions
from pravega_spark.jobs.early_signals import SIGNALS
from pravega_spark.jobs.report import TextTable, bold
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.manager import StreamManager

EVERY_JOB = ["retention", "scaling", "transactions", "compaction", "maintenance"]
NO_SPARK = cast(SparkSession, None)


@pytest.mark.parametrize(
    ("job", "fields"),
    [
        (
            retention,
            "streams policies truncated events bytes sampled passed expired swept_files "
            "pending_files unmoved",
        ),
        (scaling, "streams segments splits merges dropped"),
        (transactions, "streams open committed aborted cleared"),
        (compaction, "streams compacted files_before files_after bytes_read bytes_written"),
    ],
    ids=["retention", "scaling", "transactions", "compaction"],
)
def test_job_that_is_stopped_in_its_first_round_prints_all_sums(
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
    assert found == dict.fromkeys([*fields.split(), "failed", "rounds", "repeated"], 0) | {
        "dry_run": False,
        "settings": "",
    }


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
sys.modules["pyspark"] = sys.modules["rich"] = None  # as where they are not installed
runpy.run_module("pravega_spark.jobs.{job}", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("job", EVERY_JOB)
def test_without_the_extra_a_job_names_it_in_one_line(job: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(job=job), "--root", "unread"],
        capture_output=True,
        text=True,
        check=False,
    )
    needs = "pyspark, rich not found: the job needs pip install 'pravega-spark[jobs]'."
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{job}: {needs}\n")


def test_table_shows_what_looks_like_markup_as_it_is() -> None:
    table = TextTable({"keys": "left", "decision": "right"}, [["[0, 0.5)[/]", bold("[red]:x:")]])
    console = Console(width=60, file=io.StringIO(), record=True)
    console.print(table.render())
    assert re.search(r"\[0, 0\.5\)\[/\] +\[red\]:x:", console.export_text())


# --------------------------------------------------------------------------------------- settings


class Rounds:
    """Runs a job's rounds with work that records what each round was given."""

    def __init__(self, root: Path, job: Any = retention) -> None:
        self.root, self.job = root, job
        self.given: list[job_runner.RoundInput] = []
        self.stop = StopSignal()
        self.stop.disarm()
        self.during: Callable[[int], object] = lambda number: None

    def __call__(self, *arguments: str, rounds: int = 1) -> int:
        parsed = self.job.parse(["--root", str(self.root), *arguments])

        def work(spark: SparkSession, given: job_runner.RoundInput) -> job_runner.Report:
            self.given.append(given)
            self.during(len(self.given))
            if len(self.given) == rounds:
                self.stop._stop(NO_SPARK)
            counts = {"streams": len(given.streams)}
            return job_runner.Report(None, counts, pause_seconds=0.0 if rounds > 2 else None)

        return job_runner.rounds(self.job.PROG, parsed, NO_SPARK, work, {}, self.stop)


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    StreamManager(tmp_path).create_scope("s")
    made = Rounds(tmp_path)
    spark = cast(SparkSession, object())
    monkeypatch.setattr(sys.modules[__name__], "NO_SPARK", spark)
    return made


def test_round_gets_the_settings_of_the_root_and_the_flags(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    StreamManager(rounds.root).update_settings(grace="2 hours", retain="3 days", expire="1 day")
    assert rounds("--grace", "5 min", "--expire", "never") == 0
    (given,) = rounds.given
    found = given.sources.of_root()
    assert (found.grace_ms, found.retain_ms, found.expire_ms) == (300_000, 259_200_000, None)
    lines = capsys.readouterr().out.splitlines()
    shown = "grace=5 minutes (flag), retain=3 days (root), expire=never (flag)"
    assert lines[0] == f"settings: {shown}"
    assert json.loads(lines[-1])["settings"] == shown


def test_defaults_are_not_shown(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    assert rounds() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["settings"] == ""


def test_each_round_reads_the_settings_again_and_follows_the_interval(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(rounds.root)
    manager.update_settings(retention_interval="1 s", grace="2 hours")
    rounds.during = lambda number: manager.update_settings(grace="3 hours")
    started = time.monotonic()
    assert rounds("--interval", rounds=2) == 0
    assert time.monotonic() - started >= 1.0
    assert [given.sources.of_root().text("grace") for given in rounds.given] == [
        "2 hours",
        "3 hours",
    ]
    out = capsys.readouterr().out
    assert "settings: grace=2 hours (root)" in out
    assert "settings: grace=3 hours (root)" in out
    assert "next in 1 s" in out


@pytest.mark.parametrize("named", [("--scope", "none"), ("--stream", "s/none")])
@pytest.mark.parametrize("job", [retention, maintenance])
def test_name_that_does_not_exist_ends_a_job_that_keeps_running_at_its_start(
    rounds: Rounds, named: tuple[str, str], job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds.job = job
    assert rounds("--interval", "1h", *named) == 2
    assert rounds.given == []
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(NotFound, match="does not exist"):  # before Spark starts
        job_runner._find(job.PROG, job.parse(["--root", str(rounds.root), *named]))


@pytest.mark.parametrize("job", [retention, maintenance])
def test_stream_that_is_deleted_later_is_no_failure(
    rounds: Rounds, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = StreamManager(rounds.root)
    manager.create_stream("s/t")

    def delete(number: int) -> None:
        if number == 1:
            manager.seal_stream("s/t")
            manager.delete_stream("s/t")

    rounds.job, rounds.during = job, delete
    assert rounds("--interval", "10 ms", "--stream", "s/t", rounds=3) == 0
    assert [given.must_exist for given in rounds.given] == [True, False, False]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed"] == 0


def test_interval_of_the_command_line_is_before_the_setting(rounds: Rounds) -> None:
    StreamManager(rounds.root).update_settings(retention_interval="1 hour")
    assert rounds("--interval", "10 ms", rounds=2) == 0


def test_without_interval_a_job_does_one_round_whatever_is_set(rounds: Rounds) -> None:
    StreamManager(rounds.root).update_settings(retention_interval="1 s")
    assert rounds(rounds=9) == 0
    assert len(rounds.given) == 1


def test_settings_that_cannot_be_read_fail_the_round_before_its_work(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    StreamManager(rounds.root).update_settings(grace="2 hours")
    for file in (rounds.root / "_settings/_delta_log").glob("*.json"):
        file.write_bytes(file.read_bytes()[:-40])
    _opened._open.reset()  # as in another process
    assert rounds() == 1
    assert rounds.given == []
    assert "_settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("job", "names"),
    [
        (retention, ["grace", "retain", "sample_every", "expire", "retention_interval"]),
        (scaling, ["scaling_interval"]),
        (transactions, ["prepared_limit", "transactions_interval"]),
    ],
    ids=["retention", "scaling", "transactions"],
)
def test_help_names_the_setting_behind_a_default(
    job: Any, names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        job.parse(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for name in names:
        assert f"the setting {name}" in text


class SharedSession:
    """Counts how often a job stops the session."""

    stops = 0

    def stop(self) -> None:
        self.stops += 1


@pytest.mark.parametrize(("variable", "stops"), [("DATABRICKS_RUNTIME_VERSION", 0), ("NONE", 1)])
def test_job_leaves_the_session_of_databricks_running(
    variable: str, stops: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored: None
) -> None:
    StreamManager(tmp_path).create_scope("s")
    session = SharedSession()
    monkeypatch.setenv(variable, "17.3")
    monkeypatch.setattr(job_runner, "launcher_stderr", lambda: sys.stderr)
    monkeypatch.setattr(job_runner, "start_spark", lambda prog, packages: session)
    monkeypatch.setattr(job_runner, "rounds", lambda *given, **named: 0)
    arguments = retention.parse(["--root", str(tmp_path)])
    assert job_runner.run("retention", arguments, cast(Any, None), {}) == 0
    assert session.stops == stops
