"""Up to which version a log is known to survive a power cut, and the wait for the disk under way.

Another process's commit is visible before its author has an answer from the disk. Whoever acts on
it makes the log's folder durable first. A reader at the tail does not wait for that idly: the wait
begins when the commit is seen, and ends before the first event of it is handed out.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.process_locks import new_lock


class _Wait(NamedTuple):
    """A wait for the disk that began when a version was visible, so it covers that version."""

    version: int
    done: Future[None]


class DurableVersion:
    """The newest durable version of one log in one process; thread-safe."""

    def __init__(self, store: Store, folder: str, runtime: Runtime) -> None:
        """Name the log's folder; no version is known to be durable."""
        self._store = store
        self._folder = folder
        self._runtime = runtime
        self._lock, self._syncing = new_lock(), new_lock()
        self._version = self._sent = -1
        """The newest durable version, and the last one that this process sent."""
        self._wait: _Wait | None = None

    def covers(self, version: int) -> bool:
        """Return whether a version is durable; costs no call."""
        return version <= self._version

    def reached(self, version: int) -> None:
        """Note that a version is durable, by the answer of the storage."""
        self._version = max(self._version, version)

    def forget(self) -> None:
        """Know nothing: the log is not the one that it was."""
        with self._lock:
            self._version, self._wait = -1, None

    def sent(self, version: int) -> None:
        """Note that this process commits a version: the answer says whether it is durable."""
        self._sent = version

    def begin(self, version: int) -> None:
        """Begin to make a version durable, which the caller has seen; an error is kept.

        Nothing begins while another such wait is under way: on a busy log one at a time is enough.
        Call :meth:`ensure` before anything is done that a power cut must not undo.
        """
        if self.covers(version) or version == self._sent:
            return
        with self._lock:
            if self._wait is None or (self._wait.version < version and self._wait.done.done()):
                self._wait = _Wait(version, self._runtime.start(self._sync))

    def ensure(self, version: int) -> None:
        """Return when a version is durable, which the caller has seen; raise StoreError if not."""
        if self.covers(version):
            return
        wait = self._wait
        if wait is not None and wait.version >= version:
            try:
                wait.done.result()
            except BaseException:
                with self._lock:
                    if self._wait is wait:
                        self._wait = None  # the next call asks the storage again
                raise
            self.reached(wait.version)
            return
        with self._syncing:
            if not self.covers(version):
                self._sync()
                self.reached(version)

    def _sync(self) -> None:
        self._store.make_durable(self._folder)
