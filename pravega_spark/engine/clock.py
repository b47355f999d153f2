"""What time it is: for the time that a commit carries, and for decisions by age.

No single clock is trusted (ADR 14). A commit carries this host's time unless the storage's clock
says something else. Whatever deletes by age judges late, never early: its time is the earliest of
this host's clock, the storage's, and the time that the root's clock record explains.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from pravega_spark.config import (
    CLOCK_FAR_MS,
    CLOCK_RECORD_MS,
    CLOCK_STEP_MS,
    MAX_CLOCK_JUMP,
    parse_duration_ms,
)
from pravega_spark.engine.actions import to_json
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store

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
    """The time that was believed last (ms since 1970), and the boot clock (ms) at that moment.

    ``boot`` names the start of the machine. ``confirmed_ms`` is when an operator confirmed the
    clock last. ``limit_ms`` is how far a clock may jump where nothing explains it.
    """

    time_ms: int
    boot: str
    elapsed_ms: int
    limit_ms: int
    confirmed_ms: int | None = None

    def encode(self) -> bytes:
        """Return the object's bytes."""
        record = {
            "time": self.time_ms,
            "boot": self.boot,
            "elapsed": self.elapsed_ms,
            "limit": self.limit_ms,
            "confirmed": self.confirmed_ms,
        }
        return to_json(record).encode()

    def explained_ms(self, storage_ms: int, boot: str, elapsed_ms: int, *, own_clock: bool) -> int:
        """Return the storage's time, or an earlier one if it is further than can be explained.

        Within one start of the machine the boot clock explains what passed; a storage with a
        clock of its own need not agree with it, nor need another machine.
        """
        same = bool(boot) and boot == self.boot
        passed_ms = max(0, elapsed_ms - self.elapsed_ms) if same else 0
        expected_ms = self.time_ms + passed_ms
        step_ms = CLOCK_STEP_MS + passed_ms // 1_000
        allowed_ms = step_ms if same and not own_clock else self.limit_ms
        return storage_ms if storage_ms - expected_ms <= allowed_ms else expected_ms


def decode_record(data: bytes) -> ClockRecord | None:
    """Read what ``ClockRecord.encode`` wrote; None for a torn one, which explains nothing."""
    try:
        record = json.loads(data)
        names = ("time", "boot", "elapsed", "limit", "confirmed")
        return ClockRecord(*(record[name] for name in names))
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class Now:
    """The time for decisions by age."""

    earliest_ms: int
    """It is at least so late: what is older than a limit by this time is older."""
    latest_ms: int
    """The storage's clock says so: what is dated by this time is not dated early."""
    confirmed_ms: int | None = None
    """When an operator confirmed the clock last."""


def read_now(store: Store, runtime: Runtime, *, keep: bool = True) -> Now:
    """Return what time it is for decisions by age; ``keep`` renews the root's clock record.

    A clock that jumped further than anything explains is not followed: a warning says so, and what
    is decided by age is late by so much until ``confirm_clock``.
    """
    storage_ms, wall_ms = store.time_ms(), runtime.now_ms()
    record = _record(store)
    boot, elapsed_ms = runtime.boot_id(), int(runtime.monotonic() * 1_000)
    explained_ms = storage_ms
    if record is not None:
        own_clock = store.has_clock
        explained_ms = record.explained_ms(storage_ms, boot, elapsed_ms, own_clock=own_clock)
    if explained_ms < storage_ms:
        logger.warning(
            "the clock of %s jumped ahead by %s, to %s, and nothing explains it: nothing is "
            "deleted by age that was not old enough before. If the clock is right now, call "
            "StreamManager.confirm_clock() or run jobs/retention.py --confirm-clock.",
            store.url,
            _length(storage_ms - explained_ms),
            time_text(storage_ms),
        )
    if wall_ms + CLOCK_FAR_MS < explained_ms:
        logger.warning(
            "the clock of this host is %s behind that of %s: what is deleted by age is deleted "
            "late by so much. Set the host's clock.",
            _length(explained_ms - wall_ms),
            store.url,
        )
    if keep and (record is None or _is_old(record, explained_ms, boot)):
        limit_ms = _DEFAULT_LIMIT_MS if record is None else record.limit_ms
        confirmed_ms = None if record is None else record.confirmed_ms
        _keep(store, ClockRecord(explained_ms, boot, elapsed_ms, limit_ms, confirmed_ms))
    confirmed_ms = None if record is None else record.confirmed_ms
    return Now(min(explained_ms, wall_ms), storage_ms, confirmed_ms)


def confirm_clock(store: Store, runtime: Runtime, limit: str | float | None = None) -> int:
    """Believe the storage's clock from now on, whatever it said before; return its time in ms.

    ``limit`` changes how far the clock may jump unexplained.
    """
    record = _record(store)
    limit_ms = _DEFAULT_LIMIT_MS if record is None else record.limit_ms
    if limit is not None:
        limit_ms = parse_duration_ms("the limit of a clock's jump", limit)
    now_ms = store.time_ms()
    elapsed_ms = int(runtime.monotonic() * 1_000)
    _keep(store, ClockRecord(now_ms, runtime.boot_id(), elapsed_ms, limit_ms, now_ms))
    logger.info("the clock of %s is confirmed: it is %s", store.url, time_text(now_ms))
    return now_ms


_DEFAULT_LIMIT_MS = parse_duration_ms("the limit of a clock's jump", MAX_CLOCK_JUMP)


def _is_old(record: ClockRecord, now_ms: int, boot: str) -> bool:
    return record.boot != boot or abs(now_ms - record.time_ms) >= CLOCK_RECORD_MS


def _record(store: Store) -> ClockRecord | None:
    try:
        return decode_record(store.get(CLOCK_KEY))
    except FileNotFoundError:
        return None


def _keep(store: Store, record: ClockRecord) -> None:
    store.put(CLOCK_KEY, record.encode())


def _length(length_ms: int) -> str:
    return str(timedelta(seconds=abs(length_ms) // 1_000))


def time_text(time_ms: int) -> str:
    """Return a time as people read it: ``2026-03-01 12:04:11 UTC``."""
    try:
        time = datetime.fromtimestamp(time_ms / 1_000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms since 1970"
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"
