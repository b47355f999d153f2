"""A server's knowledge of a root: its names, and one watch for each stream looked at.

A look at the names costs a listing of the root and one storage call a scope, at most every few
seconds. A look at a stream costs one storage call and one for each new commit, at most once a poll
interval; what came in between two looks is the difference of two views, or, after a pause, is read
by and by. All viewers share both, and nothing is asked while nobody looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from pravega_spark.engine.runtime.eviction import ChanceCache
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged, ForeignTable, NotFound
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.api_models import StreamRow, StreamTraffic
from pravega_spark.serve.call_budget import BudgetSpent, CallBudget
from pravega_spark.serve.commit_traffic import (
    BEHIND_MS,
    CommitTraffic,
    Sizes,
    passed_commits,
    whole,
)
from pravega_spark.serve.found_damage import FoundDamage
from pravega_spark.serve.names import KnownNames, RootNames
from pravega_spark.serve.past_traffic import PastTraffic, point_of, readable_bytes, sizes_of
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.serve.traffic import DAY_MS, HOUR_MS, RATE_MS, LastMinute, TrafficHistory
from pravega_spark.values.limits import CLOCK_SKEW_MS

ROW_READS: Final = 32
"""About the most objects of the past that a look at a stream reads, for the hour of its row."""
PAGE_READS: Final = 256
"""The same for the charts of a stream's page, each time that they ask."""

BEHIND_KEPT_MS: Final = 900_000
"""A commit of a clock that is behind is a finding for so long after a look saw it."""


