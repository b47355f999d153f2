"""Parallel calls of a runtime."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator

import pytest

from pravega_spark.engine.runtime import shared_calls
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.values.limits import STORAGE_THREADS
from tests.harness.tiers import sized

WAIT = 240.0


def test_each_runs_in_parallel_and_keeps_the_order() -> None:
    together = threading.Barrier(STORAGE_THREADS, timeout=WAIT)

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
        slow.wait(WAIT)
        ended.append(item)

    with pytest.raises(OSError, match="the first"):
        SYSTEM.each(work, [0, 1, 2])
    assert sorted(ended) == [1, 2]


def test_each_within_each_ends_although_all_threads_of_the_pool_are_in_it() -> None:
    together = threading.Barrier(STORAGE_THREADS)

    def outer(number: int) -> list[int]:
        if number < STORAGE_THREADS:
            together.wait(WAIT)  # all threads of the pool have begun
        return SYSTEM.each(lambda inner: number + inner, range(3))

    found = SYSTEM.start(lambda: SYSTEM.each(outer, range(STORAGE_THREADS + 1))).result(60)
    assert found == [[n, n + 1, n + 2] for n in range(STORAGE_THREADS + 1)]


def test_each_needs_no_thread_while_all_of_them_hang() -> None:
    hang, may_end = threading.Barrier(STORAGE_THREADS + 2), threading.Event()

    def block(_: int) -> None:
        hang.wait(WAIT)
        may_end.wait(WAIT)

    hanging = SYSTEM.start(lambda: SYSTEM.each(block, range(STORAGE_THREADS + 1)))
    hang.wait(WAIT)
    here = threading.get_ident()
    assert SYSTEM.each(lambda _: threading.get_ident(), range(4)) == [here] * 4
    may_end.set()
    hanging.result(WAIT)


def test_calls_run_in_parallel_again_after_more_callers_than_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_calls, "_IDLE_SECONDS", 0.02)
    threads = shared_calls.CallThreads()
    may_end, begun = threading.Event(), threading.Barrier(STORAGE_THREADS + 2, timeout=WAIT)

    def block(_: int) -> None:
        begun.wait()
        may_end.wait(WAIT)

    blocked = threading.Thread(target=threads.each, args=(block, range(STORAGE_THREADS + 1)))
    blocked.start()
    begun.wait()
    for _ in range(STORAGE_THREADS):
        assert threads.each(int, range(9)) == list(range(9))
    may_end.set()
    blocked.join(WAIT)
    deadline = time.monotonic() + 30
    while len(threads._unused) < STORAGE_THREADS and time.monotonic() < deadline:
        time.sleep(0.01)  # until all of them have ended
    together = threading.Barrier(STORAGE_THREADS + 1, timeout=WAIT)
    threads.each(lambda _: together.wait(), range(STORAGE_THREADS + 1))


def test_threads_that_help_end_when_idle_and_others_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_calls, "_IDLE_SECONDS", 0.02)
    threads, count = shared_calls.CallThreads(), 4

    def helpers() -> set[threading.Thread]:
        together = threading.Barrier(count)

        def meet(_: int) -> threading.Thread:
            together.wait(WAIT)
            return threading.current_thread()

        return set(threads.each(meet, range(count))) - {threading.current_thread()}

    for _ in range(3):
        helping = helpers()
        assert len(helping) == count - 1
        for thread in helping:
            thread.join(WAIT)
            assert not thread.is_alive()


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_no_call_is_lost_while_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_calls, "_IDLE_SECONDS", 0.0)
    threads = shared_calls.CallThreads()
    for number in range(sized(500, 2_000)):
        assert threads.each(lambda item: -item, range(number % 9 + 2))[1] == -1


@pytest.mark.parametrize(("failing", "raised"), [({1, 2, 3}, 3), ({1, 2}, 1)])
def test_the_last_call_has_the_error_that_counts_then_the_first(
    failing: set[int], raised: int
) -> None:
    def fail(item: int) -> None:
        if item in failing:
            raise OSError(f"call {item}")

    with pytest.raises(OSError, match=f"call {raised}"):
        SYSTEM.each(fail, range(4))


def test_a_process_waits_at_its_end_for_calls_of_daemon_threads() -> None:
    program = """if True:
        import threading, time
        from pravega_spark.engine.runtime.system import SYSTEM
        begun = threading.Barrier(3)
        def work(item):
            begun.wait(240)
            time.sleep(0.2)
            print(item, flush=True)
        threading.Thread(target=SYSTEM.each, args=(work, range(2)), daemon=True).start()
        begun.wait(240)
    """
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert "0" in run.stdout  # the call of a thread that helps; the caller's own may be cut off


def test_reading_ahead_keeps_the_order_and_computes_parts_at_the_same_time() -> None:
    together = threading.Barrier(2)

    def part(first: int) -> Generator[int, None, None]:
        if first < 20:
            together.wait(30)
        yield from range(first, first + 3)

    parts = (part(first) for first in (0, 10, 20, 30))
    found = list(SYSTEM.read_ahead(parts, 2))
    assert found == [*range(3), *range(10, 13), *range(20, 23), *range(30, 33)]
    assert list(SYSTEM.read_ahead([], 2)) == []


def test_an_error_of_a_part_follows_the_items_before_it() -> None:
    def failing() -> Generator[int, None, None]:
        yield 3
        raise OSError("the second part")

    seen: list[int] = []

    def drain() -> None:
        for item in SYSTEM.read_ahead([(n for n in (1, 2)), failing(), (n for n in (9,))], 3):
            seen.append(item)

    with pytest.raises(OSError, match="the second part"):
        drain()
    assert seen == [1, 2, 3]


def test_closing_waits_for_running_parts_and_closes_them() -> None:
    begun, may_end, closed = threading.Event(), threading.Event(), list[int]()

    def part(number: int) -> Generator[int, None, None]:
        try:
            yield number
            begun.set()
            may_end.wait(30)
            yield number
        finally:
            closed.append(number)

    ahead = SYSTEM.read_ahead([part(0), part(1)], 2)
    assert next(ahead) == 0
    assert begun.wait(30)
    threading.Timer(0.05, may_end.set).start()
    ahead.close()
    assert may_end.is_set()
    assert closed == [0, 1]


def test_each_works_in_a_forked_child() -> None:
    assert SYSTEM.each(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if child == 0:
        os._exit(0 if SYSTEM.each(abs, [-3, -4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_background_functions_return_raise_and_share_idle_threads() -> None:
    names, calls = {SYSTEM.start(threading.get_ident).result(WAIT)}, 1
    while len(names) == calls < 500:
        time.sleep(0.02)  # until the thread is idle
        names.add(SYSTEM.start(threading.get_ident).result(WAIT))
        calls += 1
    assert threading.get_ident() not in names
    assert len(names) < calls
    with pytest.raises(ZeroDivisionError):
        SYSTEM.start(lambda: 1 // 0).result(WAIT)


def test_background_function_that_hangs_delays_no_other() -> None:
    may_go = threading.Event()
    hanging = [SYSTEM.start(lambda: may_go.wait(30)) for _ in range(20)]
    assert SYSTEM.start(lambda: 7).result(WAIT) == 7
    assert not any(future.done() for future in hanging)
    may_go.set()
    assert all(future.result(WAIT) for future in hanging)
