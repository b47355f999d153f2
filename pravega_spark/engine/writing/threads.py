"""The threads that commit for the writers of this process, its exit, and its forks.

A writer that gets work is put into one queue, which is a step that a signal handler may interrupt
anywhere. One thread always waits there. Before it begins with a writer, and so may block, it
provides another one that waits in its place: one that is free, or a new one. So a writer never
waits for a thread while there are fewer than ``WRITER_THREADS``.

Above that number a writer waits for a thread that gets free. If none does for a while, because
storage hangs, there is one more, up to a second limit. The writers of one stream use a part of the
threads at most, so that those of other streams go on while it hangs.

A thread that calls callbacks of users is not counted, neither for its stream nor among all: what
it waits for may be another writer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import thread as pools
from contextlib import contextmanager
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Protocol
from weakref import WeakKeyDictionary

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.writing.futures import OPEN_CALLBACKS
from pravega_spark.errors import IllegalState
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import (
    MOST_WRITER_THREADS,
    WRITER_EXIT_SECONDS,
    WRITER_STREAM_THREADS,
    WRITER_STUCK_SECONDS,
    WRITER_THREADS,
)

logger = own_logger(__name__)

_IDLE_SECONDS = 10.0
"""A thread ends after this time without work, except the last one."""


class WriterWork(Protocol):
    """The work of one writer, which one thread does at a time, piece by piece."""

    is_idle: bool
    """Whether no thread has the work; the writer wakes one after it added some."""

    @property
    def stream_key(self) -> object:
        """An object that the writers of one stream share."""

    @property
    def has_work(self) -> bool:
        """Whether a thread is needed now."""

    def work(self) -> bool:
        """Do one piece; return False if there will never be another. Never raises."""


class _Share:
    """The threads that work for one stream."""

    def __init__(self) -> None:
        self.threads = 0
        self.parked: deque[WriterWork] = deque()
        """Work that waits for one of these threads."""


class WriterThreads:
    """Threads that are shared by all writers of a process.

    The lock is never held by a thread of a user's, because a signal handler may interrupt that.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self.renew()

    def renew(self) -> None:
        """Forget all threads and work, because threads do not survive a fork."""
        self._ready: SimpleQueue[tuple[WriterWork, bool]] = SimpleQueue()
        """Work, and whether it was claimed already."""
        self._numbers = count(1)
        self._threads = self._waiting = 0
        """All threads, and those that wait for work or are about to."""
        self._is_guarded = False
        """Whether a thread waits until another one is free, and then begins with its work."""
        self._freed: SimpleQueue[None] = SimpleQueue()
        self._shares: WeakKeyDictionary[object, _Share] = WeakKeyDictionary()

    def waker(self, work: WriterWork) -> Callable[[], None]:
        """Return a function that makes a thread look at this work; it may be called too often.

        Raises IllegalState if there is no thread and none can be started.
        """
        if not self._threads and not self._start(self._begin):
            raise IllegalState(
                "the thread that commits cannot be started: the system refuses it, or the process "
                "ends (since Python 3.12 no thread starts once the main thread has ended). Open "
                "the first writer earlier."
            )
        return partial(self._ready.put, (work, False))

    @property
    def count(self) -> int:
        """The number of threads, without those that call callbacks."""
        return self._threads

    @contextmanager
    def uncounted(self, stream_key: object) -> Iterator[None]:
        """Let another thread work for the stream while this one, which does so, calls callbacks.

        When it comes back the stream may have a thread too many until a piece of work is done.
        """
        with self._lock:
            share = self._shares.setdefault(stream_key, _Share())
            share.threads -= 1
            self._threads -= 1
            if share.parked:
                self._ready.put((share.parked.popleft(), True))
            if self._is_guarded:
                self._freed.put(None)
        try:
            yield
        finally:
            with self._lock:
                share.threads += 1
                self._threads += 1

    def _start(self, target: Callable[[], None]) -> bool:
        name = f"pravega-writer-{next(self._numbers)}"
        try:
            threading.Thread(target=target, name=name, daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down, or the system refuses
            return False
        return True

    def _start_waiting(self) -> None:
        """Start a thread that waits for work; the caller holds the lock."""
        self._threads += 1
        self._waiting += 1
        if not self._start(self._run):
            self._threads -= 1
            self._waiting -= 1

    def _begin(self) -> None:
        with self._lock:
            self._threads += 1
            self._waiting += 1
        self._run()

    def _run(self) -> None:
        while True:
            try:
                work, is_claimed = self._ready.get(timeout=_IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._waiting > 1:
                        self._waiting -= 1
                        self._threads -= 1
                        return
                continue
            if not (is_claimed or work.is_idle):
                continue  # another thread has it
            with self._lock:
                if not is_claimed:
                    if not work.is_idle:
                        continue
                    work.is_idle = False
                self._waiting -= 1
            self._provide()
            self._serve(work)
            del work  # a thread that waits keeps nothing alive
            with self._lock:
                self._waiting += 1
                if self._is_guarded:
                    self._freed.put(None)

    def _provide(self) -> None:
        """Return when another thread waits for work, or guards."""
        with self._lock:
            if self._waiting or self._is_guarded:
                return
            if self._threads < WRITER_THREADS:
                self._start_waiting()
                return
            self._is_guarded = True
        while True:
            try:
                self._freed.get(timeout=WRITER_STUCK_SECONDS)
            except Empty:
                if self._threads >= MOST_WRITER_THREADS:
                    continue
            with self._lock:
                if not self._waiting and self._threads < MOST_WRITER_THREADS:
                    self._start_waiting()
                if self._waiting:  # in one step: that thread may begin with work at once, and guard
                    self._is_guarded = False
                    return

    def _serve(self, work: WriterWork) -> None:
        """Do the work, and then what waits for a thread of the same stream."""
        with self._lock:
            share = self._shares.setdefault(work.stream_key, _Share())
            if share.threads >= WRITER_STREAM_THREADS:
                share.parked.append(work)
                return
            share.threads += 1
        following: WriterWork | None = work
        while following is not None:
            try:
                self._do(following, share)
            except BaseException:
                logger.exception("a thread of writers failed", extra=log_fields("append"))
            with self._lock:
                is_extra = share.threads > WRITER_STREAM_THREADS
                following = share.parked.popleft() if share.parked and not is_extra else None
                if following is None:
                    share.threads -= 1

    def _do(self, work: WriterWork, share: _Share) -> None:
        """Do pieces of the work until there is none, or until other work waits."""
        while work.work():
            if work.has_work:
                is_extra = share.threads > WRITER_STREAM_THREADS
                if is_extra or share.parked or not self._ready.empty():
                    self._ready.put((work, True))
                    return
                continue
            work.is_idle = True
            if not work.has_work:
                return
            with self._lock:  # what was added just before saw the work as taken
                if not work.is_idle:
                    return
                work.is_idle = False


WRITER_POOL = WriterThreads()
"""The threads of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WRITER_POOL.renew)


_LOOK_SECONDS = 0.002
"""How often a process that ends looks whether callbacks have returned."""


class ExitingQueue(Protocol):
    """A writer's queue, as far as the end of its process concerns it."""

    name: str
    """The stream's name."""

    @property
    def outstanding(self) -> tuple[int, int]:
        """The writes and bytes that are not durable yet."""

    def begin_exit(self, *, close: bool) -> None:
        """Ask the writer's thread to commit what the queue holds."""

    def wait_exit(self, deadline: float) -> bool:
        """Wait for that commit until a time of the monotonic clock; return whether it ended."""

    def report_exit(self, waited_seconds: float) -> None:
        """Log the writes that are not durable although the process ends."""

    def reset_after_fork(self) -> None:
        """In a forked child: refuse writes and release the futures."""


_open: set[ExitingQueue] = set()


def register(queue: ExitingQueue) -> None:
    """Flush the queue when the process ends."""
    _open.add(queue)


def unregister(queue: ExitingQueue) -> None:
    """Forget a queue whose thread has ended."""
    _open.discard(queue)


def open_queues() -> list[ExitingQueue]:
    """Return the queues of this process's open writers."""
    return list(_open)


def _commit(deadline: float, *, close: bool) -> bool:
    """Wait until the accepted writes of this process are durable; return False after the bound."""
    queues = list(_open)
    for queue in queues:
        queue.begin_exit(close=close)
    in_time = [queue.wait_exit(deadline) for queue in queues]
    if close:
        for queue in queues:
            queue.report_exit(WRITER_EXIT_SECONDS)
    return all(in_time)


def _flush_after_main() -> None:
    """Commit while thread pools run, and see to what other threads write after that."""
    _commit(time.monotonic() + WRITER_EXIT_SECONDS, close=False)
    _wait_for_threads()


def _wait_for_threads() -> None:
    """Start a thread for which the end waits, since it is not a daemon, where no exit hook runs."""
    if _skips_atexit():
        threading.Thread(target=_close_after_threads, name="pravega-exit", daemon=False).start()


def _skips_atexit() -> bool:
    """Whether this is a process of multiprocessing that ends without a call of exit hooks."""
    processes = sys.modules.get("multiprocessing")
    if processes is None or processes.parent_process() is None:
        return False
    return bool(processes.get_start_method(allow_none=True) != "spawn")


def _close_after_threads() -> None:
    own, others = threading.current_thread(), threading.enumerate()
    while others := [t for t in others if t is not own and not t.daemon and t.is_alive()]:
        for thread in others:
            thread.join()
        others = threading.enumerate()  # they may have started more
    _close_all()


def _close_all() -> None:
    """Wait, within a bound, until callbacks have returned and all accepted writes are durable."""
    OPEN_CALLBACKS.is_ending = True
    deadline = time.monotonic() + WRITER_EXIT_SECONDS
    in_time = _commit(deadline, close=False)
    while OPEN_CALLBACKS and in_time and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    if OPEN_CALLBACKS:
        logger.warning(
            "the process ends although %d callbacks of writes have not returned within %g s; the "
            "rest of their work is not done",
            len(OPEN_CALLBACKS),
            WRITER_EXIT_SECONDS,
            extra=log_fields("close writer"),
        )
    _commit(deadline, close=True)


def _close_at_exit() -> None:
    if not _skips_atexit():  # Python 3.14 calls hooks there, too, and before the threads end
        _close_all()


def _reset_all() -> None:
    OPEN_CALLBACKS.reset()
    queues = list(_open)
    _open.clear()
    for queue in queues:
        queue.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
# Runs when the main thread has ended, before thread pools stop (the newest hook runs first).
try:
    pools.threading._register_atexit(_flush_after_main)  # type: ignore[attr-defined]
except RuntimeError:  # it has ended: the first writer is made in an exit hook, or another thread
    with contextlib.suppress(RuntimeError):  # since Python 3.12 no writer gets a thread then
        _wait_for_threads()
# Runs when all threads except daemons have ended: tasks of pools may have written since.
atexit.register(_close_at_exit)
