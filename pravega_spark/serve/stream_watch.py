"""What a server knows of one stream: its newest view, and its traffic of the last hour.

The first look reads the log's last commits, for their times. Every later look costs one storage
call: the traffic since is the difference between two views.
"""

from __future__ import annotations

from typing import Final

from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog
from pravega_spark.process_locks import new_lock
from pravega_spark.scaling.commit_traffic import NO_TRAFFIC, Traffic, traffic_by_segment
from pravega_spark.serve.api_models import StreamRow
from pravega_spark.serve.traffic_window import WINDOW_MS, TrafficWindow

FIRST_COMMITS: Final = 256
"""The first look at a stream reads at most so many commits."""
_STEADY_SECONDS: Final = 30.0
"""After a longer pause the traffic since the last look is spread over the pause."""
_SPREAD_STEPS: Final = 60


class StreamWatch:
    """One stream; thread-safe. Looks are shared by all that ask at the same time."""

    def __init__(self, log: StreamLog) -> None:
        """Take an open stream; nothing is read yet."""
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
