"""Threads that do the tasks of a round; streams that hang do not keep the others waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Final

from pravega_spark.engine.runtime import Runtime
from pravega_spark.maintenance.round_record import Stoppable
from pravega_spark.maintenance.unit_work import RoundTask
from pravega_spark.maintenance.work_outcome import WorkOutcome
from pravega_spark.process_locks import new_lock

LOOK_SECONDS = 0.1
"""Pause between two looks whether the round is to stop, or a task hangs."""
_END_SECONDS = 10.0
"""A round that is stopped waits this long for the tasks that it is working on."""
PATIENCE_SECONDS: Final = 1.0
"""Once a task has reached the limit, a task that takes longer than this is parked.

The more tasks are parked, the likelier the next one hangs: N of them shorten it to 1/(N + 1), down
to a look.
"""
PARKED_PER_THREAD: Final = 16
"""How many parked tasks a round has at most, for each of its threads."""
_IDLE_SHARE = 0.5
"""Tasks hang if this process uses less than this of one core; long work is not parked."""

Do = Callable[[RoundTask], list[WorkOutcome]]


class TaskThreads:
    """Does tasks in daemon threads, which do not keep the process alive if they hang.

    At first each thread stays with its task until it is done. A task that takes as long as the
    limit shows that streams may hang: from then on a slow task is *parked* while this process uses
    little processor time. It runs on, and a new thread takes its turn. So tasks that hang cost the
    round about two limits, and one more for each further :data:`PARKED_PER_THREAD` a thread, not
    one for each task a thread.
    """

    def __init__(
        self,
        do: Do,
        parallelism: int,
        limit_seconds: float,
        stop: Stoppable,
        runtime: Runtime,
        processor_seconds: Callable[[], float] = time.process_time,
    ) -> None:
        """Take what does a task; ``limit_seconds`` is the time after which it gives up."""
        self._do = do
        self._parallelism = parallelism
        self._limit_seconds = limit_seconds
        self._patience_seconds = min(PATIENCE_SECONDS, limit_seconds)
        self._stop = stop
        self._runtime = runtime
        self._processor_seconds = processor_seconds
        self._looked = runtime.monotonic(), processor_seconds()
        """The clock and the processor time of this process at the last look."""
        self._waiting = SimpleQueue[RoundTask]()
        self._done = SimpleQueue[list[WorkOutcome] | BaseException]()
        self._ended = threading.Event()
        self._lock = new_lock()
        self._began = dict[threading.Thread, float]()
        """The threads that have not ended, and when each began its task."""
        self._parked = set[threading.Thread]()
        self._hangs = False
        """Whether a task of this round has taken as long as the limit."""

    def run(self, tasks: Sequence[RoundTask]) -> Iterator[WorkOutcome]:
        """Yield the outcomes of tasks as they are done; end early if the round is stopped."""
        for task in tasks:
            self._waiting.put(task)
        for _ in range(min(self._parallelism, len(tasks))):
            self._start_thread()
        left, waited = len(tasks), 0.0
        try:
            while left:
                try:
                    found = self._done.get(timeout=LOOK_SECONDS)
                except Empty:
                    waited += LOOK_SECONDS if self._stop.is_set else 0.0
                    is_over = not self._began and self._done.empty()
                    if is_over or waited >= _END_SECONDS:
                        return
                    self._look()
                    continue
                if isinstance(found, BaseException):
                    raise found
                left -= 1
                self._look()
                yield from found
        finally:
            self._ended.set()

    def _start_thread(self) -> None:
        number = len(self._began)
        thread = threading.Thread(target=self._work, name=f"pravega-maintain-{number}", daemon=True)
        self._began[thread] = self._runtime.monotonic()
        thread.start()

    def _work(self) -> None:
        """Do tasks one after the other, up to one that is parked."""
        thread = threading.current_thread()
        try:
            while not (self._stop.is_set or self._ended.is_set() or thread in self._parked):
                self._began[thread] = began = self._runtime.monotonic()
                self._done.put(self._do(self._waiting.get_nowait()))
                self._hangs |= self._runtime.monotonic() - began >= self._limit_seconds
        except Empty:
            pass
        except BaseException as error:
            self._done.put(error)
        finally:
            with self._lock:
                del self._began[thread]
                self._parked.discard(thread)

    def _look(self) -> None:
        """Give the turns of slow tasks to new threads if streams hang."""
        now, used = self._runtime.monotonic(), self._processor_seconds()
        passed, used_since = now - self._looked[0], used - self._looked[1]
        if passed < LOOK_SECONDS:
            return
        self._looked = now, used
        with self._lock:
            took = {thread: now - began for thread, began in self._began.items()}
            self._hangs |= max(took.values(), default=0.0) >= self._limit_seconds
            if not self._hangs or used_since >= _IDLE_SHARE * passed:
                return
            patience = self._patience_seconds / (1 + len(self._parked))
            slow = [thread for thread in took if took[thread] >= patience]
            slow = [thread for thread in slow if thread not in self._parked]
            room = PARKED_PER_THREAD * self._parallelism - len(self._parked)
            for thread in slow[: min(room, self._waiting.qsize())]:
                self._parked.add(thread)
                self._start_thread()
