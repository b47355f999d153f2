"""Which versions of a table are kept: by their ages, by pins, and by the horizon.

The age of a version is the time since its commit's object was written, by the storage's clock. The
time inside the commit is only the writer's. Versions are created in order, so the date of one is an
upper bound for all earlier ones. A date that is certainly wrong is replaced by a later version's.

Pins keep a version of a table intact while a backup copies it. A pin is a domain of the table's
log, set and released by commits. While a pin exists, neither mark moves. So every file that is live
in the pinned version is retained, and every commit since the commit-deletion mark of that version.
(Moving that mark up to the pinned version would not be enough: the copy's own mark would then name
deleted commits.) The process that pinned may crash, so a pin expires once its commit is old enough
by the storage's clock: late, never early.

Commit a table's staging horizon and its two marks; none of them ever moves back. Below the horizon
no staged file can be committed. The retention mark, at or below the horizon, is the oldest retained
version: it decides about files, and moves at each sweep. The commit-deletion mark, at or below the
retention mark, decides about commits. It stands for an hour before commits below it are deleted, so
it takes the retention mark's value only after that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.clock import ClockReading, read_clock
from pravega_spark.engine.log.commit import Log, Proposal
from pravega_spark.engine.log.snapshot import LOG_DOMAIN, Snapshot
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.values.limits import CLOCK_SKEW_MS
from pravega_spark.values.times import utc_text

UNDATED = (
    "The dates of their commits' objects cannot be right: they lie in the future, or far before "
    "the times in the commits. Correct the clock that dates the objects; the next commit then has "
    "a right date, from which the age of all of them counts."
)
"""What to do about versions without a right date."""


class VersionAges:
    """The ages of one log's versions at one moment."""

    def __init__(self, log: Log, now: ClockReading) -> None:
        self._log = log
        self.now = now
        self._found = dict[int, int | None]()
        self._dates = dict[int, int | None]()

    @classmethod
    def read(cls, log: Log, *, now_ms: int | None = None, keep: bool = True) -> VersionAges:
        """Return the ages at the present time, or at ``now_ms``.

        ``keep`` renews the root's clock record; a dry run must not.
        """
        if now_ms is not None:
            return cls(log, ClockReading(now_ms, now_ms))
        return cls(log, read_clock(log.store, log.runtime, keep=keep))

    @property
    def now_ms(self) -> int:
        """The time for decisions by age; never later than the real time."""
        return self.now.earliest_ms

    @property
    def latest_ms(self) -> int:
        """The time for new records; never earlier than the storage's clock."""
        return self.now.latest_ms

    def written_ms(self, version: int) -> int:
        """Return a time by which the version, and all before it, had been committed.

        If the version's commit was deleted or has a wrong date, a later version's date is
        returned, and ``now_ms`` if there is none. Never later than ``now_ms``.
        """
        dated = self.dated_version(version)
        dated_ms = None if dated is None else self._known_date_ms(dated)
        return self.now_ms if dated_ms is None else dated_ms

    def dated_version(self, version: int) -> int | None:
        """Return the version whose date counts for this one: itself, or a later one.

        Where neighbours have wrong dates for the same reason, it is the next one with a right date;
        None if the search finds none up to the newest version.
        """
        if version not in self._found:
            self._found[version] = self._search(version)
        return self._found[version]

    def _search(self, version: int) -> int | None:
        newest = self._log.snapshot
        assert newest is not None, "a version's age needs a log"
        undated, step = version - 1, 1
        while version <= newest.version:
            if self._known_date_ms(version) is not None:
                return self._first_dated(undated, version)
            # Multiples of powers of two: the searches of neighbours meet, and read no commit twice.
            undated, version, step = version, (version // step + 1) * step, 2 * step
            if version > newest.version:  # begin again with short steps: some versions are left
                version, step = undated + 1, 2
        return None

    def _first_dated(self, undated: int, dated: int) -> int:
        """Bisect to a version with a right date after one without; the steps passed over some."""
        while dated - undated > 1:
            middle = (undated + dated) // 2
            if self._known_date_ms(middle) is None:
                undated = middle
            else:
                dated = middle
        return dated

    def _known_date_ms(self, version: int) -> int | None:
        if version not in self._dates:
            self._dates[version] = self._dated_ms(version)
        return self._dates[version]

    def _dated_ms(self, version: int) -> int | None:
        """Return the date of a version's object; None if it was deleted, or a clock was wrong.

        A date in the future is wrong. A date far before the time in the commit is wrong as well:
        commit times never decrease, so the storage's clock was behind. The exception is a commit
        time in the future: then the writer's clock was ahead, and the date is used.
        """
        reader = self._log.reader
        dated_ms = self._log.store.modified_ms(reader.key(version))
        if dated_ms is None or dated_ms > self.now_ms:
            return None
        commit = reader.commit(version, light=True)
        if commit is None:
            return None
        commit_ms = commit.timestamp_ms
        if commit_ms <= self.now_ms and commit_ms - dated_ms > CLOCK_SKEW_MS:
            return None
        if self._log.store.has_clock:
            return dated_ms
        committed_ms = max(dated_ms, min(commit_ms, dated_ms + CLOCK_SKEW_MS))
        return min(committed_ms, self.now_ms)  # a disk's dates are coarse, and a clock may be ahead

    def version_at(self, time_ms: int) -> int:
        """Return the newest version committed by a time, or the oldest one whose commit is stored.

        That is the commit-deletion mark: the objects of older versions may be deleted any time,
        while those between it and the retention mark still show their age.
        """
        snapshot = self._log.refresh()
        assert snapshot is not None
        low, high = snapshot.commit_deletion_mark, snapshot.version
        while low < high:
            middle = (low + high + 1) // 2
            if self.written_ms(middle) <= time_ms:
                low = middle
            else:
                high = middle - 1
        return low


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
        f"{utc_text(end_ms, 'minutes')}. If it was killed, wait until then: the next sweep "
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
    """Remove pins in one commit; a pin that was removed or replaced before is not an error."""

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


def raise_horizon(
    log: Log,
    horizon: int,
    retention_mark: int = 0,
    *,
    aged_since: int | None = None,
    drop: Callable[[Snapshot], Iterable[str]] = lambda snapshot: (),
    set_on_drop: Mapping[str, str] = MappingProxyType({}),
) -> Snapshot:
    """Commit a horizon and a retention mark, unless they are as high already; return the snapshot.

    ``aged_since`` is the version that set the commit-deletion mark, if that mark has aged and its
    commits are deleted. Then the commit-deletion mark takes the retention mark's value, unless
    another sweep moved it in the meantime. No mark moves while a version is pinned. The same commit
    removes the domains that ``drop`` names, and sets ``set_on_drop`` if there are any.
    """

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        assert snapshot is not None
        before = snapshot.horizon, snapshot.retention_mark, snapshot.commit_deletion_mark
        new_horizon = max(snapshot.horizon, min(horizon, snapshot.version))
        _, retained, commits = before
        if not is_pinned(snapshot):
            retained = max(retained, min(retention_mark, new_horizon))
            if aged_since == snapshot.commit_deletion_set_version:
                commits = max(commits, retained)
        dropped: dict[str, str | None] = dict.fromkeys(drop(snapshot))
        if (new_horizon, retained, commits) == before and not dropped:
            return None, None
        moves = commits > snapshot.commit_deletion_mark
        set_version = snapshot.version + 1 if moves else snapshot.commit_deletion_set_version
        value = encode_log_domain(new_horizon, retained, commits, set_version)
        body = Body(
            "SWEEP",
            parameters={"horizon": new_horizon, "retained": retained, "cleanup": commits},
            metrics={"numDomainsRemoved": len(dropped)},
            domains={LOG_DOMAIN: value, **dropped, **(set_on_drop if dropped else {})},
        )
        return body, None

    return log.commit(decide).snapshot


def encode_log_domain(
    horizon: int, retention_mark: int, commit_deletion_mark: int, set_version: int
) -> str:
    """Return the log's own domain; ``set_version`` set the commit-deletion mark."""
    return to_json(
        {
            "horizon": horizon,
            "retained": retention_mark,
            "cleanup": commit_deletion_mark,
            "marked": set_version,
        }
    )
