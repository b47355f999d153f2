"""How far a reader group, a reader or a segment is behind, over the time that the server knows.

A curve keeps a bounded number of points: the newest ones all, the older the fewer. Rates are means
over a time of several looks. Readers report positions in jumps, so the rate of reading is that from
one jump to another, and none is given before it is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

MAX_POINTS: Final = 240
RATE_MS: Final = 120_000
"""Rates are means over this time, or over what is known of it."""
TREND_MS: Final = 600_000
"""Whether more and more is unread is judged over this time, or over what is known of it."""
LEAST_RATE_MS: Final = 20_000
"""Over a shorter time no rate is given: heartbeats, which report positions, come as seldom."""
JUMP_MS: Final = 30_000
"""Readers that go on reading report their positions as often, or more often."""
LOOKS_MS: Final = 30_000
"""After a longer pause between two looks, in which nobody looked, a curve has a gap."""
GAP_MS: Final = 120_000
"""After a longer pause no rate is a mean over it."""


@dataclass(frozen=True, slots=True)
class LagPoint:
    """What was unread at a time; ``read`` and ``written`` count events since the curve began."""

    time_ms: int
    events: int
    seconds: float | None
    read: int
    written: int
    is_joined: bool
    """Whether the events that were read and written since the point before are known."""
    is_watched: bool = True
    """Whether somebody looked all the time since the point before."""
    jumped_ms: int | None = None
    """When ``read`` last grew; None if it has not since the first point that is joined."""


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

    def __init__(self, limit: int = MAX_POINTS, looks_ms: int = LOOKS_MS) -> None:
        """Begin without a point; after a pause of more than ``looks_ms`` the curve has a gap."""
        self._limit, self._looks_ms = limit, looks_ms
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
        """Add a point; ``moved`` has the events read and written since the last one, if known.

        What is known of no later time than the last point, as by two looks at once, changes it.
        """
        last = self._points[-1] if self._points else None
        if last is None:
            self._points.append(LagPoint(time_ms, events, seconds, 0, 0, False))
            return
        is_later = time_ms > last.time_ms
        time_ms = max(time_ms, last.time_ms)
        pause_ms = time_ms - last.time_ms
        point = LagPoint(
            time_ms, events, seconds, last.read, last.written, False, pause_ms <= self._looks_ms
        )
        if moved is not None and pause_ms <= GAP_MS:
            point = replace(
                point,
                read=last.read + moved[0],
                written=last.written + moved[1],
                is_joined=is_later or last.is_joined,
                jumped_ms=time_ms if moved[0] else last.jumped_ms,
            )
        if is_later:
            self._points.append(point)
        else:
            self._points[-1] = replace(point, is_watched=last.is_watched)
        if len(self._points) > self._limit:
            self._thin()

    def _thin(self) -> None:
        """Drop every second point of the older half; what is between the others stays known."""
        half = len(self._points) // 2
        kept: list[LagPoint] = []
        is_joined = is_watched = True
        for number, point in enumerate(self._points):
            is_joined, is_watched = is_joined and point.is_joined, is_watched and point.is_watched
            if number >= half or number % 2 == 0:
                kept.append(replace(point, is_joined=is_joined, is_watched=is_watched))
                is_joined = is_watched = True
        self._points = kept

    def progress(self, now_ms: int, over_ms: int = RATE_MS) -> Progress | None:
        """Return the rates over the last time; None if too little is known of it."""
        if not self._points or now_ms - self._points[-1].time_ms > GAP_MS:
            return None
        return _mean(self._window(len(self._points) - 1, over_ms))

    def rates(self) -> Iterator[Progress | None]:
        """Yield the rates of each point: means over RATE_MS before it."""
        for number in range(len(self._points)):
            yield _mean(self._window(number, RATE_MS))

    def _window(self, last: int, over_ms: int) -> Sequence[LagPoint]:
        """Return the points of the time up to one, without a gap; two if the others are dropped."""
        first, points = last, self._points
        while first > 0 and points[first].is_joined:
            if points[last].time_ms - points[first - 1].time_ms > over_ms and first < last:
                break
            first -= 1
        return points[first : last + 1]


def _mean(points: Sequence[LagPoint]) -> Progress | None:
    first, last = points[0], points[-1]
    spent_ms = last.time_ms - first.time_ms
    read = _read_rate(points)
    if spent_ms < LEAST_RATE_MS or read is None:
        return None
    seconds = spent_ms / 1_000
    written = (last.written - first.written) / seconds
    return Progress(read, written, seconds, last.events - first.events)


def _read_rate(points: Sequence[LagPoint]) -> float | None:
    """Return the events read a second, from one jump of the positions to another, if known."""
    first, last = points[0], points[-1]
    spent_ms = last.time_ms - first.time_ms
    if last.jumped_ms is None or last.read == first.read:
        return 0.0 if spent_ms >= JUMP_MS else None
    begin = next(point for point in points if point.jumped_ms is not None)
    begin_ms = max(begin.jumped_ms or 0, first.time_ms - JUMP_MS)
    end_ms = max(last.jumped_ms, last.time_ms - JUMP_MS)
    if end_ms - begin_ms >= LEAST_RATE_MS:
        return (last.read - begin.read) * 1_000 / (end_ms - begin_ms)
    if spent_ms < 2 * JUMP_MS:
        return None
    return (last.read - first.read) * 1_000 / spent_ms


UP_TO_DATE_SECONDS: Final = 10.0
"""A group that keeps up has unread what is written in so many seconds, beside its pauses."""


def keeps_up(events: int, progress: Progress, pause_seconds: float) -> bool:
    """Return whether no more is unread than what a reader that keeps up has not reported yet."""
    return events <= progress.written * (UP_TO_DATE_SECONDS + pause_seconds)


def catch_up(
    events: int, progress: Progress | None, pause_seconds: float
) -> tuple[float | None, bool]:
    """Return after how long all is read, and whether never; nothing of what keeps up.

    Nothing is said from a time in which readers may not have reported a position.
    """
    if not events or progress is None or keeps_up(events, progress, pause_seconds):
        return None, False
    if progress.seconds < min(pause_seconds, RATE_MS / 2_000):
        return None, False
    seconds = progress.catch_up_seconds(events)
    return seconds, seconds is None


def trend(
    events: int, progress: Progress | None, over_long: Progress | None, pause_seconds: float
) -> str:
    """Return in words how a group with live readers is doing.

    ``pause_seconds`` is how long a group that keeps up may report no new position.
    """
    if events == 0:
        return "up to date"
    if progress is None or over_long is None:
        return "unknown"
    if keeps_up(events, progress, pause_seconds):
        return "up to date"
    if over_long.read == 0 and over_long.seconds > 2 * pause_seconds:
        return "not reading"
    least = max(1.0, 0.02 * events, progress.written * pause_seconds)
    if progress.lag_change < -least:
        return "catching up"
    if over_long.lag_change > least and progress.lag_change >= 0:
        return "falling behind"
    return "catching up" if over_long.lag_change < -least else "behind"
