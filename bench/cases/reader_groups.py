"""Reader groups: reading through one, joining it, its checkpoints, and a reader that dies."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, islice
from pathlib import Path

from bench.harness.context import SCOPE, Context
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, percentile, ratio, timed
from bench.harness.registry import benchmark
from pravega_spark import ReaderGroup

_numbers = count()
_LEASE_SECONDS = 5.0
_READER = """
import sys, time
from pravega_spark import StreamManager

root, group, name, lease = sys.argv[1:]
reader = StreamManager(root).reader_group(group).create_reader(name, lease=float(lease))
while True:
    if reader.read_next_event(1.0).event is not None:
        time.sleep(0.001)
"""


def create(context: Context) -> ReaderGroup:
    """Make a group that is at the head of the backlog."""
    name = f"{SCOPE}/group-{next(_numbers)}"
    stream, _ = backlog(context)
    return context.manager.create_reader_group(name, [stream], checkpoint_interval=None)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the group does not settle"
        time.sleep(0.01)


@contextmanager
def readers(
    context: Context, group: ReaderGroup, names: Sequence[str], lease: float = 60.0
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run readers in processes of their own, which take an event about every millisecond."""
    with ExitStack() as stack:
        started = []
        for name in names:
            command = [sys.executable, "-c", _READER, context.root, group.name, name, str(lease)]
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
            started.append(process)
        wait_for(lambda: has_shares(group, names))
        yield started


