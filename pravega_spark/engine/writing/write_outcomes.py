"""How writes end, and how many wait for that at once: states that futures look into.

A signal handler may run between any two lines of the main thread, and it may wait for the writer.
So nothing here holds a lock that the writer's thread needs: each change of state is one step.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from operator import itemgetter
from typing import Any, Protocol

from pravega_spark.errors import PravegaSparkError
from pravega_spark.model import EventPointer

logger = logging.getLogger(__name__)

_Callback = Callable[[Any], object]


class Bell:
    """Threads wait until something is so; whoever makes it so rings."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        """Nobody waits yet."""
        self._waiting: list[threading.Lock] = []

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
            self._waiting.pop().release()


class Waiting:
    """What all writes of one writer wait for that are not settled.

    It is also the state of an atomic write or a mark until that is settled.
    """

    __slots__ = ("_callbacks", "bell", "lost")

    def __init__(self) -> None:
        """Nobody waits yet."""
        self.bell = Bell()
        self.lost: FailedWrites | None = None
        """Once it is set, whatever is not written is lost; set when no commit is under way."""
        self._callbacks: list[tuple[Future[Any], list[_Callback]]] = []
        """Whoever takes the callback out of its list calls it."""

    @property
    def waiting(self) -> Waiting:
        """Itself."""
        return self

    def outcome(self, number: int) -> FailedWrites | None:
        """Return how the write ended, or None while it has not."""
        return self.lost

    def add_callback(self, callback: _Callback, future: Future[Any]) -> None:
        """Call ``callback(future)`` when it is settled: on the writer's thread, or now."""
        untold = [callback]
        self._callbacks.append((future, untold))
        if future.done():
            try:
                told = untold.pop()
            except IndexError:
                return  # the writer's thread has it
            call(told, future)

    def tell(self) -> None:
        """Wake whoever waits and call what was asked for; nothing that is raised stops this."""
        self.bell.ring()
        count = len(self._callbacks)
        entries = self._callbacks[:count]
        del self._callbacks[:count]
        for entry in entries:
            future, untold = entry
            if not future.done():
                self._callbacks.append(entry)
                continue
            try:
                told = untold.pop()
            except IndexError:
                continue
            try:
                told(future)
            except BaseException:  # also SystemExit: the thread belongs to the writer
                logger.exception("a callback of %r failed", future)

    def forget(self) -> list[Future[Any]]:
        """In a forked child: drop the callbacks and the waiting threads; return the futures."""
        futures = [future for future, _ in self._callbacks]
        self.bell, self._callbacks = Bell(), []
        return futures


class Generation:
    """State of the writes of one event that began between two batches of a writer.

    Their futures know it and their numbers, and nobody knows them: what is written and not looked
    at costs nothing. Mostly all go into the next batch; a thread that was held up comes later.
    """

    __slots__ = ("_written", "waiting")

    def __init__(self, waiting: Waiting) -> None:
        """Nothing is written yet."""
        self.waiting = waiting
        self._written: tuple[DurableWrites, ...] = ()

    def add(self, written: DurableWrites) -> None:
        """Note where some of the writes are."""
        self._written = (*self._written, written)

    def outcome(self, number: int) -> DurableWrites | FailedWrites | None:
        """Return how a write ended, or None while it has not."""
        lost = self.waiting.lost  # first: whatever is written was noted before
        for written in self._written:
            if written.has(number):
                return written
        return lost


class Places(Protocol):
    """Where the events of a batch are."""

    def pointer(self, row: int, *, alone: bool = False) -> EventPointer:
        """Return the place of an event of the batch; ``alone``: nobody may ask for others."""
        ...


Run = tuple[int, int, int]
"""Consecutive numbers of a batch: the first, how many, and the row of the first."""


class DurableWrites:
    """State of durable writes of one event, of one batch."""

    __slots__ = ("_places", "_runs")

    def __init__(self, places: Places, runs: Iterable[Run]) -> None:
        """Take where the batch's events are, and which numbers are which of its rows."""
        self._places = places
        self._runs = tuple(sorted(runs))

    def _row(self, number: int) -> int:
        """Return the row of a number; -1 if it is in another batch."""
        at = bisect_right(self._runs, number, key=itemgetter(0)) - 1
        first, count, row = self._runs[at]
        return row + number - first if 0 <= number - first < count else -1

    def has(self, number: int) -> bool:
        """Tell whether that write is one of these."""
        return self._row(number) >= 0

    def outcome(self, number: int) -> DurableWrites:
        """Return itself: they are written."""
        return self

    def failure(self) -> PravegaSparkError | None:
        """Return None: they are written."""
        return None

    def result(self, number: int) -> Any:
        """Return the pointer of the event."""
        return self._places.pointer(self._row(number))


class DurableGroup:
    """State of a durable write of several events; of none, for a mark."""

    __slots__ = ("_count", "_first")

    def __init__(self, first: EventPointer | None, count: int) -> None:
        """Take the place of the first event; the others follow."""
        self._first = first
        self._count = count

    def outcome(self, number: int) -> DurableGroup:
        """Return itself: it is written."""
        return self

    def failure(self) -> PravegaSparkError | None:
        """Return None: it is written."""
        return None

    def result(self, number: int) -> tuple[EventPointer, ...]:
        """Return the pointers of the events."""
        first = self._first
        if first is None:
            return ()
        return tuple(replace(first, offset=first.offset + i) for i in range(self._count))


class FailedWrites:
    """State of writes that failed."""

    __slots__ = ("_error", "told")

    def __init__(self, error: PravegaSparkError) -> None:
        """Name the reason."""
        self._error = error
        self.told = False
        """Whether a future has told somebody."""

    def failure(self) -> PravegaSparkError | None:
        """Return the reason."""
        self.told = True
        return self._error

    def result(self, number: int) -> Any:
        """Raise the reason."""
        raise self._error


def call(callback: _Callback, future: Future[Any]) -> None:
    """Call in the thread of whoever asked; an error is logged, as concurrent.futures has it."""
    try:
        callback(future)
    except Exception:
        logger.exception("a callback of %r failed", future)
