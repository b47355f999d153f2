"""Retention in pairs of processes that are killed at every step, on a stream that is in use.

Two processes write, one of them scales, and one is the subscribers: a slow one, a fast one, one
that goes back, one that comes late and one that is dead. ``RETENTION_ROUNDS=50`` runs it longer.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import ScopeNotEmpty
from pravega_spark.manager import StreamManager
from pravega_spark.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from tests.harness.retention_audit import History, check_events, check_files
from tests.harness.retention_processes import (
    BATCH,
    EXPIRE_SECONDS,
    KEYS,
    change,
    consume,
    retain,
    subscriber,
    write,
)
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

ROUNDS = sized(1, 10, "RETENTION_ROUNDS")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.harness.retention_processes"])
LIMIT_SECONDS = 90.0 * ROUNDS
DECIDING = (
    "retention.decided",
    "truncate.history",
    "commit.before",
    "commit.applied",
    "retention.truncated",
    "sweep.history",
)
SWEEPING = ("commit.before:2", "maintain.checkpoint", "sweep.delete", "cleanup.delete")
Ages = tuple[float, float, float, float | None]
"""Grace, age of old versions, standing of a mark and expiry of subscribers, in seconds."""
LIVE: Ages = (2.0, 5.0, 3_600.0, EXPIRE_SECONDS)
PATIENT: Ages = (2.0, 5.0, 3_600.0, None)
QUIET: Ages = (0.0, 0.0, 0.2, None)


class Theatre:
    """A stream, who uses it, and its retention."""

    def __init__(self, folder: Path) -> None:
        self.root, self.stop = str(folder / "root"), folder / "stop"
        self.manager = StreamManager(self.root)
        self.manager.create_scope("s")
        self.keep(RetentionPolicy.by_consumption())
        self.stream = open_stream(self.root, STREAM)
        self.table = folder / "root" / STREAM / "events"
        self.actors: list[Any] = []
        self.killed = Counter[str]()

    def keep(self, policy: RetentionPolicy) -> None:
        """Set the policy of the stream."""
        scaling = ScalingPolicy.by_event_rate(target=1_000)  # by a job that does not run here
        configuration = StreamConfiguration(scaling, policy)
        if not self.manager.create_stream(STREAM, configuration):
            self.manager.update_stream(STREAM, configuration)

    def play(self) -> None:
        """Start all but retention."""
        for number in range(2):
            told = (self.root, f"w{number}", str(self.stop))
            self.start(write, *told, scales=number == 0)
        self.start(consume, self.root, str(self.stop))

    def start(self, what: Any, *arguments: Any, **options: Any) -> Any:
        """Start a process."""
        process = PROCESSES.Process(target=what, args=arguments, kwargs=options, daemon=True)
        process.start()
        self.actors.append(process)
        return process

    def end(self) -> None:
        """Let the others come to their ends."""
        self.stop.touch()
        for process in self.actors:
            process.join(30)
            assert process.exitcode in (0, -signal.SIGKILL)

    def retain(self, ages: Ages, *crashes: str) -> list[int]:
        """Run retention in as many processes at once; return how they ended."""
        runs = [self.start(retain, self.root, crash, *ages) for crash in crashes]
        for process in runs:
            process.join(60)
        for process, crash in zip(runs, crashes, strict=True):
            assert process.exitcode in ((0, -signal.SIGKILL) if crash else (0,))
            self.killed[crash] += process.exitcode == -signal.SIGKILL
        return [process.exitcode for process in runs]

    def retain_at_all(self, ages: Ages, points: tuple[str, ...]) -> None:
        """Run it in pairs until it was killed at every point, and then in peace."""
        left, deadline = list(points), time.monotonic() + LIMIT_SECONDS
        while left:
            assert time.monotonic() < deadline, f"never killed at {left}"
            crashes = (left * 2)[:2]
            ends = self.retain(ages, *crashes)
            died = {c for c, end in zip(crashes, ends, strict=True) if end}
            left = [point for point in left[2:] + left[:2] if point not in died]
            self.grow()
        for _ in range(2):
            self.retain(ages, "", "")

    def grow(self) -> None:
        """Commit something, so that there is more to do once nobody else writes."""
        if self.stop.exists():
            with self.manager.create_writer(STREAM) as writer:
                for _ in range(3):
                    writer.write_event(b"grown 0000000", "grown").result()

    def comes_to_rest(self) -> bool:
        """Run in pairs until a pair changes nothing; tell whether one does soon."""
        for _ in range(8):
            before = self._all()
            self.retain(QUIET, "", "")
            if self._all() == before:
                return True
        return False

    def _all(self) -> tuple[int, set[str]]:
        """Return the version and all files of the table."""
        files = {str(path) for path in self.table.rglob("*") if path.is_file()}
        return self.stream.view().version, files


@pytest.fixture
def theatre(tmp_path: Path) -> Iterator[Theatre]:
    made = Theatre(tmp_path)
    yield made
    for process in made.actors:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.long
def test_killed_at_every_step_retention_passes_no_bound_and_loses_nothing(
    theatre: Theatre,
) -> None:
    theatre.play()
    for _ in range(ROUNDS):
        theatre.keep(RetentionPolicy.by_consumption())
        theatre.retain_at_all(LIVE, DECIDING)
        theatre.keep(RetentionPolicy.by_consumption(minimum="200 bytes", maximum="1 KB"))
        theatre.retain_at_all(LIVE, DECIDING[:4])
    theatre.end()
    theatre.retain(LIVE, "", "")
    allowed = Counter(History(theatre.stream).check())
    assert allowed["consumed"]
    assert allowed["expired"]
    assert allowed["maximum"]
    check_files(theatre.table, theatre.stream.view().snapshot.cleanup)
    ends = last_numbers(theatre.manager)
    assert ends == written(theatre.manager)

    head = theatre.manager.head(STREAM)
    theatre.keep(RetentionPolicy.by_size("1 TB"))
    theatre.retain_at_all(QUIET, SWEEPING)
    assert theatre.comes_to_rest(), "runs find something to do for ever"
    assert theatre.manager.head(STREAM) == head
    mark = theatre.stream.view().snapshot.cleanup
    assert mark > 0
    assert check_files(theatre.table, mark) > 0
    assert last_numbers(theatre.manager) == ends
    assert {crash for crash, count in theatre.killed.items() if count} == {*DECIDING, *SWEEPING}


@pytest.mark.parametrize(
    ("verb", "point"),
    [
        ("create", "group.create.row"),
        ("create", "group.change.noted"),
        ("create", "group.change.subscribed"),
        ("delete", "group.change.noted"),
        ("delete", "group.change.subscribed"),
    ],
)
def test_a_group_whose_creator_or_deleter_was_killed_is_finished_by_two_runs_at_once(
    theatre: Theatre, verb: str, point: str
) -> None:
    manager = theatre.manager
    with manager.create_writer(STREAM) as writer:
        writer.write_events([b"%03d" % number for number in range(100)], "key")
    head, tail = manager.head(STREAM), manager.tail(STREAM)
    subscriber(manager, "fast").publish({STREAM: tail})
    if verb == "delete":
        subscriber(manager, "slow")
    process = theatre.start(change, theatre.root, verb, point)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(ScopeNotEmpty, match="slow"):
        manager.delete_scope("s")

    theatre.retain(PATIENT, "", "")
    if verb == "create":
        assert manager.head(STREAM) == head
        assert manager.retention(STREAM).explain().held_by == "subscriber s/slow"
    else:
        assert manager.head(STREAM) == tail
        assert manager.list_reader_groups("s") == ["s/fast"]


def last_numbers(manager: StreamManager) -> dict[str, int]:
    """Return the last number of each writer and key, which follow one another without a gap."""
    events = ((str(event.routing_key), event.data) for event in manager.read(STREAM))
    return check_events(event for event in events if event[0] != "grown")


def written(manager: StreamManager) -> dict[str, int]:
    """Return the last numbers that writers had acknowledged."""
    found = {}
    for name in ("w0", "w1"):
        with manager.create_writer(STREAM, name) as writer:
            count = writer.last_event_number
        assert count % BATCH == 0
        for number in range(count - len(KEYS), count):
            found[f"{name}/{KEYS[number % len(KEYS)]}"] = number
    return found
