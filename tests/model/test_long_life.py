"""What a stream costs does not depend on how long it has lived.

``PRAVEGA_SPARK_LIFE=1000000`` gives the length of the life in appends: a million are a year.
``PRAVEGA_SPARK_DISK_LIFE=100000`` is the same for the life on a local disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from bench.harness.life_probe import costs, memory_blocks, state_of, stored
from bench.harness.long_life import STREAM, LifePace, LongLife
from bench.harness.simulated_clock import SimulatedClock
from bench.harness.unsynced_store import SimulatedDisk
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.values.limits import CHECKPOINT_COMMITS, STATE_FILE_COMMITS
from tests.harness.tiers import only_long, sized

pytestmark = pytest.mark.extended

PACE = LifePace(
    keep="90 minutes", grace="15 minutes", maintenance=60, scope=60, policy=480, cycle=360, busy=60
)
"""Three policies of 480 appends are four cycles of the load: lives of so many appends compare."""
YOUNG, OLD = 1_440, sized(4_320, 100_800, "PRAVEGA_SPARK_LIFE")
GAUGES = sized(6, 12)
DISK_PACE = LifePace(
    keep="3 hours", grace="30 minutes", maintenance=120, scope=60, policy=10**6, cycle=720, busy=120
)
"""Twice as slow: the versions behind a checkpoint are many beside those of so short a time."""
YOUNG_DISK, OLD_DISK = 1_440, sized(2_880, 100_800, "PRAVEGA_SPARK_DISK_LIFE")
FLAT, UNEVEN = 1.3, 2.0
"""How much larger the old life's highest values may be; in proportion they would be threefold."""
UNEVEN_COSTS = (
    *("bytes read", "open and read the tail", "stream info", "domain bytes"),
    *("sweep of the scope", "list streams", "settings", "open the history", "state file"),
    "retention decision",
)
"""The commit of a truncation is large, the epochs that a lagging reader needs are in the state, the
newest files are in more layers after a compaction, tables with few commits are cleaned now and
then, state files tell what was removed since the checkpoint, and a decision reads each range of
commits once, however much of it its searches share (538, 817 and 522 calls at three ages)."""
BOUNDED = {"history files": 160}
"""The history keeps what left the state, in files whose number grows with the logarithm of that."""


def gauged(life: LongLife) -> dict[str, float]:
    """Return everything that may grow: state, objects, memory, and the costs of operations."""
    kinds = stored(life)
    log = [kinds.kinds[kind] for kind in kinds.kinds if kind.startswith("events/_delta_log")]
    found: dict[str, float] = {
        **{name: value for name, value in state_of(life).items() if name not in BOUNDED},
        "objects": kinds.objects,
        "bytes": kinds.size_bytes,
        "objects of the log": sum(number for number, _ in log),
        "bytes of the log": sum(size for _, size in log),
        "segments": len(life.stream.segments()),
        "memory": memory_blocks(),
    }
    newest = life.rounds[-1]
    found |= {"calls: maintenance": newest.calls, "calls: compaction": newest.compaction_calls}
    return found


def gauged_costs(life: LongLife) -> dict[str, float]:
    """Return the calls of operations, and the bytes that they read, besides what may grow."""
    found = gauged(life)
    for name, cost in costs(life, rounds=1).items():
        found |= {f"calls: {name}": cost.calls, f"bytes read: {name}": cost.read_bytes}
    return found


def peaks(
    life: LongLife,
    appends: int,
    gauges: int = GAUGES,
    gauge: Callable[[LongLife], Mapping[str, float]] = gauged_costs,
) -> dict[str, float]:
    """Return the highest of several values of everything measured, up to a number of appends.

    One value would depend on where the writers are between two state files or checkpoints.
    """
    apart = life.pace.maintenance
    life.live(appends - apart * gauges - life.appends)
    found: dict[str, float] = {}
    for _ in range(gauges):
        life.live(apart)
        for name, value in gauge(life).items():
            found[name] = max(value, found.get(name, 0))
    return found


def assert_flat(life: LongLife, young: Mapping[str, float], old: Mapping[str, float]) -> None:
    """Check that nothing is much larger in the old life, and that the life was a full one."""
    grown = {
        name: (young[name], old[name])
        for name in young
        if old[name] > (UNEVEN if any(p in name for p in UNEVEN_COSTS) else FLAT) * young[name]
    }
    assert grown == {}
    assert {name for name, most in BOUNDED.items() if state_of(life)[name] > most} == set()
    cycles = life.appends // life.pace.cycle
    assert life.splits >= 3 * cycles
    assert life.merges >= 2 * cycles
    assert 1 < life.amplification < 3


@pytest.mark.long
@pytest.mark.slow
def test_stream_costs_the_same_however_long_it_has_lived() -> None:
    clock = SimulatedClock()
    life = LongLife(MemoryStore("long-life", clock_ms=clock.now_ms), clock, PACE)
    life.live(100)
    first = costs(life, rounds=1)
    young, old = peaks(life, YOUNG), peaks(life, OLD)
    assert_flat(life, young, old)
    assert old["calls: append"] == first["append"].calls == 2
    assert old["calls: open for append"] <= FLAT * first["open for append"].calls
    for name in ("open and read the tail", "stream info"):
        assert old[f"calls: {name}"] <= UNEVEN * first[name].calls


@pytest.mark.long
@only_long("the test above has the same bounds for a life in memory")
def test_other_delta_readers_open_an_old_table_on_disk_as_a_young_one(tmp_path: Path) -> None:
    clock = SimulatedClock()
    life = LongLife(SimulatedDisk(str(tmp_path), clock), clock, DISK_PACE)
    young, old = (peaks(life, appends, 6, gauged) for appends in (YOUNG_DISK, OLD_DISK))
    assert_flat(life, young, old)
    assert old["versions behind the checkpoint"] <= CHECKPOINT_COMMITS + STATE_FILE_COMMITS
    table = tmp_path / STREAM / "events"
    newest = DeltaTable(table)
    assert newest.version() == life.version
    files = pa.table(newest.get_add_actions(flatten=True)).column("num_records").to_pylist()
    info = life.stream.info()
    assert sum(files) >= info.events
    assert len(files) == info.files.files
    oldest = StreamLog(life.store.inner, STREAM, clock).view().snapshot.retention_mark
    for version in (oldest, (oldest + life.version) // 2):
        assert DeltaTable(table, version=version).version() == version
