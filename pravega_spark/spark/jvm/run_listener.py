"""A listener to streaming queries that never holds a thread of Spark.

Spark calls all listeners of a session one after the other, in one thread, and at a query's start in
the query's own. So a listener only takes the events there, or from the JVM's queue; a thread for
each run that has some handles them, in order.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.spark.jvm.query_events import drain, jvm_listener
from pravega_spark.spark.source_offsets import find_record
from pravega_spark.values.limits import BACKGROUND_EXIT_SECONDS

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )

else:
    try:
        from pyspark.sql.streaming.listener import StreamingQueryListener
    except ImportError:  # the public listeners must be importable without Spark
        StreamingQueryListener = object

_IDLE_SECONDS = 10.0
"""A thread without events ends after this time; the next event starts another one."""

Progress = Mapping[str, Any]
"""A progress report as PySpark has it, or its JSON."""


def end_offsets(progress: Progress, field: str) -> list[Mapping[str, Any]]:
    """Return the end offsets of a batch that have a field, of the sources that read our streams."""
    found = (find_record(source.get("endOffset")) for source in progress["sources"])
    return [record for record in found if record is not None and field in record]


class RunReports(Protocol):
    """What handles the events of one run of a query, in one thread; never raises."""

    def progressed(self, progress: Progress) -> None:
        """Handle the report of a finished batch."""

    def idled(self) -> None:
        """Handle that no batch follows for the moment."""

    def ended(self) -> None:
        """Handle the end of the run; also once more as the process ends, if something is left."""

    def abandoned(self) -> None:
        """Handle that the process ends before the last call has returned."""

    def seconds_left(self) -> float | None:
        """Return how long to wait for an event before ``idled`` is called; None: nothing is left.

        The thread of a run that has ended goes on as long as something is left.
        """


class Run:
    """The events of a run that are still to be handled, and the thread that does."""

    def __init__(self, reports: RunReports, kept: int, forget: Callable[[], object]) -> None:
        """Start nothing yet; ``forget`` is called when the run has ended."""
        self.reports = reports
        self._forget = forget
        self._waiting = deque[Callable[[], None]](maxlen=kept)
        self._changed = threading.Condition(new_lock())
        self._has_thread = self._is_over = False

    def put(self, handle: Callable[[], None], *, is_last: bool = False) -> None:
        """Let the thread call a function, after what waits; here if no thread can be started.

        After the last call only another last one is taken, by a thread that still has work left.
        """
        with self._changed:
            if self._is_over and not (is_last and self._has_thread):
                return
            self._is_over = is_last
            self._waiting.append(handle)
            self._changed.notify_all()
            if self._has_thread:
                return
            self._has_thread = True
        try:
            threading.Thread(target=self._work, name="pravega-query-run", daemon=True).start()
        except RuntimeError:  # a process that ends starts no more threads
            self._work(is_thread=False)

    def wait(self, deadline: float) -> bool:
        """Wait until an ended run has nothing left, up to a time of the monotonic clock.

        Return whether it has nothing left.
        """
        with self._changed:
            left = max(0.0, deadline - time.monotonic())
            return self._changed.wait_for(lambda: not self._has_thread, left)

    def _work(self, *, is_thread: bool = True) -> None:
        while (handle := self._next(is_thread=is_thread)) is not None:
            handle()

    def _next(self, *, is_thread: bool) -> Callable[[], None] | None:
        """Return what to call next; None if the thread, which has waited for it, is to end."""
        with self._changed:
            left = self.reports.seconds_left() if is_thread else None
            if left is not None or (is_thread and not self._is_over):
                longest = _IDLE_SECONDS if left is None else left
                self._changed.wait_for(lambda: self._waiting, longest)
            if not self._waiting and left is None:
                self._has_thread = False
                self._changed.notify_all()
                if self._is_over:
                    self._forget()
                return None
            return self._waiting.popleft() if self._waiting else self.reports.idled


class RunListener(StreamingQueryListener):
    """Gives the events of each query that reads our streams to the thread of its run."""

    _field = "streams"
    """A field in the end offsets of all queries that the listener is for."""
    _exit_seconds = BACKGROUND_EXIT_SECONDS
    """How long a process that ends waits for what is still to be handled."""

    def __init__(self, kept: int) -> None:
        """Begin without queries; of each run the last ``kept`` events wait at most."""
        self._kept = kept
        self._runs: dict[str, Run] = {}
        _listeners.add(self)

    @property
    def _jlistener(self) -> Any:
        """What PySpark adds to the session's JVM, and removes."""
        if not hasattr(self, "_jlistenerobj"):
            self._jlistenerobj: Any = jvm_listener(self, f'"{self._field}"')
        return self._jlistenerobj

    def _reports_of(self, run: str) -> RunReports:
        """Return what is to handle the events of a run."""
        raise NotImplementedError

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: no batch is finished yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Take a report of a query that the listener is for."""
        progress: Progress = event.progress
        if not end_offsets(progress, self._field):
            return
        run = str(progress["runId"])
        if run not in self._runs:
            forget = partial(self._runs.pop, run, None)
            self._runs[run] = Run(self._reports_of(run), self._kept, forget)
        found = self._runs[run]
        found.put(partial(found.reports.progressed, progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Take the event, if the run has reported a batch."""
        found = self._runs.get(str(event.runId))
        if found is not None:
            found.put(found.reports.idled)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Take the end of a run, whose thread ends with it."""
        found = self._runs.get(str(event.runId))
        if found is not None:
            found.put(found.reports.ended, is_last=True)

    def _finish(self) -> None:
        """End all runs, since the process ends, but do not wait long."""
        deadline, runs = time.monotonic() + self._exit_seconds, list(self._runs.values())
        for run in runs:
            run.put(run.reports.ended, is_last=True)
        for run in runs:
            if not run.wait(deadline):
                run.reports.abandoned()


_listeners = WeakSet[RunListener]()


def _finish_all() -> None:
    drain()
    for listener in list(_listeners):
        listener._finish()


atexit.register(_finish_all)
