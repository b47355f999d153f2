"""Requests to an object store at the same time: their waits overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from typing import Any, TypeVar

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.limits import OBJECT_CALLS

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def in_parallel(function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """Return the results of ``function`` for the items, in order, at most OBJECT_CALLS at a time.

    The threads belong to no pool, so this is parallel also within ``Runtime.each``. After an error
    no further call begins, and the error is raised when those under way have ended.
    """
    results: list[Any] = [None] * len(items)
    positions = iter(range(len(items)))  # shared: its next() is atomic

    def work() -> None:
        try:
            for position in positions:
                results[position] = function(items[position])
        except BaseException:
            for _ in positions:
                pass
            raise

    others = [SYSTEM.start(work) for _ in range(min(len(items), OBJECT_CALLS) - 1)]
    try:
        work()
    finally:
        wait(others)
    for other in others:
        other.result()
    return results
