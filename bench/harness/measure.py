"""Timing on a shared machine: the sides alternate, and a ratio compares neighbouring rounds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Side = Callable[[], float]
"""One side of a comparison: measures once and returns the result."""


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at a share of the sorted values (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(action: Callable[[], object]) -> float:
    """Return how many seconds the action takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def timed_each(action: Callable[[], object], count: int) -> list[float]:
    """Return the seconds of each of ``count`` calls in a row."""
    return [timed(action) for _ in range(count)]


def median_ms(action: Callable[[], object], count: int) -> float:
    """Return the median of ``count`` calls in a row, in milliseconds."""
    return 1e3 * statistics.median(timed_each(action, count))


def interleave(rounds: int, sides: Mapping[str, Side]) -> dict[str, list[float]]:
    """Measure each side once a round. Every other round is reversed, so no side is always first."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for _ in range(rounds):
        for name in names:
            gc.collect()
            found[name].append(sides[name]())
        names.reverse()
    return found


def percentile_ratio(
    ours: Sequence[float], peer: Sequence[float], share: float, calls: int
) -> float:
    """Return the median over rounds of ``calls`` values of the ratio of a percentile."""
    parts = [slice(i, i + calls) for i in range(0, len(ours), calls)]
    return ratio(
        [percentile(ours[part], share) for part in parts],
        [percentile(peer[part], share) for part in parts],
    )


def ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Return the median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(ours, peer, strict=True))
