from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.serializers import read_int, write_with_length

from bench.harness.cpu_time import CpuMeter, compare

_BUSY_WORKER = """
import time
def main(infile, outfile):
    while time.process_time() < 0.3:
        pass
    raise SystemExit(1)
"""


def test_processor_time_of_children_counts() -> None:
    meter = CpuMeter()
    with meter:
        subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert meter.seconds[0] > 0
    assert "against" in compare(meter, meter)


@pytest.mark.slow
def test_processor_time_of_ended_python_workers_counts(tmp_path: Path) -> None:
    """PySpark's own daemon loses the time of a worker that ends."""
    (tmp_path / "pyspark_busy.py").write_text(_BUSY_WORKER)
    folders = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": folders, "PYTHON_WORKER_FACTORY_SECRET": "s"}
    meter = CpuMeter()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.harness.counted_daemon", "pyspark_busy"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as daemon:
        port = read_int(daemon.stdout)
        with meter:
            _run_worker(port)
        assert daemon.stdin is not None
        daemon.stdin.close()  # ends the daemon
    assert meter.seconds[0] >= 0.25


def _run_worker(port: int) -> None:
    """Start one worker of the daemon as the JVM does, and wait until it has ended."""
    with (
        socket.create_connection(("127.0.0.1", port)) as connection,
        connection.makefile("rwb") as stream,
    ):
        process = read_int(stream)
        write_with_length(b"s", stream)
        stream.flush()
        assert stream.read(6) == b"\0\0\0\2ok"
    while Path(f"/proc/{process}").exists():
        time.sleep(0.01)
