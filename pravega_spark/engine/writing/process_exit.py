"""The writers of a process that ends, or that forks, and what else is left to it to commit.

A process that ends commits what its open writers have accepted and what its transactions have
decided, within a bound, and logs what is left then. A forked child has none of its parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from concurrent.futures import thread as pools
from typing import Protocol

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.writing.futures import OPEN_CALLBACKS
from pravega_spark.values.limits import WRITER_EXIT_SECONDS

logger = own_logger(__name__)

_LOOK_SECONDS = 0.002
"""How often a process that ends looks whether callbacks have returned."""


class ExitingWork(Protocol):
    """What a process commits before it ends."""

    def begin_exit(self, *, close: bool) -> None:
        """Ask a thread to commit what is left."""

    def wait_exit(self, deadline: float) -> bool:
        """Wait for that commit until a time of the monotonic clock; return whether it ended."""

    def report_exit(self, waited_seconds: float) -> None:
        """Log what is not committed although the process ends."""

    def reset_after_fork(self) -> None:
        """In a forked child: forget all of it, refuse more, and release those that wait."""


class ExitingQueue(ExitingWork, Protocol):
    """A writer's queue, as far as the end of its process concerns it."""

    name: str
    """The stream's name."""

    @property
    def outstanding(self) -> tuple[int, int]:
        """The writes and bytes that are not durable yet."""


# In the order in which they came: a process ends its work in one order, whatever lies where.
_open: dict[ExitingQueue, None] = {}
_owed: dict[ExitingWork, None] = {}


def register(queue: ExitingQueue) -> None:
    """Flush the queue when the process ends."""
    _open[queue] = None


def unregister(queue: ExitingQueue) -> None:
    """Forget a queue whose thread has ended."""
    _open.pop(queue, None)


def open_queues() -> list[ExitingQueue]:
    """Return the queues of this process's open writers."""
    return list(_open)


def register_owed(work: ExitingWork) -> None:
    """Have this committed when the process ends, unless it was before."""
    _owed[work] = None


def unregister_owed(work: ExitingWork) -> None:
    """Forget work that is done."""
    _owed.pop(work, None)


def _commit(deadline: float, *, close: bool) -> bool:
    """Wait until what is left to this process is durable; return False after the bound."""
    several: list[ExitingWork] = [*_open, *_owed]
    for work in several:
        work.begin_exit(close=close)
    in_time = [work.wait_exit(deadline) for work in several]
    if close:
        for work in several:
            work.report_exit(WRITER_EXIT_SECONDS)
    return all(in_time)


def _flush_after_main() -> None:
    """Commit while thread pools run, and see to what other threads write after that."""
    _commit(time.monotonic() + WRITER_EXIT_SECONDS, close=False)
    _wait_for_threads()


def _wait_for_threads() -> None:
    """Start a thread for which the end waits, since it is not a daemon, where no exit hook runs."""
    if _skips_atexit():
        threading.Thread(target=_close_after_threads, name="pravega-exit", daemon=False).start()


def _skips_atexit() -> bool:
    """Whether this is a process of multiprocessing that ends without a call of exit hooks."""
    processes = sys.modules.get("multiprocessing")
    if processes is None or processes.parent_process() is None:
        return False
    return bool(processes.get_start_method(allow_none=True) != "spawn")


def _close_after_threads() -> None:
    own, others = threading.current_thread(), threading.enumerate()
    while others := [t for t in others if t is not own and not t.daemon and t.is_alive()]:
        for thread in others:
            thread.join()
        others = threading.enumerate()  # they may have started more
    _close_all()


def _close_all() -> None:
    """Wait, within a bound, until callbacks have returned and all accepted writes are durable."""
    OPEN_CALLBACKS.is_ending = True
    deadline = time.monotonic() + WRITER_EXIT_SECONDS
    in_time = _commit(deadline, close=False)
    while OPEN_CALLBACKS and in_time and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    if OPEN_CALLBACKS:
        logger.warning(
            "the process ends although %d callbacks of writes have not returned within %g s; the "
            "rest of their work is not done",
            len(OPEN_CALLBACKS),
            WRITER_EXIT_SECONDS,
            extra=log_fields("close writer"),
        )
    _commit(deadline, close=True)


def _close_at_exit() -> None:
    if not _skips_atexit():  # Python 3.14 calls hooks there, too, and before the threads end
        _close_all()


def _reset_all() -> None:
    OPEN_CALLBACKS.reset()
    several: list[ExitingWork] = [*_open, *_owed]
    _open.clear()
    _owed.clear()
    for work in several:
        work.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
# Runs when the main thread has ended, before thread pools stop (the newest hook runs first).
try:
    pools.threading._register_atexit(_flush_after_main)  # type: ignore[attr-defined]
except RuntimeError:  # it has ended: the first writer is made in an exit hook, or another thread
    with contextlib.suppress(RuntimeError):  # since Python 3.12 no writer gets a thread then
        _wait_for_threads()
# Runs when all threads except daemons have ended: tasks of pools may have written since.
atexit.register(_close_at_exit)
