"""The time for decisions by age, and the root's clock record that guards it.

No single clock is trusted (ADR 14). Code that deletes by age must err on the late side, so its
time is the earlier of this host's clock and the storage's. On a local disk the two are one clock.
There the root's clock record shows how much of that clock's advance the boot clock explains.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import timedelta
from weakref import WeakSet

from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.reserve import freeing
from pravega_spark.errors import StoreFull, StoreReadOnly, without_credentials
from pravega_spark.values.limits import (
    CLOCK_RECORD_MS,
    CLOCK_SKEW_MS,
    CLOCK_STEP_MS,
    MAX_CLOCK_JUMP,
)
from pravega_spark.values.times import utc_text
from pravega_spark.values.units import parse_duration_ms

logger = own_logger(__name__)

CLOCK_KEY = "_pravega_clock.json"
"""The root's clock record: the last time that was believed, and the boot clock at that time."""


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The believed time, and the readings of the clocks when it was recorded; all in ms.

    ``boot`` is the boot id of the machine, ``elapsed_ms`` its boot clock. ``limit_ms`` bounds how
    far the believed time follows the clock where no boot clock explains the advance.
    """

    believed_ms: int
    clock_ms: int
    boot: str
    elapsed_ms: int
    limit_ms: int

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        record = {
            "believed": self.believed_ms,
            "clock": self.clock_ms,
            "boot": self.boot,
            "elapsed": self.elapsed_ms,
            "limit": self.limit_ms,
        }
        return to_json(record).encode()

    def later(self, clock_ms: int, boot: str, elapsed_ms: int) -> ClockRecord:
        """Return the record for a later reading; the believed time is never ahead of the clock.

        Within one boot of the machine the believed time advances with the boot clock, apart from
        small steps of the clock. After a reboot it advances with the clock, by the limit at most.
        """
        advance_ms = clock_ms - self.clock_ms
        if boot and boot == self.boot:
            passed_ms = max(0, elapsed_ms - self.elapsed_ms)
            allowed_ms = CLOCK_STEP_MS + passed_ms // 1_000
            is_explained = 0 <= advance_ms <= passed_ms + allowed_ms
            advance_ms = advance_ms if is_explained else passed_ms
        else:
            advance_ms = min(max(0, advance_ms), self.limit_ms)
        believed_ms = min(self.believed_ms + advance_ms, clock_ms)
        return ClockRecord(
            believed_ms=believed_ms,
            clock_ms=clock_ms,
            boot=boot,
            elapsed_ms=elapsed_ms,
            limit_ms=self.limit_ms,
        )


def decode_record(data: bytes) -> ClockRecord | None:
    """Decode a clock record; None if it is torn. A torn record explains nothing."""
    try:
        record = json.loads(data)
        believed, clock, elapsed, limit = (
            int(record[name]) for name in ("believed", "clock", "elapsed", "limit")
        )
        return ClockRecord(
            believed_ms=believed,
            clock_ms=clock,
            boot=str(record["boot"]),
            elapsed_ms=elapsed,
            limit_ms=limit,
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The present time, for decisions by age."""

    earliest_ms: int
    """A lower bound of the present time: an object older than a limit by it is really older."""
    latest_ms: int
    """The clock that dates objects: a record dated by it never looks older than it is."""


