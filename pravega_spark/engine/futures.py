"""Futures of writes: slim until somebody asks more of them than their result.

A signal handler may run between any two lines of the main thread, and it may wait for the writer.
So nothing here holds a lock that the writer's thread needs: each change of state is one step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, ClassVar, TypeVar, cast

from pravega_spark.errors import PravegaSparkError
from pravega_spark.model import EventPointer

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_Callback = Callable[[Any], object]

_RUNNING, _FINISHED = "RUNNING", "FINISHED"
"""States of :class:`concurrent.futures.Future`, as ``wait`` and ``as_completed`` read them."""
_FULL = frozenset(("_condition", "_state", "_waiters"))
"""What ``wait`` and ``as_completed`` use of a future; made when it is first asked for."""


class Bell:
    """Threads wait until something is so; whoever makes it so rings."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        """Nobody waits yet."""
        self._waiting: deque[threading.Lock] = deque()

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None = None) -> bool:
        """Block until ``is_so()``; return False if it is not so after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not is_so():
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
            if is_so():  # the bell may have rung just before
                return True
            left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            if not turn.acquire(timeout=min(left, threading.TIMEOUT_MAX)):
                return is_so()
        return True

    def ring(self) -> None:
        """Let everybody look again."""
        while self._waiting:
            self._waiting.popleft().release()


class Waiting:
    """State of a write that is not settled: where to wait for that."""

    __slots__ = ("_callbacks", "bell")
    is_settled: ClassVar[bool] = False

    def __init__(self) -> None:
        """Nobody waits yet."""
        self.bell = Bell()
        self._callbacks: deque[tuple[_Callback, WriteFuture[Any]]] = deque()

    def add_callback(self, callback: _Callback, future: WriteFuture[Any]) -> None:
        """Call ``callback(future)`` when it is settled: on the writer's thread, or now."""
        entry = (callback, future)
        self._callbacks.append(entry)
        if not future.done():
            return
        try:
            self._callbacks.remove(entry)
        except ValueError:
            return  # the writer's thread has it
        call(callback, future)

    def tell(self) -> None:
        """Wake whoever waits and call what was asked for; nothing that is raised stops this."""
        self.bell.ring()
        for _ in range(len(self._callbacks)):
            try:
                callback, future = entry = self._callbacks.popleft()
            except IndexError:
                return
            if not future.done():
                self._callbacks.append(entry)
                continue
            try:
                callback(future)
            except BaseException:  # also SystemExit: the thread belongs to the writer
                logger.exception("a callback of %r failed", future)

    def forget(self) -> list[WriteFuture[Any]]:
        """In a forked child: drop the callbacks and the waiting threads; return the futures."""
        futures = [future for _, future in self._callbacks]
        self.bell, self._callbacks = Bell(), deque()
        return futures


class Written:
    """State of durable writes into one segment; each future knows its own offset."""

    __slots__ = ("_life", "_segment_id", "_stream")
    is_settled: ClassVar[bool] = True

    def __init__(self, stream: str, life: int, segment_id: int) -> None:
        """Name the segment."""
        self._stream = stream
        self._life = life
        self._segment_id = segment_id

    def failure(self) -> PravegaSparkError | None:
        """Return None: it is written."""
        return None

    def result(self, offset: int) -> Any:
        """Return the pointer of the event at an offset."""
        return EventPointer(self._stream, self._life, self._segment_id, offset)

    def group(self, count: int) -> Written:
        """Return the state of a write of so many events."""
        return _WrittenGroup(self._stream, self._life, self._segment_id, count)


class _WrittenGroup(Written):
    __slots__ = ("_count",)

    def __init__(self, stream: str, life: int, segment_id: int, count: int) -> None:
        super().__init__(stream, life, segment_id)
        self._count = count

    def result(self, offset: int) -> tuple[EventPointer, ...]:
        """Return the pointers of consecutive events from an offset on."""
        one = super().result
        return tuple(one(offset + index) for index in range(self._count))


class Lost:
    """State of writes that failed."""

    __slots__ = ("_error", "told")
    is_settled: ClassVar[bool] = True

    def __init__(self, error: PravegaSparkError) -> None:
        """Name the reason."""
        self._error = error
        self.told = False
        """Whether a future has told somebody."""

    def failure(self) -> PravegaSparkError | None:
        """Return the reason."""
        self.told = True
        return self._error

    def result(self, offset: int) -> Any:
        """Raise the reason."""
        raise self._error


_State = Waiting | Written | Lost


class WriteFuture(Future[_Result]):
    """The outcome of one write: a ``concurrent.futures.Future``, which can be awaited too.

    Its result is an ``EventPointer``, for ``write_events`` a tuple of them. It cannot be
    cancelled. One that is kept holds neither its event nor others of its batch.
    """

    __slots__ = ("_at", "_event", "_key", "_offset")
    __init__ = object.__init__  # no call for each write

    # What is written, until it is settled; set by the writer, since a call would double the cost.
    _event: bytes | list[bytes] | None
    _key: str | None
    _offset: int
    """The time of writing, then the offset."""
    _at: _State

    def settle(self, state: Written | Lost, offset: int = -1) -> None:
        """Note how the write ended; whoever does so tells the ones that wait."""
        self._event = self._key = None
        self._offset = offset
        self._at = state

    def result(self, timeout: float | None = None) -> _Result:
        """Return the EventPointer (a tuple of them for ``write_events``) once durable."""
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        return cast("_Result", cast("Written", self._at).result(self._offset))

    def exception(self, timeout: float | None = None) -> PravegaSparkError | None:
        """Return why the write failed, or None, once it is settled."""
        state = self._at
        if isinstance(state, Waiting):
            if not state.bell.wait_for(self.done, timeout):
                raise FutureTimeoutError(f"the write is not durable after {timeout} s.")
            state = self._at
        return cast("Written | Lost", state).failure()

    def done(self) -> bool:
        """Tell whether the write is settled."""
        return self._at.is_settled

    def running(self) -> bool:
        """Tell whether the write is not settled yet."""
        return not self._at.is_settled

    def cancel(self) -> bool:
        """Return False: a write cannot be taken back."""
        return False

    def cancelled(self) -> bool:
        """Return False: a write is never cancelled."""
        return False

    def add_done_callback(self, fn: Callable[[WriteFuture[_Result]], object]) -> None:
        """Call ``fn(self)`` once settled, on the writer's thread, or now."""
        state = self._at
        if isinstance(state, Waiting):
            state.add_callback(fn, self)
        else:
            call(fn, self)

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
                failed = isinstance(self._at, Lost)
                for waiter in self._waiters:
                    (waiter.add_exception if failed else waiter.add_result)(self)

    def renew(self) -> None:
        """In a forked child: forget locks that a thread of the parent may hold."""
        self.__dict__.clear()


def call(callback: _Callback, future: WriteFuture[Any]) -> None:
    """Call in the thread of whoever asked; an error is logged, as concurrent.futures has it."""
    try:
        callback(future)
    except Exception:
        logger.exception("a callback of %r failed", future)
