"""What a long life costs at one moment: calls and time of operations, state, objects, memory."""

from __future__ import annotations

import gc
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.harness.long_life import (
    GROUP,
    SCOPE,
    STREAM,
    LongLife,
    OneProcess,
    maintained_in_foreground,
)
from pravega_spark import StreamCut
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.committer import BatchCommitter
from pravega_spark.retention.run import explain_retention

_TAIL_EVENTS = 20


@dataclass(frozen=True, slots=True)
class Cost:
    """The storage calls of an operation, the objects it listed, the bytes it read, its time."""

    calls: int
    listed: int
    read_bytes: int
    ms: float


@dataclass(frozen=True, slots=True)
class Stored:
    """The objects of a root by kind, as (number, bytes)."""

    kinds: Mapping[str, tuple[int, int]]

    @property
    def objects(self) -> int:
        """The number of all objects, without the rows of the history, which are its purpose."""
        return sum(number for kind, (number, _) in self.kinds.items() if kind != HISTORY)

    @property
    def size_bytes(self) -> int:
        """The bytes of all objects, without the rows of the history."""
        return sum(size for kind, (_, size) in self.kinds.items() if kind != HISTORY)


HISTORY = "metadata/data"


def stored(life: LongLife) -> Stored:
    """Return the objects of the root by kind."""
    numbers, sizes = Counter[str](), Counter[str]()
    for entry in life.store.inner.list(""):
        kind = _kind_of(entry.key)
        numbers[kind] += 1
        sizes[kind] += entry.size
    return Stored({kind: (numbers[kind], sizes[kind]) for kind in sorted(numbers)})


def _kind_of(key: str) -> str:
    """Return the folder of a key without the names that differ, such as ``events/data``."""
    path = key.removeprefix(f"{STREAM}/").removeprefix(f"{SCOPE}/")
    path = re.sub(r"^(beside|_reader_groups/group)-[0-9]+", r"\1", path)
    path = re.sub(r"/(v[0-9]+|t-[^/]+|[0-9a-f]{32}|[0-9]{1,19})(?=/)", "", path)
    folder, _, name = path.rpartition("/")
    if name.endswith(".checkpoint.parquet"):
        return f"{folder}/checkpoint"
    return path if name in ("latest.json", "sweep.json", "rates.json") else folder


def state_of(life: LongLife) -> dict[str, int]:
    """Return the sizes of the stream's state."""
    stream = StreamLog(life.store.inner, STREAM, life.clock)
    snapshot = stream.view().snapshot
    reader = stream.log.reader
    hint = reader.hint()
    state, checkpoint = hint.state, hint.checkpoint
    sizes = {
        e.key.rsplit("/", 1)[1]: e.size for e in life.store.inner.list(f"{stream.path}/_pravega")
    }
    return {
        "domains": len(snapshot.domains),
        "domain bytes": sum(len(k) + len(v) for k, v in snapshot.domains.items()),
        "state file": sizes.get(f"{state:020d}.json", 0),
        "sweep.json": sizes.get("sweep.json", 0),
        "retained versions": snapshot.version - snapshot.retention_mark,
        "versions behind the checkpoint": snapshot.version - max(checkpoint, 0),
        "history files": len(life.store.inner.list(f"{STREAM}/metadata/data")),
    }


def memory_mb() -> float:
    """Return the resident memory of this process in MiB, the store in memory included."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) / 256


def memory_blocks() -> int:
    """Return how many blocks of memory Python's objects hold, the store in memory included."""
    gc.collect()
    return sys.getallocatedblocks()


def costs(life: LongLife, rounds: int = 5) -> dict[str, Cost]:
    """Return the costs of what users and jobs call, each in a process of its own."""
    life.align()
    found: dict[str, Cost] = {}
    for name, action in _actions(life).items():
        with maintained_in_foreground():
            samples = [_cost(life, action) for _ in range(rounds)]
        ms = statistics.median(sample.ms for sample in samples)
        least = min(samples, key=lambda sample: sample.calls)
        found[name] = Cost(least.calls, least.listed, least.read_bytes, ms)
    return found


def cost_ms(life: LongLife, name: str) -> float:
    """Return the milliseconds of one operation of :func:`costs`."""
    return _cost(life, _actions(life)[name]).ms


def _cost(life: LongLife, action: Callable[[], Callable[[], object]]) -> Cost:
    """Measure the function that ``action`` prepares."""
    call, store = action(), life.store
    before = store.total, store.listed, store.read_bytes
    began = time.perf_counter()
    call()
    ms = 1e3 * (time.perf_counter() - began)
    return Cost(store.total - before[0], store.listed - before[1], store.read_bytes - before[2], ms)


def _actions(life: LongLife) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return functions that each prepare one operation and return it."""

    def process() -> OneProcess:
        return OneProcess(life.store, life.clock)

    def opened() -> StreamLog:
        return StreamLog(life.store, STREAM, life.clock)

    def tail_read(manager: OneProcess) -> None:
        tail = manager.tail(STREAM)
        count = _TAIL_EVENTS // len(tail.positions)
        start = {s: max(0, end - count) for s, end in tail}
        list(manager.read(STREAM, StreamCut(STREAM, tail.life, start), tail))

    def warm_append() -> Callable[[], object]:
        life.append()
        return life.append

    def history() -> Callable[[], object]:
        log = Log(life.store, f"{STREAM}/metadata", life.clock)
        return log.refresh

    return {
        "append": warm_append,
        "open for append": lambda: lambda: BatchCommitter(opened(), None),
        "open and read the tail": lambda: lambda: tail_read(process()),
        "stream info": lambda: lambda: process().stream(STREAM).info(),
        "describe the group": lambda: lambda: process().reader_group(GROUP).lag(),
        "retention decision": lambda: lambda: explain_retention(opened()),
        "compaction plan": lambda: lambda: process().stream(STREAM).compact(dry_run=True),
        "sweep with nothing to do": lambda: process().stream(STREAM).sweep,
        "sweep of the scope": lambda: lambda: process().sweep_scope(SCOPE),
        "list streams": lambda: lambda: process().list_streams(SCOPE),
        "settings": lambda: process().settings,
        "open the history": history,
    }
