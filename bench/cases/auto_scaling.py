"""Deciding on the scaling of very many streams: each in plain Python, and all of them as a job."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.long_stream import UnsyncedStore
from bench.harness.measure import percentile, timed
from bench.harness.registry import Phase, benchmark
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.chunks.chunk import stage
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.scaling.auto_scaling import PACE, ROW_SCHEMA, decide, rows_of

COMMITS = 30
"""Commits of each stream, evenly over its last half hour."""
SCOPES = 10
TARGET = 5
"""Events a second. Streams are written at half of it, every fourth at more than twice: a split."""


class Past(Runtime):
    """The system's clock, set back."""

    def __init__(self, back_ms: int) -> None:
        self.back_ms = back_ms

    def now_ms(self) -> int:
        return super().now_ms() - self.back_ms


def fleet(context: Context, count: int, folder: str = "fleet") -> tuple[str, list[str]]:
    """Return the root and the names of so many streams that were written for half an hour."""
    root = str(context.folder / folder)
    clock = Past(30 * 60_000)
    store = UnsyncedStore(root, clock)
    manager = StreamManager(root, runtime=clock)
    manager._store = store  # builds inputs: nothing here has to be durable
    policy = StreamConfiguration(ScalingPolicy.by_event_rate(TARGET, 2, 2))
    names = [f"fleet-{number % SCOPES}/stream-{number:04d}" for number in range(count)]
    for scope in range(min(SCOPES, count)):
        manager.create_scope(f"fleet-{scope}")
    for number, name in enumerate(names):
        clock.back_ms = 30 * 60_000
        manager.create_stream(name, policy)
        rows = TARGET * 60 * (5 if number % 4 == 0 else 1) // 2
        _write(StreamLog(store, name, clock), clock, rows)
    os.sync()  # so that no measurement pays for this
    return root, sorted(names)


def _write(stream: StreamLog, clock: Past, rows: int) -> None:
    stream.log.maintain = None
    view = stream.view()
    first = view.active.segments[0]
    (chunk,) = stage(stream.store, stream.path, 0, first.segment_id, table(rows), name="original")
    folder = f"{stream.store.url.removeprefix('file://')}/{stream.path}/data/v0"
    for number in range(COMMITS):
        clock.back_ms -= 30 * 60_000 // (COMMITS + 1)
        name = f"{number:04d}.parquet"
        os.link(f"{folder}/{os.path.basename(chunk.path)}", f"{folder}/{name}")
        append(stream, view.life, 0, [replace(chunk, path=f"data/v0/{name}")])


def nothing(root: str, stream: str) -> list[Mapping[str, Any]]:
    """Do no work on a stream."""
    return [{"reason": "none"}]


@benchmark(Phase.SPARK)
def auto_scale_decision(context: Context) -> Iterator[Figure]:
    """Decisions on streams whose rates nobody has read yet, 30 commits each."""
    count = context.size(1_000, 20)
    root, names = fleet(context, count)
    store = LocalStore(root)
    ours: list[float] = []
    floor: list[float] = []
    for name in names:
        floor.append(1e3 * timed(lambda: _read(store, name)))  # noqa: B023 (called at once)
        ours.append(1e3 * timed(lambda: decide(StreamLog(store, name))))  # noqa: B023
    yield Figure(
        "auto-scale decision on a stream, plain Python",
        statistics.median(ours),
        "ms",
        f"reading its {COMMITS + 1} commits",
        statistics.median(floor),
        statistics.median(a / b for a, b in zip(ours, floor, strict=True)),
        note=f"a stream opened anew each time; p99 {percentile(ours, 0.99):.1f} ms",
        limited_by="the commits since the last decision: each is read, checked and folded",
    ).within(at_most=10.0)
    yield from _job(context, root, names)


def _read(store: LocalStore, name: str) -> None:
    for version in range(COMMITS + 1):
        store.get(f"{name}/events/_delta_log/{version:020d}.json")


def _job(context: Context, root: str, names: list[str]) -> Iterator[Figure]:
    """The same on executors, with the scales that follow; beside a job that does no work."""
    scaling = partial(rows_of, pace=PACE, dry_run=False, use_keys=False)
    floor, first, again, rows = job_seconds(context, root, names, scaling, ROW_SCHEMA)
    splits = sum(row["epoch"] is not None for row in rows)
    yield Figure(
        f"auto-scale decision over {len(names):,} streams",
        first,
        "s",
        "the same job without work",
        floor,
        first / floor,
        note=f"with {splits:,} splits committed; the next round {again:.1f} s",
        limited_by="the decisions themselves and the fsyncs of the splits, on two cores",
    ).within(at_most=60.0)


def job_seconds(
    context: Context, root: str, names: list[str], work: Any, schema: Any
) -> tuple[float, float, float, list[dict[str, Any]]]:
    """Return how long a job takes without work, first and again, and the rows of the first."""
    from pravega_spark.jobs.fan_out import map_streams

    found: list[list[dict[str, Any]]] = []

    def run(work: Any) -> float:
        begun = time.perf_counter()
        frame = map_streams(context.spark, root, names, work, schema)
        found.append(frame.toArrow().to_pylist())
        return time.perf_counter() - begun

    run(nothing)  # warm
    floor, first, again = run(nothing), run(work), run(work)
    rows = found[2]
    errors = [row["error"] for row in rows if row["error"] is not None]
    assert not errors, errors[:3]
    return floor, first, again, rows
