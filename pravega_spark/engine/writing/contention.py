"""Whether other processes write to a stream now, and when this one should commit for all of them.

Nothing is decided on this but when to act: the log decides who wins, by the checks of the commit.
A lone writer never knows contention. It begins with the second lost race within a short time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_WEIGHT = 0.2
"""The weight of the newest measurement in an average."""
MISSED_COMMITS = 5
"""The owner of an offer commits itself after this many commits without it."""
_MOST_SPREAD = 8.0
"""However many owners there are, their patience is spread over so much at most."""
_CROWD_DECAY = 0.9
"""What a listing or commit of fewer offers leaves of the known number of owners."""
STAND_BACK_COMMITS = 2
"""An owner that lost a race as a taker leaves so many commits to the winner."""
VERB_COMMITS = 3
"""A commit that is no append counts as so many: its author takes no offers."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The times that fit a storage, in seconds; all grow with the time between commits."""

    interval: float
    """The time between two commits, as long as none was measured."""
    window: float
    """Contention ends this long after the last sign of it, at least."""
    patience: float
    """The owner of an offer waits this long for a commit, at least."""
    pause: tuple[float, float]
    """The shortest and the longest time between two looks for the next commit."""
    looks: int
    """After a look that found nothing an interval divided by this passes, within ``pause``."""
    rest: float
    """This part of the time between two commits, less two looks, passes before the next look."""
    early: float
    """It is so long at most."""
    crowd: float
    """So many owners spread their patience once more; infinite: they never do."""
    linger: tuple[float, float]
    """The same between a commit for others and the next listing of offers."""


LOCAL = Pace(
    interval=0.005,
    window=0.25,
    patience=0.015,
    pause=(0.001, 0.050),
    looks=8,
    rest=0.5,
    early=0.050,
    crowd=math.inf,
    linger=(0.001, 0.010),
)
REMOTE = Pace(
    interval=0.050,
    window=10.0,
    patience=0.2,
    pause=(0.002, 0.250),
    looks=3,
    rest=1.0,
    early=0.250,
    crowd=8.0,
    linger=(0.0, 0.0),
)

LONGEST_SECONDS = 5.0
"""Intervals that are longer say nothing: the storage was idle, or did not answer."""


class Contention:
    """What one process knows of the other writers of a stream; all times are monotonic."""

    def __init__(self, *, is_local: bool) -> None:
        """Begin without other writers."""
        self._pace = LOCAL if is_local else REMOTE
        self.interval = self._pace.interval
        """The average time between two commits, as seen here."""
        self.look_seconds = 0.0
        """How long the last look for the next commit took."""
        self.listing_seconds = 0.0
        """How long the last listing of offers took."""
        self._crowd = 0.0
        """About how many offers other processes had at once, lately."""
        self._until = self._lost_at = self._commit_at = self._offers_at = float("-inf")

    @property
    def window(self) -> float:
        """How long a sign of contention counts."""
        return max(self._pace.window, 16 * self.interval)

    def lost_race(self, now: float) -> None:
        """Another process was first."""
        if now - self._lost_at < self.window:
            self.extend(now)
        self._lost_at = now

    def commit(self, now: float, *, is_foreign: bool) -> None:
        """A commit has just been made; a foreign one is that of another process."""
        passed = now - self._commit_at
        if passed < min(self.window, LONGEST_SECONDS):
            self.interval += _WEIGHT * (passed - self.interval)
        self._commit_at = now
        if is_foreign:
            self.extend(now)

    def extend(self, now: float) -> None:
        """Others write now."""
        self._until = now + self.window

    def is_contended(self, now: float) -> bool:
        """Return whether other processes wrote a short time ago."""
        return now < self._until

    def is_patience_over(self, now: float, waits_from: float, missed: int, random: float) -> bool:
        """Return whether the owner of an offer should commit itself.

        It does if no commit arrives for some intervals, or if several passed without its offer.
        ``random``, in [0, 1), spreads the patience of many owners over a time that grows with their
        number: otherwise all of them would take at once, and all but one would lose.
        """
        spread = max(1.0, min(self._crowd / self._pace.crowd, _MOST_SPREAD))
        if missed >= MISSED_COMMITS + int(random * (spread - 1.0)):
            return True
        patience = max(4 * self.interval, self._pace.patience) * (1 + random * spread)
        return now - max(waits_from, self._commit_at) > patience

    def saw(self, offers: int) -> None:
        """Note that a listing, or a commit, had so many offers."""
        self._crowd = max(_CROWD_DECAY * self._crowd, offers)

    def listed(self, now: float, *, found: bool) -> bool:
        """Return whether to go on, after a listing that found offers or none."""
        if found:
            self._offers_at = now
            return True
        return now - self._offers_at < max(2 * self.interval, self._pace.patience / 2)

    @property
    def pause(self) -> float:
        """The time between two looks for the next commit."""
        shortest, longest = self._pace.pause
        return max(shortest, min(self.interval / self._pace.looks, longest))

    def early(self, now: float) -> float:
        """Return for how long a look for the next commit would be too early; 0 if it is not.

        Where commits take longer than calls, looks that find nothing would cost more processor time
        than commits do. So a look arrives a little before the next commit is due: it is under way
        for a time, and the last commit was made up to a look before it was seen.
        """
        wait = self._pace.rest * (self.interval - 2 * self.look_seconds)
        wait = min(wait, self._pace.early)
        return max(0.0, self._commit_at + wait - now)

    @property
    def linger(self) -> float:
        """The time between a commit for others and the next listing.

        On a local disk it is as long as a listing takes, so that less is spent on looking for
        offers than on commits. Elsewhere a listing itself takes long enough.
        """
        shortest, longest = self._pace.linger
        return max(shortest, min(self.listing_seconds, longest))
