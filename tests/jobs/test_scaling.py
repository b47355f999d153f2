"""The scaling job: in the tests' Spark session, and as a user starts it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.jobs import job_runner, scaling
from pravega_spark.scaling.rates import rates_key
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.folder_state import folder_state
from tests.harness.jvm import clean_environment
from tests.harness.launched import launched
from tests.harness.loads import load

JOB = ("-m", "pravega_spark.jobs.scaling")
HOT, COLD, CALM, FIXED = "s/hot", "s/cold", "s/calm", "t/fixed"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


class Past(FakeRuntime):
    """A clock that begins so long ago, so that a history needs no waiting."""

    def __init__(self, minutes: float) -> None:
        super().__init__()
        self.wall_ms = SYSTEM.now_ms() - minutes * 60_000


def made(root: Path, name: str, policy: ScalingPolicy, minutes: float) -> StreamLog:
    """A stream that was created so many minutes ago, with a clock that stands still then."""
    runtime = Past(minutes)
    manager = StreamManager(root, runtime=runtime)
    manager.create_scope(name.split("/", maxsplit=1)[0])
    manager.create_stream(name, StreamConfiguration(policy))
    return StreamLog(open_store(root), name, runtime)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four streams: too fast, silent for half an hour, calm, and with fixed segments."""
    folder = tmp_path / "root"
    load(made(folder, HOT, ScalingPolicy.by_event_rate(2, 4, 1), 12), seconds=715, rate=5)
    silent = made(folder, COLD, ScalingPolicy.by_event_rate(2, 4, 2), 30)
    StreamManager(folder, runtime=silent.runtime).scale_stream(COLD, [0], [(0, 0.25), (0.25, 0.5)])
    load(made(folder, CALM, ScalingPolicy.by_data_rate(10, 2, 1), 12), seconds=715, rate=2)
    made(folder, FIXED, ScalingPolicy.fixed(2), 12)
    return folder


def segments(root: Path, stream: str) -> list[str]:
    return [str(segment) for segment in StreamManager(root).segments(stream)]


def run(
    capsys: pytest.CaptureFixture[str], spark: SparkSession, root: Path, *arguments: str
) -> tuple[int, dict[str, Any], str]:
    """Run the job in the tests' session; return status, last line and whole output."""
    parsed = scaling.parse(["--root", str(root), *arguments])
    status = job_runner.rounds(
        "scaling",
        parsed,
        spark,
        lambda *found: scaling.scale_streams(parsed, *found),
        scaling.counts((), dry_run=False),
    )
    out = capsys.readouterr()
    return status, json.loads(out.out.splitlines()[-1]), out.out + out.err


def row_of(text: str, segment: str, stream: str) -> str:
    """The line of the table for a segment."""
    (found,) = re.findall(rf"^ *{re.escape(stream)} +{re.escape(segment)} .*$", text, re.MULTILINE)
    return str(found)


