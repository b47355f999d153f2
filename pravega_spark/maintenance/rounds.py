"""Rounds of maintenance in a process: which kinds are due, errors, and what is printed of them.

The command ``maintain`` and the jobs on Spark do the same rounds, and differ in how they spread
the work of one. The last line of the output is one JSON object with the sums of all rounds.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import NOTHING_GIVEN, GivenSettings, decide_settings
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.maintenance_table import entry_of, intervals_ms, open_maintenance
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import Store
from pravega_spark.errors import Damaged, InvalidInput, NotFound, PravegaSparkError
from pravega_spark.maintenance.result import MaintenanceResult, no_counts
from pravega_spark.maintenance.round import RoundRequest, Stoppable
from pravega_spark.primitives.printable import printable, printable_lines, table_lines
from pravega_spark.values.limits import CLOCK_SKEW_MS

INTERRUPTED: Final = 130
"""The exit status of a single round that was stopped before its end."""


class KindSchedule:
    """The kinds of a process, each due an interval after its last run over the root began.

    The intervals are the root's settings, read before each round, unless ``flags`` decide them.
    Runs of other processes count if they are recorded.
    """

    def __init__(
        self,
        store: Store,
        kinds: Sequence[MaintenanceKind],
        flags: GivenSettings = NOTHING_GIVEN,
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Take a root and the kinds; everything is due at first unless it is recorded."""
        self._store = store
        self._kinds = kinds
        self._flags = flags
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
        given = open_settings(self._store, self._runtime).read()
        intervals = intervals_ms(decide_settings(given, flags=self._flags))
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


FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 60.0
"""The longest pause between two attempts, if no interval is longer."""


class RoundRetries:
    """The attempts in a row that an error ended, such as that of a root that is unmounted."""

    def __init__(self) -> None:
        """Start without a failed attempt."""
        self.attempts = 0
        self._reason = ""

    def is_new(self, error: Exception) -> bool:
        """Count a failed attempt; return whether its cause is another than that of the last one."""
        reason, before = f"{type(error).__name__}: {error}", self._reason
        self.attempts, self._reason = self.attempts + 1, reason
        return reason != before

    def end(self) -> None:
        """Forget the failed attempts: a round was done."""
        self.attempts, self._reason = 0, ""

    def pause_seconds(self, interval: float | None) -> float:
        """Return the seconds until the next attempt: twice as long each time, up to an interval."""
        last = LAST_RETRY_SECONDS if interval is None else interval
        return min(FIRST_RETRY_SECONDS * 2.0 ** min(self.attempts - 1, 16), last)


HEADINGS: Final = ("STREAM", "KIND", "DONE")
_LEAST_PAUSE_SECONDS = 0.05


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows in columns."""
    for line in table_lines(headings, rows):
        print(line)


class Rounds:
    """The rounds of one process over a root, and what it prints of them.

    A process that keeps running tries again after an error, and what was done in the end is no
    failure. A scope or stream that is named must exist in the first round; one that is deleted
    later is left out.
    """

    def __init__(
        self,
        prog: str,
        store: Store,
        request: RoundRequest,
        do: Callable[[RoundRequest], MaintenanceResult],
        stop: Stoppable,
        *,
        once: bool = True,
        pause: float | None = None,
        errors: tuple[type[Exception], ...] = (PravegaSparkError, OSError),
        show_table: Callable[[Sequence[str], Iterable[Sequence[object]]], None] = print_table,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        """Take what one round is for, and what does it.

        Not ``once``, rounds follow until the stop, each after ``pause`` seconds, or else when the
        next kind is due. ``errors`` are those that end a round and not the process; ``after`` is
        called after each.
        """
        self._prog = prog
        self._store = store
        self._request = request
        self._do = do
        self._stop = stop
        self._once, self._pause = once, pause
        self._errors = errors
        self._show_table = show_table
        self._after = after
        self._began = time.monotonic()
        self._sums = Counter({**no_counts(request.kinds), "failed": 0})
        self._number = 0
        self._has_found = False
        """Whether a round has found the scopes and streams that are named."""
        self._retries = RoundRetries()

    def run(self) -> None:
        """Do one round, or rounds until the stop.

        Raises NotFound for what is named and does not exist, and of a single round InvalidInput.
        """
        schedule = None
        if not self._once:
            schedule = KindSchedule(self._store, self._request.kinds, self._request.flags)
        while not self._stop.is_set:
            self._round(schedule)
            self._after()
            if schedule is None:
                break
            self._stop.wait(self._pause_seconds(schedule))

    def end(self, **more: object) -> int:
        """Print the last line, with ``more``; return the exit status."""
        seconds = round(time.monotonic() - self._began, 3)
        self._sums["failed"] += bool(self._retries.attempts)
        record = {**self._sums, "dry_run": self._request.dry_run, "rounds": self._number}
        print(json.dumps({**record, "seconds": seconds, **more}), flush=True)
        if self._once and not (self._number or self._retries.attempts):
            return INTERRUPTED
        return 1 if self._sums["failed"] else 0

    def _pause_seconds(self, schedule: KindSchedule) -> float:
        if self._retries.attempts:
            return self._retries.pause_seconds(self._pause)
        pause = schedule.pause_seconds() if self._pause is None else self._pause
        return max(pause, _LEAST_PAUSE_SECONDS)

    def _round(self, schedule: KindSchedule | None) -> None:
        request = self._request
        try:
            kinds = request.kinds
            if schedule is not None:
                recorded = not (request.scopes or request.streams or request.dry_run)
                kinds = schedule.due(recorded=recorded)
            if not kinds:
                self._retries.end()
                return
            found = self._do(replace(request, kinds=kinds, must_exist=not self._has_found))
        except self._errors as error:
            unusable = NotFound if schedule else (InvalidInput, NotFound)
            if isinstance(error, unusable) and not self._has_found:
                raise
            if schedule is not None:
                schedule.undo()
            if self._retries.is_new(error):
                self._complain(f"{type(error).__name__}: {error}")
            return
        self._retries.end()
        self._has_found = True
        if not found.stopped:
            self._number += 1
        self._sums.update({**found.counts(), "failed": len(found.failures)})
        self._show(found)

    def _show(self, found: MaintenanceResult) -> None:
        rows = found.rows()
        if rows:
            self._show_table(HEADINGS, rows)
        for what, error in found.failure_lines.items():
            self._complain(f"{what}: {error}")
        first, *others = str(found).splitlines()
        text = "\n".join([f"{datetime.now():%H:%M:%S} {first}", *others])
        print(printable_lines(text), flush=True)

    def _complain(self, text: str) -> None:
        print(printable(f"{self._prog}: {text}"), file=sys.stderr)
