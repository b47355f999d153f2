"""Futures of writes, the writes that are still open, and their callbacks.

Futures look up the outcome of an open write here, and threads wait for it here. A signal handler
may run between any two lines of the main thread, and may itself wait for the writer. So nothing in
this module holds a lock that the writer's thread needs, and each change of state is one step.

A conditional write has an outcome of its own, with the events and what it expects. A refusal is the
outcome of this write alone: the writer goes on, and later writes follow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar, cast

from pravega_spark.engine.chunks.format import SmallEvent
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.writing.append import ExpectedPosition
from pravega_spark.engine.writing.encode import EventTable, TableRows
from pravega_spark.engine.writing.outcomes import (
    DurableEvents,
    DurableGroup,
    DurableTable,
    EventPositions,
    FailedWrites,
)
from pravega_spark.errors import ConditionFailed, EventTooLarge, IllegalState, PravegaSparkError
from pravega_spark.values.checks import check_timeout
from pravega_spark.values.limits import WRITER_BATCH_BYTES

logger = own_logger(__name__)


class OpenCallbacks:
    """Counts the callbacks of this process until they return.

    Once the process ends, of those that are added only what a callback adds counts: other threads
    may add some forever. Each change is one step, which a signal handler may interrupt.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all callbacks: a forked child does not call those of its parent."""
        self._open: set[OpenCallback] = set()
        self._callers: set[int] = set()
        self.is_ending = False

    def __len__(self) -> int:
        """Return how many callbacks the end of the process waits for."""
        return len(self._open)

    def add(self, callback: OpenCallback) -> None:
        """Count a callback, before its future can complete."""
        if not self.is_ending or threading.get_ident() in self._callers:
            self._open.add(callback)

    def discard(self, callback: OpenCallback) -> None:
        """Count a callback no more: it has returned."""
        self._open.discard(callback)

    @contextmanager
    def called_here(self) -> Iterator[None]:
        """Note that this thread calls callbacks."""
        self._callers.add(threading.get_ident())
        try:
            yield
        finally:
            self._callers.discard(threading.get_ident())


OPEN_CALLBACKS = OpenCallbacks()
"""Those of this process."""


class OpenCallback:
    """One callback, which one thread calls."""

    __slots__ = ("_uncalled", "future")

    def __init__(self, callback: Callable[[Any], object], future: Future[Any]) -> None:
        self.future = future
        self._uncalled = [callback]
        """Empty once a thread calls it."""

    def run(self, logged: type[BaseException] = Exception) -> None:
        """Call it unless another thread does; log errors of this kind."""
        try:
            callback = self._uncalled.pop()
        except IndexError:
            return
        try:
            callback(self.future)
        except logged:
            fields = log_fields("call back")
            logger.exception("a callback of %r failed", self.future, extra=fields)
        finally:
            OPEN_CALLBACKS.discard(self)


_Callback = Callable[[Any], object]


class SignalSafeCondition:
    """A condition variable that holds no lock, so that signal handlers may wait on it."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
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


_Final = DurableEvents | DurableGroup | DurableTable | FailedWrites


class ConditionalOutcome:
    """The outcome of one conditional write, to which its future refers."""

    __slots__ = ("_final", "pending")

    def __init__(self, pending: PendingWrites) -> None:
        self.pending = pending
        self._final: _Final | None = None

    def find(self, number: int) -> _Final | None:
        """Return the outcome, or None while it is open."""
        failed = self.pending.failed  # read first: an outcome is recorded before a failure
        return self._final or failed

    def add(self, positions: EventPositions, row: int, count: int) -> None:
        """Record the rows of a table as durable."""
        durable = DurableTable()
        durable.add(positions, row, count)
        self._final = durable

    def complete(self, positions: EventPositions, count: int | None) -> None:
        """Record a list of events as durable, or (without a count) a single event."""
        if count is None:
            self._final = DurableEvents(positions, [(0, 1, 0)])
        else:
            self._final = DurableGroup(positions.pointer(0, cache=False), count)

    def refuse(self, error: ConditionFailed) -> None:
        """Record that nothing was written."""
        self._final = FailedWrites(error)


