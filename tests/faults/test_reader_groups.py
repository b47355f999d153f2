"""A group of four processes on a stream that scales; each second one of them is killed or stopped.

``GROUP_ROUNDS=300`` runs it longer, ``GROUP_SEED`` chooses another run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture, GroupCheckpoint
from pravega_spark.reader_groups.state import SegmentKey
from tests.harness import stream_cuts as cuts
from tests.harness.group_audit import (
    Ledger,
    OwnershipSpan,
    Read,
    check_order,
    counted,
    history,
    ownerships,
)
from tests.harness.group_processes import GROUP, read, read_buffered, write
from tests.harness.tiers import sized
from tests.harness.warm_children import FORKED
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and SIGSTOP")

SEED = os.environ.get("GROUP_SEED", "1")
ROUNDS = sized(3, 60, "GROUP_ROUNDS")
READERS, WRITERS = 4, 2
LEASE = "10 s"
"""Longer than a busy machine leaves a reader without a processor."""


class Fleet:
    """Readers and writers in processes that the test kills, stops and resumes."""

    def __init__(self, root: Path, folder: Path, acknowledge: str) -> None:
        self.buffers = acknowledge == "checkpoint"
        self.root, self.folder, self.dice = str(root), folder, Random(SEED)
        self.manager = StreamManager(root)
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(4)))
        self.group = self.manager.create_reader_group(
            GROUP, [STREAM], refresh=0.5, checkpoint_interval=3.0, acknowledge=acknowledge
        )
        self.processes: dict[str, Any] = {}
        self.killed: set[str] = set()
        self.stopped: set[str] = set()
        self.evicted: dict[str, int] = {}
        self.futures: list[CheckpointFuture] = []
        self.checkpoints: list[GroupCheckpoint] = []
        for n in range(WRITERS):
            self._start(f"w{n}", write, f"w{n}")
        for _ in range(READERS):
            self.add_reader()

    def _start(self, name: str, what: Callable[..., None], *arguments: str) -> None:
        process = FORKED.Process(target=what, args=(self.root, *arguments))
        process.start()
        self.processes[name] = process

    @property
    def readers(self) -> list[str]:
        lost = self.killed | self.stopped | self.evicted.keys()
        return [name for name in self.processes if name.startswith("r") and name not in lost]

    @property
    def living(self) -> list[str]:
        """The readers in the group that were neither killed nor stopped."""
        return sorted(set(self.readers) & set(self.group.online_readers()))

    def add_reader(self) -> None:
        """Start a reader."""
        name = f"r{len(self.processes)}"
        what = read_buffered if self.buffers else read
        self._start(name, what, name, str(self.folder / name), LEASE)

    def ledger(self, name: str) -> Ledger:
        path = self.folder / name
        return Ledger.of(path.read_text(encoding="utf-8") if path.exists() else "")

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.killed.add(name)

    def stop(self, name: str) -> None:
        os.kill(self.processes[name].pid, signal.SIGSTOP)
        self.stopped.add(name)

    def resume(self) -> None:
        """Resume stopped readers that were evicted; record how many events they had read."""
        for name in self.stopped - set(self.group.online_readers()):
            self.evicted[name] = len(self.ledger(name).events)
            self.stopped.remove(name)
            os.kill(self.processes[name].pid, signal.SIGCONT)

    def is_empty(self) -> bool:
        """Return whether the group has no reader; expire crashed ones without segments first."""
        self.group.expire_readers()
        return not self.group.online_readers()

    def scale(self) -> None:
        """Split a segment, or merge two."""
        segments = self.manager.segments(STREAM)
        at = self.dice.randrange(len(segments) - 1)
        first, second = segments[at : at + 2]
        low, high = first.key_range.low, second.key_range.high
        if len(segments) >= 6 or (len(segments) > 4 and self.dice.random() < 0.5):
            seal, ranges = [first.segment_id, second.segment_id], [(low, high)]
        else:
            middle = (low + first.key_range.high) / 2
            seal = [first.segment_id]
            ranges = [(low, middle), (middle, first.key_range.high)]
        self.manager.scale_stream(STREAM, seal, ranges)

    def checkpoint(self) -> None:
        """Keep a completed checkpoint and initiate the next one."""
        while self.futures and self.futures[0].done():
            self.checkpoints.append(self.futures.pop(0).result())
        if not self.futures:
            self.futures.append(self.group.initiate_checkpoint(f"c{len(self.checkpoints)}"))

    def finish(self, name: str) -> str:
        """Wait for a reader and return how it ended."""
        self.processes[name].join(240)
        assert self.processes[name].exitcode == 0, name
        return self.ledger(name).end


@pytest.fixture(params=["next", "checkpoint"])
def fleet(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    (tmp_path / "ledgers").mkdir()
    fleet = Fleet(tmp_path / "root", tmp_path / "ledgers", request.param)
    yield fleet
    for process in fleet.processes.values():
        process.kill()
        process.join()


def wait_for(condition: Callable[[], object], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300 + 20 * ROUNDS)
def test_group_reads_all_events_in_order_and_again_only_unrecorded_ones_of_evicted_readers(
    fleet: Fleet,
) -> None:
    """With "checkpoint", a killed reader loses its buffer, and ledgers have what was flushed."""
    group = fleet.group
    wait_for(lambda: len(fleet.living) == READERS)
    for n in range(ROUNDS):
        time.sleep(0.5)
        fleet.scale()
        fleet.checkpoint()
        time.sleep(0.5)
        wait_for(lambda: len(fleet.living) >= READERS - 1)
        end = fleet.stop if n % 3 == 1 else fleet.kill
        end(fleet.dice.choice(fleet.living))
        fleet.add_reader()
        fleet.resume()
    fleet.manager.seal_stream(STREAM)
    assert [fleet.finish(name) for name in fleet.readers] == ["done"] * READERS
    wait_for(fleet.is_empty)
    fleet.resume()
    for name, count in fleet.evicted.items():
        assert fleet.finish(name) == "evicted"
        if not fleet.buffers:  # one that stopped at a marker still flushes its buffer
            assert len(fleet.ledger(name).events) <= count + 1
    assert group.is_at_end()

    view = open_stream(open_store(fleet.root), STREAM).view()
    ledgers = {name: fleet.ledger(name) for name in fleet.processes if name[0] == "r"}
    owned = ownerships(history(group), view)
    reads = counted(ledgers, owned)
    events = [(e.segment_id, e.offset) for e in fleet.manager.read(STREAM)]
    assert sorted((read.segment_id, read.offset) for read in reads) == sorted(events)
    check_order(reads)
    lost = fleet.killed | fleet.evicted.keys()
    assert {o.reader for o in owned if o.is_evicted} <= lost, "a live reader was evicted"
    check_checkpoints(fleet, ledgers, lost)


def check_checkpoints(fleet: Fleet, ledgers: dict[str, Ledger], lost: set[str]) -> None:
    """Check that checkpoints cover all keys, are at their markers, and can be reset to."""
    stream = open_stream(open_store(fleet.root), STREAM)
    for future in fleet.futures:
        fleet.checkpoints.append(future.result(timeout=240))
    assert fleet.checkpoints
    for checkpoint in fleet.checkpoints:
        cut = checkpoint.stream_cuts[STREAM]
        cuts.check(stream.view(), cut)
        for name, ledger in ledgers.items():
            marked = ledger.markers.get(checkpoint.name)
            if marked is not None and name not in lost:
                offsets = {SegmentKey(STREAM, segment_id): offset for segment_id, offset in cut}
                assert dict(marked.offsets).items() <= offsets.items()
    middle = fleet.checkpoints[len(fleet.checkpoints) // 2]
    fleet.group.reset(middle)
    with fleet.group.create_reader("again") as reader:
        again = []
        while not (found := reader.read_next_event()).is_completed:
            if found.event is not None:
                again.append((found.event.segment_id, found.event.offset))
    after = fleet.manager.read(STREAM, middle.stream_cuts[STREAM])
    assert again
    assert sorted(again) == sorted((e.segment_id, e.offset) for e in after)


def ledger(*offsets: int) -> Ledger:
    return Ledger([Read(n, 0, n, "k", "w", n) for n in offsets], {})


KEY = SegmentKey(STREAM, 0)
FIRST, SECOND = OwnershipSpan(KEY, "a", 0, 3), OwnershipSpan(KEY, "b", 3, 5)
EVICTED = OwnershipSpan(KEY, "a", 0, 3, is_evicted=True)


@pytest.mark.parametrize(
    ("first", "read", "is_sound"),
    [
        (FIRST, (0, 1, 2), True),
        (FIRST, (0, 1), False),
        (FIRST, (0, 2), False),
        (FIRST, (0, 1, 2, 3), False),
        (EVICTED, (0, 1, 2, 3), True),
        (EVICTED, (0, 1), False),
        (EVICTED, (0, 1, 2, 4), False),
    ],
)
def test_audit_finds_missed_and_repeated_events(
    first: OwnershipSpan, read: tuple[int, ...], is_sound: bool
) -> None:
    ledgers = {"a": ledger(*read), "b": ledger(3, 4)}
    with contextlib.nullcontext() if is_sound else pytest.raises(AssertionError):
        assert [event.offset for event in counted(ledgers, [first, SECOND])] == [0, 1, 2, 3, 4]


def test_audit_finds_events_without_an_owner_and_out_of_order() -> None:
    with pytest.raises(AssertionError, match="that it never owned"):
        counted({"c": ledger(0)}, [])
    with pytest.raises(AssertionError, match="after number 2"):
        check_order(ledger(2, 1).events)
