"""A batch of events on its way into the log, and slim futures that are views of it.

One lock, one event and one outcome serve a whole batch, so that a future costs little more than
the number of its event.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import numpy as np

from pravega_spark.errors import PravegaSparkError
from pravega_spark.model import EventPointer

logger = logging.getLogger(__name__)

Places = Callable[[int], EventPointer]


class Pending:
    """Events of one commit: filled by the writer's callers, settled by its committer."""

    __slots__ = (
        "_callbacks",
        "_done",
        "_lock",
        "_pointers",
        "events",
        "failure",
        "groups",
        "keys",
        "note",
        "size_bytes",
        "times_us",
        "told",
    )

    def __init__(self) -> None:
        """Begin an empty batch."""
        self.events: list[bytes] = []
        self.keys: list[str | None] = []
        self.times_us: list[int] = []
        self.groups: list[tuple[int, int]] = []
        """(first, count) of atomic writes without a key, which must share a segment."""
        self.size_bytes = 0
        """Set when the batch is closed."""
        self.note: str | None = None
        self.failure: PravegaSparkError | None = None
        self.told = False
        """Whether a future has told somebody of the failure."""
        self._pointers: Places | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[tuple[Callable[[Any], object], WriteFuture]] = []

    def add(self, event: bytes, key: str | None, time_us: int) -> int:
        """Append one event; return its index."""
        index = len(self.events)
        self.events.append(event)
        self.keys.append(key)
        self.times_us.append(time_us)
        return index

    def add_group(self, events: list[bytes], key: str | None, time_us: int) -> int:
        """Append events that stay together; return the index of the first."""
        first = len(self.events)
        self.events.extend(events)
        self.keys.extend([key] * len(events))
        self.times_us.extend([time_us] * len(events))
        if key is None and len(events) > 1:
            self.groups.append((first, len(events)))
        return first

    def place(self, pointers: Places) -> None:
        """Note where the events are: a function of the index, called when somebody asks."""
        self._pointers = pointers

    def succeed(self) -> None:
        """Complete every future."""
        self._settle()

    def fail(self, error: PravegaSparkError) -> None:
        """Fail every future."""
        self.failure = error
        self._settle()

    def _settle(self) -> None:
        with self._lock:
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback, future in callbacks:
            _call(callback, future)

    def abandon(self, error: PravegaSparkError) -> None:
        """Fail every future in a forked child, where no lock of the parent's can be trusted."""
        self._lock, self._done = threading.Lock(), threading.Event()
        self._callbacks = []
        self.fail(error)

    def wait(self, timeout: float | None) -> None:
        """Block until the batch is settled; raise TimeoutError after ``timeout`` seconds."""
        if not self._done.wait(timeout):
            raise FutureTimeoutError(f"the write is not durable after {timeout} s.")

    def is_done(self) -> bool:
        """Tell whether the batch is settled."""
        return self._done.is_set()

    def pointer(self, index: int) -> EventPointer:
        """Return where the event of that index is; the batch has succeeded."""
        assert self._pointers is not None, "the batch holds no places"
        return self._pointers(index)

    def on_done(self, callback: Callable[[Any], object], future: WriteFuture) -> None:
        """Call ``callback(future)`` once the batch is settled, or now if it is."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append((callback, future))
                return
        _call(callback, future)


def _call(callback: Callable[[Any], object], future: WriteFuture) -> None:
    """Call; an error is logged and stops nobody, as concurrent.futures has it."""
    try:
        callback(future)
    except Exception:
        logger.exception("a callback of %r failed", future)


class WriteFuture:
    """The outcome of one write, with the interface of ``concurrent.futures.Future``."""

    __slots__ = ("_batch", "_count", "_index")

    def __init__(self, batch: Pending, index: int, count: int | None = None) -> None:
        """View the events of a batch from ``index`` on; one event if there is no count."""
        self._batch = batch
        self._index = index
        self._count = count

    def result(self, timeout: float | None = None) -> Any:
        """Return the EventPointer (a tuple of them for ``write_events``) once durable."""
        failure = self.exception(timeout)
        if failure is not None:
            raise failure
        if self._count is None:
            return self._batch.pointer(self._index)
        return tuple(self._batch.pointer(self._index + i) for i in range(self._count))

    def exception(self, timeout: float | None = None) -> PravegaSparkError | None:
        """Return why the write failed, or None, once it is settled."""
        self._batch.wait(timeout)
        self._batch.told = True
        return self._batch.failure

    def done(self) -> bool:
        """Tell whether the write is settled."""
        return self._batch.is_done()

    def running(self) -> bool:
        """Tell whether the write is not settled yet."""
        return not self._batch.is_done()

    def cancel(self) -> bool:
        """Return False: a write cannot be taken back."""
        return False

    def cancelled(self) -> bool:
        """Return False: a write is never cancelled."""
        return False

    def add_done_callback(self, callback: Callable[[WriteFuture], object]) -> None:
        """Call ``callback(self)`` once settled, on the writer's thread, or now."""
        self._batch.on_done(callback, self)


def ranks(segments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each row how many rows before it have the same value."""
    order = np.argsort(segments, kind="stable")
    ordered = segments[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    result = np.empty(len(segments), np.int64)
    result[order] = np.arange(len(segments)) - np.repeat(starts, lengths)
    return result
