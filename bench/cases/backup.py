"""A backup that is brought up to date, of roots of 100 and of 1,000 streams."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark import StreamManager
from pravega_spark.backup.root_backup import back_up
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore

_STREAMS = (100, 1_000)
_KEEP_MS = 3_600_000


@benchmark()
def backup_up_to_date(context: Context) -> Iterator[Figure]:
    """A second backup of a root in which nothing, and one stream in a hundred, has changed."""
    for streams in _STREAMS:
        source, target = CountingStore(MemoryStore()), CountingStore(MemoryStore())
        manager = StreamManager(source.url)
        manager.create_scope("s")
        names = [f"s/t{number}" for number in range(streams)]
        for name in names:
            manager.create_stream(name)
            _append(manager, name)
        first = _measured(source, target)
        for what, changed in (("nothing", 0), ("one stream in a hundred", streams // 100)):
            for name in names[:changed]:
                _append(manager, name)
            took = _measured(source, target)
            yield Figure(
                f"backup of {streams:,} streams up to date, {what} has changed",
                took[0],
                "s",
                "the first backup, CPU",
                first[0],
                took[0] / first[0],
                note=f"{took[1]:.1f} calls a stream, {first[1]:.1f} for the first; "
                f"{took[2]} puts in the source, {first[2]}",
                limited_by="opening the copy's log, and looking for a newer version of the source",
            ).within(ratio_at_most=0.7)


def _append(manager: StreamManager, name: str) -> None:
    with manager.create_writer(name) as writer:
        writer.write_events([b"a", b"b"])


def _measured(source: CountingStore, target: CountingStore) -> tuple[float, float, int]:
    """Return processor time, storage calls a stream, and puts in the source."""
    before, puts = source.total + target.total, source.calls["put"]
    begun = time.process_time()
    done = back_up(source, target, SYSTEM, "", _KEEP_MS, updates=True)
    used = time.process_time() - begun
    calls = (source.total + target.total - before) / len(done.versions)
    return used, calls, source.calls["put"] - puts
