"""A job under spark-submit stops cleanly on signals of cron, systemd, Kubernetes or a terminal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark import StreamManager

REPOSITORY = Path(__file__).resolve().parents[2]
LIGHT = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def submitted(root: Path) -> subprocess.Popen[str]:
    """A job under spark-submit in its own process group, after its first round."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--master", "local[1]"]
    job = [str(REPOSITORY / "jobs" / "scaling.py"), "--root", str(root), "--interval", "1s"]
    process = subprocess.Popen(
        [*submit, "--driver-java-options", LIGHT, *job],
        env={**kept, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert "round 1" in process.stdout.readline()
    return process


@pytest.mark.parametrize(
    ("send", "number"),
    [(os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT)],
    ids=[
        "SIGTERM to spark-submit alone",
        "SIGINT to its process group",
    ],
)
def test_a_submitted_job_stops_with_its_sums_and_status_0(
    tmp_path: Path, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    StreamManager(tmp_path).create_scope("s")
    process = submitted(tmp_path)
    send(process.pid, number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    sums = json.loads(out.splitlines()[-1])
    assert (sums["failed"], sums["rounds"] >= 1) == (0, True)
    for trace in ("Traceback", "\tat ", "KeyboardInterrupt"):
        assert trace not in out + err
