"""Retention in pairs of processes that are killed at every step, on a stream in use.

Two processes write, one of them also scales, and a third acts as the subscribers: a slow one, a
fast one, one that moves back, one that joins late and an idle one. ``RETENTION_ROUNDS=50`` runs it
longer.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import ScopeNotEmpty
from pravega_spark.manager import StreamManager
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
from tests.harness.warm_children import FORKED
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

ROUNDS = sized(1, 5, "RETENTION_ROUNDS")
WAIT_SECONDS = 240.0
"""How long a process may take for its work, on a machine that is busy with much else."""
RUNS = 40
"""Most pairs of runs for one goal; each pair has a new chance to reach it."""
DECIDING = (
    "retention.decided",
    "truncate.history",
    "commit.before",
    "commit.applied",
    "retention.truncated",
    "sweep.history",
)
SWEEPING = (
    "commit.before:2",
    "maintain.checkpoint",
    "sweep.delete",
    "sweep.recorded",
    "cleanup.delete",
)
Ages = tuple[float, float, float, float | None]
"""Grace, retained age of versions, wait of a clean-up and expiry of subscribers, in seconds."""
LIVE: Ages = (2.0, 5.0, 3_600.0, EXPIRE_SECONDS)
PATIENT: Ages = (2.0, 5.0, 3_600.0, None)
QUIET: Ages = (0.0, 0.0, 0.2, None)


class StreamInUse:
    """A stream, the processes that use it, and runs of its retention."""

    def __init__(self, folder: Path) -> None:
        self.root, self.stop = str(folder / "root"), folder / "stop"
        self.manager = StreamManager(self.root)
        self.manager.create_scope("s")
        self.set_policy(RetentionPolicy.by_consumption())
        self.stream = open_stream(self.root, STREAM)
        self.table = folder / "root" / STREAM / "events"
        self.processes: list[Any] = []
        self.killed = Counter[str]()

    def set_policy(self, policy: RetentionPolicy) -> None:
        """Set the retention policy of the stream, which is created by the first call."""
        scaling = ScalingPolicy.by_event_rate(target=1_000)  # no job scales it
        configuration = StreamConfiguration(scaling, policy)
        if not self.manager.create_stream(STREAM, configuration):
            self.manager.update_stream(STREAM, configuration)

    def start_all(self) -> None:
        """Start the writers and the subscribers."""
        for number in range(2):
            self.start(write, self.root, f"w{number}", str(self.stop), scales=number == 0)
        self.start(consume, self.root, str(self.stop))

    def start(self, function: Callable[..., None], *arguments: Any, **options: Any) -> Any:
        """Start a process that runs a function."""
        process = FORKED.Process(target=function, args=arguments, kwargs=options, daemon=True)
        process.start()
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Stop all processes."""
        self.stop.touch()
        for process in self.processes:
            process.join(WAIT_SECONDS)
            assert process.exitcode in (0, -signal.SIGKILL)

    def retain(self, ages: Ages, *kills: str) -> list[int]:
        """Run retention in one process for each kill; return the exit codes."""
        runs = [self.start(retain, self.root, kill, *ages) for kill in kills]
        for process in runs:
            process.join(WAIT_SECONDS)
        self.stream.log.forget()  # commits are deleted that this process knows, without an hour
        for process, kill in zip(runs, kills, strict=True):
            assert process.exitcode in ((0, -signal.SIGKILL) if kill else (0,))
            self.killed[kill] += process.exitcode == -signal.SIGKILL
        return [process.exitcode for process in runs]

    def retain_at_all(self, ages: Ages, points: tuple[str, ...]) -> None:
        """Run retention in pairs until a run was killed at each point, and then without kills."""
        left = list(points)
        for _ in range(RUNS):
            if not left:
                break
            kills = (left * 2)[:2]
            codes = self.retain(ages, *kills)
            reached = {point for point, code in zip(kills, codes, strict=True) if code}
            left = [point for point in left[2:] + left[:2] if point not in reached]
            self.grow()
        assert not left, f"never killed at {left}"
        for _ in range(2):
            self.retain(ages, "", "")

    def retain_until_heads_moved(self) -> None:
        """Run retention until subscribers have expired, and heads moved for both reasons."""
        for run in range(RUNS):
            seen = set(History(self.stream).check())
            if seen >= {"consumed", "expired", "maximum"}:
                return
            maximum = "1 KB" if "consumed" in seen and run % 2 else None
            self.set_policy(RetentionPolicy.by_consumption(maximum=maximum))
            for _ in range(2):
                self.retain(LIVE, "", "")
        raise AssertionError(f"the runs did only {seen}")

    def keep_all_from_now_on(self) -> None:
        """Let retention delete nothing more; return when each writer has written each key again.

        Where subscribers are faster than writers, all events of a key may be deleted before.
        """
        self.set_policy(RetentionPolicy.by_size("1 TB"))
        left = {(f"w{number}", key) for number in range(2) for key in KEYS}
        for event in self.manager.follow(STREAM, self.manager.tail(STREAM), timeout=WAIT_SECONDS):
            left.discard((event.data.decode().partition(" ")[0], str(event.routing_key)))
            if not left:
                return
        raise AssertionError(f"not written any more: {left}")

    def grow(self) -> None:
        """Write events if the writers have stopped, so that the next run has work."""
        if self.stop.exists():
            with self.manager.create_writer(STREAM) as writer:
                for _ in range(3):
                    writer.write_event(b"grown 0000000", "grown").result()

    def comes_to_rest(self) -> bool:
        """Run retention in pairs; return whether a pair soon changes nothing."""
        for _ in range(8):
            before = self._state()
            self.retain(QUIET, "", "")
            if self._state() == before:
                return True
        return False

    def _state(self) -> tuple[int, set[str]]:
        """Return the version and all files of the table."""
        files = {str(path) for path in self.table.rglob("*") if path.is_file()}
        return self.stream.view().version, files


