"""What time it is: for the time that a commit carries, and for decisions by age.

No single clock is trusted (ADR 14). A commit carries this host's time unless the storage's clock
says something else. Whatever deletes by age judges late, never early: its time is the earlier of
this host's clock and the storage's. Where both are one, on a local disk, the root's clock record
says how much of it is explained by the boot clock.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from pravega_spark.engine.log.actions import to_json
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.limits import CLOCK_FAR_MS, CLOCK_RECORD_MS, CLOCK_STEP_MS, MAX_CLOCK_JUMP
from pravega_spark.units import parse_duration_ms

logger = logging.getLogger(__name__)

CLOCK_KEY = "_pravega_clock.json"
"""The root's clock record: the last time that was believed, and what the boot clock said then."""

_warned: set[str] = set()
"""Roots of which a warning was logged that this host's clock is far from the storage's."""


class HostClock:
    """This host's wall clock, or the storage's where the two are far apart."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Ask nothing yet."""
        self._store = store
        self._runtime = runtime

    def now_ms(self) -> int:
        """Return the time in ms since 1970, without a call unless a clock of this host stepped."""
        wall_ms = self._runtime.now_ms()
        storage_ms = self._storage_ms(wall_ms)
        if storage_ms is None or abs(wall_ms - storage_ms) <= CLOCK_FAR_MS:
            return wall_ms
        if self._store.url not in _warned:
            _warned.add(self._store.url)
            logger.warning(
                "the clock of this host is %s %s that of %s; commits carry the storage's time. Set "
                "the host's clock.",
                _length(wall_ms - storage_ms),
                "ahead of" if wall_ms > storage_ms else "behind",
                self._store.url,
            )
        return storage_ms

    def _storage_ms(self, wall_ms: int) -> int | None:
        """Return the storage's time by its newest answer and the time that passed since."""
        dated = self._store.dated
        if dated is None:
            return None
        passed_ms = int((self._runtime.monotonic() - dated.elapsed) * 1_000)
        if abs(wall_ms - dated.wall_ms - passed_ms) <= CLOCK_FAR_MS:
            return dated.storage_ms + passed_ms
        return self._store.time_ms()


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The time that is believed, and what the clocks said when it was recorded; all in ms.

    ``boot`` names the start of the machine, ``elapsed_ms`` is its boot clock. ``limit_ms`` is how
    far the clock may go on where no boot clock explains it.
    """

    believed_ms: int
    clock_ms: int
    boot: str
    elapsed_ms: int
    limit_ms: int

    def encode(self) -> bytes:
        """Return the object's bytes."""
        record = {
            "believed": self.believed_ms,
            "clock": self.clock_ms,
            "boot": self.boot,
            "elapsed": self.elapsed_ms,
            "limit": self.limit_ms,
        }
        return to_json(record).encode()

    def later(self, clock_ms: int, boot: str, elapsed_ms: int) -> ClockRecord:
        """Return the record as of a later moment; the believed time is never ahead of the clock.

        Within one start of the machine the time goes on with the boot clock, but for small steps
        of the clock; otherwise with the clock, by the limit at most.
        """
        gone_ms = clock_ms - self.clock_ms
        if boot and boot == self.boot:
            passed_ms = max(0, elapsed_ms - self.elapsed_ms)
            allowed_ms = CLOCK_STEP_MS + passed_ms // 1_000
            gone_ms = gone_ms if 0 <= gone_ms <= passed_ms + allowed_ms else passed_ms
        else:
            gone_ms = min(max(0, gone_ms), self.limit_ms)
        believed_ms = min(self.believed_ms + gone_ms, clock_ms)
        return ClockRecord(believed_ms, clock_ms, boot, elapsed_ms, self.limit_ms)


def decode_record(data: bytes) -> ClockRecord | None:
    """Read what ``ClockRecord.encode`` wrote; None for a torn one, which explains nothing."""
    try:
        record = json.loads(data)
        believed, clock, elapsed, limit = (
            int(record[name]) for name in ("believed", "clock", "elapsed", "limit")
        )
        return ClockRecord(believed, clock, str(record["boot"]), elapsed, limit)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Now:
    """The time for decisions by age."""

    earliest_ms: int
    """It is at least so late: what is older than a limit by this time is older."""
    latest_ms: int
    """The clock that dates objects says so: what is dated by this time is not dated early."""


