"""How far a reader group, a reader or a segment is behind, over the time that the server knows.

A curve keeps a bounded number of points: the newest ones all, the older the fewer. Rates are those
between two points, so nothing is said of a time in which nobody looked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

MAX_POINTS: Final = 240
RATE_MS: Final = 120_000
"""Rates are means over this time, or over what is known of it."""
TREND_MS: Final = 600_000
"""Whether more and more is unread is judged over this time, or over what is known of it."""
LEAST_RATE_MS: Final = 20_000
"""Over a shorter time no rate is given: heartbeats, which report positions, come as seldom."""
GAP_MS: Final = 120_000
"""After a longer pause between two looks nothing is said of what was between them."""


@dataclass(frozen=True, slots=True)
class LagPoint:
    """What was unread at a time; ``read`` and ``written`` count events since the curve began."""

    time_ms: int
    events: int
    seconds: float | None
    read: int
    written: int
    is_joined: bool
    """Whether the way from the point before is known."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Events a second, read and written, over the last ``seconds``."""

    read: float
    written: float
    seconds: float
    lag_change: int
    """Unread events now, less those at the beginning of that time."""

    def catch_up_seconds(self, events: int) -> float | None:
        """Return after how long nothing is unread, if all goes on so; None if never."""
        gain = self.read - self.written
        return events / gain if events and gain > 0 else None


class LagCurve:
    """The points of one group, reader or segment, oldest first; not thread-safe."""

    def __init__(self, limit: int = MAX_POINTS) -> None:
        """Begin without a point."""
        self._limit = limit
        self._points: list[LagPoint] = []

    @property
    def points(self) -> list[LagPoint]:
        """The points; do not change the list."""
        return self._points

    def add(
        self,
        time_ms: int,
        events: int,
        seconds: float | None = None,
        moved: tuple[int, int] | None = None,
    ) -> None:
        """Add a point; ``moved`` has the events read and written since the last one, if known."""
        last = self._points[-1] if self._points else None
        if last is not None and time_ms <= last.time_ms:
            return  # the clock went back, or two looks came at once
        is_joined = last is not None and moved is not None and time_ms - last.time_ms <= GAP_MS
        read, written = (0, 0) if last is None else (last.read, last.written)
        if is_joined and moved is not None:
            read, written = read + moved[0], written + moved[1]
        self._points.append(LagPoint(time_ms, events, seconds, read, written, is_joined))
        if len(self._points) > self._limit:
            self._thin()

    def _thin(self) -> None:
        """Drop every second point of the older half."""
        half = len(self._points) // 2
        old, kept = self._points[:half], list[LagPoint]()
        is_joined = True
        for number, point in enumerate(old):
            is_joined = is_joined and point.is_joined
            if number % 2 == 0:
                kept.append(replace(point, is_joined=is_joined))
                is_joined = True
        first = self._points[half]
        rest = [replace(first, is_joined=is_joined and first.is_joined), *self._points[half + 1 :]]
        self._points = kept + rest

    def progress(self, now_ms: int, over_ms: int = RATE_MS) -> Progress | None:
        """Return the rates over the last time; None if too little is known of it."""
        if not self._points or now_ms - self._points[-1].time_ms > GAP_MS:
            return None
        last = first = self._points[-1]
        for number in range(len(self._points) - 1, 0, -1):
            before = self._points[number - 1]
            if not self._points[number].is_joined or last.time_ms - before.time_ms > over_ms:
                break
            first = before
        spent_ms = last.time_ms - first.time_ms
        if spent_ms < LEAST_RATE_MS:
            return None
        seconds = spent_ms / 1_000
        return Progress(
            (last.read - first.read) / seconds,
            (last.written - first.written) / seconds,
            seconds,
            last.events - first.events,
        )


UP_TO_DATE_SECONDS: Final = 10.0
"""A group that keeps up has unread what is written in so many seconds, beside its pauses."""


def trend(
    events: int, progress: Progress | None, over_long: Progress | None, pause_seconds: float
) -> str:
    """Return in words how a group with live readers is doing.

    ``pause_seconds`` is how long a group that keeps up may report no new position.
    """
    if events == 0:
        return "up to date"
    if progress is None or over_long is None:
        return "behind"
    usual = progress.written * (UP_TO_DATE_SECONDS + pause_seconds)
    if events <= usual:
        return "up to date"
    if over_long.read == 0 and over_long.seconds > 2 * pause_seconds:
        return "not reading"
    least = max(1.0, 0.02 * events, progress.written * pause_seconds)
    if progress.lag_change < -least:
        return "catching up"
    if over_long.lag_change > least and progress.lag_change >= 0:
        return "falling behind"
    return "catching up" if over_long.lag_change < -least else "behind"
