"""What a process knows of a storage's outages, for those who judge leases.

Nobody can extend a lease while the storage does not answer, so an outage must not let leases run
out (ADR 35). A judge expires a member only if the storage has answered for a whole lease in which
the member was silent. The evidence is the process's own calls: when they were answered, how long
they took, and which of them failed. Elapsed time alone counts, no wall clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import CommitUnknown, StoreError
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import OUTAGE_LEASE_FRACTION

_SHORTEST_SECONDS = 1.0
"""A shorter pause matters to no lease."""
_STEP_MS = 2_000
"""A larger step of the storage's clock is none of its rounding."""


class _Pauses:
    """Pauses by their ends; remembers for each length the newest pause of at least that length."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float]] = []
        """End and length; the later a pause ended, the shorter it is."""

    def add(self, end: float, length: float) -> None:
        while self._pauses and self._pauses[-1][1] <= length:
            self._pauses.pop()
        self._pauses.append((end, length))

    def end_of_last(self, longer_than: float) -> float:
        """Return when the last pause of more than this length ended; -inf without one."""
        ends = (end for end, length in reversed(self._pauses) if length > longer_than)
        return next(ends, -math.inf)


class LeaseWatch:
    """The calls of this process to one storage, as far as they concern leases; thread-safe."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._began = self.answered_at = math.inf
        self._outages, self._gaps = _Pauses(), _Pauses()
        self._clocks: tuple[int, float] | None = None
        """The storage's time and this process's when they were last compared."""
        self.silent: dict[str, Mapping[str, tuple[int, float]]] = {}
        """By folder: the date of each lease that has run out, and since when it could be newer."""

    @contextmanager
    def call(self, runtime: Runtime) -> Iterator[None]:
        """Observe the calls of the block: their duration, and whether they failed."""
        began = runtime.monotonic()
        try:
            yield
        except (StoreError, CommitUnknown):
            self.failed(runtime)
            raise
        self._record(began, runtime.monotonic())

    def answered(self, runtime: Runtime) -> None:
        """Record that the storage has answered a call that no lease depends on."""
        now = runtime.monotonic()
        self._record(now, now)

    def _record(self, began: float, ended: float) -> None:
        with self._lock:
            if ended - began > _SHORTEST_SECONDS:
                self._outages.add(ended, ended - began)
            silent = ended - self.answered_at
            if silent > _SHORTEST_SECONDS:
                self._gaps.add(ended, silent)
            self.answered_at = ended

    def compare_clocks(self, storage_ms: int, runtime: Runtime) -> None:
        """Compare the storage's time with the time that passed.

        If it advanced by more, no age by it is believed: leases begin again.
        """
        now, known = runtime.monotonic(), self._clocks
        self._clocks = storage_ms, now
        self._began = min(self._began, now)
        if known is not None:
            passed_ms = 1_000 * (now - known[1])
            if storage_ms - known[0] > passed_ms + passed_ms / 1_000 + _STEP_MS:
                self.failed(runtime)

    def failed(self, runtime: Runtime) -> None:
        """Record that a call failed, or that the clocks do not agree: leases begin again."""
        with self._lock:
            self._outages.add(runtime.monotonic(), math.inf)

    def outage_ended(self, lease_seconds: float) -> float:
        """Return when the last known outage ended that matters to a lease; -inf without one.

        That is a call that failed, or one so slow that others' may have failed.
        """
        with self._lock:
            return self._outages.end_of_last(lease_seconds * OUTAGE_LEASE_FRACTION)

    def watched_since(self, lease_seconds: float) -> float:
        """Return since when calls have been answered without a gap that matters; inf if never.

        Not before the first comparison of clocks, since ages may be wrong by a step before it.
        """
        longest = lease_seconds * OUTAGE_LEASE_FRACTION
        with self._lock:
            ends = self._outages.end_of_last(longest), self._gaps.end_of_last(longest)
            return max(self._began, *ends)


_watches: WeakKeyDictionary[Store, LeaseWatch] = WeakKeyDictionary()


def watch_of(store: Store) -> LeaseWatch:
    """Return this process's watch of a storage."""
    return _watches.setdefault(store, LeaseWatch())
