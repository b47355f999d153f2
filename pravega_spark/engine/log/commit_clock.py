"""The time that a commit carries: this host's, or the storage's where the two are far apart.

It is always above the time of the commit before, whatever the clocks do.

No single clock is trusted (ADR 14). Decisions by age use another time: see ``clock_record``.
"""

from __future__ import annotations

from pravega_spark.engine.log.clock_record import length_text
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.errors import without_credentials
from pravega_spark.limits import CLOCK_SKEW_MS

logger = own_logger(__name__)

_warned: set[str] = set()
"""Roots for which this process warned that the host's clock is far from the storage's."""


class CommitClock:
    """The clock of one table's commits."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Read no clock yet."""
        self._store = store
        self._runtime = runtime

    def now_ms(self) -> int:
        """Return the time in ms since 1970, without a call unless a clock of this host stepped."""
        wall_ms = self._runtime.now_ms()
        storage_ms = self._storage_ms(wall_ms)
        if storage_ms is None or abs(wall_ms - storage_ms) <= CLOCK_SKEW_MS:
            return wall_ms
        if self._store.url not in _warned:
            _warned.add(self._store.url)
            logger.warning(
                "the clock of this host is %s %s that of %s; commits carry the storage's time. Set "
                "the host's clock.",
                length_text(wall_ms - storage_ms),
                "ahead of" if wall_ms > storage_ms else "behind",
                without_credentials(self._store.url),
                extra=log_fields("read clock", root=without_credentials(self._store.url)),
            )
        return storage_ms

    def next_ms(self, previous_ms: int | None) -> tuple[int, int]:
        """Return the time of the next commit, above the previous one's, and this clock's time."""
        clock_ms = self.now_ms()
        return clock_ms if previous_ms is None else max(clock_ms, previous_ms + 1), clock_ms

    def _storage_ms(self, wall_ms: int) -> int | None:
        """Return the storage's time: the date of its newest answer and the time since then."""
        dated = self._store.dated
        if dated is None:
            return None
        passed_ms = int((self._runtime.monotonic() - dated.elapsed) * 1_000)
        if abs(wall_ms - dated.wall_ms - passed_ms) <= CLOCK_SKEW_MS:
            return dated.storage_ms + passed_ms
        return self._store.time_ms()
