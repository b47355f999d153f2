"""The engine's clocks, randomness and threads.

They are parameters, so that a simulation can run the real code with its own.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pravega_spark.engine.runtime.boot_clock import boot_id, elapsed_seconds
from pravega_spark.engine.runtime.folder_watch import FolderWatch, watch_folder
from pravega_spark.engine.runtime.shared_calls import CallThreads
from pravega_spark.errors import ForkedProcess
from pravega_spark.primitives.fork_imports import forget_unfinished
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.values.limits import BACKGROUND_EXIT_SECONDS

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_IDLE_SECONDS = 10.0
"""How long a background thread waits for another function before it ends."""
_chance = random.SystemRandom()
_SIGNAL_SECONDS = 1.0
"""How long an interrupt of the main thread may be delayed."""


class Runtime:
    """The system's clocks and randomness."""

    has_threads = True
    """Whether its clocks go on, and other threads run, while the application computes."""

    def now_ms(self) -> int:
        """Return the wall clock in ms since 1970; it may jump."""
        return time.time_ns() // 1_000_000

    now_ns: Callable[[], int] = staticmethod(time.time_ns)
    """Returns the wall clock in ns since 1970; it may jump. No Python call for each event."""

    def now_us(self) -> int:
        """Return the wall clock in µs since 1970; it may jump."""
        return self.now_ns() // 1_000

    def monotonic(self) -> float:
        """Return the seconds of the boot clock, which never goes back and never stops."""
        return elapsed_seconds()

    def boot_id(self) -> str:
        """Return a text that differs for each boot of the machine; empty if the system has none."""
        return boot_id()

    def sleep(self, seconds: float) -> None:
        """Wait for this many seconds."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Wait until another thread sets the event, at most this many seconds (None: any time).

        May return earlier: in the main thread after a second, since Python handles a signal that
        comes just before a wait only after it.
        """
        is_main = threading.current_thread() is threading.main_thread()
        longest = _SIGNAL_SECONDS if is_main else threading.TIMEOUT_MAX
        event.wait(longest if seconds is None else min(seconds, longest))

    def watch_folder(
        self, folder: str, changed: Callable[[], object], is_used: Callable[[], object]
    ) -> FolderWatch | None:
        """Call ``changed`` after files were added to a folder of this machine; None if that fails.

        The watch ends when ``is_used`` returned False for some seconds.
        """
        return watch_folder(folder, changed, is_used)

    def token(self) -> str:
        """Return a random text that is unique across all processes."""
        return os.urandom(12).hex()

    def random(self) -> float:
        """Return a number in [0, 1) that no seed of the application decides."""
        return _chance.random()

    def each(self, function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
        """Return the results of ``function`` for the items, in order; calls run in parallel.

        This thread makes the last call itself, and those that no thread is free for; its error is
        raised, otherwise that of the first call that failed, after all calls have ended.
        """
        if len(items) < 2:
            return [function(item) for item in items]
        return _calls.each(function, items)

    def start(self, function: Callable[[], _Out]) -> Future[_Out]:
        """Run ``function`` in the background, in a separate thread; the future has its result.

        Not in a thread of ``each``, of which there are few: a storage call may hang. At exit a
        process waits for functions that run, but not long. In a forked child no function of the
        parent runs, and the futures of those that did fail with ForkedProcess.
        """
        return _background.start(function)

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Run ``function`` in the background, as :meth:`start` does, after about so many seconds.

        A process that ends, and a forked child, forget functions that are not due yet. Any thread
        may call this, whatever locks it holds.
        """
        _later.add(seconds, function)

    def read_ahead(
        self, parts: Iterable[Generator[_Out, None, None]], count: int
    ) -> Generator[_Out, None, None]:
        """Yield the items of the parts, one part after the other, while later items are computed.

        The next items of ``count`` parts are computed in the background; a part computes one item
        at a time. Waits for running computations when it is closed, and closes the parts.
        """
        waiting = deque[tuple[Generator[_Out, None, None], Future[_Out | None]]]()
        rest = iter(parts)
        try:
            while True:
                while len(waiting) < count and (part := next(rest, None)) is not None:
                    waiting.append((part, self.start(partial(next, part, None))))
                if not waiting:
                    return
                part, found = waiting[0]
                item = found.result()
                if item is None:
                    waiting.popleft()
                else:
                    waiting[0] = part, self.start(partial(next, part, None))
                    yield item
        finally:
            wait([found for _, found in waiting])
            for part, _ in waiting:
                with suppress(ValueError):  # in a forked child it has stopped in its midst
                    part.close()


class _Background:
    """Daemon threads that run one function each; an idle one is used again."""

    def __init__(self) -> None:
        self.renew()

    def renew_in_child(self) -> None:
        """Forget the threads, which do not survive a fork, and let nobody wait for them."""
        lost = list(self._running)
        error = ProcessGuard("a call in the background", os.getppid()).error()
        self.renew()
        for future in lost:
            future._condition = threading.Condition()
            future._done_callbacks = []  # type: ignore[attr-defined]
            if not future.done():
                future.set_exception(error)

    def renew(self) -> None:
        """Begin without threads."""
        self._running: set[Future[Any]] = set()
        self._idle = threading.Semaphore(0)
        """Counts the threads that wait for a function and are not promised one."""
        self._promised: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()

    def start(self, function: Callable[[], _Out]) -> Future[_Out]:
        """Run a function in an idle thread or a new one, or here if none can be started."""
        future: Future[_Out] = Future()
        self._running.add(future)
        if self._idle.acquire(blocking=False):
            self._promised.put((function, future))
            return future
        work = threading.Thread(
            target=self._work, args=(function, future), name="pravega-background", daemon=True
        )
        try:
            work.start()
        except RuntimeError:  # the interpreter is shutting down, or cannot start a thread
            self._run(function, future)
        return future

    def _work(self, function: Callable[[], Any], future: Future[Any]) -> None:
        self._run(function, future)
        del function, future  # an idle thread keeps nothing alive
        while True:
            self._idle.release()
            try:
                promised = self._promised.get(timeout=_IDLE_SECONDS)
            except Empty:
                if self._idle.acquire(blocking=False):
                    return
                promised = self._promised.get()  # a promise has been made in the same moment
            self._run(*promised)
            del promised

    def _run(self, function: Callable[[], _Out], future: Future[_Out]) -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        self._running.discard(future)
        del function, future  # the traceback of an error holds this frame

    def wait_at_exit(self) -> None:
        """Let functions that run end: a daemon thread that is killed in native code may abort."""
        wait(list(self._running), BACKGROUND_EXIT_SECONDS)


class _Later:
    """Functions that wait for their time: one thread hands those that are due to the background."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin without a thread."""
        self._lock = new_rlock()
        self._numbers = count()
        self._given: SimpleQueue[tuple[float, int, Callable[[], object]]] = SimpleQueue()
        self._is_running = False

    def add(self, seconds: float, function: Callable[[], object]) -> None:
        """Run a function after so many seconds; never if no thread can be started."""
        self._given.put((elapsed_seconds() + seconds, next(self._numbers), function))
        with self._lock:
            if self._is_running:
                return
            self._is_running = True
            work = threading.Thread(target=self._work, name="pravega-later", daemon=True)
            try:
                work.start()
            except RuntimeError:  # the interpreter is shutting down, or cannot start a thread
                self._is_running = False

    def _work(self) -> None:
        waiting: list[tuple[float, int, Callable[[], object]]] = []
        while True:
            pause = waiting[0][0] - elapsed_seconds() if waiting else _IDLE_SECONDS
            try:
                heappush(waiting, self._given.get(timeout=max(0.0, pause)))
            except Empty:
                with self._lock:
                    if not waiting and self._given.empty():
                        self._is_running = False
                        return
            while waiting and waiting[0][0] <= elapsed_seconds():
                _background.start(heappop(waiting)[2])


_calls = CallThreads()
_background = _Background()
_later = _Later()
atexit.register(_background.wait_at_exit)
atexit.register(_calls.wait, BACKGROUND_EXIT_SECONDS)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget_unfinished)
    os.register_at_fork(after_in_child=_calls.renew)
    os.register_at_fork(after_in_child=_background.renew_in_child)
    os.register_at_fork(after_in_child=_later.renew)


SYSTEM = Runtime()


@dataclass(slots=True)
class ProcessGuard:
    """Refuses an object in a process that was forked after the object was created."""

    what: str
    pid: int = field(default_factory=os.getpid)

    def check(self) -> None:
        """Raise ForkedProcess in any process except the one that created the object."""
        if self.is_forked:
            raise self.error()

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked after the object was created."""
        return self.pid != os.getpid()

    def error(self) -> ForkedProcess:
        """Return the error for a forked process."""
        return ForkedProcess(
            f"{self.what} was created in process {self.pid} before it forked. Its threads and "
            "connections do not survive a fork. Create it in the child process."
        )
