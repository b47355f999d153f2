"""How many events and bytes came in the last hour, in steps of ten seconds. Pure, no clock."""

from __future__ import annotations

from typing import Final

BUCKET_MS: Final = 10_000
WINDOW_MS: Final = 3_600_000
POINTS: Final = 60
RATE_MS: Final = 60_000
"""A rate is the mean of so long."""


class TrafficWindow:
    """The traffic of a stream or a segment, known from a time on; times in ms since 1970."""

    def __init__(self, since_ms: int) -> None:
        """Begin with no traffic, known from ``since_ms`` on."""
        self.since_ms = since_ms
        self._buckets: dict[int, tuple[int, int]] = {}

    def add(self, time_ms: int, events: int, size_bytes: int) -> None:
        """Count events at a time; older ones than the window are forgotten."""
        if not (events or size_bytes):
            return
        number = time_ms // BUCKET_MS
        known = self._buckets.get(number, (0, 0))
        self._buckets[number] = known[0] + events, known[1] + size_bytes
        oldest = (time_ms - WINDOW_MS) // BUCKET_MS
        for old in [n for n in self._buckets if n < oldest]:
            del self._buckets[old]

    def rate(self, now_ms: int) -> tuple[float, float]:
        """Return events and bytes a second over the last minute, or since the window began."""
        last = now_ms // BUCKET_MS
        wanted = range(last - RATE_MS // BUCKET_MS + 1, last + 1)
        events, size_bytes = self._sum(wanted)
        start_ms = max(wanted[0] * BUCKET_MS, min(self.since_ms, now_ms - BUCKET_MS))
        seconds = max(1.0, (now_ms - start_ms) / 1_000)
        return events / seconds, size_bytes / seconds

    def series(self, now_ms: int) -> list[float | None]:
        """Return events a second in the minutes of the last hour; None before the window began."""
        width = WINDOW_MS // POINTS // BUCKET_MS
        last = now_ms // BUCKET_MS
        found: list[float | None] = []
        for point in range(POINTS):
            end = last - (POINTS - 1 - point) * width
            if (end + 1) * BUCKET_MS <= self.since_ms:
                found.append(None)
                continue
            events, _ = self._sum(range(end - width + 1, end + 1))
            found.append(round(events * 1_000 / (width * BUCKET_MS), 3))
        return found

    def _sum(self, numbers: range) -> tuple[int, int]:
        found = [self._buckets[n] for n in numbers if n in self._buckets]
        return sum(events for events, _ in found), sum(size for _, size in found)
