"""A group of four processes on a stream that splits and merges; one is killed or stopped a second.

``GROUP_ROUNDS=300`` runs it longer, ``GROUP_SEED`` chooses another run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.manager import StreamManager
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture, GroupCheckpoint
from pravega_spark.reader_groups.group_state import SegmentKey
from tests.harness import stream_cuts as cuts
from tests.harness.group_audit import (
    Ledger,
    Ownership,
    Read,
    check_order,
    counted,
    history,
    ownerships,
)
from tests.harness.group_processes import GROUP, read, write
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL and SIGSTOP")

SEED = os.environ.get("GROUP_SEED", "1")
ROUNDS = sized(10, 100, "GROUP_ROUNDS")
READERS, WRITERS = 4, 2
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.harness.group_processes"])


class Theatre:
    """The processes, and who does what to them."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.dice = str(root), folder, Random(SEED)
        self.manager = StreamManager(root)
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(4)))
        self.group = self.manager.create_reader_group(
            GROUP, [STREAM], refresh=0.5, checkpoint_interval=3.0
        )
        self.processes: dict[str, Any] = {}
        self.killed: set[str] = set()
        self.stopped: set[str] = set()
        self.fenced: dict[str, int] = {}
        self.futures: list[CheckpointFuture] = []
        self.checkpoints: list[GroupCheckpoint] = []
        for n in range(WRITERS):
            self._start(f"w{n}", write, f"w{n}")
        for _ in range(READERS):
            self.enter()

    def _start(self, name: str, what: Callable[..., None], *arguments: str) -> None:
        process = PROCESSES.Process(target=what, args=(self.root, *arguments))
        process.start()
        self.processes[name] = process

    @property
    def readers(self) -> list[str]:
        gone = self.killed | self.stopped | self.fenced.keys()
        return [name for name in self.processes if name.startswith("r") and name not in gone]

    @property
    def living(self) -> list[str]:
        """The readers that have come into the group, and that nobody has struck."""
        return sorted(set(self.readers) & set(self.group.online_readers()))

    def enter(self) -> None:
        """Start a reader."""
        name = f"r{len(self.processes)}"
        self._start(name, read, name, str(self.folder / name))

    def ledger(self, name: str) -> Ledger:
        path = self.folder / name
        return Ledger.of(path.read_text(encoding="utf-8") if path.exists() else "")

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.killed.add(name)

    def stop(self, name: str) -> None:
        os.kill(self.processes[name].pid, signal.SIGSTOP)
        self.stopped.add(name)

    def go_on(self) -> None:
        """Let those go on whom the others have taken over by now; note how much they had read."""
        for name in self.stopped - set(self.group.online_readers()):
            self.fenced[name] = len(self.ledger(name).events)
            self.stopped.remove(name)
            os.kill(self.processes[name].pid, signal.SIGCONT)

    def is_empty(self) -> bool:
        """Tell whether nobody is in the group; the dead who had no segment nobody has missed."""
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
        """Take note of a completed checkpoint, and begin the next one."""
        while self.futures and self.futures[0].done():
            self.checkpoints.append(self.futures.pop(0).result())
        if not self.futures:
            self.futures.append(self.group.initiate_checkpoint(f"c{len(self.checkpoints)}"))

    def finish(self, name: str) -> str:
        """Wait for a reader and tell how it ended."""
        self.processes[name].join(60)
        assert self.processes[name].exitcode == 0, name
        return self.ledger(name).end