def read_now(store: Store, runtime: Runtime, *, keep: bool = True) -> Now:
    """Return what time it is for decisions by age; ``keep`` renews the root's clock record.

    Where objects are dated by this host's own clock, a jump that nothing explains is not followed:
    a warning says so, and what is decided by age is late by so much until ``confirm_clock``.
    """
    storage_ms, wall_ms = store.time_ms(), runtime.now_ms()
    if store.has_clock:
        if wall_ms + CLOCK_FAR_MS < storage_ms:
            logger.warning(
                "the clock of this host is %s behind that of %s: what is deleted by age is deleted "
                "late by so much. Set the host's clock.",
                _length(storage_ms - wall_ms),
                store.url,
            )
        return Now(min(storage_ms, wall_ms), storage_ms)
    known = _record(store)
    record = _first(storage_ms, runtime) if known is None else _later(known, storage_ms, runtime)
    if record.believed_ms + CLOCK_FAR_MS < storage_ms:
        logger.warning(
            "the clock of %s jumped ahead by %s, to %s, and nothing explains it: nothing is "
            "deleted by age that was not old enough before. If the clock is right now, call "
            "StreamManager.confirm_clock() or run the retention job with --confirm-clock.",
            store.url,
            _length(storage_ms - record.believed_ms),
            time_text(storage_ms),
        )
    if keep and (known is None or _is_old(known, record)):
        store.put(CLOCK_KEY, record.encode())
    return Now(min(record.believed_ms, wall_ms), storage_ms)


def begin(store: Store, runtime: Runtime) -> None:
    """Begin the clock record of a root whose objects are dated by this host, if it has none."""
    if not store.has_clock and not store.exists(CLOCK_KEY):
        store.put(CLOCK_KEY, _first(store.time_ms(), runtime).encode())


def confirm_clock(store: Store, runtime: Runtime, limit: str | float | None = None) -> int:
    """Believe the clock that dates objects, whatever it said before; return its time in ms.

    ``limit`` changes how far the clock may go on unexplained. A storage with a clock of its own is
    believed anyway, and has no record.
    """
    now_ms = store.time_ms()
    known = _record(store)
    limit_ms = _DEFAULT_LIMIT_MS if known is None else known.limit_ms
    if limit is not None:
        limit_ms = parse_duration_ms("the limit of a clock's jump", limit)
    if not store.has_clock:
        store.put(CLOCK_KEY, replace(_first(now_ms, runtime), limit_ms=limit_ms).encode())
    logger.info("the clock of %s is confirmed: it is %s", store.url, time_text(now_ms))
    return now_ms


_DEFAULT_LIMIT_MS = parse_duration_ms("the limit of a clock's jump", MAX_CLOCK_JUMP)


def _first(clock_ms: int, runtime: Runtime) -> ClockRecord:
    elapsed_ms = int(runtime.monotonic() * 1_000)
    return ClockRecord(clock_ms, clock_ms, runtime.boot_id(), elapsed_ms, _DEFAULT_LIMIT_MS)


def _later(known: ClockRecord, clock_ms: int, runtime: Runtime) -> ClockRecord:
    return known.later(clock_ms, runtime.boot_id(), int(runtime.monotonic() * 1_000))


def _is_old(known: ClockRecord, newest: ClockRecord) -> bool:
    return known.boot != newest.boot or abs(newest.clock_ms - known.clock_ms) >= CLOCK_RECORD_MS


def _record(store: Store) -> ClockRecord | None:
    try:
        return decode_record(store.get(CLOCK_KEY))
    except FileNotFoundError:
        return None


def _length(length_ms: int) -> str:
    return str(timedelta(seconds=abs(length_ms) // 1_000))


def time_text(time_ms: int) -> str:
    """Return a time as people read it: ``2026-03-01 12:04:11 UTC``."""
    try:
        time = datetime.fromtimestamp(time_ms / 1_000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
