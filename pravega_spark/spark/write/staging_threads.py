"""The threads of a task that encode and store what it stages."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Semaphore
from types import TracebackType
from typing import TypeVar

from pravega_spark.limits import STAGING_THREADS

_Given = TypeVar("_Given")


class StagingThreads:
    """Does the work of all streams and segments of a task; a call waits while enough waits.

    A context manager, whose end waits for the work.
    """

    def __init__(self) -> None:
        """Start no thread yet."""
        self._pool = ThreadPoolExecutor(STAGING_THREADS, thread_name_prefix="pravega-staging")
        self._room = Semaphore(2 * STAGING_THREADS)

    def start(
        self, work: Callable[[_Given], None], given: _Given, *, after: Future[None] | None
    ) -> Future[None]:
        """Begin a piece of work that follows an earlier one, whose error it raises as its own."""
        if after is not None and after.done():
            after.result()
            after = None

        def run() -> None:
            try:
                if after is not None:
                    after.result()  # began before this: pieces begin in the order of the calls
                work(given)
            finally:
                self._room.release()

        self._room.acquire()
        return self._pool.submit(run)

    def __enter__(self) -> StagingThreads:
        """Return the threads."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the work."""
        self._pool.shutdown()
