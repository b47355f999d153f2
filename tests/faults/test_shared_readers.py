"""Processes with many readers each, of which one is killed, beside one of the last release."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.manager import StreamManager
from tests.harness.group_audit import Ledger, check_order, counted, history, ownerships
from tests.harness.group_processes import GROUP, read_together, write
from tests.harness.releases import start_release
from tests.harness.warm_children import FORKED
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

READERS = 5
"""In each process."""
LEASE = "10 s"
OLD = """
import sys, time
from pravega_spark import StreamManager

root, group, name, path, lease = sys.argv[1:]
with open(path, "w", buffering=1) as ledger:
    with StreamManager(root).reader_group(group).create_reader(name, lease=lease) as reader:
        while not (found := reader.read_next_event()).is_completed:
            now, event = time.monotonic_ns(), found.event
            if event is None:
                ledger.write(f"marker {now} {found.checkpoint} {found.position}\\n")
                continue
            position = f"{event.segment_id} {event.offset} {event.routing_key}"
            ledger.write(f"event {now} {position} {event.data.decode()}\\n")
    ledger.write("end done\\n")
"""


class Fleet:
    """Processes of five readers each, one of the last release with one, and a writer."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self.manager = StreamManager(root)
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(12)))
        self.group = self.manager.create_reader_group(GROUP, [STREAM], checkpoint_interval=None)
        self.names: list[str] = []
        self.processes: list[Any] = []
        self.start(write, "w")
        path = folder / "old"
        self.names.append("old")
        self.old = start_release("0.1.0", OLD, root, GROUP, "old", path, LEASE)

    def start(self, what: Callable[..., None], *arguments: object) -> Any:
        process = FORKED.Process(target=what, args=(str(self.root), *arguments))
        process.start()
        self.processes.append(process)
        return process

    def add_readers(self) -> Any:
        names = [f"r{len(self.processes)}-{n}" for n in range(READERS)]
        self.names += names
        return self.start(read_together, {n: str(self.folder / n) for n in names}, LEASE)

    def ledgers(self) -> dict[str, Ledger]:
        found = {}
        for name in self.names:
            path = self.folder / name
            found[name] = Ledger.of(path.read_text() if path.exists() else "")
        return found

    def is_balanced(self, readers: int) -> bool:
        found = self.group.distribution()
        waiting = found.pop(None)
        return len(found) == readers and waiting == 0 and max(found.values()) <= -(-12 // readers)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.old.kill()
        self.old.communicate()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "ledgers").mkdir()
    made = Fleet(tmp_path / "root", tmp_path / "ledgers")
    yield made
    made.end()


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_process_of_many_readers_loses_no_event_beside_the_last_release(
    fleet: Fleet,
) -> None:
    killed = fleet.add_readers()
    lost = set(fleet.names[1:])
    fleet.add_readers()
    wait_for(lambda: fleet.is_balanced(2 * READERS + 1))
    first = fleet.group.initiate_checkpoint("first")
    assert first.result(timeout=240).name == "first"
    wait_for(lambda: sum(len(fleet.ledgers()[name].events) for name in lost) > 100)
    killed.kill()
    fleet.add_readers()
    wait_for(lambda: not lost & set(fleet.group.online_readers()))
    wait_for(lambda: fleet.is_balanced(2 * READERS + 1))
    assert fleet.group.initiate_checkpoint("second").result(timeout=240).name == "second"
    fleet.manager.seal_stream(STREAM)
    wait_for(fleet.group.is_at_end)
    wait_for(lambda: not fleet.group.online_readers())
    _, errors = fleet.old.communicate(timeout=240)
    assert fleet.old.returncode == 0, errors
    ledgers = fleet.ledgers()
    assert {n: x.end for n, x in ledgers.items() if n not in lost} == dict.fromkeys(
        set(fleet.names) - lost, "done"
    )
    for name in set(fleet.names) - lost:
        assert "second" in ledgers[name].markers

    view = open_stream(open_store(str(fleet.root)), STREAM).view()
    owned = ownerships(history(fleet.group), view)
    reads = counted(ledgers, owned)
    events = [(e.segment_id, e.offset) for e in fleet.manager.read(STREAM)]
    assert sorted((read.segment_id, read.offset) for read in reads) == sorted(events)
    check_order(reads)
    assert {o.reader for o in owned if o.is_evicted} <= lost, "a live reader was evicted"
