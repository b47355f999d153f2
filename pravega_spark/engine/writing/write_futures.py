"""Futures of writes: slim until somebody asks more of them than their result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar, cast

from pravega_spark.engine.writing.write_outcomes import (
    DurableGroup,
    DurableWrites,
    FailedWrites,
    Generation,
    Waiting,
    call,
)
from pravega_spark.errors import PravegaSparkError

_Result = TypeVar("_Result")

_RUNNING, _FINISHED = "RUNNING", "FINISHED"
"""States of :class:`concurrent.futures.Future`, as ``wait`` and ``as_completed`` read them."""
_FULL = frozenset(("_condition", "_state", "_waiters"))
"""What ``wait`` and ``as_completed`` use of a future; made when it is first asked for."""


class WriteFuture(Future[_Result]):
    """The outcome of one write: a ``concurrent.futures.Future``, which can be awaited too.

    Its result is an ``EventPointer``, for ``write_events`` a tuple of them. It cannot be
    cancelled. One that is kept holds no event, neither its own nor another of its batch.
    """

    __slots__ = ("_at", "_number")
    __init__ = object.__init__  # no call for each write

    # Set by the writer, since a call would double the cost.
    _at: Waiting | Generation | DurableGroup
    _number: int
    """Which write of its generation; no number if it is no write of one event."""

    def settle(self, state: DurableGroup) -> None:
        """Note how an atomic write or a mark ended; whoever does so tells the ones that wait."""
        self._at = state

    def _outcome(self) -> DurableWrites | DurableGroup | FailedWrites | None:
        return self._at.outcome(self._number)

    def _settled(self, timeout: float | None) -> DurableWrites | DurableGroup | FailedWrites:
        """Return how the write ended, once it has."""
        at = self._at
        outcome = at.outcome(self._number)
        if outcome is None:
            assert not isinstance(at, DurableGroup)
            if not at.waiting.bell.wait_for(self.done, timeout):
                raise FutureTimeoutError(f"the write is not durable after {timeout} s.")
            outcome = self._outcome()
            assert outcome is not None
        return outcome

    def result(self, timeout: float | None = None) -> _Result:
        """Return the EventPointer (a tuple of them for ``write_events``) once durable."""
        outcome = self._settled(timeout)
        failure = outcome.failure()
        if failure is not None:
            raise failure
        return cast("_Result", outcome.result(self._number))

    def exception(self, timeout: float | None = None) -> PravegaSparkError | None:
        """Return why the write failed, or None, once it is settled."""
        return self._settled(timeout).failure()

    def done(self) -> bool:
        """Tell whether the write is settled."""
        return self._at.outcome(self._number) is not None

    def running(self) -> bool:
        """Tell whether the write is not settled yet."""
        return not self.done()

    def cancel(self) -> bool:
        """Return False: a write cannot be taken back."""
        return False

    def cancelled(self) -> bool:
        """Return False: a write is never cancelled."""
        return False

    def add_done_callback(self, fn: Callable[[WriteFuture[_Result]], object]) -> None:
        """Call ``fn(self)`` once settled, on the writer's thread, or now."""
        at = self._at
        if isinstance(at, DurableGroup) or self.done():
            call(fn, self)
        else:
            at.waiting.add_callback(fn, self)

    def __await__(self) -> Generator[Any, None, _Result]:
        """Wait in a coroutine."""
        import asyncio  # only coroutines pay for it

        return asyncio.wrap_future(self).__await__()

    def __repr__(self) -> str:
        """Show the state."""
        return f"<WriteFuture at {id(self):#x} {'done' if self.done() else 'pending'}>"

    def __getattr__(self, name: str) -> Any:
        """Make what ``wait`` and ``as_completed`` use of a future when they ask for it."""
        if name not in _FULL:
            raise AttributeError(f"a WriteFuture has no attribute {name!r}.")
        self._fill()
        self.add_done_callback(WriteFuture._finish)
        return self.__dict__[name]

    def _fill(self) -> None:
        for name, value in (
            ("_condition", threading.Condition()),
            ("_state", _RUNNING),
            ("_waiters", []),
        ):
            self.__dict__.setdefault(name, value)

    def _finish(self) -> None:
        """Tell those who wait for several futures at once; again: nothing."""
        self._fill()
        with self._condition:
            if self._state != _FINISHED:
                self._state = _FINISHED
                failed = isinstance(self._outcome(), FailedWrites)
                for waiter in self._waiters:
                    (waiter.add_exception if failed else waiter.add_result)(self)

    def renew(self) -> None:
        """In a forked child: forget locks that a thread of the parent may hold."""
        self.__dict__.clear()
