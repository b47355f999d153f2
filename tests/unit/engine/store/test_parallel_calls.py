"""Calls at the same time: their order, their limit, and what an error does."""

from __future__ import annotations

import threading

import pytest

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.engine.store.parallel_calls import in_parallel
from pravega_spark.limits import OBJECT_CALLS, STORAGE_THREADS


def test_results_are_in_order_and_calls_overlap() -> None:
    together = threading.Barrier(OBJECT_CALLS)

    def call(item: int) -> int:
        together.wait(30)
        return item * 2

    count = 3 * OBJECT_CALLS
    assert in_parallel(call, range(count)) == [2 * item for item in range(count)]
    assert in_parallel(str, []) == []
    assert in_parallel(str, [7]) == ["7"]


def test_calls_overlap_within_calls_of_the_runtimes_threads() -> None:
    """A chunk's group of files is fetched within ``each``, whose own calls are one by one there."""
    together = threading.Barrier(2 * STORAGE_THREADS)

    def inner(item: int) -> int:
        together.wait(30)
        return item

    def outer(item: int) -> list[int]:
        return in_parallel(inner, [item, -item])

    numbers = list(range(1, STORAGE_THREADS + 1))
    assert SYSTEM.each(outer, numbers) == [[number, -number] for number in numbers]


def test_no_call_begins_after_an_error_and_those_under_way_end() -> None:
    begun: list[int] = []
    ended: list[int] = []
    together = threading.Barrier(OBJECT_CALLS)
    failed = threading.Event()

    def call(item: int) -> None:
        begun.append(item)
        together.wait(30)
        if item == 1:
            failed.set()
            raise KeyError(item)
        failed.wait(30)
        ended.append(item)

    with pytest.raises(KeyError):
        in_parallel(call, range(100 * OBJECT_CALLS))
    assert sorted(begun) == sorted([*ended, 1])
    assert len(begun) < 100 * OBJECT_CALLS