@pytest.fixture
def used(tmp_path: Path) -> Iterator[StreamInUse]:
    made = StreamInUse(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.long
def test_retention_killed_at_every_step_passes_no_bound_and_loses_nothing(
    used: StreamInUse,
) -> None:
    used.start_all()
    for _ in range(ROUNDS):
        used.set_policy(RetentionPolicy.by_consumption())
        used.retain_at_all(LIVE, DECIDING)
        used.set_policy(RetentionPolicy.by_consumption(minimum="200 bytes", maximum="1 KB"))
        used.retain_at_all(LIVE, DECIDING[:4])
    used.retain_until_heads_moved()
    used.keep_all_from_now_on()
    used.end()
    used.retain(LIVE, "", "")
    History(used.stream).check()
    check_files(used.table, used.stream.view().snapshot.retention_mark)
    ends = last_numbers(used.manager)
    assert ends == written(used.manager)

    head = used.manager.head(STREAM)
    used.retain_at_all(QUIET, SWEEPING)
    assert used.comes_to_rest(), "runs never stop changing the stream"
    assert used.manager.head(STREAM) == head
    retention_mark = used.stream.view().snapshot.retention_mark
    assert retention_mark > 0
    assert check_files(used.table, retention_mark) > 0
    assert last_numbers(used.manager) == ends
    assert {point for point, count in used.killed.items() if count} == {*DECIDING, *SWEEPING}


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
def test_killed_creation_or_deletion_of_a_group_is_finished_by_two_concurrent_runs(
    used: StreamInUse, verb: str, point: str
) -> None:
    manager = used.manager
    with manager.create_writer(STREAM) as writer:
        writer.write_events([b"%03d" % number for number in range(100)], "key")
    head, tail = manager.head(STREAM), manager.tail(STREAM)
    subscriber(manager, "fast").publish({STREAM: tail})
    if verb == "delete":
        subscriber(manager, "slow")
    process = used.start(change, used.root, verb, point)
    process.join(WAIT_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(ScopeNotEmpty, match="slow"):
        manager.delete_scope("s")

    used.retain(PATIENT, "", "")
    if verb == "create":
        assert manager.head(STREAM) == head
        assert manager.retention(STREAM).explain().held_by == "subscriber s/slow"
    else:
        assert manager.head(STREAM) == tail
        assert manager.list_reader_groups("s") == ["s/fast"]


def last_numbers(manager: StreamManager) -> dict[str, int]:
    """Check all events of the writers; return the last number of each writer and key."""
    events = ((str(event.routing_key), event.data) for event in manager.read(STREAM))
    return check_events(event for event in events if event[0] != "grown")


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