class ConditionalWrite:
    """Events that are committed only if the stream, a segment or the writer is where expected."""

    __slots__ = (
        "events", "expected", "is_single", "key", "marked_by", "outcome", "size_bytes", "time_ns"
    )  # fmt: skip

    def __init__(
        self,
        expected: ExpectedPosition,
        events: list[SmallEvent] | TableRows,
        size_bytes: int,
        outcome: ConditionalOutcome,
        *,
        key: str | None = None,
        time_ns: int = 0,
        is_single: bool = False,
        marked_by: str | None = None,
    ) -> None:
        """Take the events; ``size_bytes`` is counted as in the writer's buffer."""
        self.expected = expected
        self.events = events
        self.key = key
        self.time_ns = time_ns
        self.size_bytes = size_bytes
        self.outcome = outcome
        self.is_single = is_single
        self.marked_by = marked_by


def only_part(name: str, rows: EventTable, time_ns: int, outcome: ConditionalOutcome) -> TableRows:
    """Return all rows of a table, which one commit must take; raise EventTooLarge otherwise."""
    parts = [*rows.parts(WRITER_BATCH_BYTES, time_ns, outcome)]
    if len(parts) > 1:
        raise EventTooLarge(
            f"a conditional write of {len(rows)} rows to stream {name}: one commit takes only "
            f"{parts[0].count} of these rows; write fewer, or use a transaction."
        )
    return parts[0]


_Result = TypeVar("_Result")

_Outcome = DurableEvents | DurableGroup | DurableTable | FailedWrites

_RUNNING, _FINISHED = "RUNNING", "FINISHED"
"""States of :class:`concurrent.futures.Future`, as ``wait`` and ``as_completed`` read them."""


