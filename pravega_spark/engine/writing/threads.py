"""The threads that commit for the writers of this process.

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

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Protocol
from weakref import WeakKeyDictionary

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.errors import IllegalState
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import (
    MOST_WRITER_THREADS,
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
