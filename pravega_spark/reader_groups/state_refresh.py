"""A reader's refreshes: reads of its group's state in the background, and when they are due."""

from __future__ import annotations

import math
from concurrent import futures
from dataclasses import dataclass
from functools import partial

from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import NoSuchStream, PravegaSparkError, StoreError
from pravega_spark.limits import POLL_LOCAL_SECONDS
from pravega_spark.reader_groups.assignment import HeldSegments
from pravega_spark.reader_groups.group_state import GroupState
from pravega_spark.reader_groups.group_table import Streams
from pravega_spark.reader_groups.own_lease import OwnLease
from pravega_spark.reader_groups.reader_leases import ReaderLeases

_POLL_SECONDS = POLL_LOCAL_SECONDS[1]
"""How often a reader asks a local disk whether the group's state has changed."""
_RETRY_SECONDS = 1.0
"""Pause of a reader that cannot reach its group's state, while its lease lasts."""
_NOW = 0.0


@dataclass(frozen=True, slots=True)
class RefreshInput:
    """What a refresh needs of its reader.

    ``held`` is what its heartbeat reports; None if none is due. ``streams`` are those whose newest
    versions it also reads, so that the reader need not wait for them.
    """

    held: HeldSegments | None
    streams: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh has read: the state after the heartbeat of a time, and these streams."""

    sent_at: float = -math.inf
    streams: frozenset[str] = frozenset()


class StateRefresh:
    """The refreshes of one reader: one at a time. Only the reading thread calls it.

    A refresh extends the lease if a heartbeat is due, expires other readers if a lease may have
    ended, and reads the state.
    """

    def __init__(
        self,
        sync: Synchronizer[GroupState],
        streams: Streams,
        leases: ReaderLeases,
        lease: OwnLease,
    ) -> None:
        """Begin with a refresh that is due."""
        log = sync.table.log
        self._sync, self._streams, self._leases, self._lease = sync, streams, leases, lease
        self._runtime, self._is_local = log.runtime, log.store.is_local
        self._running: futures.Future[RefreshResult] | None = None
        self._due = self.poll_due = _NOW
        self.is_unreachable = False
        """Whether the last refresh failed; the next one begins at ``poll_due``."""

    @property
    def running(self) -> futures.Future[RefreshResult] | None:
        """The refresh that has begun and whose result was not taken."""
        return self._running

    @property
    def is_running(self) -> bool:
        """Whether a refresh has begun whose result was not taken."""
        return self._running is not None

    def has_news(self, now: float, adopted: GroupState) -> bool:
        """Return whether a sibling in this process has read a newer state than the adopted one.

        Then a refresh need not ask the storage, unless it is due anyway.
        """
        return now < self._due and self._sync.local.state is not adopted

    def is_due(self, now: float, adopted: GroupState) -> bool:
        """Return whether the interval is over or the state differs from the adopted one.

        Asks the storage for changes only if it is local, where a poll costs microseconds.
        """
        if now >= self._next_due or self._sync.local.state is not adopted:
            return True
        self._schedule_poll(now)
        try:
            return self._is_local and self._sync.has_newer_version()
        except StoreError:
            return False

    def begin(self, now: float, given: RefreshInput) -> None:
        """Begin a refresh in the background."""
        assert self._running is None
        self.poll_due = self._lease.ends_at  # until the refresh has ended, calls ask nothing
        running = self._running = self._runtime.start(partial(self.run, now, given))
        running.add_done_callback(self._hurry_after)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the refresh that has begun has ended; return whether it has in this time."""
        assert self._running is not None
        return self._running.done() or bool(futures.wait([self._running], seconds).done)

    def take(self) -> RefreshResult:
        """Wait for the refresh that has begun, and return its result or raise its error."""
        assert self._running is not None
        self.wait()
        ended, self._running = self._running, None
        return ended.result()

    def run(self, now: float, given: RefreshInput) -> RefreshResult:
        """Do a refresh in this thread."""
        with self._leases.observed():
            if given.held is not None:
                self._lease.extend(given.held)
            sent_at = self._lease.sent_at
            if not self._leases.expire_due(self._sync, now):
                self._sync.fetch()
        streams = sorted(given.streams)
        read = self._runtime.each(self._has_read, streams)
        return RefreshResult(
            sent_at, frozenset(s for s, ok in zip(streams, read, strict=True) if ok)
        )

    def _has_read(self, stream: str) -> bool:
        try:
            self._streams(stream).view()
        except NoSuchStream:
            return True
        except PravegaSparkError:
            return False  # the reader reads the stream again, and learns why
        return True

    def schedule(self, now: float, interval_seconds: float) -> None:
        """Set when the next refresh is due, after one whose state was adopted."""
        self.is_unreachable = False
        self._due = min(now + interval_seconds, self._lease.due, self._leases.expiry_due)
        self._schedule_poll(now)
        if self._lease.is_lost:  # found in another thread
            self.poll_due = _NOW

    def _schedule_poll(self, now: float) -> None:
        due = self._next_due
        self.poll_due = min(due, now + _POLL_SECONDS) if self._is_local else due

    @property
    def _next_due(self) -> float:
        return min(self._due, self._leases.look_due)

    def schedule_retry(self) -> None:
        """Set when the next refresh is due, after one that failed while the lease lasts."""
        self.is_unreachable = True
        retry = self._runtime.monotonic() + _RETRY_SECONDS
        self._due = self.poll_due = min(retry, self._lease.ends_at)

    def _hurry_after(self, ended: futures.Future[RefreshResult]) -> None:
        if self._running is ended:
            self.hurry()

    def hurry(self) -> None:
        """Make the next refresh due now; any thread may call this."""
        self.poll_due = _NOW
