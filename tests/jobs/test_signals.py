"""A job stops cleanly on signals of cron, systemd, Kubernetes or a terminal, at any time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness import warm_workers
from tests.harness.jvm import clean_environment
from tests.harness.tiers import sized

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


TRACEBACK = r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+\S.*\n"
CHAIN = re.compile(rf"^{TRACEBACK}(?:\n(?:During|The above) .*\n\n{TRACEBACK})*", re.MULTILINE)


def without_workers(text: str) -> str:
    """Return an output without tracebacks of Spark's Python workers.

    PySpark prints one if a cancelled worker finds its socket closed before it is killed.
    """
    worker = re.compile(r"/pyspark/(daemon|worker)\.py")
    return CHAIN.sub(lambda found: "" if worker.search(found[0]) else found[0], text)


def check_no_trace(text: str) -> None:
    for trace in ("Traceback", "\tat ", "KeyboardInterrupt"):
        assert trace not in without_workers(text), text


def submitted(root: Path, name: str) -> subprocess.Popen[str]:
    """A job under spark-submit in its own process group, after its first round."""
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
    job = [str(REPOSITORY / "jobs" / name), "--root", str(root), "--interval", "1s"]
    process = subprocess.Popen(
        [*submit, *job],
        env=clean_environment(**warm_workers.variables()),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert any("0 streams, 0 idle" in line for line in process.stdout)
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
    check_no_trace(out + err)


def test_only_tracebacks_of_workers_are_left_out() -> None:
    header = "Traceback (most recent call last):\n"
    flush = '  File "/x/pyspark/daemon.py", line 95, in worker\n    outfile.flush()\n'
    inner = '  File "/x/pravega_spark/a.py", line 1, in a\n    b()\n'
    handling = "\nDuring handling of the above exception, another exception occurred:\n\n"
    worker = f"{header}{inner}OSError: x\n{handling}{header}{flush}BrokenPipeError: [Errno 32]\n"
    assert without_workers(f"before\n{worker}after\n") == "before\nafter\n"
    job = f"{header}{inner}KeyboardInterrupt\n"
    assert without_workers(f"{worker}\n{job}") == f"\n{job}"


def listens(pid: int) -> bool:
    """Whether the job has replaced Python's own answer to SIGTERM: it is about to be imported."""
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))


def starts_spark(pid: int) -> bool:
    """Whether the job has a child, which is Spark's JVM."""
    return bool(Path(f"/proc/{pid}/task/{pid}/children").read_text())


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("is_time", "number", "interval", "status"),
    [
        (listens, signal.SIGTERM, [], 130),
        (starts_spark, signal.SIGINT, ["--interval", "1h"], 0),
        (listens, signal.SIGINT, ["--interval", "1h"], 0),
        (starts_spark, signal.SIGTERM, ["--interval", "1h"], 0),
    ][: sized(2, 4)],
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
    check_no_trace(out + err)
