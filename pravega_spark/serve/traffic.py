"""What a server knows of a stream's traffic over a day, in two rings of sums; no clock, no storage.

The last hour is kept in buckets of 15 s, the day in buckets of 5 minutes, so a stream takes some
26 KB however long and busy it is. Apart from the sums stand the times that are known at all: no
traffic in a known time is zero, in another one it is null.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from typing import Final

from pravega_spark.scaling.rates import Traffic

FINE_MS: Final = 15_000
COARSE_MS: Final = 300_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
RATE_MS: Final = 60_000
"""A rate is the mean over this time."""
_SECOND_MS: Final = 1_000
_LEAST_RATE_MS: Final = 10_000
"""A rate is not known from a shorter time."""
_SPANS: Final = 128
"""The most times without a gap that are kept; the shortest ones count as not known."""


class KnownTimes:
    """Times of which everything is known, as spans without overlap, the oldest first."""

    def __init__(self) -> None:
        """Begin with none."""
        self.spans: list[tuple[int, int]] = []

    def add(self, start_ms: int, end_ms: int) -> None:
        """Add a span; spans that touch become one."""
        apart = [span for span in self.spans if span[1] < start_ms or span[0] > end_ms]
        joined = [span for span in self.spans if span not in apart]
        start_ms = min([start_ms, *(span[0] for span in joined)])
        end_ms = max([end_ms, *(span[1] for span in joined)])
        self.spans = sorted([*apart, (start_ms, end_ms)])
        if len(self.spans) > _SPANS:
            self.spans.remove(min(self.spans[:-1], key=lambda span: span[1] - span[0]))

    def forget(self, before_ms: int) -> None:
        """Drop the spans that end before a time."""
        self.spans = [span for span in self.spans if span[1] >= before_ms]

    def remove(self, start_ms: int, end_ms: int) -> None:
        """Drop a span, and the parts of others that lie in it."""
        parts = [(s, min(e, start_ms)) for s, e in self.spans]
        parts += [(max(s, end_ms), e) for s, e in self.spans]
        self.spans = sorted({(start, end) for start, end in parts if start < end})

    def covers(self, start_ms: int, end_ms: int) -> bool:
        """Return whether all of a span is known."""
        return any(start <= start_ms and end_ms <= end for start, end in self.spans)

    def since(self, time_ms: int) -> int | None:
        """Return since when everything up to a time is known; None if it is not known itself."""
        return next((start for start, end in self.spans if start <= time_ms <= end), None)


class _Ring:
    """Sums by buckets of one width; what is older than the ring is dropped."""

    def __init__(self, width_ms: int, buckets: int) -> None:
        self.width_ms = width_ms
        self._buckets = buckets
        self._numbers = array("q", [-1]) * buckets
        self._events, self._bytes, self._commits = (array("d", [0.0]) * buckets for _ in range(3))
        self._size = array("d", [math.nan]) * buckets
        self._sized_ms = array("q", [-1]) * buckets

    def _at(self, number: int) -> int | None:
        """Return the index of a bucket, which begins empty; None if it is too old."""
        index = number % self._buckets
        if self._numbers[index] > number or number < 0:
            return None
        if self._numbers[index] < number:
            self._numbers[index], self._sized_ms[index] = number, -1
            self._events[index] = self._bytes[index] = self._commits[index] = 0.0
            self._size[index] = math.nan
        return index

    def spread(self, start_ms: int, end_ms: int, added: Traffic, commits: float) -> None:
        """Add traffic evenly to a time."""
        whole = end_ms - start_ms
        newest = (end_ms - 1) // self.width_ms
        oldest = max(start_ms // self.width_ms, newest - self._buckets + 1)
        for number in range(oldest, newest + 1):
            index = self._at(number)
            if index is None:
                continue
            begin = number * self.width_ms
            part = (min(end_ms, begin + self.width_ms) - max(start_ms, begin)) / whole
            self._events[index] += added.events * part
            self._bytes[index] += added.size_bytes * part
            self._commits[index] += commits * part

    def size(self, start_ms: int, end_ms: int, first: int, last: int) -> None:
        """Note a size that changed evenly in a time; each bucket keeps its last size."""
        newest = (end_ms - 1) // self.width_ms
        for number in range(max(start_ms // self.width_ms, newest - self._buckets + 1), newest + 1):
            index, time_ms = self._at(number), min(end_ms, (number + 1) * self.width_ms)
            if index is not None and self._sized_ms[index] <= time_ms:
                part = (time_ms - start_ms) / (end_ms - start_ms)
                self._size[index], self._sized_ms[index] = first + (last - first) * part, time_ms

    def sums(self, numbers: range) -> tuple[float, float, float, float | None]:
        """Return the events, bytes and commits of some buckets, and the last one's size."""
        found = [self._indexed(number) for number in numbers]
        known = [index for index in found if index is not None]
        last = found[-1]
        size = None if last is None or math.isnan(self._size[last]) else self._size[last]
        return (
            sum(self._events[index] for index in known),
            sum(self._bytes[index] for index in known),
            sum(self._commits[index] for index in known),
            size,
        )

    def _indexed(self, number: int) -> int | None:
        index = number % self._buckets
        return index if self._numbers[index] == number else None


