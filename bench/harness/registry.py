"""What makes a function a benchmark, and how a package's benchmarks are found and ordered."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType

from bench.harness.context import Context
from bench.harness.figures import Figure

Run = Callable[[Context], Iterator[Figure]]


class Phase(IntEnum):
    """When a benchmark runs. Within a phase the order is by module name, then by line."""

    PLAIN = 0
    """Plain Python on inputs that no earlier benchmark has changed."""
    CHANGES_SHARED_INPUT = 1
    """Changes an input that other benchmarks read, so it runs after them."""
    SPARK = 2
    """Starts the JVM, which keeps its memory and threads until the end of the run."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named function that yields figures."""

    name: str
    run: Run
    phase: Phase


def benchmark(phase: Phase = Phase.PLAIN) -> Callable[[Run], Benchmark]:
    """Return a decorator that makes a function a benchmark of the same name."""
    return lambda run: Benchmark(run.__name__, run, phase)


def find(package: ModuleType, only: Sequence[str] = ()) -> list[Benchmark]:
    """Return a package's benchmarks in running order.

    With ``only``, return those whose names contain one of the texts.
    """
    found: dict[str, Benchmark] = {}
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, Benchmark):
                assert value.name not in found, f"two benchmarks are named {value.name}"
                found[value.name] = value
    return [
        each
        for each in sorted(found.values(), key=lambda each: each.phase)
        if not only or any(text in each.name for text in only)
    ]
