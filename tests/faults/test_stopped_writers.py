"""Writers of one stream of which one stands still: the others write on, and nothing is doubled."""

from __future__ import annotations

import collections
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.faults.test_processes import check_each_once, go, ready, start, texts
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

WRITERS = 4
WAIT_SECONDS = 240.0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the others wait for the process that is stopped"
        time.sleep(0.2)


def counts(root: str) -> collections.Counter[str]:
    return collections.Counter(text.partition("-")[0] for text in texts(root))


@pytest.mark.slow
def test_others_write_on_while_a_writer_is_stopped_and_it_doubles_nothing_later(
    tmp_path: Path,
) -> None:
    """Each is stopped in its turn, so also one that commits for the others."""
    root = str(tmp_path)
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    names = [f"r{n}" for n in range(WRITERS)]
    processes = [start("write_on", root, name) for name in names]
    try:
        ready(processes)
        wait_until(lambda: min(counts(root)[name] for name in names) > 2)
        for stopped in list(range(WRITERS)) * sized(1, 10):
            processes[stopped].send_signal(signal.SIGSTOP)
            try:
                time.sleep(0.3)
                before = counts(root)
                others = [name for n, name in enumerate(names) if n != stopped]
                wait_until(lambda: all(counts(root)[o] > before[o] + 3 for o in others))  # noqa: B023
            finally:
                processes[stopped].send_signal(signal.SIGCONT)
        written = dict(zip(names, map(int, go(processes)), strict=True))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    check_each_once(texts(root), written)
