"""Reader groups: reading, joining, checkpoints, and the takeover from a dead reader."""

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
from bench.harness.measure import Side, interleave, percentile, timed
from bench.harness.registry import benchmark
from pravega_spark import ReaderGroup
from pravega_spark.reader_groups.table import group_path

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
    """Create a group that is positioned at the head of the backlog."""
    name = f"{SCOPE}/group-{next(_numbers)}"
    stream, _ = backlog(context)
    return context.manager.create_reader_group(name, [stream], checkpoint_interval=None)


def wait_for(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the segments are not assigned in time"
        time.sleep(0.01)


@contextmanager
def readers(
    context: Context, group: ReaderGroup, names: Sequence[str], lease: float = 60.0
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run each reader in its own process, where it reads about an event a millisecond."""
    with ExitStack() as stack:
        started = []
        for name in names:
            command = [sys.executable, "-c", _READER, context.root, group.name, name, str(lease)]
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
            started.append(process)
        wait_for(lambda: is_balanced(group, names))
        yield started


def is_balanced(group: ReaderGroup, names: Sequence[str]) -> bool:
    """Return whether each reader owns an equal part of the four segments."""
    owned = group.distribution()
    return all(owned.get(name) == 4 // len(names) for name in names)


def commits(group: ReaderGroup, times: int) -> Side:
    """Return a side that writes the files of ``times`` changes of the group's state, in ms."""
    lifecycle = group._lifecycle
    lifecycle.state()
    store, log = lifecycle.store, lifecycle.sync.table.log
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
        ("arrow", "batches", 2e6, "Arrow batches", "decoding Parquet; batches are small, so "
         "that segments alternate, and a small batch costs more for each row"),
        ("one by one", "events", 2e5, "event by event", "a Python call, an event and its position "
         "as objects for each"),
    ):  # fmt: skip
        yield Figure.of_rounds(
            f"a group of one reader, {what}, {sizes[ours]:,} events",
            found[ours],
            "events/s",
            "the same without a group",
            found[peer],
            limited_by=why,
        ).within(at_least=target)


@benchmark()
def group_join(context: Context) -> Iterator[Figure]:
    """A second reader, from its creation until it owns the half that the first one releases."""
    group, rounds = create(context), context.size(15, 1)

    def join() -> float:
        wait_for(lambda: is_balanced(group, "a"))
        begun = time.perf_counter()
        reader = group.create_reader("b")
        while len(reader.position.offsets) < 2:
            reader.read_next_event(0.001)
        milliseconds = 1e3 * (time.perf_counter() - begun)
        reader.close()
        return milliseconds

    with readers(context, group, "a"):
        found = interleave(rounds, {"join": join, "commits": commits(group, 3)})
    yield Figure.of_rounds(
        "two readers, from join to both owning half, p50",
        found["join"],
        "ms",
        "durable writes of the three commits",
        found["commits"],
        note=f"in two processes; slowest {max(found['join']):.0f} ms",
        limited_by="the pause between two polls of the group's state, 50 ms",
    ).within(at_most=2_000.0)


@benchmark()
def group_checkpoint(context: Context) -> Iterator[Figure]:
    """A checkpoint from its start to its result, while readers are reading."""
    group, rounds = create(context), context.size(30, 2)

    def checkpoint() -> float:
        return 1e3 * timed(lambda: group.initiate_checkpoint().result(timeout=60.0))

    with readers(context, group, "abcd"):
        found = interleave(rounds, {"checkpoint": checkpoint, "commits": commits(group, 5)})
    yield Figure.of_rounds(
        "checkpoint with 4 active readers in 4 processes, p50",
        found["checkpoint"],
        "ms",
        "durable writes of the five commits",
        found["commits"],
        note=f"p90 {percentile(found['checkpoint'], 0.9):.0f} ms",
        limited_by="the pause between two polls of the group's state, 50 ms, and the number of "
        "processes for each processor",
    ).within(at_most=250.0)


@benchmark()
def group_takeover(context: Context) -> Iterator[Figure]:
    """A killed reader, until readers of another process own all of its segments.

    The others' leases are twelve times as long. Either they have watched the storage for a whole
    lease of the dead reader, or they have just joined.
    """
    rounds = context.size(3, 1)
    for living, is_new in ((1, False), (19, False), (1, True)):
        seconds = [takeover(context, living, is_new) for _ in range(rounds)]
        count = f"{living} readers" if living > 1 else "a reader"
        yield Figure(
            f"takeover by {count} that had just joined, slowest"
            if is_new
            else f"takeover by {count} after a dead one's lease, slowest",
            max(seconds),
            "s",
            note=f"of {rounds}; p50 {statistics.median(seconds):.2f} s",
            limited_by="the 20 ms by which a local disk's times may be wrong, and two commits",
        ).within(at_most=1.0)


def takeover(context: Context, living: int, is_new: bool) -> float:
    """Return the seconds from when the dead reader could be expired until its segments are read."""
    stream = context.create(f"takeover-{next(_numbers)}", 2 * (living + 1))
    group = context.manager.create_reader_group(f"{SCOPE}/{stream.rpartition('/')[2]}", [stream])
    heartbeat = Path(context.root) / group_path(group.name) / "_leases" / "dead.json"
    command = [sys.executable, "-c", _READER, context.root, group.name, "dead"]
    with subprocess.Popen([*command, str(_LEASE_SECONDS)]) as process, ExitStack() as stack:
        stack.callback(process.kill)
        wait_for(lambda: "dead" in group.online_readers())
        time.sleep(_LEASE_SECONDS)  # whatever this process watched before ends here
        began = time.time()
        others = [stack.enter_context(group.create_reader(f"r{n}")) for n in range(living)]

        def read_until(condition: Callable[[], bool]) -> None:
            while not condition():
                for reader in others:
                    reader.read_next_event(0.01)

        def owned() -> int:
            return sum(len(reader.position.offsets) for reader in others)

        read_until(lambda: owned() == 2 * living)
        if not is_new:
            read_until(lambda: time.time() >= began + 2 * _LEASE_SECONDS)
        process.kill()
        process.wait()
        expiry = max(heartbeat.stat().st_mtime, began) + _LEASE_SECONDS
        read_until(lambda: owned() == 2 * (living + 1))
        return time.time() - expiry
