"""Compaction in pairs of processes that are killed at every step, on a stream in use.

Two processes write, and one of them scales. The test truncates, commits transactions, and reads
everything after each pair. ``COMPACTION_ROUNDS=20`` runs it longer.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.manager import StreamManager
from tests.harness import stream_cuts as cuts
from tests.harness.compaction_processes import compact, sweep_now
from tests.harness.retention_audit import check_events
from tests.harness.retention_processes import BATCH, KEYS, write
from tests.harness.tiers import sized
from tests.harness.warm_children import FORKED
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

ROUNDS = sized(1, 5, "COMPACTION_ROUNDS")
POINTS = (
    "compact.planned",
    "compact.written",
    "compact.staged",
    "compact.commit",
    "commit.before",
    "commit.applied",
    "compact.committed",
)


class StreamInUse:
    """A stream, the processes that write it, and runs of its compaction."""

    def __init__(self, folder: Path) -> None:
        self.root, self.stop = str(folder / "root"), folder / "stop"
        self.manager = StreamManager(self.root)
        self.manager.create_scope("s")
        configuration = StreamConfiguration(ScalingPolicy.by_event_rate(target=1_000))
        self.manager.create_stream(STREAM, configuration)
        self.processes: list[Any] = []

    def start(self, function: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        process = FORKED.Process(target=function, args=arguments, kwargs=options, daemon=True)
        process.start()
        self.processes.append(process)
        return process

    def run(self, function: Callable[..., None], *kills: str) -> set[str]:
        """Run a function in one process for each kill; return the points that killed one."""
        runs = [self.start(function, self.root, *([kill] if kill else [])) for kill in kills]
        for process in runs:
            process.join(240)
        for process, kill in zip(runs, kills, strict=True):
            assert process.exitcode in ((0, -signal.SIGKILL) if kill else (0,))
        return {kill for process, kill in zip(runs, kills, strict=True) if process.exitcode}

    def truncate(self) -> None:
        """Move the head by some events."""
        view = open_stream(self.root, STREAM).view()
        cut = cuts.next_cut(view, view.head, 25)
        self.manager.truncate_stream(STREAM, cut)

    def commit_transaction(self) -> None:
        with (
            self.manager.create_transactional_writer(STREAM) as writer,
            writer.begin_transaction() as transaction,
        ):
            transaction.write_event(b"grown 0000000", "grown")

    def files(self) -> int:
        return self.manager.stream_info(STREAM).files.files

    def last_numbers(self) -> dict[str, int]:
        """Read and check all events; return the last number of each writer and key."""
        events = ((str(event.routing_key), event.data) for event in self.manager.read(STREAM))
        return check_events(event for event in events if event[0] != "grown")


@pytest.fixture
def used(tmp_path: Path) -> Iterator[StreamInUse]:
    made = StreamInUse(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.long
def test_compaction_killed_at_every_step_loses_and_repeats_nothing(used: StreamInUse) -> None:
    writers = [
        used.start(write, used.root, f"w{n}", str(used.stop), scales=n == 0) for n in range(2)
    ]
    for _ in range(ROUNDS):
        left = list(POINTS)
        for attempt in range(20 * len(POINTS)):
            if not left:
                break
            killed = used.run(compact, *(left * 2)[:2])
            left = [point for point in left[2:] + left[:2] if point not in killed]
            if attempt % 3 == 0:
                used.truncate()
            used.commit_transaction()
            used.last_numbers()
        assert left == []
    used.stop.touch()
    for process in writers:
        process.join(240)
    for _ in range(60):  # files enough for a merge, whatever the killed runs have merged
        used.commit_transaction()
    before = used.files()
    for _ in range(4):
        used.run(compact, "never", "never")
    assert used.files() < before
    expected = used.last_numbers()
    assert {name.partition("/")[0] for name in expected} == {"w0", "w1"}
    assert expected == written(used.manager)
    used.run(sweep_now, "")
    used.run(sweep_now, "")
    assert used.last_numbers() == expected


def written(manager: StreamManager) -> dict[str, int]:
    """Return the last acknowledged number of each writer and key."""
    found = {}
    for name in ("w0", "w1"):
        with manager.create_writer(STREAM, name) as writer:
            count = writer.last_event_number
        assert count % BATCH == 0
        for number in range(count - len(KEYS), count):
            found[f"{name}/{KEYS[number % len(KEYS)]}"] = number
    return found
