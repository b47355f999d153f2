"""Measuring on a machine that others use too: sides take turns, and ratios are of neighbours."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Side = Callable[[], float]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def timed(action: Callable[[], object]) -> float:
    """Return how many seconds the action takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def interleave(rounds: int, sides: Mapping[str, Side]) -> dict[str, list[float]]:
    """Measure each side once a round; odd rounds go backwards, so that no side is always first."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for _ in range(rounds):
        for name in names:
            gc.collect()
            found[name].append(sides[name]())
        names.reverse()
    return found


def ratio(ours: Sequence[float], peer: Sequence[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(ours, peer, strict=True))