@dataclass(frozen=True, slots=True)
class Series:
    """Means a second up to each time, and the size at it; None where it is not known."""

    times_ms: list[int]
    events: list[float | None]
    size_bytes: list[float | None]
    commits: list[float | None]
    readable: list[int | None]


class LastMinute:
    """Traffic of late by the second, and between which times each second's came.

    So a minute may begin within a second: what came before it is left out.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._seconds: dict[int, tuple[float, float, int, int]] = {}

    def add(self, start_ms: int, end_ms: int, added: Traffic) -> None:
        """Add traffic that came at some time of (start, end]."""
        start_ms = min(start_ms, end_ms - 1)
        length = end_ms - start_ms
        oldest = (end_ms - 2 * RATE_MS) // _SECOND_MS
        for second in range(max(start_ms // _SECOND_MS, oldest), (end_ms - 1) // _SECOND_MS + 1):
            begin = max(start_ms, second * _SECOND_MS)
            end = min(end_ms, (second + 1) * _SECOND_MS)
            part = (end - begin) / length
            events, size, first, last = self._seconds.get(second, (0.0, 0.0, begin, end))
            self._seconds[second] = (
                events + added.events * part,
                size + added.size_bytes * part,
                min(first, begin),
                max(last, end),
            )
        if len(self._seconds) > 4 * RATE_MS // _SECOND_MS:
            newest = max(self._seconds) - 2 * RATE_MS // _SECOND_MS
            self._seconds = {at: sums for at, sums in self._seconds.items() if at > newest}

    def rate(self, since_ms: int, now_ms: int) -> tuple[float, float]:
        """Return events and bytes a second over (since, now]."""
        events = size = 0.0
        for added, size_bytes, first, last in self._seconds.values():
            part = max(0, min(last, now_ms) - max(first, since_ms)) / (last - first)
            events, size = events + added * part, size + size_bytes * part
        seconds = (now_ms - since_ms) / 1_000
        return events / seconds, size / seconds


_POINTS: Final = {900_000: (1, 60), HOUR_MS: (4, 60), DAY_MS: (1, 288)}
"""By range: the buckets of a point, and the points."""
RANGES: Final = tuple(_POINTS)


class TrafficHistory:
    """The traffic of one stream over a day; times in ms since 1970."""

    def __init__(self, created_ms: int) -> None:
        """Know nothing but when the stream was created: before, it has no rate."""
        self.created_ms = created_ms
        self.known = KnownTimes()
        self._fine = _Ring(FINE_MS, HOUR_MS // FINE_MS + 8)
        self._coarse = _Ring(COARSE_MS, DAY_MS // COARSE_MS + 4)

    def learn(self, start_ms: int, end_ms: int, now_ms: int) -> None:
        """Note that all traffic of a time is counted, or will be before anybody asks."""
        self.known.add(max(start_ms, now_ms - DAY_MS - COARSE_MS), max(start_ms, end_ms))
        self.known.forget(now_ms - DAY_MS - COARSE_MS)

    def doubt(self, start_ms: int, end_ms: int) -> None:
        """Note that a time is not known, although it seemed to be."""
        if start_ms < end_ms:
            self.known.remove(start_ms, end_ms)

    def count(self, start_ms: int, end_ms: int, added: Traffic, commits: int) -> None:
        """Count traffic that came at some time of (start, end]."""
        start_ms = min(start_ms, end_ms - 1)
        for ring in (self._fine, self._coarse):
            ring.spread(start_ms + 1, end_ms + 1, added, commits)

    def size(self, start_ms: int, end_ms: int, first: int, last: int) -> None:
        """Note the readable bytes at both ends of a time, in which they changed evenly."""
        start_ms = min(start_ms, end_ms - 1)
        for ring in (self._fine, self._coarse):
            ring.size(start_ms + 1, end_ms + 1, first, last)

    def rate_since(self, now_ms: int) -> int | None:
        """Return since when the rate of now is a mean: a minute ago, or less if that is all."""
        known = self.known.since(now_ms)
        since = max(now_ms - RATE_MS, known or 0)
        return None if known is None or now_ms - since < _LEAST_RATE_MS else since

    def series(self, range_ms: int, now_ms: int) -> Series:
        """Return the points of one of RANGES: means of whole spans, the last one that has ended."""
        width, points = _POINTS[range_ms]
        ring = self._coarse if range_ms == DAY_MS else self._fine
        found = Series([], [], [], [], [])
        running = now_ms // ring.width_ms
        for point in range(points):
            first = running - width * (points - point)
            numbers = range(first, first + width)
            start, end = first * ring.width_ms, (first + width) * ring.width_ms
            found.times_ms.append(end)
            is_known = end >= self.created_ms and self.known.covers(start, end)
            events, size_bytes, commits, size = ring.sums(numbers)
            seconds = (end - start) / 1_000
            found.events.append(round(events / seconds, 3) if is_known else None)
            found.size_bytes.append(round(size_bytes / seconds, 1) if is_known else None)
            found.commits.append(round(commits / seconds, 3) if is_known else None)
            found.readable.append(round(size) if is_known and size is not None else None)
        return found
