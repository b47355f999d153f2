"""Readers that live for seconds, in real processes, and rounds of maintenance that run once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
]
LEASE = 5.0
CONSUME = """
import sys, time
import pravega_spark
group = pravega_spark.StreamManager(sys.argv[1]).reader_group("s/g")
with group.create_reader("r", lease=5) as reader:
    for number in range(8):
        print(reader.read_next_event(10).event.data.decode(), flush=True)
        time.sleep(0.5)
"""


@pytest.fixture
def root(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    kept = StreamConfiguration(retention=RetentionPolicy.by_consumption())
    manager.create_stream("s/t", kept)
    with manager.create_writer("s/t") as writer:
        writer.write_events([b"%d" % n for n in range(20)], routing_key="k")
    manager.create_reader_group("s/g", ["s/t"], retention="automatic")
    return manager


def consumer(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONSUME, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def maintain_once(path: Path) -> int:
    """Run maintenance once in a process of its own; return how many events it truncated."""
    command = [sys.executable, "-m", "pravega_spark.cli", "maintain", "--root", str(path)]
    done = subprocess.run(
        [*command, "--once", "--kinds", "retention"], capture_output=True, text=True, check=True
    )
    events: int = json.loads(done.stdout.splitlines()[-1])["retention_events"]
    return events


def test_consumer_that_reads_for_seconds_and_exits_holds_nothing(
    root: StreamManager, tmp_path: Path
) -> None:
    with consumer(tmp_path) as exits:
        assert exits.wait(240) == 0
    assert maintain_once(tmp_path) == 8
    assert root.head("s/t").positions == {0: 8}


def test_consumer_that_is_killed_releases_what_it_reported_by_rounds_that_run_once(
    root: StreamManager, tmp_path: Path
) -> None:
    with consumer(tmp_path) as killed:
        assert killed.stdout is not None
        assert [killed.stdout.readline() for _ in range(6)][-1] == "5\n"
        killed.send_signal(signal.SIGKILL)
    group = root.reader_group("s/g")
    assert maintain_once(tmp_path) == 0
    for _ in range(2):  # the first one records that the reader is silent, if none has before
        assert group.online_readers() == ["r"]
        time.sleep(LEASE + 1)
        if released := maintain_once(tmp_path):
            break
    assert group.online_readers() == []
    assert 1 <= released <= 5, "what its last heartbeat had"
    with group.create_reader("next") as reader:
        event = reader.read_next_event(30).event
        assert event is not None
        assert event.data == b"%d" % released
