"""Writes whose outcome is still open: where futures look it up, and how threads wait for it.

A signal handler may run between any two lines of the main thread, and may itself wait for the
writer. So nothing in this module holds a lock that the writer's thread needs, and each change of
state is one step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from pravega_spark.engine.writing.open_callbacks import OPEN_CALLBACKS, OpenCallback
from pravega_spark.engine.writing.write_outcomes import (
    DurableEvents,
    DurableTable,
    EventPositions,
    FailedWrites,
)

_Callback = Callable[[Any], object]


class SignalSafeCondition:
    """A condition variable without a lock of its own, so that signal handlers may wait on it."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        """Begin without a waiting thread."""
        self._waiters: list[threading.Lock] = []

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until ``predicate()`` holds; return False if it does not after ``timeout`` s."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not predicate():
            waiter = threading.Lock()
            waiter.acquire()
            self._waiters.append(waiter)
            if predicate():  # a notification may have passed just before the append
                return True
            left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            if not waiter.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                return predicate()
        return True

    def notify_all(self) -> None:
        """Make every waiting thread test its predicate again; any number of threads may do so."""
        while self._waiters:
            try:
                waiter = self._waiters.pop()
            except IndexError:  # another thread took the last one
                return
            waiter.release()


class PendingWrites:
    """The open writes of one writer, as far as they share state: waiting threads and callbacks.

    A future of an atomic write or of a barrier looks its outcome up in this object until it is
    completed.
    """

    __slots__ = ("_callbacks", "condition", "failed", "thread_id")

    def __init__(self) -> None:
        """Begin without waiting threads and callbacks."""
        self.condition = SignalSafeCondition()
        self.thread_id: int | None = None
        """The thread that commits now and calls the callbacks: it must not wait for a write."""
        self.failed: FailedWrites | None = None
        """The failure of every write that is not durable; set while no commit is in flight."""
        self._callbacks: list[OpenCallback] = []

    @property
    def pending(self) -> PendingWrites:
        """Itself, as futures expect it of every open outcome."""
        return self

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on the thread that commits, which must not wait for itself."""
        return threading.get_ident() == self.thread_id

    def find(self, number: int) -> FailedWrites | None:
        """Return the outcome of a write, or None while it is open."""
        return self.failed

    def add_callback(self, callback: _Callback, future: Future[Any]) -> None:
        """Call ``callback(future)`` on the writer's thread once it is completed, or now."""
        added = OpenCallback(callback, future)
        OPEN_CALLBACKS.add(added)
        self._callbacks.append(added)
        if future.done():  # unless the writer's thread calls it
            added.run()

    def notify_completed(self, around: Callable[[], AbstractContextManager[None]]) -> None:
        """Wake the waiting threads and call the callbacks of completed writes; never raises.

        The callbacks are called inside ``around()``, which this object does not keep: it lives as
        long as a future of the writer does.
        """
        self.condition.notify_all()
        if self._callbacks:
            with around(), OPEN_CALLBACKS.called_here():
                self._call_completed()

    def _call_completed(self) -> None:
        count = len(self._callbacks)
        callbacks = self._callbacks[:count]
        del self._callbacks[:count]
        for callback in callbacks:
            if callback.future.done():
                callback.run(BaseException)  # SystemExit as well: the thread belongs to the writer
            else:
                self._callbacks.append(callback)

    def reset_after_fork(self) -> list[Future[Any]]:
        """In a forked child: drop the callbacks and the waiting threads; return the futures."""
        futures = [callback.future for callback in self._callbacks]
        self.condition, self._callbacks, self.thread_id = SignalSafeCondition(), [], None
        return futures


class EventOutcomes:
    """Outcomes of the single-event writes that began between two batches of a writer.

    Futures refer to this object and to their write number, and nothing refers to the futures: a
    write whose future is dropped costs nothing. Usually all of these writes go into the next
    batch; a thread that was suspended in a write adds its event to a later one.
    """

    __slots__ = ("_durable", "pending")

    def __init__(self, pending: PendingWrites) -> None:
        """Begin without a durable write."""
        self.pending = pending
        self._durable: tuple[DurableEvents, ...] = ()

    def add(self, durable: DurableEvents) -> None:
        """Record some of the writes as durable."""
        self._durable = (*self._durable, durable)

    def find(self, number: int) -> DurableEvents | FailedWrites | None:
        """Return the outcome of a write, or None while it is open."""
        failed = self.pending.failed  # read first: durable writes are recorded before a failure
        for durable in self._durable:
            if durable.has(number):
                return durable
        return failed


class OpenTable:
    """The outcome of a table's rows, which several batches may make durable, in order."""

    __slots__ = ("_durable", "_missing", "pending")

    def __init__(self, pending: PendingWrites, rows: int) -> None:
        """Begin without a durable row."""
        self.pending = pending
        self._missing = rows
        self._durable = DurableTable()

    def add(self, positions: EventPositions, row: int, count: int) -> None:
        """Record the next ``count`` rows as durable; ``row`` is the first one's in its batch."""
        self._durable.add(positions, row, count)
        self._missing -= count

    def find(self, number: int) -> DurableTable | FailedWrites | None:
        """Return the outcome once all rows are durable, or the writer failed."""
        failed = self.pending.failed  # read first: durable rows are recorded before a failure
        return failed if self._missing else self._durable
