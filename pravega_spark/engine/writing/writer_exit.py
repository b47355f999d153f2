"""Process exit and fork: open writers flush before the process ends, and a child drops them."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from concurrent.futures import thread as pools
from typing import Protocol

from pravega_spark.limits import WRITER_EXIT_SECONDS


class ExitingQueue(Protocol):
    """A writer's queue, as far as the end of its process concerns it."""

    name: str
    """The stream's name."""

    @property
    def outstanding(self) -> tuple[int, int]:
        """The writes and bytes that are not durable yet."""

    def begin_exit(self, *, close: bool) -> None:
        """Ask the writer's thread to commit what the queue holds."""

    def wait_exit(self, deadline: float) -> None:
        """Wait for that commit until a time of the monotonic clock."""

    def report_exit(self, waited_seconds: float) -> None:
        """Log the writes that are not durable although the process ends."""

    def reset_after_fork(self) -> None:
        """In a forked child: refuse writes and release the futures."""


_open: set[ExitingQueue] = set()


def register(queue: ExitingQueue) -> None:
    """Flush the queue when the process ends."""
    _open.add(queue)


def unregister(queue: ExitingQueue) -> None:
    """Forget a queue whose thread has ended."""
    _open.discard(queue)


def open_queues() -> list[ExitingQueue]:
    """Return the queues of this process's open writers."""
    return list(_open)


def _flush_all(*, close: bool) -> None:
    """Wait, within a bound, until the accepted writes of this process are durable."""
    deadline = time.monotonic() + WRITER_EXIT_SECONDS
    queues = list(_open)
    for queue in queues:
        queue.begin_exit(close=close)
    for queue in queues:
        queue.wait_exit(deadline)
        if close:
            queue.report_exit(WRITER_EXIT_SECONDS)


def _reset_all() -> None:
    queues = list(_open)
    _open.clear()
    for queue in queues:
        queue.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
# Runs when the main thread has ended, before thread pools stop (the newest hook runs first).
with contextlib.suppress(RuntimeError):  # the first writer of the process is made in an exit hook
    pools.threading._register_atexit(_flush_all, close=False)  # type: ignore[attr-defined]
# Runs again when all threads except daemons have ended: tasks of pools may have written since.
atexit.register(_flush_all, close=True)
