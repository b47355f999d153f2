"""Calls that run at the same time on a few threads of the process, and on the thread that waits.

A caller hands its calls to threads that are free, makes the last call itself, and then those that
no thread has begun. So it never waits for a thread, only for calls that run: calls may make calls
of their own, and a thread that hangs in one stops no other caller.

Handing a call over is two steps of C, since an append does it twice: no lock, and no future.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from pravega_spark.values.limits import STORAGE_THREADS

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_IDLE_SECONDS = 10.0
"""How long a thread waits for calls before it ends."""


class SharedCalls:
    """The calls of one function for several items, which several threads make."""

    __slots__ = (
        "_all_ended", "_count_ended", "_errors", "_function", "_items", "_left", "_open",
        "_results",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        still_open: dict[SharedCalls, None],
    ) -> None:
        """Leave all calls but the last to the threads that begin them, in order.

        It holds the object until these calls have ended, even if their caller was interrupted.
        """
        self._function = function
        self._items = items
        self._left = list(range(len(items) - 2, -1, -1))
        """The calls that no thread has begun; ``pop`` is one step."""
        self._count_ended = count(2 - len(items)).__next__
        """It returns 0 to the thread that ends the last of them."""
        self._all_ended = threading.Lock()
        self._all_ended.acquire()
        self._errors: dict[int, BaseException] = {}
        self._results: list[Any] = [None] * len(items)
        self._open = still_open
        still_open[self] = None

    def help(self) -> None:
        """Make the calls that no thread has begun."""
        while self._left:
            try:
                number = self._left.pop()
            except IndexError:  # another thread took it
                return
            try:
                self._results[number] = self._function(self._items[number])
            except BaseException as error:
                self._errors[number] = error
            if self._count_ended() == 0:
                self._open.pop(self, None)
                self._all_ended.release()

    def finish(self) -> list[Any]:
        """Make the last call and those that are left; return all results, or raise an error."""
        try:
            self._results[-1] = self._function(self._items[-1])
        finally:
            self.help()
            self._all_ended.acquire()
        if self._errors:
            raise self._errors[min(self._errors)]
        return self._results

    def wait(self, seconds: float) -> None:
        """Wait, at most ``seconds``, until no call runs but the caller's own."""
        if self._all_ended.acquire(timeout=seconds):
            self._all_ended.release()


class CallThreads:
    """The threads of this process that help: started when needed, and ended when long idle."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget the threads and their calls, because threads do not survive a fork."""
        self._handed: SimpleQueue[SharedCalls] = SimpleQueue()
        self._free: list[None] = []
        """An entry for each thread that waits for calls and is not promised any."""
        self._unused = list(range(STORAGE_THREADS, 0, -1))
        """The numbers of threads that may still be started."""
        self._open: dict[SharedCalls, None] = {}
        """In the order in which they began, so that helpers take them in one order."""

    def each(self, function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
        """Return the results for at least two items, in order."""
        calls = SharedCalls(function, items, self._open)
        for _ in range(min(len(items) - 1, STORAGE_THREADS)):
            if not self._hand_over(calls):
                break
        return calls.finish()

    def _hand_over(self, calls: SharedCalls) -> bool:
        """Give the calls to one more thread; return False if none can be started."""
        try:
            self._free.pop()
        except IndexError:
            try:
                number = self._unused.pop()
            except IndexError:
                return False  # the next thread that has done its work finds them
            if not self._start(number, calls):
                self._unused.append(number)
                return False
            return True
        self._handed.put(calls)
        return True

    def _start(self, number: int, calls: SharedCalls) -> bool:
        work = self._handed, self._free, self._unused, self._open, number, calls
        try:
            threading.Thread(target=_help, args=work, name=f"pravega_{number}", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down, or the system refuses
            return False
        return True

    def wait(self, seconds: float) -> None:
        """Wait, at most ``seconds`` in all, for calls that run."""
        deadline = time.monotonic() + seconds
        for calls in list(self._open):
            calls.wait(max(0.0, deadline - time.monotonic()))


def _help(
    handed: SimpleQueue[SharedCalls],
    free: list[None],
    unused: list[int],
    still_open: dict[SharedCalls, None],
    number: int,
    calls: SharedCalls,
) -> None:
    while True:
        calls.help()
        others = list(still_open)
        while others:
            others.pop().help()
        del calls  # a thread that waits keeps nothing alive
        free.append(None)
        try:
            calls = handed.get(timeout=_IDLE_SECONDS)
        except Empty:
            try:
                free.pop()
            except IndexError:  # calls have been promised to it in the same moment
                calls = handed.get()
            else:
                unused.append(number)
                return
