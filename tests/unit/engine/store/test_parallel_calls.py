"""Calls at the same time: their order, their limit, and what an error does."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.parallel_calls import in_parallel, in_rounds
from pravega_spark.values.limits import (
    CHECK_THREADS,
    OBJECT_CALLS,
    OBJECT_HELPERS,
    STORAGE_THREADS,
)


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


def test_error_of_the_first_item_is_raised_though_a_later_one_failed_before() -> None:
    failed = threading.Event()

    def call(item: int) -> None:
        if item == 2:
            failed.set()
        elif item == 1:
            failed.wait(30)
        if item in (1, 2):
            raise KeyError(item)

    for _ in range(20):
        failed.clear()
        with pytest.raises(KeyError, match="1"):
            in_parallel(call, range(4))


def test_calls_within_calls_use_a_bounded_number_of_threads() -> None:
    now, most, lock = set[int](), 0, threading.Lock()
    all_help = threading.Event()

    def inner(item: int) -> int:
        nonlocal most
        with lock:
            now.add(threading.get_ident())
            most = max(most, len(now))
            if most > OBJECT_HELPERS:
                all_help.set()
        all_help.wait(60)
        with lock:
            now.discard(threading.get_ident())
        return item

    def outer(item: int) -> list[int]:
        return in_parallel(inner, range(item, item + OBJECT_CALLS))

    for _ in range(2):  # helpers are free again
        most = 0
        all_help.clear()
        found = in_parallel(outer, range(CHECK_THREADS), CHECK_THREADS)
        assert found == [list(range(n, n + OBJECT_CALLS)) for n in range(CHECK_THREADS)]
        assert most == OBJECT_HELPERS + 1


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_process_whose_helpers_are_busy_has_its_own() -> None:
    busy, end = threading.Barrier(3), threading.Event()

    def wait_for_end(item: int) -> None:
        busy.wait(30)
        end.wait(100)

    caller = threading.Thread(target=in_parallel, args=(wait_for_end, range(2)))
    caller.start()
    busy.wait(30)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=_use_all_helpers)
    child.start()
    child.join(90)
    end.set()
    caller.join()
    assert child.exitcode == 0


def _use_all_helpers() -> None:
    together = threading.Barrier(OBJECT_HELPERS + 1)
    in_parallel(lambda item: together.wait(60), range(OBJECT_HELPERS + 1), OBJECT_HELPERS + 1)


def test_disk_is_asked_by_the_caller_alone() -> None:
    threads = in_rounds(MemoryStore(), lambda item: threading.get_ident(), range(100))
    assert set(threads) == {threading.get_ident()}
