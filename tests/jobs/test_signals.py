"""A job stops cleanly on signals of cron, systemd, Kubernetes or a terminal, at any time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.jvm import clean_environment

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def submitted(root: Path, name: str) -> subprocess.Popen[str]:
    """A job under spark-submit in its own process group, after its first round."""
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
    job = [str(REPOSITORY / "jobs" / name), "--root", str(root), "--interval", "1s"]
    process = subprocess.Popen(
        [*submit, *job],
        env=clean_environment(PYSPARK_PYTHON=sys.executable),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert "round 1" in process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("job", "send", "number"),
    [
        ("maintenance.py", os.kill, signal.SIGTERM),
        ("scaling.py", os.killpg, signal.SIGINT),
    ],
    ids=[
        "SIGTERM to spark-submit alone",
        "SIGINT to its process group",
    ],
)
def test_submitted_job_stops_with_its_sums_and_status_0(
    tmp_path: Path, job: str, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    StreamManager(tmp_path).create_scope("s")
    process = submitted(tmp_path, job)
    send(process.pid, number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    sums = json.loads(out.splitlines()[-1])
    assert (sums["failed"], sums["rounds"] >= 1) == (0, True)
    for trace in ("Traceback", "\tat ", "KeyboardInterrupt"):
        assert trace not in out + err


def listens(pid: int) -> bool:
    """Whether the job has replaced Python's own answer to SIGTERM: it is about to be imported."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def starts_spark(pid: int) -> bool:
    """Whether the job has a child, which is Spark's JVM."""
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("is_time", "number", "interval", "status"),
    [
        (listens, signal.SIGINT, ["--interval", "1h"], 0),
        (listens, signal.SIGTERM, [], 130),
        (starts_spark, signal.SIGINT, ["--interval", "1h"], 0),
        (starts_spark, signal.SIGTERM, ["--interval", "1h"], 0),
    ],
)
def test_signal_while_a_job_starts_ends_it_with_the_last_line(
    tmp_path: Path,
    is_time: Callable[[int], bool],
    number: signal.Signals,
    interval: list[str],
    status: int,
) -> None:
    StreamManager(tmp_path).create_scope("s")
    command = [sys.executable, "-m", "pravega_spark.jobs.scaling", "--root", str(tmp_path)]
    process = subprocess.Popen(
        [*command, *interval],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not is_time(process.pid):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=200)
    assert process.returncode == status, out + err
    assert json.loads(out.splitlines()[-1])["rounds"] == 0
    for trace in ("Traceback", "\tat ", "KeyboardInterrupt"):
        assert trace not in out + err