def read_clock(
    store: Store, runtime: Runtime, *, keep: bool = True, warn: bool = True
) -> ClockReading:
    """Return the present time for decisions by age; ``keep`` renews the root's clock record.

    On a disk dated by this host's clock, an unexplained jump of that clock is not followed: a
    warning reports it, unless ``warn`` is false, and decisions by age are late by that much until
    ``confirm_clock``. If the storage refuses to replace the record, the older one decides: it
    explains less, never more.
    """
    storage_ms, wall_ms = store.time_ms(), runtime.now_ms()
    if store.has_clock:
        if warn and wall_ms + CLOCK_SKEW_MS < storage_ms:
            logger.warning(
                "the clock of this host is %s behind that of %s: deletions by age are late by "
                "that much. Set the host's clock.",
                length_text(storage_ms - wall_ms),
                without_credentials(store.url),
                extra=log_fields("read clock", root=without_credentials(store.url)),
            )
        return ClockReading(min(storage_ms, wall_ms), storage_ms)
    known = _stored(store)
    record = _first(storage_ms, runtime) if known is None else _later(known, storage_ms, runtime)
    if warn and record.believed_ms + CLOCK_SKEW_MS < storage_ms:
        logger.warning(
            "the clock of %s jumped ahead by %s, to %s, and nothing explains it: only data that "
            "was old enough before the jump is deleted by age. If the clock is right now, call "
            "StreamManager.confirm_clock() or run the retention job with --confirm-clock.",
            without_credentials(store.url),
            length_text(storage_ms - record.believed_ms),
            utc_text(storage_ms),
            extra=log_fields("read clock", root=without_credentials(store.url)),
        )
    if keep and (known is None or _is_outdated(known, record)):
        try:
            with freeing(store):
                store.put(CLOCK_KEY, record.encode())
        except (StoreReadOnly, StoreFull) as error:
            if known is None:  # nothing would guard the next decision
                raise
            if store not in _refusing:
                _refusing.add(store)
                logger.warning(
                    "the clock record of %s cannot be renewed, so deletions by age may be late "
                    "after a restart of this machine: %s",
                    without_credentials(store.url),
                    error,
                    extra=log_fields("read clock", root=without_credentials(store.url)),
                )
    return ClockReading(min(record.believed_ms, wall_ms), storage_ms)


def begin_record(store: Store, runtime: Runtime) -> None:
    """Write the first clock record of a root whose objects are dated by this host's clock."""
    if not store.has_clock and not store.exists(CLOCK_KEY):
        store.put(CLOCK_KEY, _first(store.time_ms(), runtime).encode())


def confirm_clock(store: Store, runtime: Runtime, limit: str | float | None = None) -> int:
    """Trust the clock that dates objects, without regard to the record; return its time in ms.

    ``limit`` changes how far the clock may advance unexplained. A storage with a clock of its own
    is always believed, and has no record.
    """
    now_ms = store.time_ms()
    known = _stored(store)
    limit_ms = _DEFAULT_LIMIT_MS if known is None else known.limit_ms
    if limit is not None:
        limit_ms = parse_duration_ms("the limit of a clock's jump", limit)
    if not store.has_clock:
        record = replace(_first(now_ms, runtime), limit_ms=limit_ms)
        with freeing(store):
            store.put(CLOCK_KEY, record.encode())
    logger.info(
        "confirmed the clock of %s: it is %s",
        without_credentials(store.url),
        utc_text(now_ms),
        extra=log_fields("confirm clock", root=without_credentials(store.url)),
    )
    return now_ms


_refusing: WeakSet[Store] = WeakSet()
"""The stores of this process whose clock record could not be renewed."""

_DEFAULT_LIMIT_MS = parse_duration_ms("the limit of a clock's jump", MAX_CLOCK_JUMP)


def _first(clock_ms: int, runtime: Runtime) -> ClockRecord:
    elapsed_ms = int(runtime.monotonic() * 1_000)
    return ClockRecord(
        believed_ms=clock_ms,
        clock_ms=clock_ms,
        boot=runtime.boot_id(),
        elapsed_ms=elapsed_ms,
        limit_ms=_DEFAULT_LIMIT_MS,
    )


def _later(known: ClockRecord, clock_ms: int, runtime: Runtime) -> ClockRecord:
    return known.later(clock_ms, runtime.boot_id(), int(runtime.monotonic() * 1_000))


def _is_outdated(known: ClockRecord, newest: ClockRecord) -> bool:
    return known.boot != newest.boot or abs(newest.clock_ms - known.clock_ms) >= CLOCK_RECORD_MS


def _stored(store: Store) -> ClockRecord | None:
    try:
        return decode_record(store.get(CLOCK_KEY))
    except FileNotFoundError:
        return None


def length_text(length_ms: int) -> str:
    """Return a length of time for a message, in hours, minutes and seconds."""
    return str(timedelta(seconds=abs(length_ms) // 1_000))
