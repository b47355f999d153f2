"""Leases of readers in real processes that work for long, hang, are stopped and are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.reader_group import ReaderGroup
from tests.harness.group_processes import GROUP, LEASE, process_slowly
from tests.harness.warm_children import FORKED
from tests.harness.writer_processes import STREAM

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and SIGSTOP"),
    pytest.mark.slow,
]
LEASE_SECONDS = 5.0


class Worker:
    """A group with one reader in another process, which works on its second event for long."""

    def __init__(self, folder: Path, seconds: float, **options: Any) -> None:
        self.manager = StreamManager(folder / "root")
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM)
        with self.manager.create_writer(STREAM) as writer:
            writer.write_events([b"0", b"1", b"2", b"3"], "k")
        self.group: ReaderGroup = self.manager.create_reader_group(
            GROUP, [STREAM], checkpoint_interval=None
        )
        self.ledger = folder / "ledger"
        given = json.dumps({"lease": LEASE, **options})
        self.process = FORKED.Process(
            target=process_slowly,
            args=(str(folder / "root"), "busy", str(self.ledger), seconds, given),
        )
        self.process.start()
        self.wait_for(lambda: self.lines() == ["0", "1"])

    def lines(self) -> list[str]:
        return self.ledger.read_text().split() if self.ledger.exists() else []

    def wait_for(self, condition: Callable[[], object], seconds: float = 240.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.lines()
            time.sleep(0.05)

    def expires_after(self) -> float:
        """Return when others expire the reader, in seconds since its last line."""
        self.wait_for(self.group.expire_readers)
        return time.time() - self.ledger.stat().st_mtime


Begin = Callable[..., Worker]


def works_for_two_leases(begin: Begin, **options: Any) -> None:
    worker = begin(2.2 * LEASE_SECONDS, **options)
    while worker.process.is_alive():
        assert worker.group.expire_readers() == []
        time.sleep(0.1)
    assert worker.lines() == ["0", "1", "2", "3", "done"]


def hangs_longer_than_max_poll_interval(begin: Begin) -> None:
    worker = begin(600.0, max_poll_interval="7 s")
    assert worker.expires_after() >= 6.5, "its lease alone is shorter"
    with worker.group.create_reader("other") as other:
        read = other.read_next_event(60.0).event
        assert read is not None
        assert read.data == b"0", "its one heartbeat reported nothing"


def is_ended_by(begin: Begin, end: signal.Signals, **options: Any) -> None:
    worker = begin(60.0 if end is signal.SIGKILL else 8.0, **options)
    pid = worker.process.pid
    assert pid is not None
    os.kill(pid, end)
    assert worker.expires_after() < 3_600, "long before its max_poll_interval"
    if end is signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
        worker.process.join(240)
        assert worker.lines() == ["0", "1", "evicted"], "it hands out nothing more"


LIVES: dict[str, Callable[[Begin], None]] = {
    "keep_alive": partial(works_for_two_leases, keep_alive=True),
    "max_poll_interval": works_for_two_leases,  # the default one
    "hangs": hangs_longer_than_max_poll_interval,
    "killed": partial(is_ended_by, end=signal.SIGKILL),
    "stopped": partial(is_ended_by, end=signal.SIGSTOP, max_poll_interval="1 hour"),
}


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """All of them, side by side: each waits for leases, and hardly computes."""
    workers: list[Worker] = []

    def live(name: str) -> None:
        def begin(seconds: float, **options: Any) -> Worker:
            workers.append(Worker(folders[name], seconds, **options))
            return workers[-1]

        LIVES[name](begin)

    folders = {name: tmp_path_factory.mktemp(name) for name in LIVES}
    with ThreadPoolExecutor(len(LIVES)) as executor:
        yield {name: executor.submit(live, name) for name in LIVES}
    for worker in workers:
        worker.process.kill()
        worker.process.join()


@pytest.mark.parametrize("how", ["keep_alive", "max_poll_interval"])
def test_reader_that_works_for_two_leases_keeps_its_segments(
    lives: dict[str, Future[None]], how: str
) -> None:
    lives[how].result()


def test_reader_that_hangs_longer_than_max_poll_interval_loses_its_segments(
    lives: dict[str, Future[None]],
) -> None:
    lives["hangs"].result()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_reader_whose_process_is_killed_or_stopped_expires_with_its_lease(
    lives: dict[str, Future[None]], how: str
) -> None:
    lives[how].result()
