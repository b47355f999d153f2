"""A job whose task was repeated says so, and tells meanwhile how far it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness import warm_workers
from tests.harness.jvm import clean_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).resolve().parents[2]


def test_job_says_that_a_task_was_repeated_and_its_sums_are_the_least(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in "abc":
        manager.create_stream(f"s/{name}")
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "tests/harness/repeating_app.py"), str(tmp_path)],
        env=clean_environment(**warm_workers.variables(), PYTHONPATH=str(REPOSITORY)),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["streams"], found["failed"], found["repeated"]) == (3, 0, 1)
    assert "scaling: Spark has repeated the work on 1 stream" in done.stderr
    assert "they are lower bounds" in done.stderr
    assert "of 3 streams, last s/" in done.stderr
