"""Parallel calls of a runtime."""

from __future__ import annotations

import os
import threading
import time

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


def test_each_within_each_ends_although_all_threads_of_the_pool_are_in_it() -> None:
    together = threading.Barrier(STORAGE_THREADS)

    def outer(number: int) -> list[int]:
        if number < STORAGE_THREADS:
            together.wait(10)  # all threads of the pool have begun
        return SYSTEM.each(lambda inner: number + inner, range(3))

    found = SYSTEM.start(lambda: SYSTEM.each(outer, range(STORAGE_THREADS + 1))).result(60)
    assert found == [[n, n + 1, n + 2] for n in range(STORAGE_THREADS + 1)]


def test_each_works_in_a_forked_child() -> None:
    assert SYSTEM.each(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if child == 0:
        os._exit(0 if SYSTEM.each(abs, [-3, -4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_background_functions_return_raise_and_share_idle_threads() -> None:
    names = {SYSTEM.start(threading.get_ident).result(10)}
    for _ in range(5):
        time.sleep(0.02)  # until the thread is idle
        names.add(SYSTEM.start(threading.get_ident).result(10))
    assert threading.get_ident() not in names
    assert len(names) < 6
    with pytest.raises(ZeroDivisionError):
        SYSTEM.start(lambda: 1 // 0).result(10)


def test_background_function_that_hangs_delays_no_other() -> None:
    may_go = threading.Event()
    hanging = [SYSTEM.start(lambda: may_go.wait(30)) for _ in range(20)]
    assert SYSTEM.start(lambda: 7).result(10) == 7
    assert not any(future.done() for future in hanging)
    may_go.set()
    assert all(future.result(10) for future in hanging)
