"""Parallel calls of a runtime."""

from __future__ import annotations

import os
import threading

import pytest

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.limits import STORAGE_THREADS


def test_each_runs_in_parallel_and_keeps_the_order() -> None:
    together = threading.Barrier(STORAGE_THREADS, timeout=10)

    def meet(item: int) -> int:
        together.wait()
        return -item

    items = range(STORAGE_THREADS)
    assert SYSTEM.each(meet, items) == [-item for item in items]
    assert SYSTEM.each(lambda item: item, []) == []


def test_each_raises_after_all_calls_have_ended() -> None:
    ended: list[int] = []
    slow = threading.Event()

    def work(item: int) -> None:
        if item == 0:
            threading.Timer(0.05, slow.set).start()
            raise OSError("the first")
        slow.wait(10)
        ended.append(item)

    with pytest.raises(OSError, match="the first"):
        SYSTEM.each(work, [0, 1, 2])
    assert sorted(ended) == [1, 2]


def test_each_works_in_a_forked_child() -> None:
    assert SYSTEM.each(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if child == 0:
        os._exit(0 if SYSTEM.each(abs, [-3, -4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0
