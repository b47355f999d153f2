"""Which kinds of maintenance are due in a process that keeps running, and when the next one is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import decide_settings
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.maintenance_table import entry_of, intervals_ms, open_maintenance
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import Store
from pravega_spark.errors import Damaged
from pravega_spark.values.limits import CLOCK_SKEW_MS


class KindSchedule:
    """The kinds of a process, each due an interval after its last run over the root began.

    The intervals are the root's settings, read before each round. Runs of other processes count if
    they are recorded.
    """

    def __init__(
        self, store: Store, kinds: Sequence[MaintenanceKind], runtime: Runtime = SYSTEM
    ) -> None:
        """Take a root and the kinds; everything is due at first unless it is recorded."""
        self._store = store
        self._kinds = kinds
        self._runtime = runtime
        self._began_ms = dict[MaintenanceKind, int]()
        self._before_ms = dict[MaintenanceKind, int]()
        self._next_ms = 0

    def due(self, *, recorded: bool = True) -> tuple[MaintenanceKind, ...]:
        """Return the kinds that are due now, and count them as begun.

        Without ``recorded`` only the runs of this process count. Raises Damaged for settings that
        cannot be read.
        """
        record = open_maintenance(self._store, self._runtime)
        intervals = intervals_ms(decide_settings(open_settings(self._store, self._runtime).read()))
        began_ms = dict(self._began_ms)
        self._before_ms = dict(self._began_ms)
        now_ms = record.about_now_ms()
        if recorded:
            with contextlib.suppress(Damaged):  # the record only saves work
                entries = record.entries()
                for kind in self._kinds:
                    last = entry_of(entries, kind).last
                    if last is not None and last.started_ms <= now_ms + CLOCK_SKEW_MS:
                        began_ms[kind] = max(last.started_ms, began_ms.get(kind, 0))
        times = {kind: began_ms.get(kind, 0) + intervals[kind] for kind in self._kinds}
        due = tuple(kind for kind in self._kinds if times[kind] <= now_ms)
        for kind in due:
            self._began_ms[kind] = now_ms
            times[kind] = now_ms + intervals[kind]
        self._next_ms = min(times.values())
        return due

    def undo(self) -> None:
        """Count the kinds that were due last as not begun: their round could not be done."""
        self._began_ms = dict(self._before_ms)

    def pause_seconds(self) -> float:
        """Return the seconds until the next kind is due."""
        now_ms = open_maintenance(self._store, self._runtime).about_now_ms()
        return max(0.0, (self._next_ms - now_ms) / 1_000)
