"""The pool of docs/batch-reads.md, run as the script that a reader would save."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from tests.harness.page_examples import REPOSITORY, examples_of


@pytest.mark.medium
def test_pool_of_processes_reads_every_event_of_all_ranges(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/batch-reads.md").read_text()
    (pool,) = (example for example in examples_of(page) if "ProcessPoolExecutor" in example.code)
    assert pool.reason is not None
    assert Path(__file__).name in pool.reason
    manager = StreamManager(tmp_path / "streams")
    manager.create_scope("shop")
    manager.create_stream("shop/orders", StreamConfiguration(ScalingPolicy.fixed(3)))
    with manager.create_writer("shop/orders") as writer:
        for number in range(50):
            writer.write_event(b"x" * number, routing_key=f"customer {number}")
    script = tmp_path / "total_bytes.py"
    script.write_text(pool.code.replace("/tmp/", f"{tmp_path}/"))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{sum(range(50))}\n"), done.stderr
