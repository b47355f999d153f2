"""Appends and cold opens of a stream whose state holds very many ids of writers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark import StreamManager
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog

_FEW, _MANY = 1_600, 16_000
_BETWEEN_OPENS = 67
_LOOKS = 200


@dataclass(slots=True)
class _Cost:
    """What a commit and a cold open cost beside so many ids, on average."""

    reads: float
    written: float
    spent_ms: float
    opened: float
    open_ms: float
    info_ms: float


@benchmark()
def writer_ids(context: Context) -> Iterator[Figure]:
    """A stream with the records of 1,600 writers, and of ten times as many."""
    commits = context.size(4_096, 2_048)
    few, many = (_cost(context, ids, commits) for ids in (_FEW, _MANY))
    yield Figure(
        f"objects read by a cold open beside {_MANY:,} ids of writers",
        many.opened,
        "objects",
        note=f"{few.opened:.0f} beside {_FEW:,}; {many.open_ms:.1f} and {few.open_ms:.1f} ms of "
        "processor time, which decodes all ids",
        limited_by="the commits since the last part of the state, at most 256",
    ).within(at_most=1.2 * few.opened)
    yield Figure(
        f"reads of a commit beside {_MANY:,} ids, and its upkeep",
        many.reads,
        "calls",
        note=f"{few.reads:.2f} beside {_FEW:,}; {many.spent_ms:.2f} and {few.spent_ms:.2f} ms of "
        "processor time",
        limited_by="each commit is read once for the next part or state file",
    ).within(at_most=1.1 * few.reads)
    yield Figure(
        f"bytes of a commit beside {_MANY:,} ids, and its upkeep",
        many.written,
        "bytes",
        note=f"{few.written:.0f} beside {_FEW:,}",
        limited_by="eight domains in state files and a few changes in parts for each commit",
    ).within(at_most=1.5 * few.written)
    yield Figure(
        f"stream_info beside {_MANY:,} ids of writers, CPU",
        1e3 * many.info_ms,
        "µs",
        note=f"{1e3 * few.info_ms:.0f} beside {_FEW:,}",
    ).within(at_most=2 * 1e3 * few.info_ms)


def _cost(context: Context, ids: int, commits: int) -> _Cost:
    name = context.create(f"beside-{ids}")
    store = CountingStore(open_store(context.root))
    stream = StreamLog(store, name)
    stream.log.maintain = None
    for first in range(0, ids, 400):
        _commit(stream, {f"pravega.writer.{n:032x}": "[1,9,9]" for n in range(first, first + 400)})
    _keep_state(stream.log, stream.view().version)
    stream.log.maintain = _keep_state
    reads, written = store.calls["get"], store.written_bytes
    spent = opened = open_seconds = opens = 0.0
    for number in range(commits):
        begun = time.process_time()
        _commit(stream, {f"pravega.writer.{number % 8}": f"[1,{number},{number}]"})
        spent += time.process_time() - begun
        if number % _BETWEEN_OPENS == 0:
            other = CountingStore(open_store(context.root))
            begun = time.process_time()
            StreamLog(other, name).view()
            open_seconds += time.process_time() - begun
            opened, opens = opened + other.calls["get"], opens + 1
    manager = StreamManager(context.root)
    manager.stream_info(name)  # opens it
    begun = time.process_time()
    for _ in range(_LOOKS):
        manager.stream_info(name)
    return _Cost(
        (store.calls["get"] - reads) / commits,
        (store.written_bytes - written) / commits,
        1e3 * spent / commits,
        opened / opens,
        1e3 * open_seconds / opens,
        1e3 * (time.process_time() - begun) / _LOOKS,
    )


def _keep_state(log: Log, version: int) -> None:
    maintain(log.reader, version, known=log.snapshot)


def _commit(stream: StreamLog, domains: dict[str, str | None]) -> None:
    stream.log.commit(lambda snapshot: (Body("BENCH", domains=domains), None))
