"""When to look for the next commit of a log, by the times at which the last ones were seen."""

from __future__ import annotations

from pravega_spark.limits import (
    POLL_GAP_FRACTION,
    POLL_IDLE_FRACTION,
    POLL_SPREAD_FRACTION,
    POLL_WATCHED_SECONDS,
)

_GAP_WEIGHT, _SPREAD_WEIGHT = 1 / 8, 1 / 4
"""Weights of the newest gap, as in TCP's estimate of a round trip (RFC 6298)."""
_SPREADS = 2.0
"""The next commit is expected within so many mean deviations of the mean gap."""


class ArrivalTimes:
    """The mean gap between commits, its mean deviation, and the pauses between polls that suit it.

    Regular commits are polled for often when one is due, and seldom before; irregular ones at
    equal pauses. A commit that is overdue is polled for less and less often. The number of polls
    in a gap of any length is bounded, up to where the longest pause is reached.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        """Take the bounds of a pause, in seconds."""
        self._shortest, self._longest = shortest, longest
        self._last: float | None = None
        self._gap = self._spread = 0.0

    def arrived(self, now: float) -> None:
        """Record that a new commit was seen."""
        if self._last is not None:
            gap = now - self._last
            if not self._gap:
                self._gap, self._spread = gap, gap / 2
            else:
                self._spread += _SPREAD_WEIGHT * (abs(gap - self._gap) - self._spread)
                self._gap += _GAP_WEIGHT * (gap - self._gap)
        self._last = now

    def pause(self, now: float) -> float:
        """Return the seconds until the next poll, after one at ``now`` found nothing."""
        if self._last is None:
            self._last = now
        idle = now - self._last
        begin = self._gap - _SPREADS * self._spread
        end = self._gap + _SPREADS * self._spread
        if idle < begin:
            pause = min(self._gap * POLL_GAP_FRACTION, begin - idle)
        elif idle <= end:
            pause = self._spread * POLL_SPREAD_FRACTION
        else:
            pause = (idle - end) * POLL_IDLE_FRACTION
        return min(self._longest, max(self._shortest, pause))

    def watched_pause(self, now: float) -> float:
        """Return the seconds until the next poll where new commits are reported: a rare check."""
        if self._last is None:
            self._last = now
        shortest, longest = POLL_WATCHED_SECONDS
        return min(longest, max(shortest, (now - self._last) * POLL_IDLE_FRACTION))
