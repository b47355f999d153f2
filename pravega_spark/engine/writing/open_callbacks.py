"""The callbacks of writes that have not returned, which the end of the process waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from pravega_spark.engine.log_fields import log_fields, own_logger

logger = own_logger(__name__)


class OpenCallbacks:
    """Counts the callbacks of this process until they return.

    Once the process ends, of those that are added only what a callback adds counts: other threads
    may add some for ever. Each change is one step, which a signal handler may interrupt.
    """

    def __init__(self) -> None:
        """Begin without callbacks."""
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
        """Take the callback of a future."""
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
