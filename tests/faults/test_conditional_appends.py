"""Real processes count together by conditional appends while they are killed at any moment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness import conditional_processes
from tests.harness.killed_processes import KilledProcesses, wait_until
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
    pytest.mark.long,
]
WRITERS = 3
KILLS = sized(3, 120)


def counting(folder: Path, verb: str) -> tuple[KilledProcesses, StreamManager]:
    """Return processes that count in a new stream of one segment, each under its worker's name."""
    root = str(folder / "root")
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))
    processes = KilledProcesses(
        folder,
        "tests.harness.conditional_processes",
        lambda worker, life: (verb, root, f"w{worker}"),
        seed=7,
    )
    return processes, manager


def test_no_number_is_lost_or_taken_twice_by_writers_that_are_killed(tmp_path: Path) -> None:
    processes, manager = counting(tmp_path, "count_up")
    processes.run(WRITERS, KILLS)
    events = [event.data.decode() for event in manager.read(STREAM)]
    numbers = [int(text.split()[0]) for text in events]
    assert numbers == [*range(1, len(numbers) + 1)], "each append was decided on the one before"
    acknowledged = processes.acknowledged()
    assert len(set(acknowledged)) == len(acknowledged) > WRITERS
    assert set(acknowledged) <= set(events)
    assert len(events) - len(acknowledged) <= KILLS, "only a kill leaves an answer open"
    assert len({text.split()[1] for text in events}) == WRITERS


def test_shared_counter_counts_each_addition_once_over_kills_and_compactions(
    tmp_path: Path,
) -> None:
    """It ends when a compaction has truncated the stream."""
    processes, manager = counting(tmp_path, "share")
    processes.run(
        WRITERS, KILLS, lambda: wait_until(lambda: dict(manager.head(STREAM))[0] > 0, "compact")
    )
    with manager.state_synchronizer(STREAM, conditional_processes.add) as counter:
        counter.fetch_updates()
        total = counter.get_state()
    numbers = [int(line.split()[0]) for line in processes.acknowledged()]
    assert len(set(numbers)) == len(numbers) > WRITERS, "no two were the same addition"
    assert max(numbers) <= total <= len(numbers) + KILLS, "only a kill leaves an answer open"
