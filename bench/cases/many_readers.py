"""Many readers of one group: from their joining until each has its share, and a checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.harness.context import SCOPE, Context
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark import ReaderGroup

_READERS = """
import json, sys, threading, time
from pathlib import Path
import pyarrow.parquet
from bench.harness.counting_store import CountingStore
from pravega_spark import StreamManager
from pravega_spark.engine.chunks.arrow_arrays import ready
from pravega_spark.engine.root import Root
from pravega_spark.manager import root_of
from pravega_spark.reader_groups import reader_group
from pravega_spark.reader_groups.table import GroupCodec

root, group, first, count, folder = sys.argv[1:]
ready()
manager, folder = StreamManager(root), Path(folder)
store = CountingStore(root_of(manager).store)
manager._root = Root(store)
decode, longest = GroupCodec.decode, [0.0]

def counted(codec, rows):
    store.calls["decode"] += 1
    return decode(codec, rows)

def timed(call, argument, timeout):
    begun = time.monotonic()
    found = call(argument)
    longest[0] = max(longest[0], time.monotonic() - begun - timeout)
    return found

def run(number):
    reader = timed(manager.reader_group(group).create_reader, f"r{number}", 0.0)
    while not (folder / "stop").exists():
        timed(reader.read_next_event, 1.0, 1.0)

GroupCodec.decode = counted
numbers = range(int(first), int(first) + int(count))
threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in numbers]
(folder / f"ready{first}").touch()
while not (folder / "go").exists():
    time.sleep(0.01)
begun, before = time.process_time(), store.calls.copy()
for thread in threads:
    thread.start()
while not (folder / "balanced").exists():
    time.sleep(0.01)
used, calls = time.process_time() - begun, store.calls - before
print(json.dumps([used, longest[0], calls]), flush=True)
for thread in threads:
    thread.join()
"""


class Readers:
    """Readers in some processes that start at the same time, and what they cost."""

    def __init__(self, context: Context, processes: int, readers: int, segments: int) -> None:
        name = f"readers-{processes}-{readers}-{segments}"
        stream = context.create(name, segments)
        self.group = context.manager.create_reader_group(
            f"{SCOPE}/{name}", [stream], checkpoint_interval=None
        )
        self.readers, self.segments = readers, segments
        self.folder = Path(context.folder) / name
        self.folder.mkdir()
        each = readers // processes
        command = [sys.executable, "-c", _READERS, context.root, self.group.name]
        running = [
            subprocess.Popen(
                [*command, str(n * each), str(each), str(self.folder)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for n in range(processes)
        ]
        try:
            self._measure(running)
        finally:
            for process in running:
                process.kill()
                process.wait()

    def _measure(self, running: list[subprocess.Popen[str]]) -> None:
        self._wait(lambda: len(list(self.folder.glob("ready*"))) == len(running))
        before = _versions(self.group)
        (self.folder / "go").touch()
        self.seconds = self._wait(self._is_balanced)
        self.commits = _versions(self.group) - before
        (self.folder / "balanced").touch()
        found = [json.loads(process.stdout.readline()) for process in running if process.stdout]
        self.used, self.longest = sum(one[0] for one in found), max(one[1] for one in found)
        self.calls: Counter[str] = sum((Counter(one[2]) for one in found), Counter())
        self.checkpoints = [self._checkpoint() for _ in range(3)]
        (self.folder / "stop").touch()

    def _wait(self, condition: Any) -> float:
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() < begun + 300, "the readers are not ready in time"
            time.sleep(0.05)
        return time.monotonic() - begun

    def _is_balanced(self) -> bool:
        counts = self.group.distribution()
        waiting = counts.pop(None)
        return (
            len(counts) == self.readers
            and not waiting
            and max(counts.values()) - min(counts.values()) <= 1
        )

    def _checkpoint(self) -> float:
        begun = time.monotonic()
        self.group.initiate_checkpoint().result(timeout=300.0)
        return time.monotonic() - begun


def _versions(group: ReaderGroup) -> int:
    group.generation  # noqa: B018 reads the state
    snapshot = group._lifecycle.sync.table.log.snapshot
    assert snapshot is not None
    return snapshot.version


@benchmark()
def readers_of_one_group(context: Context) -> Iterator[Figure]:
    """10 and 100 readers of one process, 100 of ten processes, and 10 with 5,000 segments."""
    few_count, many_count = context.size(10, 2), context.size(100, 4)
    few, many = (Readers(context, 1, n, n) for n in (few_count, many_count))
    calls = {what: many.calls[what] for what in sorted(many.calls)}
    yield Figure.of_rounds(
        f"{many_count} readers in one process, from joining to equal shares",
        [many.used],
        "s",
        f"CPU of {few_count}",
        [few.used],
        note=f"{many.commits} commits, {calls}; of {few_count}: {few.commits} commits, "
        f"{ {what: few.calls[what] for what in calls} }",
        limited_by="each reader's threads, its heartbeat and its polls",
    ).within(ratio_at_most=11.0)
    spread = Readers(context, context.size(10, 2), many_count, many_count)
    what = f"{many_count} readers in {context.size(10, 2)} processes"
    calls = {name: spread.calls[name] for name in sorted(spread.calls)}
    reason = "each process reads each commit of the others; the machine's processors"
    yield Figure(
        f"{what}, from joining to equal shares",
        spread.seconds,
        "s",
        note=f"{spread.used:.1f} s of processor time, {spread.commits} commits, {calls}",
        limited_by=reason,
    ).within(at_most=10.0)
    yield Figure(
        f"{what}, slowest of three checkpoints", max(spread.checkpoints), "s", limited_by=reason
    ).within(at_most=2.0)
    segments = context.size(5_000, 20)
    large = Readers(context, 1, few_count, segments)
    yield Figure(
        f"{few_count} readers join a group of {segments:,} segments, longest call",
        large.longest,
        "s",
        note=f"beyond its timeout; balanced after {large.seconds:.1f} s, {large.used:.1f} s of "
        f"processor time, {large.commits} commits; checkpoints of "
        f"{', '.join(f'{seconds:.2f}' for seconds in large.checkpoints)} s",
        limited_by="a commit of the group: 9 ms with 5,000 segments, for each that waits before it",
    ).within(at_most=1.0)
