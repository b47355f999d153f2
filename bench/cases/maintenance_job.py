"""One round of the maintenance job over very many streams, of which a hundredth has news."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from bench.harness.context import Context
from bench.harness.dataset import EVENT_BYTES
from bench.harness.figures import Figure
from bench.harness.measure import timed
from bench.harness.registry import Phase, benchmark
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.root import Root
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.jobs.maintenance import spread
from pravega_spark.maintenance.result import MaintenanceResult
from pravega_spark.maintenance.round import MaintenanceRound, RoundRequest, RoundStop

_HOUR_MS = 3_600_000
_SCOPES = 10


class _PastClock(Runtime):
    """The system's clock, set back by ``back_ms``."""

    back_ms = 12 * _HOUR_MS

    def now_ms(self) -> int:
        return super().now_ms() - self.back_ms


@benchmark(Phase.SPARK)
def maintenance_job(context: Context) -> Iterator[Figure]:
    """Rounds over 1,000 and 10,000 streams, on executors and in threads."""
    small, large = context.size(1_000, 20), context.size(10_000, 40)
    yield from _rounds(context, small, *_streams(context, small))
    root, names = _streams(context, large)
    yield from _rounds(context, large, root, names)
    yield _process(root, names)


def _process(root: str, names: list[str]) -> Figure:
    """Measure the job as cron starts it: a process of its own, the start of Spark included."""
    news = max(1, len(names) // 100)
    _write(StreamManager(root), names[:news])
    command = [sys.executable, "-m", "pravega_spark.jobs.maintenance", "--root", root, "--once"]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begun
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2_000:]
    record = json.loads(done.stdout.splitlines()[-1])
    assert record["idle"] == len(names) - news, record
    return Figure(
        f"`jobs/maintenance.py --once`, {len(names):,} streams, {news:,} with news, one process",
        took,
        "s",
        "its round alone",
        record["seconds"],
        took / record["seconds"],
        limited_by="the start of Spark and of its Python workers",
    ).within(at_most=60.0)


def _rounds(context: Context, count: int, root: str, names: list[str]) -> Iterator[Figure]:
    store = LocalStore(root)
    manager = StreamManager(root)
    news = max(1, count // 100)
    on_spark = partial(spread, context.spark, store.url)

    def run() -> MaintenanceResult:
        return MaintenanceRound(store, RoundRequest(), on_spark, RoundStop()).run()

    _write(manager, names[:news])
    found: list[MaintenanceResult] = []
    took = timed(lambda: found.append(run()))
    _write(manager, names[:news])
    plain = timed(lambda: found.append(manager.maintain(parallelism=2)))
    for result in found:
        assert not result.failures, result.failures
        assert result.idle == count - news, f"{result.idle} of {count} streams were idle"
    keys = [f"{name}/events/_delta_log/{99:020d}.json" for name in names]
    floor = timed(lambda: [store.exists(key) for key in keys])
    yield Figure(
        f"maintenance of {count:,} streams, {news:,} with news, on Spark",
        took,
        "s",
        "one object of each stream",
        floor,
        took / floor,
        note=f"all kinds; in two threads without Spark {plain:.1f} s",
        limited_by="reading the index of the scopes, and the work at the streams with news",
    ).within(at_most=60.0)


def _streams(context: Context, count: int) -> tuple[str, list[str]]:
    """Make streams that are idle for half a day, with the hints of two rounds."""
    root = str(context.folder / f"maintained-{count}")
    clock = _PastClock()
    manager = StreamManager(root, runtime=clock)
    manager._root = Root(UnsyncedStore(root, clock), clock)
    week = StreamConfiguration(retention=RetentionPolicy.by_time("7 days"))
    names = [f"town-{number % _SCOPES}/stream-{number:05d}" for number in range(count)]
    for scope in range(min(_SCOPES, count)):
        manager.create_scope(f"town-{scope}")
    for name in names:
        manager.create_stream(name, week)
    _write(manager, names)
    manager.maintain(parallelism=2)
    clock.back_ms = 60_000
    manager.maintain(parallelism=2)
    os.sync()  # so that no measurement pays for these writes
    return root, names


def _write(manager: StreamManager, names: list[str]) -> None:
    for name in names:
        with manager.create_writer(name) as writer:
            writer.write_event(b"x" * EVENT_BYTES, "k")