class StreamWatch:
    """One stream; thread-safe. Looks are shared by all that ask at the same time."""

    def __init__(self, log: StreamLog) -> None:
        """Take the open stream; nothing is read before the first look."""
        self._log = log
        self._passed = passed_commits(log)
        self._lock = new_lock()
        self._looked: float | None = None
        self._looked_ms = 0
        self._row_reads = self._page_reads = 0
        self._view: StreamView | None = None
        self._history: TrafficHistory
        self._past: PastTraffic
        self._believed = (0, 0)
        self._behind = (0, 0)
        self._minute, self._segments = LastMinute(), dict[int, LastMinute]()

    def look(self, max_age: float = 0.0, *, reads: int = ROW_READS) -> StreamView:
        """Return the newest view, or the last one if it is younger than ``max_age`` seconds.

        A look reads about ``reads`` objects of the past at most. Raises NoSuchStream.
        """
        with self._lock:
            now = self._log.runtime.monotonic()
            known, looked = self._view, self._looked
            if known is not None and looked is not None and now - looked < max_age:
                return known
            view = begun_view(self._log)
            now_ms = max(self._log.now_ms(), self._looked_ms)
            if known is None or known.life != view.life:
                self._begin(view, now_ms)
            else:
                self._follow(known, view, now_ms)
            self._view, self._looked, self._looked_ms = view, now, now_ms
            self._row_reads, self._page_reads = ROW_READS, PAGE_READS
            self._read_past(view, reads)
            return view

    def read_past(self) -> None:
        """Read of the past what the last look left out. Raises BudgetSpent."""
        with self._lock:
            if self._view is not None:
                self._read_past(self._view, ROW_READS)

    def _read_past(self, view: StreamView, reads: int) -> None:
        reads = min(reads, self._row_reads)
        if reads:
            self._row_reads = 0
            since_ms = self._looked_ms - HOUR_MS
            self._past.fill(view, since_ms, self._looked_ms, reads, self._count)

    @property
    def seen(self) -> tuple[StreamView, int] | None:
        """The last view and when it was the newest one, in ms since 1970; None before a look."""
        with self._lock:
            return None if self._view is None else (self._view, self._looked_ms)

    def row(self, view: StreamView) -> StreamRow:
        """Return the stream as a row of a list, as of the last look."""
        scope, _, name = view.stream.partition("/")
        record = view.record
        with self._lock:
            since_ms = self._rate_since(view)
            rate = None if since_ms is None else self._minute.rate(since_ms, self._looked_ms)
            series = self._history.series(HOUR_MS, self._looked_ms)
            future_ms = view.timestamp_ms if _is_ahead(view, self._looked_ms) else None
        return StreamRow(
            scope=scope,
            stream=name,
            state=record.state.value,
            tags=sorted(record.configuration.tags),
            segments=len(view.active.segments),
            epoch=record.active_epoch,
            events=view.located_head.events_to(view.located_tail),
            size_bytes=readable_bytes(view),
            events_per_second=None if rate is None else round(rate[0], 3),
            bytes_per_second=None if rate is None else round(rate[1], 1),
            series=series.events,
            version=view.version,
            created_ms=record.created_ms,
            updated_ms=view.timestamp_ms,
            future_ms=future_ms,
        )

    def traffic(self, range_ms: int) -> StreamTraffic:
        """Return the traffic of one of RANGES, as of the last look, and read more of its past.

        Reads about PAGE_READS objects at most, once a look for all that ask; nothing once all of
        the range is known.
        """
        with self._lock:
            view, now_ms = self._view, self._looked_ms
            assert view is not None, "the watch has looked at the stream"
            reads, self._page_reads = self._page_reads, 0
            self._past.fill(view, now_ms - range_ms, now_ms, reads, self._count)
            found = self._history.series(range_ms, now_ms)
            is_left = self._past.is_left(now_ms - range_ms)
        return StreamTraffic(
            created_ms=view.record.created_ms,
            times_ms=found.times_ms,
            events_per_second=found.events,
            bytes_per_second=found.size_bytes,
            commits_per_second=found.commits,
            size_bytes=found.readable,
            is_reading=is_left,
        )

    def segment_rates(self) -> dict[int, tuple[float, float]] | None:
        """Return events and bytes a second by segment number, of those with traffic lately.

        None if the rates of the last minute are not known.
        """
        with self._lock:
            now_ms = self._looked_ms
            since_ms = None if self._view is None else self._rate_since(self._view)
            if since_ms is None:
                return None
            return {number: late.rate(since_ms, now_ms) for number, late in self._segments.items()}

    def _rate_since(self, view: StreamView) -> int | None:
        """Return since when the rates of the last look are means; None if they are not known.

        Where the log tells no times, only looks at all of a minute tell its rate.
        """
        since_ms = self._history.rate_since(self._looked_ms)
        if since_ms is None or not _is_ahead(view, self._looked_ms):
            return since_ms
        return since_ms if since_ms <= self._looked_ms - RATE_MS else None

    def _begin(self, view: StreamView, now_ms: int) -> None:
        """Know that nothing came before the life began, and since its newest commit."""
        created_ms = view.record.created_ms
        self._history = TrafficHistory(created_ms)
        self._minute, self._segments = LastMinute(), {}
        self._past = PastTraffic(self._log, view, self._history)
        if created_ms <= now_ms:
            self._silent(created_ms - DAY_MS - HOUR_MS, created_ms, now_ms, 0)
        newest = point_of(view, self._time_of(view, now_ms))
        self._believed = (newest.time_ms, now_ms)
        if newest.time_ms <= now_ms:
            self._silent(newest.time_ms, now_ms, now_ms, newest.readable)
        self._past.add(None, newest, now_ms)

    def _follow(self, before: StreamView, view: StreamView, now_ms: int) -> None:
        """Note that nothing came since the last look, or the commits; or else a gap, to be read."""
        looked_ms = self._looked_ms
        if before.version == view.version:
            self._silent(looked_ms, now_ms, now_ms, readable_bytes(view))
            return
        for gone in self._segments.keys() - sizes_of(view).keys():
            del self._segments[gone]
        passed = self._passed.take(before.version, view.version)
        late = self._note_late(passed or (), looked_ms, now_ms)
        is_told = passed is not None and not any(_is_future(one, now_ms) for one in passed)
        if passed is not None and is_told and (not late or now_ms - looked_ms <= RATE_MS):
            count = len(passed)
            seen = [one.seen(looked_ms, now_ms, n / count) for n, one in enumerate(passed, 1)]
            self._past.note(seen, looked_ms, point_of(view, now_ms), now_ms, self._count)
            return
        time_ms = max(self._time_of(view, now_ms), looked_ms)
        is_late = bool(late) or view.timestamp_ms < looked_ms - CLOCK_SKEW_MS
        if is_late or (time_ms > now_ms and _is_ahead(before, looked_ms)):
            time_ms = now_ms  # times of this log tell nothing, but the looks do
        older, newer = point_of(before, looked_ms), point_of(view, time_ms)
        self._past.add(older, newer, now_ms)
        if time_ms <= now_ms:
            self._silent(time_ms, now_ms, now_ms, newer.readable)

    def _note_late(self, passed: Sequence[CommitTraffic], looked_ms: int, now_ms: int) -> bool:
        """Note commits of a clock that is behind; return whether the times of some tell nothing.

        Then the newest commit of the first look may have come at any time before that look.
        """
        behind_ms = max((one.behind_ms(looked_ms, now_ms) for one in passed), default=0)
        if behind_ms > BEHIND_MS:
            self._behind = (behind_ms, now_ms)
            self._history.doubt(*self._believed)
            self._believed = (now_ms, now_ms)
        return any(one.clock_ms < looked_ms - CLOCK_SKEW_MS for one in passed)

    def behind_ms(self) -> int:
        """Return how far behind the clock of a commit was that looks saw of late; 0 without one."""
        with self._lock:
            behind_ms, seen_ms = self._behind
            return behind_ms if self._looked_ms - seen_ms <= BEHIND_KEPT_MS else 0

    def _time_of(self, view: StreamView, now_ms: int) -> int:
        """Return the time of a view's newest commit; a clock a little ahead is not believed."""
        time_ms = view.timestamp_ms
        return time_ms if _is_ahead(view, now_ms) else min(time_ms, now_ms)

    def _silent(self, start_ms: int, end_ms: int, now_ms: int, readable: int | None) -> None:
        self._history.learn(start_ms, end_ms, now_ms)
        if readable is not None and start_ms < end_ms:
            self._history.size(start_ms, end_ms, readable, readable)

    def _count(self, start_ms: int, end_ms: int, added: Sizes) -> None:
        if end_ms < self._looked_ms - RATE_MS:
            return
        self._minute.add(start_ms, end_ms, whole(added))
        for number, traffic in added.items():
            self._segments.setdefault(number, LastMinute()).add(start_ms, end_ms, traffic)


