"""Decided transactions of real processes that end, live on, or are killed, and when they are seen.

The bounds are those of docs/transactions.md, and a half more for a busy machine.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.killed_processes import PROJECT
from tests.harness.warm_children import WarmChild
from tests.harness.writer_processes import STREAM

MODULE = "tests.harness.transaction_processes"
LEASE_SECONDS, SECONDS = 10.0, 5.0
SLACK = 1.5
NAMES = tuple(f"s/{name}" for name in "abcde")


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in (STREAM, *NAMES):
        manager.create_stream(name, StreamConfiguration())
    return manager


def killed(manager: StreamManager, point: str, action: str, *streams: str) -> None:
    """Run an action in a process that is killed at a failpoint."""
    process = WarmChild(MODULE, action, manager.root.removeprefix("file://"), *streams, crash=point)
    assert process.wait(240) == -signal.SIGKILL


def decided(manager: StreamManager, name: str) -> bool:
    return any(event.data == b"decided" for event in manager.read(name))


def wait_for(manager: StreamManager, names: Iterable[str], seconds: float) -> None:
    deadline, missing = time.monotonic() + SLACK * seconds, set(names)
    while missing := {name for name in missing if not decided(manager, name)}:
        assert time.monotonic() < deadline, f"not visible in time: {sorted(missing)}"
        time.sleep(0.1)


# ------------------------------------------------------------------------------- living processes


@pytest.mark.medium
@pytest.mark.parametrize("way", ["stays", "stays with the id"])
def test_living_process_makes_its_decision_visible(manager: StreamManager, way: str) -> None:
    process = WarmChild(MODULE, "leave", manager.root.removeprefix("file://"), way)
    assert process.stdout.readline() == "ready\n"
    wait_for(manager, [STREAM], SECONDS)
    process.stdin.write("end\n")
    process.stdin.flush()
    assert process.wait(240) == -signal.SIGKILL


@pytest.mark.medium
@pytest.mark.parametrize("way", ["ends", "ends with the id"])
def test_process_that_ends_makes_its_decision_visible(manager: StreamManager, way: str) -> None:
    command = [sys.executable, "-m", MODULE, "leave", manager.root.removeprefix("file://"), way]
    done = subprocess.run(
        command, cwd=PROJECT, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
    assert decided(manager, STREAM)


@pytest.mark.medium
def test_child_of_multiprocessing_that_ends_makes_its_decision_visible(
    manager: StreamManager,
) -> None:
    process = WarmChild(MODULE, "leave", manager.root.removeprefix("file://"), "ends")
    assert process.wait(240) == 0
    assert decided(manager, STREAM)


# ------------------------------------------------------------------------------- killed processes


@pytest.mark.slow
def test_killed_decisions_are_visible_after_a_lease_where_others_append_or_read(
    manager: StreamManager,
) -> None:
    """Streams a and b have a process that appends, c and d one that reads in a group."""
    writers = [manager.create_writer(name) for name in NAMES[:2]]
    group = manager.create_reader_group("s/g", NAMES[2:4])
    reader = group.create_reader("r")
    killed(manager, "txn.decided", "decide", NAMES[0])
    killed(manager, "txn.decided", "decide", NAMES[2])
    killed(manager, "joint.decided", "decide_jointly", NAMES[1], NAMES[3], NAMES[4])
    for writer in writers:
        writer.write_event(b"appended").result(60)
    reader.read_next_event(timeout=0)
    assert not any(decided(manager, name) for name in NAMES)
    wait_for(manager, NAMES[:4], LEASE_SECONDS + SECONDS)
    assert not decided(manager, NAMES[4]), "nobody appends to it, or reads it in a group"
    reader.close()
    for writer in writers:
        writer.close()


@pytest.mark.medium
def test_next_round_of_maintenance_makes_killed_decisions_visible(manager: StreamManager) -> None:
    killed(manager, "txn.decided", "decide", NAMES[0])
    killed(manager, "joint.decided", "decide_jointly", *NAMES[1:3])
    killed(manager, "joint.closed", "decide_jointly", *NAMES[3:])
    manager.maintain(kinds=[MaintenanceKind.TRANSACTIONS.value])
    assert all(decided(manager, name) for name in NAMES)
