"""Pins keep a version of a table intact while a backup copies it.

A pin is a domain of the table's log, set and released by commits. While a pin exists, neither mark
moves. So every file that is live in the pinned version is retained, and every commit since the
commit-deletion mark of that version. (Moving that mark up to the pinned version would not be
enough: the copy's own mark would then name deleted commits.) The process that pinned may
crash, so a pin expires once its commit is old enough by the storage's clock: late, never early.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Log, Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.units import utc_text

PIN_PREFIX = "pravega.pin."


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned version; the next version set the pin, which expires after ``keep_ms``."""

    pin_id: str
    version: int
    keep_ms: int

    @property
    def domain(self) -> str:
        """The name of the pin's domain."""
        return f"{PIN_PREFIX}{self.pin_id}"

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.version, self.keep_ms])


def pins(snapshot: Snapshot) -> Iterator[Pin]:
    """Yield the pins of a table."""
    for name in snapshot.names(PIN_PREFIX):
        yield Pin(name.removeprefix(PIN_PREFIX), *json.loads(snapshot.domains[name]))


def is_pinned(snapshot: Snapshot) -> bool:
    """Return whether any version of the table is pinned."""
    return next(snapshot.names(PIN_PREFIX), None) is not None


def expires_ms(pin: Pin, ages: VersionAges) -> int:
    """Return when a sweep may remove a pin that nobody releases, in ms since 1970."""
    return ages.written_ms(pin.version + 1) + pin.keep_ms


def pin_text(pin: Pin, ages: VersionAges) -> str:
    """Return what a pin holds, when it ends, and what to do."""
    end_ms = expires_ms(pin, ages)
    if end_ms <= ages.now_ms:
        return f"A backup held version {pin.version}, but its time is over: the next sweep ends it."
    return (
        f"A backup holds version {pin.version} until it is complete, or at the latest until "
        f"{utc_text(end_ms)}. If it was killed, wait until then: the next sweep "
        "releases the version."
    )


def pin(log: Log, pin_id: str, *, keep_ms: int) -> Pin:
    """Pin the newest version by a commit; this replaces an older pin with the same id."""

    def decide(snapshot: Snapshot | None) -> Proposal[Pin]:
        assert snapshot is not None, f"{log.reader.where} has no log to pin"
        new = Pin(pin_id, snapshot.version, keep_ms)
        body = Body("PIN", {"version": new.version}, domains={new.domain: new.encode()})
        return body, new

    return log.commit(decide).value


def release(log: Log, *released: Pin) -> None:
    """Remove pins in one commit; a pin that was removed or replaced before is no error."""

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        assert snapshot is not None
        found = [pin for pin in pins(snapshot) if pin in released]
        body = Body("UNPIN", {"versions": sorted(pin.version for pin in found)})
        body.domains = {pin.domain: None for pin in found}
        return body if found else None, None

    log.commit(decide)


def release_expired(log: Log, ages: VersionAges) -> None:
    """Remove the pins that have expired."""
    snapshot = log.refresh()
    assert snapshot is not None
    expired = [pin for pin in pins(snapshot) if expires_ms(pin, ages) <= ages.now_ms]
    if expired:
        release(log, *expired)
