"""Events on their way: one list that any thread may put into, one thread that commits.

A write is one step, ``list.extend`` by all that there is to know of it: the event is in or it is
not. It may be interrupted anywhere, also by a signal handler that writes, flushes or closes
itself. Whoever put something wakes the thread if that is idle, interrupted or not.
"""

from __future__ import annotations

import atexit
import copy
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import thread as pools
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, cast

from pravega_spark.engine.runtime import ProcessGuard
from pravega_spark.engine.writing.batch_committer import BatchCommitter
from pravega_spark.engine.writing.write_batch import CLOSE, FIELDS, Entry, WriteBatch
from pravega_spark.engine.writing.write_futures import WriteFuture
from pravega_spark.engine.writing.write_outcomes import FailedWrites, Generation, Waiting
from pravega_spark.errors import ObjectClosed, PravegaSparkError, StoreError, TooBusy
from pravega_spark.limits import WRITER_EXIT_SECONDS

logger = logging.getLogger(__name__)

_REFUSE = -1
"""A limit that no event is within, so that the next one meets the full check."""


_WRITTEN_LATE = "they were written when the process had begun to end, by a thread that went on"
"""Why writes are lost behind a close that did not fail."""


class WriteQueue:
    """What one writer has taken and not committed yet."""

    def __init__(self, committer: BatchCommitter, name: str, buffer_bytes: int) -> None:
        """Start the thread that commits."""
        self.name = name
        self.guard = ProcessGuard(f"the writer of {name}")
        self.waiting = Waiting()
        self.failure: PravegaSparkError | None = None
        self.ended = False
        """Whether the writer was closed, and all before that is settled."""
        self.taken_bytes = 0
        """Counted after the put, so an interrupted write is at worst not counted."""
        self.limit_bytes = self._buffer_bytes = buffer_bytes
        """An event that ends within it needs no other check: writing it costs a microsecond."""
        self._settled_bytes = 0
        self._committer = committer
        self._items: list[Any] = []
        self.put: Callable[[Entry], None] = self._items.extend
        """Take in an entry, in one step; ``offer`` also wakes the thread."""
        self.numbers = count()
        self.generation = Generation(self.waiting)
        self.is_idle = False
        """Whether the thread must be woken."""
        self._calls: SimpleQueue[None] = SimpleQueue()
        self.wake = partial(self._calls.put, None)
        self._batch: WriteBatch | None = None
        self._lost: FailedWrites | None = None
        self._unwritten = 0
        self._owned = True
        self._late = False
        self._exit_marks: list[WriteFuture[Any]] = []
        self._thread = threading.Thread(
            target=self._run, name=f"pravega-writer-{name}", daemon=True
        )
        self._thread.start()
        _live.add(self)

    @property
    def is_mine(self) -> bool:
        """Whether this is the thread that commits, which must not wait for itself."""
        return threading.current_thread() is self._thread

    @property
    def is_told(self) -> bool:
        """Whether somebody was told of the failure."""
        return self._lost is not None and self._lost.told

    def mark(self, note: str | None = None, *, close: bool = False) -> WriteFuture[Any]:
        """Return a future that is done when all that was written before is settled."""
        future: WriteFuture[Any] = WriteFuture()
        future._at, future._number = self.waiting, 0
        self.offer((None, note, CLOSE if close else 0, future, None))
        return future

    def offer(self, entry: Entry) -> None:
        """Take in an entry, and wake the thread if it is idle."""
        try:
            self.put(entry)
        finally:
            if self.is_idle:
                self.wake()

    def close(self) -> None:
        """Commit what is there, then end; wait for that, except on the committing thread."""
        self.mark(close=True)
        if not self.is_mine:
            self.waiting.bell.wait_for(lambda: self.ended)

    def release(self) -> None:
        """Close without waiting: the writer is no more, nobody can hear of a failure."""
        self._owned = False
        if self.guard.pid == os.getpid():
            self.mark(close=True)

    def is_full(self, size: int) -> bool:
        """Tell whether an event must wait; one larger than the buffer is taken when alone."""
        pending = self.taken_bytes - self._settled_bytes
        usable = self.failure is None and not self.ended
        return usable and pending > 0 and pending + size > self._buffer_bytes

    def raise_failure(self) -> None:
        """Raise what made the writer fail, if anything did."""
        if self.failure is not None and self._lost is not None:
            self._lost.told = True
            raise copy.copy(self.failure) from self.failure

    def _run(self) -> None:
        try:
            while not self._step():
                pass
        except BaseException as error:
            self._fail(error)
        self._fail_batch()
        self.limit_bytes = _REFUSE
        self._unwritten += len(self._items) // FIELDS - self._items[::FIELDS].count(None)
        self.waiting.lost = self._lost or FailedWrites(
            ObjectClosed(f"the writer of stream {self.name} was closed before; create a new one.")
        )
        self.ended = True
        self.waiting.tell()
        self._report()
        _live.discard(self)

    def _step(self) -> bool:
        """Commit and settle a batch; return True if the writer was closed behind it."""
        batch = self._next()
        if self.failure is None:
            try:
                batch.settle(None if batch.is_empty else self._committer.commit(batch))
                self._batch = None
            except BaseException as error:
                self._fail(error)
        self._fail_batch()
        self._settled_bytes += batch.size_bytes
        if self.failure is None:
            self.limit_bytes = self._settled_bytes + self._buffer_bytes
        self.waiting.tell()
        return batch.is_last

    def _next(self) -> WriteBatch:
        """Return the next batch; block until there is something."""
        items = self._items
        while not items:
            self.is_idle = True
            if not items:  # whoever put something just before saw nobody idle
                self._calls.get()
            self.is_idle = False
        self.generation = Generation(self.waiting)
        self._batch = batch = WriteBatch.of(items)
        del items[: batch.entries * FIELDS]
        return batch

    def _fail(self, error: BaseException) -> None:
        """Fail all that comes from now on: order forbids to go on behind a gap."""
        failure = _failure(self.name, error)
        self._lost = FailedWrites(failure)
        self.failure = failure
        self.limit_bytes = _REFUSE
        self.waiting.lost = self._lost

    def _fail_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            self._unwritten += batch.writes

    def _report(self) -> None:
        """Log a failure that no call can raise any more."""
        if self._owned or self.is_told:
            return
        unwritten, self._unwritten = self._unwritten, 0  # the thread and the exit both report
        if unwritten:
            logger.error(
                "writer %s of stream %s was not closed, and %d writes are lost: %s",
                self._committer.writer_id,
                self.name,
                unwritten,
                self.failure or _WRITTEN_LATE,
            )

    def begin_exit(self, *, close: bool) -> None:
        """Ask the thread to commit what is there."""
        self._exit_marks.append(self.mark(close=close))

    def wait_exit(self, until: float) -> None:
        """Wait for what was asked; once that took too long, no more."""
        left = 0.0 if self._late else until - time.monotonic()
        self._late = not self.waiting.bell.wait_for(self._exit_marks[-1].done, left)

    def report_exit(self) -> None:
        """Log what is not durable although the process ends."""
        self._owned = False
        if not self._late:
            self._report()
            return
        batch = self._batch
        left = len(self._items) // FIELDS + (batch.entries if batch else 0)
        left -= sum(not mark.done() for mark in self._exit_marks)
        logger.error(
            "the process ends although writer %s of stream %s has not committed up to %d writes "
            "within %g s: they are lost unless the last commit still lands",
            self._committer.writer_id,
            self.name,
            left,
            WRITER_EXIT_SECONDS,
        )

    def leave(self) -> None:
        """In a forked child: take nothing in, and let nobody wait for a thread not here."""
        self.limit_bytes = _REFUSE
        self._lost = FailedWrites(self.guard.error())
        for future in self.waiting.forget():
            cast("WriteFuture[Any]", future).renew()
        self.waiting.lost = self._lost


