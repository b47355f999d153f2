"""A reader's own lease: its heartbeats, and until when it lasts by the reader's own clock."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

from pravega_spark.engine import processes
from pravega_spark.engine.runtime import Runtime
from pravega_spark.errors import ObjectClosed, StoreError
from pravega_spark.process_locks import new_lock
from pravega_spark.reader_groups.assignment import HeldSegments
from pravega_spark.reader_groups.reader_leases import Heartbeat, ReaderLeases

_HEARTBEATS_PER_LEASE = 3
_MAX_HEARTBEAT_LEASE_SECONDS = 60.0
"""A longer lease, or none, gives heartbeats as often as this one, since they report offsets."""


class OwnLease:
    """The lease of one joining of a reader; thread-safe.

    Only the group's state proves that a heartbeat came in time. So a heartbeat extends the lease by
    this process's clock only when the state was read after it and still had the reader.
    """

    def __init__(
        self,
        leases: ReaderLeases,
        runtime: Runtime,
        reader_id: str,
        number: int,
        lease_ms: int | None,
        joined_at: float,
    ) -> None:
        """Begin the lease with the first heartbeat.

        If that fails, the first refresh tries again, or another reader writes it.
        """
        self._leases, self._runtime, self._reader_id = leases, runtime, reader_id
        self._seconds = math.inf if lease_ms is None else lease_ms / 1_000
        self._interval = min(self._seconds, _MAX_HEARTBEAT_LEASE_SECONDS) / _HEARTBEATS_PER_LEASE
        self._lock = new_lock()
        """Orders heartbeats, so that none goes back behind the offsets of another."""
        self._last = Heartbeat(number, {}, processes.identity())
        self._has_left = False
        self.is_lost = False
        """Whether the reader is no longer in its group."""
        self.sent_at = joined_at
        """A time before the last heartbeat."""
        self.due = joined_at
        """When the next heartbeat with new offsets is due: repeated ones do not postpone it."""
        self._ends_at = joined_at + self._seconds
        with contextlib.suppress(StoreError):
            self.extend({})

    def extend(self, held: HeldSegments | None = None) -> None:
        """Write a heartbeat that reports ``held``; None repeats what the last one reported.

        Raises ObjectClosed if the reader has left.
        """
        with self._lock:
            if self._has_left:
                raise ObjectClosed(f"reader {self._reader_id} was closed.")
            if held is not None:
                self._last = replace(self._last, held=held)
            began = self._runtime.monotonic()
            self._leases.extend(self._reader_id, self._last)
            self.sent_at = began
            if held is not None:
                self.due = began + self._interval

    def prove(self, sent_at: float) -> None:
        """Record that the state, read after the heartbeat of that time, still had the reader."""
        self._ends_at = max(self._ends_at, sent_at + self._seconds)  # a lost update is too early

    def lose(self) -> None:
        """Record that the reader is no longer in its group."""
        self.is_lost = True

    def has_ended(self, now: float) -> bool:
        """Return whether other readers may have expired this one."""
        return self.is_lost or now >= self._ends_at

    def seconds_to_heartbeat(self) -> float:
        """Return the seconds until any heartbeat is due; negative if it is overdue."""
        return self.sent_at + self._interval - self._runtime.monotonic()

    @property
    def ends_at(self) -> float:
        """The time at which the lease ends by this process's clock."""
        return self._ends_at

    def leave(self) -> None:
        """Write no further heartbeat; waits for one that is being written."""
        with self._lock:
            self._has_left = True