@pytest.fixture
def theatre(tmp_path: Path) -> Iterator[Theatre]:
    (tmp_path / "ledgers").mkdir()
    theatre = Theatre(tmp_path / "root", tmp_path / "ledgers")
    yield theatre
    for process in theatre.processes.values():
        process.kill()
        process.join()


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(300 + 20 * ROUNDS)
def test_group_reads_all_in_order_and_only_what_a_dead_reader_had_not_recorded_twice(
    theatre: Theatre,
) -> None:
    group = theatre.group
    wait_for(lambda: len(theatre.living) == READERS)
    for n in range(ROUNDS):
        time.sleep(0.5)
        theatre.scale()
        theatre.checkpoint()
        time.sleep(0.5)
        wait_for(lambda: len(theatre.living) >= READERS - 1)
        strike = theatre.stop if n % 3 == 1 else theatre.kill
        strike(theatre.dice.choice(theatre.living))
        theatre.enter()
        theatre.go_on()
    theatre.manager.seal_stream(STREAM)
    assert [theatre.finish(name) for name in theatre.readers] == ["done"] * READERS
    wait_for(theatre.is_empty)
    theatre.go_on()
    for name, count in theatre.fenced.items():
        assert theatre.finish(name) == "fenced"
        assert len(theatre.ledger(name).events) <= count + 1
    assert group.is_at_end()

    view = open_stream(open_store(theatre.root), STREAM).view()
    ledgers = {name: theatre.ledger(name) for name in theatre.processes if name[0] == "r"}
    owned = ownerships(history(group), view)
    reads = counted(ledgers, owned)
    events = [(e.segment_id, e.offset) for e in theatre.manager.read(STREAM)]
    assert sorted((read.segment_id, read.offset) for read in reads) == sorted(events)
    check_order(reads)
    lost = theatre.killed | theatre.fenced.keys()
    assert {o.reader for o in owned if o.is_taken_over} <= lost, (
        "a living reader was taken for dead"
    )
    check_checkpoints(theatre, ledgers, lost)


def check_checkpoints(theatre: Theatre, ledgers: dict[str, Ledger], lost: set[str]) -> None:
    """Checkpoints cover all keys, are where the markers were, and can be gone back to."""
    stream = open_stream(open_store(theatre.root), STREAM)
    for future in theatre.futures:
        theatre.checkpoints.append(future.result(timeout=60))
    assert theatre.checkpoints
    for checkpoint in theatre.checkpoints:
        cut = checkpoint.stream_cuts[STREAM]
        cuts.check(stream.view(), cut)
        for name, ledger in ledgers.items():
            marked = ledger.markers.get(checkpoint.name)
            if marked is not None and name not in lost:
                places = {SegmentKey(STREAM, segment_id): mark for segment_id, mark in cut}
                assert dict(marked.offsets).items() <= places.items()
    middle = theatre.checkpoints[len(theatre.checkpoints) // 2]
    theatre.group.reset(middle)
    with theatre.group.create_reader("again") as reader:
        again = [(event.segment_id, event.offset) for event in reader]
    after = theatre.manager.read(STREAM, middle.stream_cuts[STREAM])
    assert again
    assert sorted(again) == sorted((e.segment_id, e.offset) for e in after)


def ledger(*offsets: int) -> Ledger:
    return Ledger([Read(n, 0, n, "k", "w", n) for n in offsets], {})


A, B = Ownership(SegmentKey(STREAM, 0), "a", 0, 3), Ownership(SegmentKey(STREAM, 0), "b", 3, 5)
DEAD = Ownership(SegmentKey(STREAM, 0), "a", 0, 3, is_taken_over=True)


@pytest.mark.parametrize(
    ("first", "read", "is_sound"),
    [
        (A, (0, 1, 2), True),
        (A, (0, 1), False),
        (A, (0, 2), False),
        (A, (0, 1, 2, 3), False),
        (DEAD, (0, 1, 2, 3), True),
        (DEAD, (0, 1), False),
        (DEAD, (0, 1, 2, 4), False),
    ],
)
def test_audit_finds_what_was_missed_and_what_was_read_twice(
    first: Ownership, read: tuple[int, ...], is_sound: bool
) -> None:
    ledgers = {"a": ledger(*read), "b": ledger(3, 4)}
    with contextlib.nullcontext() if is_sound else pytest.raises(AssertionError):
        assert [event.offset for event in counted(ledgers, [first, B])] == [0, 1, 2, 3, 4]


def test_audit_finds_what_nobody_had_and_what_was_out_of_order() -> None:
    with pytest.raises(AssertionError, match="what it never had"):
        counted({"c": ledger(0)}, [])
    with pytest.raises(AssertionError, match="after number 2"):
        check_order(ledger(2, 1).events)
