"""Real processes count together by conditional appends while they are killed at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pravega_spark.manager import StreamManager
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from tests.harness import conditional_processes
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
    pytest.mark.long,
]
WRITERS = 3
KILLS = sized(6, 120)


def end_of(process: subprocess.Popen[str]) -> None:
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class CountingProcesses:
    """Processes that count in one stream, some of which are killed and begin again."""

    def __init__(self, folder: Path, verb: str) -> None:
        self.folder, self.verb, self.lives = folder, verb, 0
        self.root, self.end = str(folder / "root"), folder / "end"
        self.manager = StreamManager(self.root)
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))

    def start(self, writer: int) -> subprocess.Popen[str]:
        self.lives += 1
        ledger = self.folder / f"{self.lives}.ledger"
        given = (self.verb, self.root, f"w{writer}", str(ledger), str(self.end))
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.conditional_processes", *given],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def run(self, kills: int) -> None:
        chance = random.Random(7)
        processes = [self.start(n) for n in range(WRITERS)]
        try:
            for _ in range(kills):
                time.sleep(chance.random() * 0.6)
                killed = chance.randrange(WRITERS)
                processes[killed].kill()
                end_of(processes[killed])
                processes[killed] = self.start(killed)
            time.sleep(0.5)
            self.end.touch()
            assert [process.wait(120) for process in processes] == [0] * WRITERS
        finally:
            for process in processes:
                process.kill()
                end_of(process)

    def acknowledged(self) -> list[str]:
        """The lines of all ledgers; one that a kill cut off was not recorded."""
        return [
            line.removesuffix("\n")
            for path in self.folder.glob("*.ledger")
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]


def test_no_number_is_lost_or_taken_twice_by_writers_that_are_killed(tmp_path: Path) -> None:
    counting = CountingProcesses(tmp_path, "count_up")
    counting.run(KILLS)
    events = [event.data.decode() for event in counting.manager.read(STREAM)]
    numbers = [int(text.split()[0]) for text in events]
    assert numbers == [*range(1, len(numbers) + 1)], "each append was decided on the one before"
    acknowledged = counting.acknowledged()
    assert len(set(acknowledged)) == len(acknowledged) > WRITERS
    assert set(acknowledged) <= set(events)
    assert len(events) - len(acknowledged) <= KILLS, "only a kill leaves an answer open"
    assert len({text.split()[1] for text in events}) == WRITERS


def test_shared_counter_counts_each_addition_once_over_kills_and_compactions(
    tmp_path: Path,
) -> None:
    counting = CountingProcesses(tmp_path, "share")
    counting.run(KILLS)
    with counting.manager.state_synchronizer(STREAM, conditional_processes.add) as counter:
        counter.fetch_updates()
        total = counter.get_state()
    numbers = [int(line.split()[0]) for line in counting.acknowledged()]
    assert len(set(numbers)) == len(numbers) > WRITERS, "no two were the same addition"
    assert max(numbers) <= total <= len(numbers) + KILLS, "only a kill leaves an answer open"
    assert dict(counting.manager.head(STREAM))[0] > 0, "compactions have truncated the stream"
