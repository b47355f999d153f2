"""A server's knowledge of a root: its names, and one watch for each stream looked at.

The first look reads the log's last commits, for their times. Every later look costs one storage
call: the traffic since is the difference between two views.

What a server knows of a root: its names, and one watch for each stream that was looked at. A look
at the names costs a listing of the root and one storage call a scope, at most every few seconds. A
look at a stream costs one storage call, at most once a poll interval. All viewers share both, and
nothing is asked while nobody looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pravega_spark.engine.runtime.eviction import ChanceCache
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, Damaged, ForeignTable, NotFound
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.scaling.rates import NO_TRAFFIC, Traffic, traffic_by_segment
from pravega_spark.serve.api_models import StreamRow
from pravega_spark.serve.call_budget import BudgetSpent
from pravega_spark.serve.names import KnownNames, RootNames
from pravega_spark.serve.served_root import ServedRoot

BUCKET_MS: Final = 10_000
WINDOW_MS: Final = 3_600_000
POINTS: Final = 60
RATE_MS: Final = 60_000
"""A rate is the mean over this time."""


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


FIRST_COMMITS: Final = 256
"""The most commits that the first look at a stream reads."""
_STEADY_SECONDS: Final = 30.0
"""After a longer pause the traffic since the last look is spread over the pause."""
_SPREAD_STEPS: Final = 60


class StreamWatch:
    """One stream; thread-safe. Looks are shared by all that ask at the same time."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        self._lock = new_lock()
        self._looked: float | None = None
        self._looked_ms = 0
        self._view: StreamView | None = None
        self._sizes: dict[int, Traffic] = {}
        self._total = TrafficWindow(0)
        self._segments: dict[int, TrafficWindow] = {}

    def look(self, max_age: float = 0.0) -> StreamView:
        """Return the newest view, or the last one if it is younger than ``max_age`` seconds.

        Raises NoSuchStream.
        """
        with self._lock:
            now = self._log.runtime.monotonic()
            known, looked = self._view, self._looked
            if known is not None and looked is not None and now - looked < max_age:
                return known
            view = begun_view(self._log)
            if known is None or known.life != view.life:
                self._begin(view)
            elif known.version != view.version:
                steady = looked is not None and now - looked < _STEADY_SECONDS
                self._follow(view, is_steady=steady)
            self._view, self._looked, self._looked_ms = view, now, self._log.now_ms()
            return view

    def row(self, view: StreamView) -> StreamRow:
        """Return the stream as a row of a list."""
        scope, _, name = view.stream.partition("/")
        record, now_ms = view.record, self._log.now_ms()
        with self._lock:
            events_rate, bytes_rate = self._total.rate(now_ms)
            series = self._total.series(now_ms)
        return StreamRow(
            scope=scope,
            stream=name,
            state=record.state.value,
            tags=sorted(record.configuration.tags),
            segments=len(view.active.segments),
            epoch=record.active_epoch,
            events=view.located_head.events_to(view.located_tail),
            size_bytes=readable_bytes(view),
            events_per_second=round(events_rate, 3),
            bytes_per_second=round(bytes_rate, 1),
            series=series,
            version=view.version,
            created_ms=record.created_ms,
            updated_ms=view.timestamp_ms,
        )

    def segment_rates(self) -> dict[int, tuple[float, float]]:
        """Return events and bytes a second by segment number, of those with traffic lately."""
        now_ms = self._log.now_ms()
        with self._lock:
            return {number: window.rate(now_ms) for number, window in self._segments.items()}

    def _begin(self, view: StreamView) -> None:
        """Read the last commits, whose times tell when their events came."""
        now_ms = self._log.now_ms()
        oldest = max(view.snapshot.commit_deletion_mark, view.version - FIRST_COMMITS + 1, 0)
        self._total, self._segments = TrafficWindow(now_ms), {}
        self._sizes = _sizes(view)
        try:
            for commit in self._log.log.reader.span(oldest - 1, view.version, light=True):
                time_ms = min(commit.timestamp_ms, now_ms)
                self._total.since_ms = min(self._total.since_ms, time_ms)
                for number, found in traffic_by_segment(commit).items():
                    added = sum((t.traffic for t in found.transactions), found.appends)
                    self._count(number, time_ms, added)
        except CorruptLog:  # cleaned up meanwhile, or damaged: then the past stays unknown
            self._total, self._segments = TrafficWindow(now_ms), {}
        if oldest == 0:
            self._total.since_ms = now_ms - WINDOW_MS  # nothing came before the stream began

    def _follow(self, view: StreamView, *, is_steady: bool) -> None:
        """Count what the segments have more than at the last look."""
        before, self._sizes = self._sizes, _sizes(view)
        now_ms = self._log.now_ms()
        times = [now_ms]
        if not is_steady:
            pause_ms = min(now_ms - self._looked_ms, WINDOW_MS)
            times = [now_ms - pause_ms * step // _SPREAD_STEPS for step in range(_SPREAD_STEPS)]
        for segment_number, size in self._sizes.items():
            known = before.get(segment_number, NO_TRAFFIC)
            events, size_bytes = size.events - known.events, size.size_bytes - known.size_bytes
            for part, time_ms in enumerate(times):
                share = _share(events, part, len(times)), _share(size_bytes, part, len(times))
                self._count(segment_number, time_ms, Traffic(*share))
        for gone in self._segments.keys() - self._sizes.keys():
            del self._segments[gone]

    def _count(self, number: int, time_ms: int, added: Traffic) -> None:
        if added.events <= 0:
            return
        self._total.add(time_ms, added.events, added.size_bytes)
        window = self._segments.setdefault(number, TrafficWindow(self._total.since_ms))
        window.add(time_ms, added.events, added.size_bytes)


def readable_bytes(view: StreamView) -> int:
    """Return the bytes between head and tail, as far as the log has them: no chunk is read."""
    sizes = view.record.head_sizes
    return view.located_head.bytes_to(view.located_tail, lambda segment, _: sizes.get(segment, 0))


def _sizes(view: StreamView) -> dict[int, Traffic]:
    found: dict[int, Traffic] = {}
    for name in view.snapshot.names(SEGMENT_PREFIX):
        segment_id = int(name.removeprefix(SEGMENT_PREFIX))
        record, number = view.segment(segment_id), segment_id & 0xFFFFFFFF
        size = Traffic(record.next_offset, record.size_bytes)
        found[number] = found.get(number, NO_TRAFFIC) + size
    return found


def _share(amount: int, part: int, parts: int) -> int:
    return amount * (part + 1) // parts - amount * part // parts


MAX_WATCHES: Final = 1_024


class RootWatch:
    """The names and streams of a root, as last seen; thread-safe."""

    def __init__(self, root: ServedRoot, poll_seconds: float) -> None:
        self.root = root
        self.poll_seconds = poll_seconds
        self._names = RootNames(root)
        self._lock = new_lock()
        self._watches = ChanceCache[str, StreamWatch](MAX_WATCHES, SYSTEM.random)

    def names(self) -> KnownNames:
        """Return the names, which may be a few seconds old."""
        return self._names.known()

    def stream(self, name: str) -> StreamWatch:
        """Return the watch of a stream, which need not exist."""
        with self._lock:
            watch = self._watches.get(name)
            if watch is None:
                watch = StreamWatch(self.root.log(name))
                self._watches.put(name, watch)
            return watch

    def rows(self, names: Sequence[str]) -> list[StreamRow]:
        """Return the rows of streams, looked at in parallel; those that do not exist are absent.

        A damaged stream has a row that says so.
        """
        found = SYSTEM.each(self._row, list(names))
        return [row for row in found if row is not None]

    def _row(self, name: str) -> StreamRow | None:
        watch = self.stream(name)
        try:
            return watch.row(watch.look(self.poll_seconds / 2))
        except (NotFound, BudgetSpent):
            return None
        except (Damaged, ForeignTable):
            return _damaged(name)


def _damaged(name: str) -> StreamRow:
    scope, _, stream = name.partition("/")
    return StreamRow(
        scope=scope,
        stream=stream,
        state="DAMAGED",
        tags=[],
        segments=0,
        epoch=0,
        events=0,
        size_bytes=0,
        events_per_second=0.0,
        bytes_per_second=0.0,
        series=[],
        version=-1,
        created_ms=0,
        updated_ms=0,
    )