class _Waiting:
    """With what ``wait`` and ``as_completed`` wait for one future."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.waiters: list[Any] = []
        self.is_over = False
        """Whether they were told that the write is completed."""


class WriteFuture(Future[_Result]):
    """The outcome of one write: a ``concurrent.futures.Future`` that can also be awaited.

    Its result is an ``EventPointer``, for ``write_events`` a tuple of them, for ``write_table`` a
    sequence that computes them. It cannot be cancelled. A future keeps no event in memory, neither
    its own nor another of its batch.
    """

    __slots__ = ("_number", "_outcomes")
    __init__ = object.__init__  # no Python call for each write

    _outcomes: PendingWrites | EventOutcomes | OpenTable | ConditionalOutcome | DurableGroup
    _number: int
    """The write's number in its EventOutcomes; unused by atomic writes and barriers."""

    def _outcome(self) -> _Outcome | None:
        return self._outcomes.find(self._number)

    def _wait(self, timeout: float | None) -> _Outcome:
        """Block until the write is completed; return its outcome."""
        outcomes = self._outcomes
        outcome = outcomes.find(self._number)
        if outcome is None:
            assert not isinstance(outcomes, DurableGroup)
            check_timeout("a write's future", timeout)
            if timeout != 0:
                self._check_may_wait()
            if not outcomes.pending.condition.wait_for(self.done, timeout):
                raise FutureTimeoutError(
                    f"the write is not durable after {timeout} s; it may still become durable, so "
                    "wait again."
                )
            outcome = self._outcome()
            assert outcome is not None
        return outcome

    def _check_may_wait(self) -> None:
        """Raise IllegalState on the thread that would have to commit the write meanwhile."""
        outcomes = self._outcomes
        if not isinstance(outcomes, DurableGroup) and outcomes.pending.is_own_thread:
            raise IllegalState(
                "a callback of a writer waits for a later write of the same writer, which commits "
                "nothing until the callback returns; add a callback to that future, or wait on "
                "another thread."
            )

    def result(self, timeout: float | None = None) -> _Result:
        """Return the EventPointer (a tuple of them for ``write_events``) once durable.

        Raises the error of a failed write, and TimeoutError after ``timeout`` seconds.
        """
        outcome = self._wait(timeout)
        failure = outcome.failure()
        if failure is not None:
            raise failure
        return cast("_Result", outcome.result(self._number))

    def exception(self, timeout: float | None = None) -> PravegaSparkError | None:
        """Wait for the outcome; return the error of a failed write, None for a durable one."""
        return self._wait(timeout).failure()

    def done(self) -> bool:
        """Return True if the write is durable or has failed."""
        return self._outcomes.find(self._number) is not None

    def running(self) -> bool:
        """Return True while the outcome is open."""
        return not self.done()

    def cancel(self) -> bool:
        """Return False: a write cannot be withdrawn."""
        return False

    def cancelled(self) -> bool:
        """Return False: a write is never cancelled."""
        return False

    def add_done_callback(self, fn: Callable[[WriteFuture[_Result]], object]) -> None:
        """Call ``fn(self)`` on the writer's thread once completed, or now if it already is.

        The callback may write, which never blocks there, close the writer, and use other writers
        and streams, also wait for them. Inside a callback, ``flush`` and waiting for a later write
        of the same writer raise IllegalState: the writer waits for the callback. Other writers go
        on.
        """
        outcomes = self._outcomes
        if isinstance(outcomes, DurableGroup) or self.done():
            OpenCallback(fn, self).run()
        else:
            outcomes.pending.add_callback(fn, self)

    def __await__(self) -> Generator[Any, None, _Result]:
        """Wait in a coroutine."""
        import asyncio  # imported on use: only coroutines pay for it

        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        return f"<WriteFuture at {id(self):#x} {'done' if self.done() else 'pending'}>"

    # What ``wait`` and ``as_completed`` read: first each future's lock, then, with all of them, the
    # states, twice, between which no state may change, else ``wait`` counts a future that it is
    # told of later as completed, and never ends. So a future is finished for them once they were
    # told, which takes its lock. A state may refuse the wait without a lock that stays taken.

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        waiting = self._full()
        if not waiting.is_over and self.done():  # a callback may wait before its thread tells them
            self._finish()
        return waiting.condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._full().waiters

    @property
    def _state(self) -> str:  # type: ignore[override]
        if self._full().is_over:
            return _FINISHED
        self._check_may_wait()
        return _RUNNING

    def _full(self) -> _Waiting:
        """Return what others wait with; made on first use."""
        known: _Waiting | None = self.__dict__.get("_waiting")
        if known is None:
            known = self.__dict__.setdefault("_waiting", _Waiting())
            self.add_done_callback(WriteFuture._finish)
        return known

    def _finish(self) -> None:
        """Notify ``wait`` and ``as_completed``; a second call does nothing."""
        waiting = self._full()
        with waiting.condition:
            if not waiting.is_over:
                waiting.is_over = True
                failed = isinstance(self._outcome(), FailedWrites)
                for waiter in waiting.waiters:
                    (waiter.add_exception if failed else waiter.add_result)(self)

    def reset_after_fork(self) -> None:
        """In a forked child: drop locks that a thread of the parent may hold."""
        self.__dict__.clear()


def future_of(
    outcomes: PendingWrites | EventOutcomes | OpenTable | ConditionalOutcome | DurableGroup,
    number: int = 0,
    kind: type[WriteFuture[Any]] = WriteFuture,
) -> WriteFuture[Any]:
    """Return the future of a write, by where its outcome will be, or the outcome itself.

    ``EventStreamWriter.write_event`` sets both fields in line: a call would double its cost.
    """
    future: WriteFuture[Any] = kind()
    future._outcomes, future._number = outcomes, number
    return future


def complete(future: WriteFuture[Any], outcome: DurableGroup) -> None:
    """Set the outcome of an atomic write or a barrier; waiting threads are notified later."""
    future._outcomes = outcome