def _is_future(commit: CommitTraffic, now_ms: int) -> bool:
    return commit.clock_ms > now_ms + CLOCK_SKEW_MS


def _is_ahead(view: StreamView, now_ms: int) -> bool:
    """Return whether the newest commit has a time that lies in the future."""
    return view.timestamp_ms > now_ms + CLOCK_SKEW_MS


MAX_WATCHES: Final = 1_024


class RootWatch:
    """The names and streams of a root, as last seen; thread-safe."""

    def __init__(self, root: ServedRoot, poll_seconds: float) -> None:
        self.root = root
        self.poll_seconds = poll_seconds
        self.budget = CallBudget(root.runtime, poll_seconds)
        self.damage = FoundDamage(root.runtime, root.store.url)
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

        A damaged stream has a row that says so. Where calls are charged, the past of the rows is
        read by what is left when all have been looked at; until then it is not known.
        """
        looked = self.root.runtime.each(self._seen, list(names))
        self.root.runtime.each(
            self._read_past,
            [n for n, found in zip(names, looked, strict=True) if isinstance(found, StreamView)],
        )
        rows = (
            self.stream(name).row(found) if isinstance(found, StreamView) else found
            for name, found in zip(names, looked, strict=True)
        )
        return [row for row in rows if row is not None]

    def _read_past(self, name: str) -> None:
        with contextlib.suppress(BudgetSpent):  # a later look reads on
            self.stream(name).read_past()

    def _seen(self, name: str) -> StreamView | StreamRow | None:
        watch = self.stream(name)
        try:
            return watch.look(self.poll_seconds, reads=0)
        except NotFound:
            return None
        except BudgetSpent:
            return None if watch.seen is None else watch.seen[0]
        except (Damaged, ForeignTable) as error:
            return _damaged(name, said(error, self.root.store.url))


def _damaged(name: str, problem: str) -> StreamRow:
    scope, _, stream = name.partition("/")
    return StreamRow(
        scope=scope,
        stream=stream,
        state="DAMAGED",
        problem=problem,
        tags=[],
        segments=None,
        epoch=None,
        events=None,
        size_bytes=None,
        events_per_second=None,
        bytes_per_second=None,
        series=[],
        version=None,
        created_ms=None,
        updated_ms=None,
        future_ms=None,
    )
