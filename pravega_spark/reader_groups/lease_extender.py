"""One thread of a process extends the leases of its readers that are busy between two calls.

A reader's own calls extend its lease. An application that works on one event for longer makes none,
so this thread does it, once a call is late. It does so until the last call is longer ago than the
reader's ``max_poll_interval``; then the reader hangs, and expires. The lease of a process that was
killed, or is stopped, runs out: its thread is, too.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.errors import ObjectClosed, ReinitializationRequired
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.reader_groups.membership import ReaderMembership
from pravega_spark.reader_groups.state import GroupState

logger = own_logger(__name__)

_RETRY_SECONDS = 1.0
"""Pause before the next look at a lease that could not be extended, or need not be any more."""


class _Reader:
    """A reader that may be busy: nobody keeps it alive but its application."""

    def __init__(
        self, membership: ReaderMembership, seconds: float, look: Callable[[], object]
    ) -> None:
        self._membership = weakref.ref(membership, lambda _: look())
        self._seconds = seconds
        self.was_busy = True
        self.has_failed = False

    def membership(self) -> ReaderMembership | None:
        """Return the membership unless it has ended: nothing extends its lease any more."""
        found = self._membership()
        return None if found is None or found.lease.has_stopped else found

    def is_busy(self, membership: ReaderMembership) -> bool:
        """Return whether the last call is not too long ago; log once when it is."""
        is_busy = membership.idle_seconds <= self._seconds
        if self.was_busy and not is_busy:
            logger.warning(
                "%s has made no call for %g s, its max_poll_interval; its lease is no longer "
                "extended",
                membership,
                self._seconds,
                extra=log_fields("extend lease", group=membership.state.group),
            )
        self.was_busy = is_busy
        return is_busy


class LeaseExtender:
    """The busy readers of a process, and the thread that extends their leases; thread-safe.

    The storage calls run in the background, those of one group in one thread: a group that hangs
    delays no other, and no more threads than groups wait.
    """

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Begin without readers; in a forked child, which has none of its parent's threads."""
        self._lock = new_lock()
        self._wake = new_lock()
        """Free when the thread has to look: only the thread takes it."""
        self._readers: list[_Reader] = []
        self._running = WeakKeyDictionary[Synchronizer[GroupState], Future[None]]()
        self.thread: threading.Thread | None = None
        """The thread, while there are readers."""

    def add(self, membership: ReaderMembership, seconds: float) -> None:
        """Extend a reader's lease while its last call is at most so many seconds ago."""
        if not membership.runtime.has_threads:
            return
        with self._lock:
            self._readers.append(_Reader(membership, seconds, self.look))
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="pravega-lease", daemon=True)
                self.thread.start()
        self.look()

    def look(self) -> None:
        """Look at the readers: one of them has left, was evicted, or was collected.

        It waits for nothing: a collector may call it anywhere, also while the interpreter ends,
        when a lock that another thread was about to take is never free again.
        """
        try:
            self._wake.release()
        except RuntimeError:
            return  # it has to look already

    def _run(self) -> None:
        """Extend leases while there are readers."""
        while True:
            pause = self._extend_due()
            with self._lock:
                if not self._readers:
                    self.thread = None
                    return
            self._wake.acquire(timeout=pause)

    def _extend_due(self) -> float:
        """Begin to extend the leases that need it; return the seconds to the next one."""
        with self._lock:
            self._readers = [one for one in self._readers if one.membership() is not None]
            readers = list(self._readers)
        due: dict[Synchronizer[GroupState], list[tuple[_Reader, ReaderMembership]]] = {}
        pause = threading.TIMEOUT_MAX
        for reader in readers:
            membership = reader.membership()
            if membership is None:
                continue
            seconds = membership.lease.seconds_to_extension()
            if seconds > 0:
                pause = min(pause, seconds)
                continue
            pause = min(pause, _RETRY_SECONDS)
            if reader.is_busy(membership):
                due.setdefault(membership.sync, []).append((reader, membership))
        for sync, some in due.items():
            running = self._running.get(sync)
            if running is None or running.done():
                self._running[sync] = some[0][1].runtime.start(partial(_extend, sync, some))
        return pause


def _extend(
    sync: Synchronizer[GroupState], readers: Sequence[tuple[_Reader, ReaderMembership]]
) -> None:
    """Extend the leases of readers of one group; then one read of its state proves them all."""
    extended = list[tuple[ReaderMembership, float]]()
    for reader, membership in readers:
        try:
            membership.lease.extend()
            extended.append((membership, membership.lease.sent_at))
            reader.has_failed = False
        except ObjectClosed:
            continue
        except Exception as error:
            _log_failure(reader, membership, error)
    if not extended:
        return
    try:
        sync.fetch()
    except Exception as error:
        for reader, membership in readers:
            _log_failure(reader, membership, error)
        return
    for membership, sent_at in extended:
        try:
            membership.confirm(sent_at)
        except ReinitializationRequired:
            continue  # its next call says so


def _log_failure(reader: _Reader, membership: ReaderMembership, error: Exception) -> None:
    if not reader.has_failed:
        logger.warning(
            "failed to extend the lease of %s: %s",
            membership,
            error,
            extra=log_fields("extend lease", group=membership.state.group),
        )
    reader.has_failed = True


EXTENDER: Final = LeaseExtender()
"""That of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=EXTENDER.renew)
