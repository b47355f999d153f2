"""One round of the maintenance job over very many streams, of which a hundredth has news."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

from bench.harness.context import Context
from bench.harness.dataset import EVENT_BYTES
from bench.harness.figures import Figure
from bench.harness.measure import timed
from bench.harness.registry import Phase, benchmark
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark import RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.jobs.maintenance import spread
from pravega_spark.maintenance.maintenance_result import MaintenanceResult
from pravega_spark.maintenance.maintenance_round import MaintenanceRound, RoundRequest
from pravega_spark.maintenance.root_maintenance import RoundStop

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
    for count in (context.size(1_000, 20), context.size(10_000, 40)):
        yield from _rounds(context, count)


def _rounds(context: Context, count: int) -> Iterator[Figure]:
    root, names = _streams(context, count)
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
        "asking for one object of each stream",
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
    manager._store = UnsyncedStore(root, clock)
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
