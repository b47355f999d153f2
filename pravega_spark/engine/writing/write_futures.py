"""Futures of writes: two fields each, until ``wait`` or ``as_completed`` needs more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar, cast

from pravega_spark.arguments import check_timeout
from pravega_spark.engine.writing.conditional_write import ConditionalOutcome
from pravega_spark.engine.writing.open_callbacks import OpenCallback
from pravega_spark.engine.writing.pending_writes import EventOutcomes, OpenTable, PendingWrites
from pravega_spark.engine.writing.write_outcomes import (
    DurableEvents,
    DurableGroup,
    DurableTable,
    FailedWrites,
)
from pravega_spark.errors import IllegalState, PravegaSparkError

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

    # The writer sets both fields, since a call would double the cost of a write.
    _outcomes: PendingWrites | EventOutcomes | OpenTable | ConditionalOutcome | DurableGroup
    _number: int
    """The write's number in its EventOutcomes; unused by atomic writes and barriers."""

    def _complete(self, outcome: DurableGroup) -> None:
        """Set the outcome of an atomic write or a barrier; waiting threads are notified later."""
        self._outcomes = outcome

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
                raise FutureTimeoutError(f"the write is not durable after {timeout} s.")
            outcome = self._outcome()
            assert outcome is not None
        return outcome

    def _check_may_wait(self) -> None:
        """Raise IllegalState on the thread that would have to commit the write meanwhile."""
        outcomes = self._outcomes
        if not isinstance(outcomes, DurableGroup) and outcomes.pending.is_own_thread:
            raise IllegalState(
                "a write that is not durable was waited for in a callback of the same writer, "
                "which commits nothing meanwhile; add a callback to that future, or wait on "
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

        It may write, which never blocks there, close the writer, and use other writers and
        streams, also wait for them. Its writer commits nothing until it returns, so ``flush`` and
        to wait for an open write of the same writer raise IllegalState in it. Other writers go on.
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
        """Show the state."""
        return f"<WriteFuture at {id(self):#x} {'done' if self.done() else 'pending'}>"

    # What ``wait`` and ``as_completed`` read: first each future's lock, then, with all of them, the
    # states. So a state may refuse the wait without a lock that stays taken.

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        return self._full().condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._full().waiters

    @property
    def _state(self) -> str:  # type: ignore[override]
        if self.done():
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