def _failure(name: str, error: BaseException) -> PravegaSparkError:
    """Return what calls of the writer raise from now on."""
    if isinstance(error, PravegaSparkError) and not isinstance(error, (TooBusy, StoreError)):
        return error  # it says itself what to do
    kind, said = PravegaSparkError, f"{type(error).__name__}: {error}"
    if isinstance(error, PravegaSparkError):
        kind, said = type(error), str(error)
    failure = kind(
        f"the writer of stream {name} stopped: {said.rstrip('.')}. Once that is mended open a new "
        "writer, since this one takes nothing more."
    )
    failure.__cause__ = error
    return failure


_live: set[WriteQueue] = set()


def _leave_all() -> None:
    outboxes = list(_live)
    _live.clear()
    for queue in outboxes:
        queue.leave()


def _settle_all(*, close: bool) -> None:
    """Wait, within a bound, until what the writers of this process have taken is durable."""
    until = time.monotonic() + WRITER_EXIT_SECONDS
    outboxes = list(_live)
    for queue in outboxes:
        queue.begin_exit(close=close)
    for queue in outboxes:
        queue.wait_exit(until)
        if close:
            queue.report_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all)
# When the main thread has ended, while pools of threads still work: later ones are called first.
pools.threading._register_atexit(_settle_all, close=False)  # type: ignore[attr-defined]
# And when all threads but daemons have ended.
atexit.register(_settle_all, close=True)
