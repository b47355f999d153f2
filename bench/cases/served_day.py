"""The memory that a server takes for a day of history, on a clock that is simulated."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from bench.harness.simulated_clock import SimulatedClock
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store.memory import MemoryStore

_STEP_SECONDS = 300
_SHARED: Final = (type, ModuleType, BuiltinFunctionType, MemoryStore)
"""What the server uses and does not hold: code, and the storage in memory."""


@benchmark()
def served_day(context: Context) -> Iterator[Figure]:
    """What a server holds after 2, 24 and 48 hours with an open page."""
    small, large = context.size(4, 2), context.size(8, 4)
    hours = context.size(48, 3)
    few, many = _grown(small, hours), _grown(large, hours)
    each = [1_024 * (m - f) / (large - small) for f, m in zip(few, many, strict=True)]
    yield Figure.of_rounds(
        f"memory of a server of {large} streams after a day with an open page",
        [many[1]],
        "MiB",
        "after two hours",
        [many[0]],
        note=f"{many[2]:.2f} MiB after two days; {few[1]:.2f} of {small} streams; KiB of each "
        f"stream beyond {small}: {each[0]:.0f}, {each[1]:.0f} and {each[2]:.0f}",
        limited_by="what is kept for each stream: its log, its minutes, and its answers",
    ).within(ratio_at_most=1.25)


def _grown(streams: int, hours: int) -> list[float]:
    """Return the MiB after a part of the day, half of the time, and all of it."""
    from starlette.testclient import TestClient

    from pravega_spark.serve.serve_options import ServeOptions
    from pravega_spark.serve.web_app import create_app

    clock = SimulatedClock()
    store = MemoryStore(f"day-of-{streams}", clock_ms=clock.now_ms)
    manager = StreamManager(store.url, runtime=clock)
    manager.create_scope("bench")
    names = [f"bench/s{number}" for number in range(streams)]
    for name in names:
        manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1)))
        manager.create_reader_group(f"{name}g", [name])
    writers = [manager.create_writer(name) for name in names]
    found = []
    looks = hours * 3_600 // _STEP_SECONDS
    app = create_app(manager, ServeOptions())
    with TestClient(app, base_url="http://localhost") as page:
        for look in range(1, looks + 1):
            for writer in writers:
                writer.write_event(b"x" * 100, routing_key="k").result()
            clock.sleep(_STEP_SECONDS)
            for path in ("overview", "attention", "streams", "groups", "streams/bench/s0"):
                page.get(f"/api/{path}")
            if look in (looks // 24, looks // 2, looks):
                found.append(_held_mib(app))
    for writer in writers:
        writer.close()
    return found


def _held_mib(root: object) -> float:
    """Return the size of all objects that can be reached from one."""
    seen, waiting, total = {id(root)}, [root], 0
    while waiting:
        one = waiting.pop()
        total += sys.getsizeof(one)
        for other in _held_by(one):
            if id(other) not in seen and not isinstance(other, _SHARED):
                seen.add(id(other))
                waiting.append(other)
    return total / (1 << 20)


def _held_by(one: object) -> list[object]:
    if isinstance(one, FunctionType):  # its globals are everything
        return list(one.__closure__ or ())
    return gc.get_referents(one)
