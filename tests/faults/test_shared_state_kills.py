"""Real processes update and compact one shared state while they are killed at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pravega_spark.manager import StreamManager
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from tests.harness.state_processes import STREAM, applied
from tests.harness.tiers import sized

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
    pytest.mark.long,
]
WORKERS = 3
KILLS = sized(6, 120)


def test_no_update_is_lost_or_made_twice_by_processes_that_are_killed(tmp_path: Path) -> None:
    root, end = str(tmp_path / "root"), tmp_path / "end"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))
    chance, names = random.Random(5), list[str]()

    def start() -> subprocess.Popen[str]:
        names.append(f"life{len(names)}")
        given = (root, names[-1], str(tmp_path / f"{names[-1]}.ledger"), str(end))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.state_processes", *given],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    processes = [start() for _ in range(WORKERS)]
    try:
        for _ in range(KILLS):
            time.sleep(chance.random() * 0.6)
            killed = chance.randrange(WORKERS)
            stop(processes[killed])
            processes[killed] = start()
        last = tmp_path / f"{names[-1]}.ledger"
        until = time.monotonic() + 120
        while not last.stat().st_size:
            assert time.monotonic() < until, "the last process updates nothing"
            time.sleep(0.01)
        end.touch()
        assert [process.wait(120) for process in processes] == [0] * WORKERS
    finally:
        for process in processes:
            stop(process)

    shared = manager.state_synchronizer(STREAM, applied)
    shared.fetch_updates()
    counts = dict(shared.get_state())
    total = counts.pop("all")
    acknowledged = {}
    for name in names:
        lines = (tmp_path / f"{name}.ledger").read_text().splitlines()
        assert [int(line) for line in lines] == [*range(1, len(lines) + 1)]
        acknowledged[name] = len(lines)
    assert total == sum(counts.values()), "both counts of an update are in it, or none"
    for name, count in acknowledged.items():
        assert counts.get(name, 0) - count in (0, 1), "only a kill leaves an answer open"
    assert sum(counts.values()) - sum(acknowledged.values()) <= KILLS


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
