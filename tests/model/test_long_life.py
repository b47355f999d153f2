"""What a stream costs does not depend on how long it has lived.

``PRAVEGA_SPARK_LIFE=1000000`` gives the length of the life in appends: a million are a year.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bench.harness.life_probe import costs, state_of, stored
from bench.harness.long_life import LifePace, LongLife
from bench.harness.simulated_clock import SimulatedClock
from pravega_spark.engine.store.memory import MemoryStore
from tests.harness.tiers import sized

PACE = LifePace(keep="3 hours", grace="30 minutes", maintenance=120, scope=60, policy=1_000)
YOUNG, OLD = 3_000, sized(9_000, 100_000, "PRAVEGA_SPARK_LIFE")
GAUGES, APART = 12, 120
FLAT, UNEVEN = 1.3, 2.0
"""How much larger the old life's highest values may be; in proportion they would be threefold."""
UNEVEN_COSTS = (
    *("bytes read", "open and read the tail", "stream info"),
    *("sweep of the scope", "list streams", "settings"),
)
"""The commit of a truncation is large, the newest files are in more layers after a compaction, and
tables with few commits are cleaned now and then."""
BOUNDED = {"history files": 80}
"""The history keeps what left the state, in files whose number grows with the logarithm of that."""


def peaks(life: LongLife, appends: int) -> Mapping[str, float]:
    """Return the highest of several values of everything measured, up to a number of appends.

    One value would depend on where the writers are between two state files or checkpoints.
    """
    life.live(appends - APART * GAUGES - life.appends)
    found: dict[str, float] = {}
    for _ in range(GAUGES):
        life.live(APART)
        now, kinds = state_of(life), stored(life)
        gauged: dict[str, float] = {name: now[name] for name in now.keys() - BOUNDED.keys()}
        gauged |= {"objects": kinds.objects, "bytes": kinds.size_bytes}
        for name, cost in costs(life, rounds=1).items():
            gauged |= {f"calls: {name}": cost.calls, f"bytes read: {name}": cost.read_bytes}
        found = {name: max(value, found.get(name, 0)) for name, value in gauged.items()}
    return found


@pytest.mark.long
@pytest.mark.slow
def test_stream_costs_the_same_however_long_it_has_lived() -> None:
    clock = SimulatedClock()
    life = LongLife(MemoryStore("long-life", clock_ms=clock.now_ms), clock, PACE)
    life.live(100)
    first = costs(life, rounds=1)
    young, old = peaks(life, YOUNG), peaks(life, OLD)
    grown = {
        name: (young[name], old[name])
        for name in young
        if old[name] > (UNEVEN if any(p in name for p in UNEVEN_COSTS) else FLAT) * young[name]
    }
    assert grown == {}
    assert {name for name, most in BOUNDED.items() if state_of(life)[name] > most} == set()
    assert old["calls: append"] == first["append"].calls == 2
    assert old["calls: open for append"] <= FLAT * first["open for append"].calls
    for name in ("open and read the tail", "stream info"):
        assert old[f"calls: {name}"] <= UNEVEN * first[name].calls
    assert len(life.stream.segments()) > 1
    assert 1 < life.amplification < 3
    assert life.stream.info().events < 2_500  # by the largest of the policies, which is by size
