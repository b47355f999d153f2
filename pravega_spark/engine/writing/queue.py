"""The queue between the threads that write events and a thread that commits them.

A write is one step: ``extend`` adds all fields of its entry, so the event is in the queue or not.
It may be interrupted anywhere, even by a signal handler that itself writes, flushes or closes.
A writer has a thread only while it has work, one of those that all writers of the process share.
Every thread that extends the queue wakes one of these if the writer has none, even if the write is
interrupted.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, cast

from pravega_spark.engine.kinds import stopped_text
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.observers import observers
from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.runtime.tracing import count_events, span
from pravega_spark.engine.stream.watermarks import TimeNote
from pravega_spark.engine.writing import process_exit
from pravega_spark.engine.writing.batch import (
    Barrier,
    Entries,
    Entry,
    Write,
    WriteBatch,
    entry_of,
)
from pravega_spark.engine.writing.committer import BatchCommitter, BatchPositions, PreparedBatch
from pravega_spark.engine.writing.futures import (
    EventOutcomes,
    PendingWrites,
    WriteFuture,
    future_of,
)
from pravega_spark.engine.writing.outcomes import FailedWrites
from pravega_spark.engine.writing.threads import WRITER_POOL
from pravega_spark.errors import (
    ConditionFailed,
    NoSuchStream,
    ObjectClosed,
    PravegaSparkError,
    StoreError,
    StreamSealed,
    TooBusy,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import PREPARE_AHEAD_BYTES

logger = own_logger(__name__)

_REFUSE = -1
"""A limit that every event exceeds, so that the next write makes the full check."""

_WRITTEN_LATE = "a thread wrote them after the process had begun to end"
"""The cause of lost writes if the writer closed without a failure."""


class WriteQueue:
    """The writes that one writer has accepted and not yet committed."""

    def __init__(self, committer: BatchCommitter, name: str, buffer_bytes: int) -> None:
        self.name = name
        self.guard = ProcessGuard(f"the writer of {name}")
        self.pending = PendingWrites()
        self.failure: PravegaSparkError | None = None
        self.is_closed = False
        """Whether the writer was closed and every write before that is completed."""
        self.accepted_bytes = 0
        """Increased after the event is queued, so an interrupted write is at worst not counted."""
        self.limit_bytes = self._buffer_bytes = buffer_bytes
        """An event that ends below it needs no other check: a write costs a microsecond."""
        self._completed_bytes = 0
        self._committer = committer
        self._entries = Entries()
        self.extend: Callable[[Entry], None] = self._entries.extend
        """Add an entry in one step, without waking a thread; ``put`` does both."""
        self.notes_time = False
        """Whether the writer has noted a time, so that its close says that it leaves."""
        self.numbers = count()
        self.outcomes = EventOutcomes(self.pending)
        """The outcomes of single events that are written from now on."""
        self.is_idle = True
        """Whether a thread must be woken."""
        self._batches: deque[WriteBatch] = deque()
        """The batches that are being prepared or committed."""
        self._prepared: deque[PreparedBatch] = deque()
        self._is_committing = False
        self._lock = new_lock()
        """Held for moments, only by threads that prepare or commit."""
        self._failed: FailedWrites | None = None
        self._lost_writes = 0
        self._has_owner = True
        self._exit_timed_out = False
        self._exit_barriers: list[WriteFuture[Any]] = []
        self.wake = WRITER_POOL.waker(self)
        self._around_callbacks = partial(WRITER_POOL.uncounted, committer.group)
        process_exit.register(self)

    @property
    def stream_key(self) -> object:
        """What the writers of the stream share."""
        return self._committer.group

    @property
    def has_work(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._entries or self._prepared)

    @property
    def outstanding(self) -> tuple[int, int]:
        """The writes and bytes that were accepted and are not durable yet; about, for metrics."""
        waiting = len(self._entries) + sum(batch.writes for batch in list(self._batches))
        return waiting, max(0, self.accepted_bytes - self._completed_bytes)

    @property
    def is_settled(self) -> bool:
        """Whether every write that was accepted before is durable, or else ``failure`` is set."""
        return not self._entries and not self._batches  # in the order in which a write moves

    @property
    def is_failure_reported(self) -> bool:
        """Whether a call or a future has reported the failure."""
        return self._failed is not None and self._failed.reports > 0

    @property
    def is_failure_repeated(self) -> bool:
        """Whether what reported the failure last was not the first to do so."""
        return self._failed is not None and self._failed.reports > 1

    def add_barrier(
        self, note: str | TimeNote | None = None, *, close: bool = False, wakes: bool = True
    ) -> WriteFuture[Any]:
        """Return a future that completes once every earlier write has completed.

        Without ``wakes`` it waits for the next write, to share its commit.
        """
        if close and self.notes_time:
            note = TimeNote(self._committer.mark_id, None, leaves=True)
        future = future_of(self.pending)
        barrier = Barrier(future, note, close)
        if wakes:
            self.put(barrier)
        else:
            self.extend(entry_of(barrier))
        return future

    def put(self, write: Write) -> None:
        """Add what is not a single event, and wake a thread if none works for the writer."""
        try:
            self.extend(entry_of(write))
        finally:
            self.wake_if_idle()

    def wake_if_idle(self) -> None:
        """Wake a thread if none works for the writer; it may find nothing to do."""
        if self.is_idle:
            self.wake()

    def close(self) -> None:
        """Commit what the queue holds, then end; wait, except on the thread that commits."""
        self.add_barrier(close=True)
        if not self.pending.is_own_thread:
            self.pending.condition.wait_for(lambda: self.is_closed)

    def close_ownerless(self) -> None:
        """Close without waiting: the writer was collected, so no call can raise a failure."""
        self._has_owner = False
        if self.guard.pid == os.getpid():
            self.add_barrier(close=True)

    def is_full(self, size: int) -> bool:
        """Return True if an event must wait; one above the buffer's size enters it alone."""
        pending = self.accepted_bytes - self._completed_bytes
        usable = self.failure is None and not self.is_closed
        return usable and pending > 0 and pending + size > self._buffer_bytes

    def raise_failure(self) -> None:
        """Raise the failure of the writer, if it has one.

        A sealed stream may have been deleted since, and a deleted one created again: the error is
        what holds now.
        """
        if self.failure is not None and self._failed is not None:
            self._failed.reports += 1
            if isinstance(self.failure, (NoSuchStream, StreamSealed)):
                self._committer.check_life()
            raise copy.copy(self.failure) from self.failure

    def work(self) -> bool:
        """Prepare one batch, and commit it if no other thread commits.

        A thread has the queue, as ``is_idle`` says, while it prepares. When it begins a commit it
        may leave the queue to another one, which prepares the next batch meanwhile and then leaves
        both to the one that commits. So at most one batch waits for a commit, and all are committed
        in order. Returns False if the caller no longer has the queue.
        """
        try:
            if not self._prepared:
                if not self._entries:
                    return True
                prepared = self._prepare_next()
                with self._lock:
                    self._prepared.append(prepared)
                    if self._is_committing:
                        return False
            self._is_committing = True
            self.pending.thread_id = threading.get_ident()
            return self._commit_next()
        except BaseException as error:
            self._fail(error)
            self._end()
            return False

    def _commit_next(self) -> bool:
        """Commit what is prepared; return whether the caller has the queue after that."""
        prepared = self._prepared.popleft()
        leaves = not prepared.batch.is_last and self._is_ahead_useful(prepared.batch)
        # A commit mostly waits, for the disk or for an object store: meanwhile another thread
        # encodes and stores what waits, so the next commit can follow at once.
        if leaves:
            self.is_idle = True
            if self._entries:
                self.wake()
        self._commit(prepared)
        if prepared.batch.is_last:
            self._end()
            return False
        with self._lock:
            self._is_committing = False
            self.pending.thread_id = None
            return bool(self._prepared) or not leaves

    def _is_ahead_useful(self, batch: WriteBatch) -> bool:
        """Return whether the next batch should be prepared during the commit of this one."""
        waiting = self.accepted_bytes - self._completed_bytes - batch.size_bytes
        return waiting >= PREPARE_AHEAD_BYTES or self._committer.is_ahead_useful

    def _end(self) -> None:
        """Fail what was written too late; nothing wakes a thread after this."""
        self._lost_writes += sum(batch.writes for batch in self._batches)
        self.limit_bytes = _REFUSE
        self._lost_writes += self._entries.writes
        self.pending.failed = self._failed or FailedWrites(
            ObjectClosed(f"the writer of stream {self.name} was closed before; create a new one.")
        )
        self.is_closed = True
        self.pending.notify_completed(self._around_callbacks)
        self._report()
        process_exit.unregister(self)

    def _prepare_next(self) -> PreparedBatch:
        """Take a batch from the queue and prepare it; its commit raises what went wrong."""
        batch = WriteBatch()
        try:
            # Futures refer to the outcomes of about one batch, so that those who keep a future keep
            # the positions of few other events.
            self.outcomes = EventOutcomes(self.pending)
            batch = WriteBatch.of(self._entries)
            batch.taken_at = time.monotonic() if observers else None
            self._batches.append(batch)
            self._entries.drop(batch.entries)
            if not batch.is_empty and self.failure is None:
                return self._committer.prepare(batch)
        except BaseException as error:
            batch.is_last = True
            return PreparedBatch(batch, error)
        return PreparedBatch(batch)

    def _commit(self, prepared: PreparedBatch) -> None:
        """Commit and complete a batch, or count it as lost."""
        batch = prepared.batch
        if self.failure is None:
            try:
                is_empty = batch.is_empty and prepared.error is None
                found = None if is_empty else self._commit_traced(batch, prepared)
                if observers:
                    self._report_append(batch)
                batch.complete(found)
            except ConditionFailed as refusal:  # of this write alone: the writer goes on
                batch.refuse(refusal)
            except BaseException as error:
                if batch.only_leaves and isinstance(error, PravegaSparkError):
                    logger.debug(
                        "writer of %s could not record that it leaves: %s",
                        self.name,
                        error,
                        extra=log_fields(
                            "close writer", self.name, writer=self._committer.writer_id
                        ),
                    )
                    batch.complete(None)
                else:
                    self._fail(error)
        if self.failure is not None:
            self._lost_writes += batch.writes
            for observer in observers:
                observer.append_failed(self.name, batch.count)
        if batch in self._batches:
            self._batches.remove(batch)
        self._completed_bytes += batch.size_bytes
        if self.failure is None:
            self.limit_bytes = self._completed_bytes + self._buffer_bytes
        self.pending.notify_completed(self._around_callbacks)

    def _commit_traced(self, batch: WriteBatch, prepared: PreparedBatch) -> BatchPositions:
        with span("append", self.name) as current:
            count_events(current, batch.count)
            return self._committer.commit(batch, prepared)

    def _report_append(self, batch: WriteBatch) -> None:
        """Report a durable batch; not one that was taken before anybody observed."""
        if batch.taken_at is not None and batch.count:
            seconds = time.monotonic() - batch.taken_at
            for observer in observers:
                observer.appended(self.name, batch.count, batch.event_bytes, seconds)

    def _fail(self, error: BaseException) -> None:
        """Fail every later write: order forbids a commit behind a gap."""
        failure = _failure(self.name, error)
        self._failed = FailedWrites(failure)
        self.failure = failure
        self.limit_bytes = _REFUSE
        self.pending.failed = self._failed

    def _report(self) -> None:
        """Log a failure that no call can raise."""
        if self._has_owner or self.is_failure_reported:
            return
        lost, self._lost_writes = self._lost_writes, 0  # the thread and the exit both report
        if lost:
            logger.error(
                "writer %s of stream %s was not closed and lost %d writes: %s",
                self._committer.writer_id,
                self.name,
                lost,
                self.failure or _WRITTEN_LATE,
                extra=log_fields(
                    "close writer", self.name, writer=self._committer.writer_id, lost=lost
                ),
            )

    def begin_exit(self, *, close: bool) -> None:
        """Ask the thread to commit what the queue holds, because the process ends."""
        self._exit_barriers.append(self.add_barrier(close=close))

    def wait_exit(self, deadline: float) -> bool:
        """Wait for that commit until the deadline; never wait again after a timeout."""
        left = 0.0 if self._exit_timed_out else deadline - time.monotonic()
        done = self._exit_barriers[-1].done
        self._exit_timed_out = not self.pending.condition.wait_for(done, left)
        return not self._exit_timed_out

    def report_exit(self, waited_seconds: float) -> None:
        """Log the writes that are not durable although the process ends."""
        self._has_owner = False
        left = len(self._entries) + sum(batch.entries for batch in list(self._batches))
        left -= sum(not barrier.done() for barrier in self._exit_barriers)
        if left <= 0 or not self._exit_timed_out:
            self._report()
            return
        logger.error(
            "the process ends although writer %s of stream %s has not committed up to %d writes "
            "within %g s: they are lost unless the last commit still lands",
            self._committer.writer_id,
            self.name,
            left,
            waited_seconds,
            extra=log_fields(
                "close writer", self.name, writer=self._committer.writer_id, lost=left
            ),
        )

    def reset_after_fork(self) -> None:
        """In a forked child: refuse writes, and fail futures whose thread the child lacks."""
        self.limit_bytes = _REFUSE
        self._failed = FailedWrites(self.guard.error())
        for future in self.pending.reset_after_fork():
            cast("WriteFuture[Any]", future).reset_after_fork()
        self.pending.failed = self._failed


def _failure(name: str, error: BaseException) -> PravegaSparkError:
    """Return the error that later calls of the writer raise."""
    if isinstance(error, PravegaSparkError) and not isinstance(error, (TooBusy, StoreError)):
        return error  # its message already names the next step
    failure, cause = PravegaSparkError(), f"{type(error).__name__}: {error}"
    if isinstance(error, PravegaSparkError):
        failure, cause = copy.copy(error), str(error)  # with its fields
    failure.message = stopped_text(name, cause.rstrip("."))
    failure.args, failure.__cause__ = (failure.message,), error
    return failure
