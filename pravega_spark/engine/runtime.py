"""The engine's clocks, randomness and threads.

They are parameters, so that a simulation can run the real code with its own.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pravega_spark.engine.boot_clock import boot_id, elapsed_seconds
from pravega_spark.errors import ForkedProcess
from pravega_spark.limits import BACKGROUND_EXIT_SECONDS, STORAGE_THREADS

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class Runtime:
    """The system's clocks and randomness."""

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970; it may jump."""
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        """Return the wall clock in µs since 1970; it may jump."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return the seconds of the boot clock, which never goes back and never stops."""
        return elapsed_seconds()

    def boot_id(self) -> str:
        """Return a text that differs for each boot of the machine; empty if the system has none."""
        return boot_id()

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        time.sleep(seconds)

    def token(self) -> str:
        """Return a random text that is unique across all processes."""
        return os.urandom(12).hex()

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return random.random()

    def each(self, function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
        """Return the results of ``function`` for the items, in order; calls run in parallel.

        An error of one call is raised after all calls have ended.
        """
        if len(items) < 2:
            return [function(item) for item in items]
        try:
            futures = [_threads.pool().submit(function, item) for item in items]
        except RuntimeError:  # the interpreter is shutting down, so no pool accepts work
            return [function(item) for item in items]
        wait(futures)
        return [future.result() for future in futures]

    def start(self, function: Callable[[], _Out]) -> Future[_Out]:
        """Run ``function`` in the background, in a thread of its own; the future has its result.

        Not in a thread of the pool: a storage call that hangs there would stop other calls, and
        the interpreter would wait for it at exit. At exit a process waits for functions that run,
        but not long. In a forked child no function of the parent runs.
        """
        future: Future[_Out] = Future()
        _running.add(future)
        thread = threading.Thread(
            target=_run, args=(function, future), name="pravega-background", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down, or cannot start a thread
            _run(function, future)
        return future


class _Threads:
    """The threads that wait for storage; a forked child creates its own."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Drop the pool, because its threads do not survive a fork."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        """Return the pool, which is created on first use."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(STORAGE_THREADS, thread_name_prefix="pravega")
            return self._pool


_running: set[Future[Any]] = set()
"""Functions that run in the background."""


def _run(function: Callable[[], _Out], future: Future[_Out]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
    _running.discard(future)
    del function, future  # the traceback of an error holds this frame


def _wait_at_exit() -> None:
    """Let functions that run end: a daemon thread that is killed in native code may abort."""
    wait(list(_running), BACKGROUND_EXIT_SECONDS)


_threads = _Threads()
atexit.register(_wait_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.renew)
    os.register_at_fork(after_in_child=_running.clear)


SYSTEM = Runtime()


@dataclass(slots=True)
class ProcessGuard:
    """Refuses an object in a process that was forked after the object was created."""

    what: str
    pid: int = field(default_factory=os.getpid)

    def check(self) -> None:
        """Raise ForkedProcess in any process except the one that created the object."""
        if self.pid != os.getpid():
            raise self.error()

    def error(self) -> ForkedProcess:
        """Return the error for a forked process."""
        return ForkedProcess(
            f"{self.what} was created in process {self.pid} before it forked. Its threads and "
            "connections do not survive a fork. Create it in the child process."
        )
