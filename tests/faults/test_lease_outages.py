"""Leases in real processes while a real S3 server is stopped for longer than they last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.faults.test_processes import PROJECT
from tests.harness.group_audit import Ledger
from tests.harness.group_processes import GROUP
from tests.harness.s3_outages import S3Outages
from tests.harness.s3_server import S3Server, start_s3
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

pytestmark = [pytest.mark.s3, pytest.mark.long]

OUTAGE_SECONDS = float(sized(12, 45))
"""Longer than the leases: 5 s of the readers, 10 s of the transaction."""
AFTER_SECONDS = float(sized(2, 30))
READERS = ("a", "b", "c")
CALL = "import sys; from tests.harness.group_processes import {0}; {0}(*sys.argv[1:])"
SWEEP = (
    "import sys; from tests.harness.writer_processes import STREAM, manager_of; "
    "print(len(manager_of(sys.argv[1]).sweep_transactions(STREAM).aborted))"
)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with start_s3("leases") as server:
        yield server


@pytest.fixture(scope="module")
def outages(server: S3Server) -> Iterator[S3Outages]:
    with S3Outages(server) as outages:
        yield outages


class Processes:
    """Readers of a group, a writer, and a transaction, each in a process of its own."""

    def __init__(self, server: S3Server, folder: Path) -> None:
        self.root, self.folder = f"s3://{server.bucket}/{folder.name}", folder
        self.options = {**server.options, "read_timeout": "1 s"}
        self.manager = StreamManager(self.root, storage_options=self.options)
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(4)))
        self.manager.create_reader_group(GROUP, [STREAM])
        self.running: dict[str, subprocess.Popen[str]] = {}
        for reader in READERS:
            self.start(reader, "read", reader, str(folder / reader))
        self.start("writer", "write", "w")

    def start(self, name: str, function: str, *arguments: str) -> None:
        self.running[name] = self.python(CALL.format(function), *arguments)

    def python(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, self.root, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
            env={**os.environ, "STORAGE_OPTIONS": json.dumps(self.options)},
        )

    def ledgers(self) -> dict[str, Ledger]:
        paths = {reader: self.folder / reader for reader in READERS}
        return {r: Ledger.of(p.read_text() if p.exists() else "") for r, p in paths.items()}

    def aborted(self) -> int:
        """Return how many transactions a new process aborts, as a job that runs once."""
        out, _ = self.python(SWEEP).communicate(timeout=240)
        return int(out)

    def taken_over(self) -> list[str]:
        log = self.manager.reader_group(GROUP)._lifecycle.sync.table.log
        snapshot = log.refresh()
        assert snapshot is not None
        span = log.reader.span(-1, snapshot.version)
        return [commit.operation for commit in span if "TAKE OVER" in commit.operation]

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
            process.communicate()


@pytest.fixture
def processes(server: S3Server, tmp_path: Path) -> Iterator[Processes]:
    made = Processes(server, tmp_path)
    yield made
    made.end()


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_stopped_server_expires_no_reader_and_no_transaction(
    processes: Processes, outages: S3Outages
) -> None:
    writer = processes.manager.create_transactional_writer(STREAM)
    transaction = writer.begin_transaction(lease="10 s")
    transaction.write_event(b"t 0", "t")
    transaction.flush()
    wait_for(lambda: all(ledger.events for ledger in processes.ledgers().values()))
    transaction.ping()
    outages.stop(OUTAGE_SECONDS)
    assert processes.aborted() == 0, "the first that looks has met no outage"
    counts = {name: len(ledger.events) for name, ledger in processes.ledgers().items()}
    time.sleep(AFTER_SECONDS)
    wait_for(lambda: all(len(x.events) > counts[n] for n, x in processes.ledgers().items()))
    assert processes.aborted() == 0
    assert transaction.status is TransactionStatus.OPEN
    transaction.commit()
    writer.close()
    processes.manager.seal_stream(STREAM)
    for process in processes.running.values():
        assert process.wait(240) == 0
    ledgers = processes.ledgers()
    assert {name: ledger.end for name, ledger in ledgers.items()} == dict.fromkeys(READERS, "done")
    assert processes.taken_over() == []
    written = [e.data.decode() for e in processes.manager.read(STREAM)]
    found = [f"{e.writer} {e.number}" for ledger in ledgers.values() for e in ledger.events]
    assert Counter(found) == Counter(written), "each event once"
    assert "t 0" in found


def test_reader_killed_in_the_outage_expires_one_lease_after_it(
    processes: Processes, outages: S3Outages
) -> None:
    wait_for(lambda: all(ledger.events for ledger in processes.ledgers().values()))
    os.kill(processes.running["a"].pid, signal.SIGKILL)
    outages.stop(6.0)
    began = time.monotonic()
    group = processes.manager.reader_group(GROUP)
    wait_for(lambda: group.online_readers() == ["b", "c"])
    assert time.monotonic() - began >= 2.0, "not as soon as it answers"
    (operation,) = processes.taken_over()
    assert "TAKE OVER" in operation
