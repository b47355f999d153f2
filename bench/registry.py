"""The one list of benchmarks, in the order of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.context import Context
from bench.figures import Figure

Benchmark = Callable[[Context], Iterator[Figure]]

_registry: dict[str, Benchmark] = {}


def benchmark(function: Benchmark) -> Benchmark:
    """Register a benchmark under its function's name."""
    assert function.__name__ not in _registry, function.__name__
    _registry[function.__name__] = function
    return function


def benchmarks(only: list[str] | None = None) -> dict[str, Benchmark]:
    """Return the benchmarks, or those whose names contain one of the texts."""
    from bench import (
        append,
        backlog,
        frames,
        groups,
        manual_scale,
        memory,
        micro_batch,
        opening,
        pipeline,
        recut,
        retention,
        scaling,
        tail,
        transactions,
    )

    order = [append, pipeline, tail, opening]
    order += [transactions, manual_scale, recut, scaling, retention, groups, memory]
    order += [frames, backlog, micro_batch]
    modules = [module.__name__ for module in order]
    found = sorted(_registry.items(), key=lambda item: modules.index(item[1].__module__))
    return {
        name: function for name, function in found if not only or any(text in name for text in only)
    }
