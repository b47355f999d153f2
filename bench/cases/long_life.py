"""A stream that lives for long, on a simulated clock: what stays flat.

``PRAVEGA_SPARK_LIFE=1000000`` lives a whole year of a commit each half minute: half an hour of
processor time.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from functools import partial

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.life_probe import cost_ms, costs, memory_mb, stored
from bench.harness.long_life import LongLife
from bench.harness.measure import interleave
from bench.harness.registry import benchmark
from bench.harness.simulated_clock import SimulatedClock
from pravega_spark.engine.store.memory import MemoryStore

_YOUNG = 100
_GAUGES = 10
_OPERATIONS = ("append", "open for append", "open and read the tail", "stream info")


@benchmark()
def long_life(context: Context) -> Iterator[Figure]:
    """Writers, transactions, a group, and maintenance with a scaling policy, all in memory."""
    appends = int(os.environ.get("PRAVEGA_SPARK_LIFE") or context.size(100_000, 600))
    grown = context.size(10_000, 300)
    apart = context.size(250, 5)
    young, old = _born("young"), _born("old")
    young.live(_YOUNG)
    old.live(grown)
    before, memory, rounds = _peak(old, apart), memory_mb(), _round_ms(old)
    old.live(max(0, appends - old.appends))
    after = _peak(old, apart)
    for name in _OPERATIONS:
        sides = {"old": partial(cost_ms, old, name), "young": partial(cost_ms, young, name)}
        for life in (old, young):
            life.align()
        calls = costs(old)[name].calls, costs(young)[name].calls
        found = interleave(context.size(15, 2), sides)
        yield Figure.of_rounds(
            f"{name}, after {appends:,} appends",
            found["old"],
            "ms",
            f"after {_YOUNG}",
            found["young"],
            note=f"{calls[0]} storage calls, and {calls[1]}; in memory",
            limited_by="the domains of the state, the commits since the newest state file",
        ).within(ratio_at_most=1.2)
    for what, value, peer, unit in (
        ("objects", after[0], before[0], "objects"),
        ("bytes", after[1] / 2**20, before[1] / 2**20, "MiB"),
        ("memory of the process", memory_mb(), memory, "MiB"),
        ("a round of maintenance", _round_ms(old)[0], rounds[0], "ms"),
        ("its compaction", _round_ms(old)[1], rounds[1], "ms"),
    ):
        yield Figure(
            f"{what} after {appends:,} appends",
            value,
            unit,
            f"after {grown:,}",
            peer,
            value / peer,
            note="peaks, of rounds medians; the rows of the history are left out",
            limited_by="what is retained, and the commits between two checkpoints",
        ).within(ratio_at_most=1.2)
    yield Figure(f"write amplification, {appends:,} appends", old.amplification, "x").within(
        at_most=3.0
    )


def _born(name: str) -> LongLife:
    clock = SimulatedClock()
    return LongLife(MemoryStore(f"bench-{name}", clock_ms=clock.now_ms), clock)


def _peak(life: LongLife, apart: int) -> tuple[float, float]:
    """Return the most objects and bytes over some maintenance rounds."""
    found = []
    for _ in range(_GAUGES):
        life.live(apart)
        found.append(stored(life))
    return max(s.objects for s in found), max(s.size_bytes for s in found)


def _round_ms(life: LongLife) -> tuple[float, float]:
    """Return the median times of the newest rounds of maintenance, and of their compactions."""
    rounds = list(life.rounds)
    whole = statistics.median(one.seconds for one in rounds)
    return 1e3 * whole, 1e3 * statistics.median(one.compaction_seconds for one in rounds)