def test_hot_segments_are_split_and_cold_ones_merged_and_the_others_left(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {s: StreamManager(root).stream_info(s).version for s in (CALM, FIXED)}
    status, found, text = run(capsys, spark, root)
    assert status == 0, text
    seconds = found.pop("seconds")
    assert seconds > 0
    assert found == {
        "streams": 4,
        "segments": 7,
        "splits": 1,
        "merges": 1,
        "dropped": 0,
        "failed": 0,
        "dry_run": False,
        "rounds": 1,
        "repeated": 0,
        "settings": "",
    }
    assert segments(root, HOT) == ["1#1", "2#1"]
    assert len(segments(root, COLD)) == 2
    assert segments(root, FIXED) == ["0#0", "1#0"]
    assert {s: StreamManager(root).stream_info(s).version for s in before} == before
    assert re.search(r"split +r5 was 5\.0 > 2 x 2 events/s: 2 even parts; done, epoch 1", text)
    assert re.search(r"merge +no event for 1,8\d\d s; with .*; done, epoch 2", text)
    assert "the number of segments is fixed" in row_of(text, "0#0", FIXED)
    assert " 0.2 " in row_of(text, "0#0", CALM), "2 events a second, 100 bytes each, in KiB"

    again, found, _ = run(capsys, spark, root)
    assert (again, found["splits"], found["merges"], found["segments"]) == (0, 0, 0, 7)


def test_dry_run_shows_what_would_be_done_and_changes_nothing(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = folder_state(root)
    status, found, text = run(capsys, spark, root, "--dry-run")
    assert status == 0, text
    assert (found["splits"], found["merges"], found["dry_run"]) == (1, 1, True)
    assert "2 even parts" in row_of(text, "0#0", HOT)
    assert "done" not in text
    after = folder_state(root)
    assert after == before
    assert run(capsys, spark, root)[1]["splits"] == 1, "the job does what the dry run announced"


def test_only_the_named_streams_and_scopes_are_changed(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found, _ = run(capsys, spark, root, "--scope", "t", "--stream", HOT)
    assert (found["streams"], found["splits"], found["merges"]) == (2, 1, 0)
    assert not open_store(root).exists(rates_key(f"{COLD}/events"))
    assert open_store(root).exists(rates_key(f"{HOT}/events"))


def test_broken_stream_does_not_stop_the_others_and_fails_the_job(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = root / CALM / "events" / "_delta_log"
    for commit in log.glob("*.json"):
        commit.write_bytes(commit.read_bytes()[:-30])
    status, found, text = run(capsys, spark, root)
    assert status == 1
    assert (found["streams"], found["failed"], found["splits"], found["merges"]) == (4, 1, 1, 1)
    assert f"scaling: stream {CALM}: CorruptLog: " in text
    assert segments(root, HOT) == ["1#1", "2#1"]


def test_stream_that_was_deleted_meanwhile_does_not_fail_the_job(
    spark: SparkSession, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parsed = scaling.parse(["--root", str(root)])
    report = scaling.scale_streams(
        parsed, spark, job_runner.RoundInput(str(root), [FIXED, "s/none", CALM])
    )
    assert report.failures == {}
    assert report.counts["streams"] == 2


def test_quicker_pace_and_split_by_keys(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    stream = made(root, HOT, ScalingPolicy.by_event_rate(2, 4, 1), 5)
    load(stream, seconds=295, rate=5, keys=3)
    assert run(capsys, spark, root, "--dry-run")[1]["splits"] == 0
    _, found, text = run(capsys, spark, root, "--cooldown", "200 s", "--by-keys")
    assert found["splits"] == 1
    assert "parts" in row_of(text, "0#0", HOT)
    assert len(segments(root, HOT)) == 2


def test_empty_scope_prints_only_the_last_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StreamManager(tmp_path).create_scope("s")
    status, found, text = run(capsys, spark, tmp_path)
    assert (status, found["streams"], found["segments"]) == (0, 0, 0)
    assert len(text.splitlines()) == 1


def test_two_rounds_at_once_scale_once(spark: SparkSession, root: Path) -> None:
    parsed = scaling.parse(["--root", str(root)])

    def round_() -> job_runner.Report:
        given = job_runner.RoundInput(str(root), [HOT, COLD])
        return scaling.scale_streams(parsed, spark, given)

    with ThreadPoolExecutor(2) as pool:
        reports = [future.result() for future in [pool.submit(round_) for _ in range(2)]]
    assert [report.failures for report in reports] == [{}, {}]
    assert segments(root, HOT) == ["1#1", "2#1"]
    assert len(segments(root, COLD)) == 2
    assert StreamManager(root).stream_info(HOT).epoch == 1
    assert StreamManager(root).stream_info(COLD).epoch == 2
    assert max(report.counts["splits"] for report in reports) == 1


# ------------------------------------------------------------------------- as a user starts it


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *JOB, *arguments],
        env=clean_environment(PYSPARK_SUBMIT_ARGS="--master local[2] pyspark-shell"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=300)
    assert out, err
    return process.returncode, json.loads(out.splitlines()[-1]), out + err


@pytest.mark.slow
def test_running_job_scales_what_becomes_hot_and_stops_on_a_signal(root: Path) -> None:
    process = start("--root", str(root), "--stream", HOT, "--interval", "1s")
    deadline = time.monotonic() + 200
    while segments(root, HOT) != ["1#1", "2#1"]:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)
    assert process.stdout is not None
    line = re.compile(r"\d\d:\d\d:\d\d round 2: 1 streams, .* next in \d+ s\n")
    assert any(map(line.fullmatch, process.stdout)), "the second round is reported"
    process.send_signal(signal.SIGTERM)
    status, found, text = ended(process)
    assert status == 0, text
    assert found["splits"] == 1
    assert found["rounds"] >= 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "the following arguments are required: --root"),
        (("--root", "{root}", "--stream", "x"), "with one slash"),
        (("--root", "{root}", "--stream", "s/none"), "stream s/none does not exist"),
        (("--root", "{root}", "--scope", "none"), "scope none does not exist"),
        (("--root", "{root}/none"), "holds no scope"),
        (("--root", "memory://x"), "in the memory of this process"),
        (("--root", "{root}", "--interval", "soon"), "is not a valid duration"),
        (("--root", "{root}", "--interval", "0s"), "longer than 0 s"),
        (("--root", "{root}", "--cooldown", "10 ms"), "at least 1 s"),
    ],
)
def test_bad_input_is_one_clear_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    StreamManager(tmp_path).create_scope("s")
    done = launched(scaling.main, [text.format(root=tmp_path) for text in arguments], capfd)
    assert (done.status, done.out) == (2, "")
    assert says in done.err
    assert "Traceback" not in done.err
