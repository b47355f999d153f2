"""Real processes increment counters by compare-and-set while they are killed at any moment."""

from __future__ import annotations

import collections
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.counter_processes import COUNTERS, TABLE
from tests.harness.tiers import sized

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
    pytest.mark.long,
]
WORKERS = 3
KILLS = sized(6, 120)


def test_no_increment_is_lost_or_made_twice_by_processes_that_are_killed(tmp_path: Path) -> None:
    root, end = str(tmp_path / "root"), tmp_path / "end"
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_key_value_table(TABLE, KeyValueTableConfiguration("string", partitions=3))
    chance, lives = random.Random(11), 0

    def start(worker: int) -> subprocess.Popen[str]:
        nonlocal lives
        lives += 1
        given = (root, f"w{worker}-{lives}", str(tmp_path / f"{lives}.ledger"), str(end))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.counter_processes", *given],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    processes = [start(worker) for worker in range(WORKERS)]
    try:
        for _ in range(KILLS):
            time.sleep(chance.random() * 0.6)
            killed = chance.randrange(WORKERS)
            processes[killed].kill()
            end_of(processes[killed])
            processes[killed] = start(killed)
        time.sleep(0.5)
        end.touch()
        assert [process.wait(120) for process in processes] == [0] * WORKERS
    finally:
        for process in processes:
            process.kill()
            end_of(process)

    acknowledged = collections.Counter[str]()
    updates = 0
    for path in tmp_path.glob("*.ledger"):
        for line in path.read_text().splitlines(keepends=True):
            if line.startswith("done ") and line.endswith("\n"):
                acknowledged.update(line.split()[1:])
                updates += 1
    table = manager.key_value_table(TABLE)
    found = {e.key: int(e.value) for e in table.entries() if e.key in COUNTERS}
    assert updates > WORKERS
    assert all(found[counter] >= acknowledged[counter] for counter in COUNTERS)
    open_updates = (sum(found.values()) - updates * 2) / 2
    assert 0 <= open_updates <= KILLS, "only a kill leaves an answer open"
    assert open_updates == int(open_updates), "an update changes both of its counters, or none"
    version = table.at().version
    again = StreamManager(root).key_value_table(TABLE)
    assert {e.key: e.value for e in again.at(version).entries()} == {
        e.key: e.value for e in table.entries()
    }


def end_of(process: subprocess.Popen[str]) -> None:
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
