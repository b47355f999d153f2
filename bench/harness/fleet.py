"""A fleet: very many small streams with half an hour of traffic, and jobs that run over it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.measure import timed
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.root import Root
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.maintenance.result import WorkOutcome
from pravega_spark.maintenance.work import RoundTask, WorkOptions

COMMITS = 30
"""Commits of each stream, spread evenly over the last half hour."""
TARGET_RATE = 5
"""Events a second that a segment is meant for.

Most streams receive half of it. Every fourth receives more than twice of it, so it must split.
"""
_SCOPES = 10
_HALF_HOUR_MS = 30 * 60_000


class _PastClock(Runtime):
    """The system's clock, set back by ``back_ms``."""

    back_ms = _HALF_HOUR_MS

    def now_ms(self) -> int:
        return super().now_ms() - self.back_ms


def fleet(context: Context, count: int, folder: str) -> tuple[str, list[str]]:
    """Make ``count`` streams under a root of their own; return the root and the sorted names."""
    root = str(context.folder / folder)
    clock = _PastClock()
    store = UnsyncedStore(root, clock)
    manager = StreamManager(root, runtime=clock)
    manager._root = Root(store, clock)
    policy = StreamConfiguration(ScalingPolicy.by_event_rate(TARGET_RATE, 2, 2))
    names = [f"fleet-{number % _SCOPES}/stream-{number:04d}" for number in range(count)]
    for scope in range(min(_SCOPES, count)):
        manager.create_scope(f"fleet-{scope}")
    for number, name in enumerate(names):
        clock.back_ms = _HALF_HOUR_MS
        manager.create_stream(name, policy)
        rows = TARGET_RATE * 60 * (5 if number % 4 == 0 else 1) // 2
        _write(StreamLog(store, name, clock), clock, rows)
    os.sync()  # so that no measurement pays for these writes
    return root, sorted(names)


def _write(stream: StreamLog, clock: _PastClock, rows: int) -> None:
    """Append ``rows`` events in each of the commits. All chunks are links to one file."""
    stream.log.maintain = None
    view = stream.view()
    first = view.active.segments[0]
    (chunk,) = stage(
        stream.store, stream.path, version_folder(0), first.segment_id, table(rows), name="original"
    )
    table_folder = f"{stream.store.url.removeprefix('file://')}/{stream.path}"
    staged = os.path.dirname(chunk.path)
    for number in range(COMMITS):
        clock.back_ms -= _HALF_HOUR_MS // (COMMITS + 1)
        path = f"{staged}/{number:04d}.parquet"
        os.link(f"{table_folder}/{chunk.path}", f"{table_folder}/{path}")
        append(stream, view.life, 0, [replace(chunk, path=path)])


@dataclass(frozen=True, slots=True)
class JobRun:
    """How long a job took, and its first round's outcomes.

    ``floor`` is the time of the same job with no work on any stream. ``again`` is the second
    round, which finds the work of the first one done.
    """

    floor: float
    first: float
    again: float
    outcomes: list[WorkOutcome]


def run_job(context: Context, root: str, names: list[str], *kinds: MaintenanceKind) -> JobRun:
    """Do kinds of maintenance at the streams on executors: without work, then twice with it."""
    from pravega_spark.jobs.maintenance import spread
    from pravega_spark.jobs.range_compaction import OUTCOME_SCHEMA
    from pravega_spark.jobs.stream_tasks import Task, map_tasks

    found: list[WorkOutcome] = []

    def run() -> None:
        tasks = [RoundTask(name, kinds) for name in names]
        found[:] = spread(context.spark, root, tasks, WorkOptions())

    def nothing() -> None:
        map_tasks(
            context.spark, root, tasks=[*map(Task, names)], work=_no_work, schema=OUTCOME_SCHEMA
        )

    nothing()  # starts the Python workers
    floor, first, outcomes = timed(nothing), timed(run), list(found)
    failures = [found.failures for found in outcomes if found.failures]
    assert not failures, failures[:3]
    return JobRun(floor, first, timed(run), outcomes)


def _no_work(root: str, task: object) -> list[Mapping[str, str]]:
    return [{"outcome": "none"}]