def has_shares(group: ReaderGroup, names: Sequence[str]) -> bool:
    shares = group.distribution()
    return all(shares.get(name) == 4 // len(names) for name in names)


def commits(group: ReaderGroup, times: int) -> Side:
    """Return what writes as durably, in ms, as so many changes of a group's state."""
    group.state()
    store, log = group.log.store, group.log
    assert log.snapshot is not None
    (commit,) = log.reader.span(log.snapshot.version - 1, log.snapshot.version)
    rows = store.get(f"{log.path}/{commit.adds[0].path}")
    entry = store.get(log.reader.key(commit.version))

    def write() -> None:
        for _ in range(times):
            folder = f"{log.path}/_pravega/bench/{next(_numbers)}"
            store.put(f"{folder}/rows", rows)
            store.put_if_absent(f"{folder}/commit", entry)

    return lambda: 1e3 * timed(write)


@benchmark()
def group_reading(context: Context) -> Iterator[Figure]:
    """One reader of a group, from its creation to the last event of a backlog."""
    stream, rows = backlog(context)
    some = min(rows, context.size(1_000_000, 5_000))

    def arrow() -> None:
        reader, read = create(context).create_reader("one"), 0
        while read < rows:
            read += reader.read_events(timeout=60.0).events.num_rows
        assert read == rows

    def batches() -> None:
        found = context.manager.create_reader(stream).batches()
        assert sum(batch.num_rows for _, batch in found) == rows

    def one_by_one() -> None:
        reader = create(context).create_reader("one")
        assert all(reader.read_next_event(60.0).event is not None for _ in range(some))

    def events() -> None:
        assert sum(1 for _ in islice(context.manager.read(stream), some)) == some

    sides: dict[str, Callable[[], None]] = {
        "arrow": arrow, "batches": batches, "one by one": one_by_one, "events": events,
    }  # fmt: skip
    sizes = {"arrow": rows, "batches": rows, "one by one": some, "events": some}

    def rate(name: str) -> Side:
        return lambda: sizes[name] / timed(sides[name])

    found = interleave(context.size(5, 1), {name: rate(name) for name in sides})
    for ours, peer, target, what, why in (
        ("arrow", "batches", 2e6, "Arrow batches", "decoding Parquet; a batch of few rows, so "
         "that segments have their turns, costs more than a large one"),
        ("one by one", "events", 2e5, "event by event", "a Python call, an event and its position "
         "as objects for each"),
    ):  # fmt: skip
        yield Figure(
            f"a group of one reader, {what}, {sizes[ours]:,} events",
            statistics.median(found[ours]),
            "events/s",
            "the same without a group",
            statistics.median(found[peer]),
            ratio(found[ours], found[peer]),
            limited_by=why,
        ).within(at_least=target)


@benchmark()
def group_join(context: Context) -> Iterator[Figure]:
    """A second reader, from its creation until it has half of the segments, released to it."""
    group, rounds = create(context), context.size(15, 1)

    def join() -> float:
        wait_for(lambda: has_shares(group, "a"))
        begun = time.perf_counter()
        reader = group.create_reader("b")
        while len(reader.position.offsets) < 2:
            reader.read_next_event(0.001)
        milliseconds = 1e3 * (time.perf_counter() - begun)
        reader.close()
        return milliseconds

    with readers(context, group, "a"):
        found = interleave(rounds, {"join": join, "commits": commits(group, 3)})
    yield Figure(
        "two readers, from join to both owning half, p50",
        statistics.median(found["join"]),
        "ms",
        "durable writes of the three commits",
        statistics.median(found["commits"]),
        ratio(found["join"], found["commits"]),
        note=f"in two processes; slowest {max(found['join']):.0f} ms",
        limited_by="the pause between two questions whether the group has changed, 50 ms",
    ).within(at_most=2_000.0)


@benchmark()
def group_checkpoint(context: Context) -> Iterator[Figure]:
    """A checkpoint from its begin to its result, with readers that are reading."""
    group, rounds = create(context), context.size(30, 2)

    def checkpoint() -> float:
        return 1e3 * timed(lambda: group.initiate_checkpoint().result(timeout=60.0))

    with readers(context, group, "abcd"):
        found = interleave(rounds, {"checkpoint": checkpoint, "commits": commits(group, 5)})
    yield Figure(
        "checkpoint with 4 active readers in 4 processes, p50",
        statistics.median(found["checkpoint"]),
        "ms",
        "durable writes of the five commits",
        statistics.median(found["commits"]),
        ratio(found["checkpoint"], found["commits"]),
        note=f"p90 {percentile(found['checkpoint'], 0.9):.0f} ms",
        limited_by="the pause between two questions whether the group has changed, 50 ms, and as "
        "many processes as want a processor",
    ).within(at_most=250.0)


@benchmark()
def group_takeover(context: Context) -> Iterator[Figure]:
    """A killed reader, from the end of its lease until another one has all of its segments."""
    seconds = []
    for _ in range(context.size(5, 1)):
        group = create(context)
        sign = Path(context.root) / group.log.path / "_leases" / "dead.json"
        with readers(context, group, ["dead"], _LEASE_SECONDS) as (process,):
            living = group.create_reader("living")
            while len(living.position.offsets) < 2:
                living.read_next_event(0.01)
            process.kill()
            process.wait()
            over = sign.stat().st_mtime + _LEASE_SECONDS
        while len(living.position.offsets) < 4:
            living.read_next_event(0.01)
        seconds.append(time.time() - over)
        living.close()
    yield Figure(
        "takeover of a dead reader's segments after its lease ran out, slowest",
        max(seconds),
        "s",
        note=f"of {len(seconds)}; p50 {statistics.median(seconds):.2f} s",
        limited_by="the 20 ms that a local disk's times may be wrong by, and two commits",
    ).within(at_most=1.0)


class Many:
    """A group on a stream of so many segments, and what it does often."""

    def __init__(self, context: Context, segments: int) -> None:
        name = f"many-{segments}-{next(_numbers)}"
        self.stream, self.manager = context.create(name, segments), context.manager
        self.group = context.manager.create_reader_group(
            f"{SCOPE}/{name}", [self.stream], checkpoint_interval=None, retention="manual"
        )
        self.reader = self.group.create_reader("a")
        self._write()
        while self.reader.read_events(timeout=0.0).events.num_rows:
            pass

    def _write(self) -> None:
        """Events for every segment, so that what is unread begins in the middle of all of them."""
        with self.manager.create_writer(self.stream) as writer:
            count = 4 * len(self.manager.stream_info(self.stream).segments)
            writer.write_events([b"event"] * count)

    def _look(self) -> str | None:
        """Look at the group now, which a reader does every 50 ms at most."""
        self.reader._turn_due = self.reader._glance_due = 0.0
        return self.reader.read_next_event(0.0).checkpoint

    def idle(self) -> float:
        return 1e3 * timed(self._look)

    def checkpoint(self) -> float:
        def answered() -> None:
            asked = self.group.initiate_checkpoint()
            assert self._look() is not None
            self._look()
            asked.result(timeout=60.0)

        return 1e3 * timed(answered)

    def publish(self) -> float:
        cut = self.manager.tail(self.stream)
        self._write()
        milliseconds = 1e3 * timed(lambda: self.group.publish({self.stream: cut}))
        while self.reader.read_events(timeout=0.0).events.num_rows:
            pass
        return milliseconds

    def join(self) -> float:
        begun = time.perf_counter()
        reader = self.group.create_reader("b")
        milliseconds = 1e3 * (time.perf_counter() - begun)
        reader.close()
        return milliseconds


@benchmark()
def group_many_segments(context: Context) -> Iterator[Figure]:
    """What a group does often, on streams of 10, 100 and 1,000 segments: linear in them."""
    sizes = [context.size(full, quick) for full, quick in ((10, 2), (100, 4), (1_000, 8))]
    groups = {segments: Many(context, segments) for segments in sizes}
    for what, commits in (
        ("publish", "one commit to the stream"),
        ("join", "one commit to the group, which writes all of its rows"),
        ("checkpoint", "two commits to the group, which write all of its rows"),
        ("idle", "two questions whether anything is new"),
    ):
        sides = {str(n): getattr(group, what) for n, group in groups.items()}
        found = interleave(context.size(7, 1), sides)
        few, some, many = (statistics.median(found[str(n)]) for n in sizes)
        yield Figure(
            f"group of {sizes[-1]:,} segments: {what}, p50",
            many,
            "ms",
            f"the same of {sizes[-2]:,}",
            some,
            ratio(found[str(sizes[-1])], found[str(sizes[-2])]),
            note=f"of {sizes[0]}: {few:.2f} ms",
            limited_by=commits,
        ).within(at_most=20.0)
