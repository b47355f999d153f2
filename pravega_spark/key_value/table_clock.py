"""The present time by which a process judges whether an entry has expired."""

from __future__ import annotations

from pravega_spark.engine.log.clock_record import read_now
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.errors import StoreReadOnly
from pravega_spark.limits import TABLE_CLOCK_SECONDS
from pravega_spark.process_locks import new_lock


class TableClock:
    """The time that is believed for deletions (ADR 14), so that no entry ends early; thread-safe.

    It is measured from time to time; the boot clock carries it on in between, without a call.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Read no clock yet."""
        self._store = store
        self._runtime = runtime
        self._lock = new_lock()
        self._measured: tuple[float, int] | None = None
        """The boot clock at the last measurement, and the believed time in ms."""
        self._has_warned = False

    def now_ms(self) -> int:
        """Return the believed time in ms since 1970; raise StoreError if it cannot be read."""
        known, elapsed = self._measured, self._runtime.monotonic()
        if known is None or elapsed - known[0] >= TABLE_CLOCK_SECONDS:
            with self._lock:
                known = self._measured
                if known is None or elapsed - known[0] >= TABLE_CLOCK_SECONDS:
                    known = self._measured = elapsed, self._read()
        return known[1] + max(0, int((elapsed - known[0]) * 1_000))

    def _read(self) -> int:
        warn, self._has_warned = not self._has_warned, True
        try:
            return read_now(self._store, self._runtime, warn=warn).earliest_ms
        except StoreReadOnly:  # a root without a clock record, which nobody may write here
            return read_now(self._store, self._runtime, keep=False, warn=warn).earliest_ms
