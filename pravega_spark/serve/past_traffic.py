"""Reads what came into a stream while nobody looked: the newest first, so many objects at a time.

Between two looks lies a gap: two points of the log with the totals of each. The commits in it have
the times of their traffic, and each costs a call. Where commits are many, the state file that is
written about once in 256 of them costs two calls: the difference of its totals to those of a later
point is the traffic between two known times, and counts as their mean. That is done only for times
that a chart shows as a few points; a longer one is read commit by commit. What is not read yet, and
what the log has no more, is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pravega_spark.engine.log.actions import parse_commit
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog
from pravega_spark.scaling.rates import NO_TRAFFIC, Traffic
from pravega_spark.serve.commit_traffic import (
    BEHIND_MS,
    CommitTraffic,
    Sizes,
    traffic_of,
    whole,
)
from pravega_spark.serve.traffic import HOUR_MS, TrafficHistory
from pravega_spark.values.limits import CLOCK_SKEW_MS, STATE_FILE_COMMITS
from pravega_spark.values.segments import segment_number

Counted = Callable[[int, int, Sizes], None]
"""Takes the times of a span, and the traffic in it by segment number."""

_GAPS: Final = 128
"""The most gaps that are kept, each apart from the next; older ones count as not known."""
_PAGE: Final = 256


@dataclass(frozen=True, slots=True)
class Point:
    """A version of the log: what was written by then, and what was readable, in bytes."""

    version: int
    time_ms: int
    sizes: Sizes
    readable: int | None
    """None if it is not known."""

    def is_before(self, newer: Point) -> bool:
        """Return whether a newer point is of the same version."""
        return self.version == newer.version and self.time_ms <= newer.time_ms


def point_of(view: StreamView, time_ms: int) -> Point:
    """Return the point of a view, at a time."""
    return Point(view.version, time_ms, sizes_of(view), readable_bytes(view))


def readable_bytes(view: StreamView) -> int:
    """Return the bytes between head and tail, as far as the log has them: no chunk is read."""
    sizes = view.record.head_sizes
    return view.located_head.bytes_to(view.located_tail, lambda segment, _: sizes.get(segment, 0))


def sizes_of(view: StreamView) -> Sizes:
    """Return what was ever written to the segments that a view has."""
    found: dict[int, Traffic] = {}
    for name in view.snapshot.names(SEGMENT_PREFIX):
        segment_id = int(name.removeprefix(SEGMENT_PREFIX))
        record, number = view.segment(segment_id), segment_number(segment_id)
        found[number] = found.get(number, NO_TRAFFIC) + Traffic(
            record.next_offset, record.size_bytes
        )
    return found


@dataclass(slots=True)
class _Gap:
    older: Point | None
    """None for the time before the first look, whose beginning is only found by reading."""
    newer: Point
    seen_ms: int
    """Until when nothing came after the newer point."""
    pace: float | None = None
    """Commits in a millisecond, by what was read of it last."""


class PastTraffic:
    """The gaps of one life of a stream; its watch locks it."""

    def __init__(self, log: StreamLog, view: StreamView, history: TrafficHistory) -> None:
        """Begin without a gap; what is read goes to ``history``."""
        self._log = log
        self._life, self._created_ms = view.life, view.record.created_ms
        self._history = history
        self._gaps: list[_Gap] = []

    def is_left(self, since_ms: int) -> bool:
        """Return whether something since a time is still to be read."""
        return bool(self._gaps) and self._gaps[-1].newer.time_ms > since_ms

    def add(self, older: Point | None, newer: Point, seen_ms: int) -> None:
        """Add the gap between two points, the newest of all, as a look saw it.

        It lengthens one that ends where it begins: so looks that read nothing make no gap more.
        """
        last = self._gaps[-1] if self._gaps else None
        if last is not None and older is not None and last.newer.is_before(older):
            last.newer, last.seen_ms = newer, seen_ms
        else:
            self._gaps = [*self._gaps, _Gap(older, newer, seen_ms)][-_GAPS:]

    def note(
        self, seen: Sequence[CommitTraffic], start_ms: int, newer: Point, now_ms: int, to: Counted
    ) -> None:
        """Count all commits since a look up to now, each at its own time."""
        since_ms = min([start_ms, *(commit.clock_ms - 1 for commit in seen)])
        self._count(since_ms, now_ms, seen, newer, now_ms, to)
        self._history.learn(start_ms, now_ms, now_ms)

    def fill(self, view: StreamView, since_ms: int, now_ms: int, reads: int, to: Counted) -> None:
        """Read up to about ``reads`` objects of the gaps since a time, the newest first."""
        while reads > 0 and self.is_left(since_ms):
            gap = self._gaps[-1]
            if gap.older is not None and self._is_short(gap.older, gap.newer, now_ms):
                self._close(gap.older, gap, now_ms, to)
                continue
            try:
                reads -= self._step(view, gap, now_ms, reads, to)
            except CorruptLog:  # damaged: then the past stays unknown
                self._gaps.pop()
                return

    def _is_short(self, older: Point, newer: Point, now_ms: int) -> bool:
        """Return whether the mean of a time is as good as the times of its commits."""
        age_ms = now_ms - newer.time_ms
        return age_ms >= 0 and newer.time_ms - older.time_ms <= _longest_mean_ms(age_ms)

    def _close(self, older: Point, gap: _Gap, now_ms: int, to: Counted) -> None:
        """Count the difference of two points, and go on before the older one, or end the gap."""
        newer = gap.newer
        added = _difference(older.sizes, newer.sizes)
        commits = max(0, newer.version - older.version)
        self._note(older, newer, added, commits, now_ms, to)
        gap.pace = commits / max(1, newer.time_ms - older.time_ms)
        if older is gap.older:
            self._gaps.pop()
        else:
            gap.newer, gap.seen_ms = older, older.time_ms

    def _note(
        self, older: Point, newer: Point, added: Sizes, commits: int, now_ms: int, to: Counted
    ) -> None:
        start, end = older.time_ms, newer.time_ms
        self._history.count(start, end, whole(added), commits)
        if older.readable is not None and newer.readable is not None:
            self._history.size(start, end, older.readable, newer.readable)
        self._history.learn(start, end, now_ms)
        to(start, end, added)

    def _step(self, view: StreamView, gap: _Gap, now_ms: int, reads: int, to: Counted) -> int:
        """Read a state file or some commits before the newer point; return how many objects."""
        mark = view.snapshot.commit_deletion_mark
        oldest = max(mark, 0 if gap.older is None else gap.older.version + 1)
        version = self._state_version(gap, oldest, now_ms)
        if version is None:
            return self._read_commits(view, gap, oldest, now_ms, reads, to)
        point = self._state(version)
        if point is None or point.time_ms > now_ms:
            gap.pace = 0.0  # no state there: by commits, until these are many again
        elif self._is_short(point, gap.newer, now_ms):
            self._close(point, gap, now_ms, to)
        else:
            commits = gap.newer.version - version
            gap.pace = commits / (gap.newer.time_ms - point.time_ms)
        return 2

    def _state_version(self, gap: _Gap, oldest: int, now_ms: int) -> int | None:
        """Return the version of a state file that is about as far back as a mean may be long."""
        newer, pace = gap.newer, gap.pace
        newest = (newer.version - 1) // STATE_FILE_COMMITS * STATE_FILE_COMMITS
        if newest <= oldest or newer.time_ms > now_ms or newer.version - oldest <= _PAGE:
            return None
        if pace is None:
            return newest
        longest_ms = _longest_mean_ms(now_ms - newer.time_ms)
        wanted = newer.version - int(pace * longest_ms)
        found = -(-wanted // STATE_FILE_COMMITS) * STATE_FILE_COMMITS
        first = -(-oldest // STATE_FILE_COMMITS) * STATE_FILE_COMMITS
        found = max(found, first)
        return found if found < newer.version else None

    def _state(self, version: int) -> Point | None:
        found = self._log.log.reader.state(version)
        if found is None:
            return None
        view = StreamView(found.snapshot)
        if view.life != self._life:  # of a former life: ours had nothing before it was created
            return Point(version, self._created_ms, {}, 0)
        return point_of(view, view.timestamp_ms)

    def _read_commits(
        self, view: StreamView, gap: _Gap, oldest: int, now_ms: int, reads: int, to: Counted
    ) -> int:
        """Count the newest commits of a gap, each at its own time; one more tells their beginning.

        A commit whose author's clock was ahead has no minute: around it nothing is known.
        """
        newer, older = gap.newer, gap.older
        first = max(oldest, newer.version - min(reads, _PAGE))
        after_ms = 0 if older is None else older.time_ms
        stored = self._stored(first, newer.version)
        found = [one.stored(after_ms, now_ms) for one in stored]
        if not found:
            self._gaps.pop()
            return 1
        is_last = first == oldest or found[0].version > first  # the log has no older one
        until_ms = now_ms if newer.version == view.version else newer.time_ms
        ahead = _last_run([one.clock_ms > now_ms + CLOCK_SKEW_MS for one in found])
        if ahead:
            known = found[ahead.stop :]
            start_ms = min(known[0].clock_ms, now_ms) - 1 if known else now_ms
            counted, before_version = found[ahead.start :], found[ahead.start].version - 1
        elif older is not None and found[0].version == older.version + 1:
            start_ms, counted, before_version = older.time_ms, found, older.version
        else:
            start_ms = max(found[0].clock_ms, self._created_ms)
            counted, before_version = found[1:], found[0].version
            if before_version == 0:
                start_ms = self._created_ms
        before, end_ms = self._count(start_ms, until_ms, counted, newer, now_ms, to)
        self._history.learn(start_ms, end_ms, now_ms)
        for doubtful in _doubtful(stored, found, gap.seen_ms):
            self._history.doubt(*doubtful)
        if before_version < oldest or (not ahead and (is_last or start_ms == self._created_ms)):
            self._gaps.pop()
        elif ahead:
            gap.newer = Point(before_version, now_ms + CLOCK_SKEW_MS + 1, before.sizes, None)
        else:
            gap.newer = Point(before_version, start_ms, before.sizes, before.readable)
            gap.seen_ms = start_ms
            gap.pace = len(counted) / max(1, newer.time_ms - start_ms)
        return len(found)

    def _stored(self, first: int, last: int) -> list[CommitTraffic]:
        """Return the commits up to a version, from the first one on behind which none is missing.

        A clean-up may have deleted some since the view was taken.
        """
        reader = self._log.log.reader
        found: list[CommitTraffic] = []
        for version, data in enumerate(reader.next_commits(first, last - first + 1), first):
            if data is None:
                found = []
            else:
                found.append(traffic_of(parse_commit(version, data, reader.where, light=True)))
        return found

    def _count(
        self,
        start_ms: int,
        until_ms: int,
        commits: Sequence[CommitTraffic],
        newer: Point,
        now_ms: int,
        to: Counted,
    ) -> tuple[Point, int]:
        """Count commits of (start, until] up to a point.

        Returns what was there before them, and the end of the time that they tell: the time of the
        last one if ``until_ms`` lies in the future.
        """
        sizes, readable = dict(newer.sizes), newer.readable
        end_ms = until_ms if until_ms <= now_ms else start_ms
        for commit in reversed(commits):
            time_ms = commit.clock_ms
            if time_ms <= start_ms < until_ms:  # of a former life
                break
            added, traffic = commit.added, whole(commit.added)
            if time_ms <= now_ms + CLOCK_SKEW_MS:
                time_ms = min(time_ms, now_ms)
                end_ms = max(end_ms, time_ms)
                self._history.count(time_ms - 1, time_ms, traffic, 1)
                to(time_ms - 1, time_ms, added)
                if readable is not None and time_ms < until_ms <= now_ms:
                    self._history.size(time_ms, until_ms, readable, readable)
            until_ms = time_ms
            for number, part in added.items():
                sizes[number] = _less(sizes.get(number, NO_TRAFFIC), part)
            if readable is not None:
                readable = None if commit.is_cut else max(0, readable - traffic.size_bytes)
        if readable is not None and start_ms < until_ms <= now_ms:
            self._history.size(start_ms, until_ms, readable, readable)
        return Point(newer.version, newer.time_ms, sizes, readable), end_ms


def _doubtful(
    stored: Sequence[CommitTraffic], dated: Sequence[CommitTraffic], end_ms: int
) -> Iterator[tuple[int, int]]:
    """Yield the times in which commits came of which no clock tells when.

    Such a commit is older than one before it: it came between that and the next one whose clock is
    right. What a chart shows as a few points is near enough.
    """
    for own, one in zip(reversed(stored), reversed(dated), strict=True):
        if one.clock_ms - own.clock_ms <= BEHIND_MS:
            end_ms = one.clock_ms
        elif end_ms - one.clock_ms > _longest_mean_ms(0):
            yield one.clock_ms, end_ms


def _last_run(flags: list[bool]) -> range:
    """Return the indexes of the last flags in a row that are set; an empty range without any."""
    stop = max((at + 1 for at, flag in enumerate(flags) if flag), default=0)
    start = stop
    while start > 0 and flags[start - 1]:
        start -= 1
    return range(start, stop)


def _longest_mean_ms(age_ms: int) -> int:
    """Return how long a time may be that counts as a mean, by its age: some points of a chart."""
    return 60_000 if age_ms < HOUR_MS else 900_000


def _less(whole: Traffic, part: Traffic) -> Traffic:
    return Traffic(max(0, whole.events - part.events), max(0, whole.size_bytes - part.size_bytes))


def _difference(older: Sizes, newer: Sizes) -> dict[int, Traffic]:
    found = {number: _less(size, older.get(number, NO_TRAFFIC)) for number, size in newer.items()}
    return {number: traffic for number, traffic in found.items() if traffic.events > 0}
