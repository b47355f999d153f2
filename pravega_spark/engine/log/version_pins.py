"""Pins: versions of a table that a copy is being made of, which sweeps keep whole meanwhile.

A pin is a domain of the table's own log, set and released by commits. While it is there the
clean-up mark does not move: so all that the pinned version retains stays, which is every file that
is live there and every commit since the mark that it names. A mark that moved up to the version
would leave a copy whose own mark names commits that are gone. Whoever pinned may die, so a pin
expires: when its commit is old enough, by the clock that dates objects, which is late rather than
early.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pravega_spark.engine.log.actions import Body, to_json
from pravega_spark.engine.log.commit_log import Log, Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.version_ages import VersionAges

PIN_PREFIX = "pravega.pin."


@dataclass(frozen=True, slots=True)
class Pin:
    """A pinned version, whose pin is the next one; it stands ``keep_ms`` if nobody releases it."""

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
    """Tell whether a version of the table is pinned."""
    return next(snapshot.names(PIN_PREFIX), None) is not None


def pin(log: Log, pin_id: str, *, keep_ms: int) -> Pin:
    """Pin the table's newest version, by a commit, in place of an older pin of that id."""

    def decide(snapshot: Snapshot | None) -> Proposal[Pin]:
        assert snapshot is not None, f"{log.reader.where} has no log to pin"
        held = Pin(pin_id, snapshot.version, keep_ms)
        body = Body("PIN", {"version": held.version}, domains={held.domain: held.encode()})
        return body, held

    return log.commit(decide).value


def release(log: Log, *held: Pin) -> None:
    """Remove pins, by one commit; those that are gone, or replaced, already are no error."""

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        assert snapshot is not None
        gone = [pin for pin in pins(snapshot) if pin in held]
        body = Body("UNPIN", {"versions": sorted(pin.version for pin in gone)})
        body.domains = {pin.domain: None for pin in gone}
        return body if gone else None, None

    log.commit(decide)


def release_expired(log: Log, ages: VersionAges) -> None:
    """Remove the pins whose time is over."""
    snapshot = log.refresh()
    assert snapshot is not None
    over = [
        pin
        for pin in pins(snapshot)
        if ages.now_ms - ages.written_ms(pin.version + 1) >= pin.keep_ms
    ]
    if over:
        release(log, *over)
