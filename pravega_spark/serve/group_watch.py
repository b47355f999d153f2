"""One reader group as a server knows it: its state, who reads, what is unread, and since when.

The group's log stays open. A look costs one call; with readers one more, which lists the heartbeats
that tell their positions; and one for each heartbeat that is new, at most HEARTBEATS of them: the
others are read by the next looks. How much is unread comes from the log's own view of the streams,
without a call: events exactly. Bytes and ages are told for a group whose page is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.backlog import (
    Backlog,
    SegmentBacklog,
    known_backlog,
    oldest_seconds,
    unread_ranges,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    PravegaSparkError,
    StaleIdentity,
    StoreError,
    TruncatedData,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.reader_groups.configuration import GroupAcknowledgement
from pravega_spark.reader_groups.description import SegmentPosition, positions_with
from pravega_spark.reader_groups.leases import Heartbeat, ReaderLeases, record_heartbeats
from pravega_spark.reader_groups.state import GroupState, Phase, SegmentKey
from pravega_spark.reader_groups.table import group_path, open_group_state
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.call_budget import BudgetSpent
from pravega_spark.serve.lags import LOOKS_MS, TREND_MS, LagCurve, Progress, trend
from pravega_spark.serve.served_root import ServedRoot
from pravega_spark.values.limits import CLOCK_SKEW_MS
from pravega_spark.values.segments import StreamCut

HEARTBEATS: Final = 16
"""The most heartbeats that one look at a group reads; OPEN_HEARTBEATS if its page is open."""
OPEN_HEARTBEATS: Final = 128
LOOKED_STREAMS: Final = 16
"""The most streams that a look at a group looks at; of the others the last look counts."""
KEPT_SEGMENTS: Final = 200
"""The most segments of an open group, and readers, whose curves are kept: those furthest behind."""
SEGMENT_POINTS: Final = 60
KEPT_MS: Final = 600_000
"""The curves of segments and readers are dropped when no page has shown the group for so long."""
_REWRITTEN_MS: Final = 2_000
"""A heartbeat may be written again in the second in which it was read, and bear the same date."""


@dataclass(frozen=True, slots=True)
class SeenView:
    """A view of a stream, and when it was the newest one."""

    view: StreamView
    looked_ms: int


SeeStream = Callable[[str, bool], SeenView]
"""Returns a stream's view: the newest one, or, with False, one that is known. Raises NotFound for a
stream that does not exist, Damaged, StoreError; BudgetSpent if none can be had now."""


@dataclass(frozen=True, slots=True)
class StreamLag:
    """What a group has not read of one stream; None where that is unknown, with the reason."""

    stream: str
    events: int | None = None
    size_bytes: int | None = None
    seconds: float | None = None
    looked_ms: int | None = None
    problem: str = ""
    is_kept: bool = False
    """Whether the stream's retention waits for the group, which subscribes to it."""
    lost: int = 0
    """Events that were deleted at the head before the group read them."""
    has_lost_more: bool = False
    """Whether it lost more, in segments that the stream's history does not remember."""


@dataclass(frozen=True, slots=True)
class WaitingCheckpoint:
    """A checkpoint that waits for readers, at least so long.

    It was there at the time of the commit with which a look first found it.
    """

    name: str
    readers: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSeen:
    """A group as a look found it; ``looked_ms`` is the time of the oldest of the values."""

    state: GroupState
    """With the positions of the heartbeats."""
    version: int
    updated_ms: int
    looked_ms: int
    now_ms: int
    status: str
    lags: Mapping[str, StreamLag]
    silent: Mapping[str, float]
    """The readers whose leases have run out: seconds since their last heartbeats."""
    waits: tuple[WaitingCheckpoint, ...]
    progress: Progress | None
    idle_seconds: float
    """Since the group's last change, as far as clocks tell; else since a look first found it."""
    is_open: bool
    """Whether its page was open: then bytes, ages and positions are known, too."""
    positions: Mapping[str, list[SegmentPosition]] = field(default_factory=dict)
    """By stream."""

    @property
    def events(self) -> int | None:
        """Unread events of all streams that are there; None if those of one are unknown."""
        known = [lag.events for lag in self.lags.values() if not lag.problem]
        if not known or any(events is None for events in known):
            return None
        return sum(events or 0 for events in known)

    @property
    def seconds(self) -> float | None:
        """The age of the oldest unread event; None if it is unknown."""
        known = [lag.seconds for lag in self.lags.values() if not lag.problem]
        found = [seconds for seconds in known if seconds is not None]
        return oldest_seconds(found) if found and len(found) == len(known) else None

    @property
    def size_bytes(self) -> int | None:
        """The unread bytes; None if they are unknown."""
        known = [lag.size_bytes for lag in self.lags.values() if not lag.problem]
        if not known or any(size is None for size in known):
            return None
        return sum(size or 0 for size in known)

    @property
    def pause_seconds(self) -> float:
        """How long readers that keep up may report no new position."""
        leases = [entry.lease_ms or 60_000 for entry in self.state.readers.values()]
        pause = min(max(leases, default=0), 60_000) / 3_000
        how = self.state.configuration
        if how.acknowledge is GroupAcknowledgement.CHECKPOINT and how.checkpoint_ms:
            pause = max(pause, how.checkpoint_ms / 1_000)
        return pause

    @property
    def readers_alive(self) -> list[str]:
        """The readers whose leases have not run out."""
        return sorted(self.state.readers.keys() - self.silent.keys())


@dataclass(slots=True)
class _Read:
    """A heartbeat: its date, when it was read, when that was last known to be the newest."""

    date_ms: int
    read_ms: int
    looked_ms: int
    heartbeat: Heartbeat | None


@dataclass(slots=True)
class _Before:
    """What the last look knew of a stream: how far the group was, and where its tail was."""

    cut: StreamCut
    tail: StreamCut


class GroupWatch:
    """One group; thread-safe, looks at it follow one another."""

    def __init__(
        self, root: ServedRoot, name: str, see: SeeStream, looks_ms: int = LOOKS_MS
    ) -> None:
        """Name the group, which need not exist; ``see`` looks at its streams.

        After a pause of more than ``looks_ms`` between two looks its curves have a gap.
        """
        self._root, self._see, self._looks_ms = root, see, looks_ms
        self._sync = open_group_state(root.store, name, root.runtime)
        self._leases = ReaderLeases(root.store, group_path(name), root.runtime)
        self._lock = new_lock()
        self._read: dict[str, _Read] = {}
        self._before: dict[str, _Before] = {}
        self._lost: dict[str, tuple[tuple[StreamCut, StreamCut], tuple[int, bool]]] = {}
        """By stream: its head and the group's cut, and what was lost between them."""
        self._generation = -1
        self._first_seen: dict[tuple[str, int], int] = {}
        """When a look first found a version, or a waiting checkpoint, of this number."""
        self.curve = LagCurve(looks_ms=looks_ms)
        self.segments: dict[SegmentKey, LagCurve] = {}
        self.readers: dict[str, LagCurve] = {}
        self._offsets: dict[SegmentKey, tuple[int, int]] = {}
        self._opened_ms = 0

    def look(self, *, is_open: bool = False) -> GroupSeen | None:
        """Return the group as it is now; None if it does not exist.

        Raises Damaged, StoreError, and BudgetSpent.
        """
        with self._lock:
            known = self._sync.fetch()
            snapshot = self._sync.table.log.snapshot
            if known is None or snapshot is None:
                return None
            if known.state.phase in (Phase.DELETING, Phase.DELETED):
                return None
            now_ms = self._sync.table.log.clock.now_ms()
            state, silent, read_ms = self._with_heartbeats(known.state, now_ms, is_open=is_open)
            if state.generation != self._generation:
                self._generation = state.generation
                self._before.clear()
                self._lost.clear()
                self._offsets.clear()
            return self._seen(state, silent, read_ms, snapshot.timestamp_ms, known.version, is_open)

    def _seen(
        self,
        state: GroupState,
        silent: dict[str, float],
        read_ms: int,
        updated_ms: int,
        version: int,
        is_open: bool,
    ) -> GroupSeen:
        now_ms = self._sync.table.log.clock.now_ms()
        lags, positions, moved, times = self._lags(state, is_open=is_open)
        looked_ms = min([read_ms, *times])
        seen = GroupSeen(
            state=state,
            version=version,
            updated_ms=updated_ms,
            looked_ms=looked_ms,
            now_ms=now_ms,
            status="",
            lags=lags,
            silent=silent,
            waits=self._waits(state, updated_ms, now_ms),
            progress=None,
            idle_seconds=self._idle_seconds(version, updated_ms, now_ms),
            is_open=is_open,
            positions=positions,
        )
        counted_ms = min(times, default=now_ms)
        if seen.events is not None:
            self.curve.add(counted_ms, seen.events, seen.seconds, moved)
        if is_open:
            self._keep_parts(seen, now_ms, counted_ms)
        elif now_ms - self._opened_ms > KEPT_MS:
            self.segments, self.readers, self._offsets = {}, {}, {}
        progress = self.curve.progress(now_ms)
        return replace(seen, status=_status(seen, self.curve, now_ms), progress=progress)

    # ------------------------------------------------------------------------------ who reads

    def _with_heartbeats(
        self, state: GroupState, now_ms: int, *, is_open: bool
    ) -> tuple[GroupState, dict[str, float], int]:
        """Return the state with the readers' last positions, who is silent, and the oldest time."""
        if not state.readers:
            self._read.clear()
            return state, {}, now_ms
        dates = self._leases.heartbeat_times_ms()
        silent = {
            reader: (now_ms - dates[reader]) / 1_000
            for reader, entry in state.readers.items()
            if reader in dates
            and entry.lease_ms is not None
            and now_ms - dates[reader] > entry.lease_ms
        }
        if not state.configuration.acknowledges_on_reading:
            return state, silent, now_ms  # these heartbeats have no positions
        self._read = {reader: one for reader, one in self._read.items() if reader in state.readers}
        self._read_new(dates, state, now_ms, OPEN_HEARTBEATS if is_open else HEARTBEATS)
        times = [self._read[r].looked_ms if r in self._read else 0 for r in state.readers]
        found = {reader: one.heartbeat for reader, one in self._read.items()}
        return record_heartbeats(state, found), silent, min(times)

    def _read_new(
        self, dates: Mapping[str, int], state: GroupState, now_ms: int, most: int
    ) -> None:
        """Read the heartbeats that were written since they were read, the longest ago first."""
        wanted = []
        for reader in state.readers:
            known, date = self._read.get(reader), dates.get(reader, 0)
            if date == 0:
                self._read[reader] = _Read(0, now_ms, now_ms, None)
            elif known is None or known.date_ms != date or known.read_ms - date < _REWRITTEN_MS:
                wanted.append(reader)
            else:
                known.looked_ms = now_ms
        wanted.sort(key=lambda r: self._read[r].looked_ms if r in self._read else -1)
        some = wanted[:most]
        found = self._root.runtime.each(self._leases.heartbeat, some)
        for reader, heartbeat in zip(some, found, strict=True):
            self._read[reader] = _Read(dates[reader], now_ms, now_ms, heartbeat)

    def _waits(
        self, state: GroupState, updated_ms: int, now_ms: int
    ) -> tuple[WaitingCheckpoint, ...]:
        waiting = [c for c in state.checkpoints if c.pending_readers]
        there_ms = updated_ms if updated_ms <= now_ms else now_ms
        found = []
        for checkpoint in waiting:
            since = self._since(("checkpoint", checkpoint.number), there_ms)
            readers = tuple(sorted(checkpoint.pending_readers))
            found.append(WaitingCheckpoint(checkpoint.name, readers, (now_ms - since) / 1_000))
        numbers = {("checkpoint", c.number) for c in waiting}
        self._first_seen = {
            key: since
            for key, since in self._first_seen.items()
            if key[0] != "checkpoint" or key in numbers
        }
        return tuple(found)

    def _idle_seconds(self, version: int, updated_ms: int, now_ms: int) -> float:
        """Return how long nothing changed; of a time in the future, since a look first found it."""
        since = self._since(("version", version), now_ms)
        self._first_seen = {
            key: value
            for key, value in self._first_seen.items()
            if key[0] != "version" or key[1] == version
        }
        if updated_ms <= now_ms + CLOCK_SKEW_MS:
            since = min(since, updated_ms)
        return max(0, now_ms - since) / 1_000

    def _since(self, key: tuple[str, int], now_ms: int) -> int:
        return self._first_seen.setdefault(key, now_ms)

    # --------------------------------------------------------------------------- what is unread

    def _lags(
        self, state: GroupState, *, is_open: bool
    ) -> tuple[
        dict[str, StreamLag],
        dict[str, list[SegmentPosition]],
        tuple[int, int] | None,
        list[int],
    ]:
        """Return what is unread by stream, the positions, the events that moved, and the times."""
        lags: dict[str, StreamLag] = {}
        positions: dict[str, list[SegmentPosition]] = {}
        moved: tuple[int, int] | None = (0, 0)
        times = list[int]()
        by_age = sorted(state.lives, key=lambda s: (s in self._before, s))
        for number, stream in enumerate(by_age):
            lag, backlog = self._lag(state, stream, number < LOOKED_STREAMS or is_open, is_open)
            lags[stream] = lag
            if lag.looked_ms is not None:
                times.append(lag.looked_ms)
            if is_open:
                positions[stream] = positions_with(state, stream, backlog)
            if lag.problem:
                self._before.pop(stream, None)
            elif moved is not None:
                step = None if backlog is None else self._moved(state, backlog.view)
                moved = None if step is None else (moved[0] + step[0], moved[1] + step[1])
        return lags, positions, moved, times

    def _lag(
        self, state: GroupState, stream: str, is_fresh: bool, is_open: bool
    ) -> tuple[StreamLag, Backlog | None]:
        """Return what is unread of one stream; a stream that is gone or damaged has a problem."""
        try:
            seen = self._see(stream, is_fresh)
            seen.view.check_life(state.lives[stream])
            if not _reaches(seen.view, state.cut(stream)):
                seen = self._see(stream, True)  # the group has read on since the view was taken
            cut, end = state.cut(stream), state.ends.get(stream)
            found, is_measured = _unread(self._root.log(stream), seen.view, cut, end, is_open)
            lost, has_lost_more = self._lost_below(seen.view, cut)
        except BudgetSpent:
            if is_fresh:
                raise
            return StreamLag(stream), None
        except (NotFound, StaleIdentity):
            return StreamLag(stream, problem="deleted"), None
        except TruncatedData:
            return StreamLag(stream), None
        except (Damaged, InvalidInput, StoreError) as error:  # such as a cut of a restored stream
            return StreamLag(stream, problem=said(error, self._root.store.url)), None
        lag = StreamLag(
            stream,
            events=sum(len(one.unread) for one in found),
            size_bytes=sum(one.size_bytes for one in found) if is_measured else None,
            seconds=oldest_seconds(one.seconds for one in found) if is_measured else None,
            looked_ms=seen.looked_ms,
            is_kept=_is_kept(seen.view, state.group),
            lost=lost,
            has_lost_more=has_lost_more,
        )
        return lag, Backlog(seen.view, tuple(found))

    def _lost_below(self, view: StreamView, cut: StreamCut) -> tuple[int, bool]:
        """Return the events between a cut and the head, and whether there are more.

        For segments that only the stream's history remembers this reads it, once for a cut. Raises
        StoreError, and BudgetSpent.
        """
        place = view.head, cut
        known = self._lost.get(view.stream)
        if known is None or known[0] != place:
            try:
                ranges = locate(view, cut).clipped_to_head()[1]
            except (Damaged, InvalidInput):  # of the history
                found = 0, True
            else:
                found = sum(map(len, ranges)), not all(map(len, ranges))
            known = self._lost[view.stream] = place, found
        return known[1]

    def _moved(self, state: GroupState, view: StreamView) -> tuple[int, int] | None:
        """Return the events read and written in a stream since the last look; None if unknown."""
        cut, tail = state.cut(view.stream), view.tail
        before = self._before.get(view.stream)
        self._before[view.stream] = _Before(cut, tail)
        if before is None or before.cut.life != view.life:
            return None
        try:
            written = locate(view, before.tail).events_to(locate(view, tail))
            read = locate(view, before.cut).events_to(locate(view, cut))
        except PravegaSparkError:  # the group went back, or the segments are truncated
            return None
        return read, written

    # ------------------------------------------------------------------- readers and segments

    def _keep_parts(self, seen: GroupSeen, now_ms: int, counted_ms: int) -> None:
        """Add to the curves of segments and readers; only those furthest behind are kept."""
        self._opened_ms = now_ms
        every = [p for found in seen.positions.values() for p in found if p.events is not None]
        every.sort(key=lambda p: -(p.events or 0))
        kept = every[:KEPT_SEGMENTS]
        of_readers: dict[str, list[tuple[int, float, tuple[int, int] | None]]] = {}
        for found in kept:
            key = SegmentKey(found.stream, found.segment_id)
            offset, tail = found.offset or 0, found.tail or 0
            before = self._offsets.get(key)
            moved = None
            if before is not None and before[0] <= offset and before[1] <= tail:
                moved = offset - before[0], tail - before[1]
            self._offsets[key] = offset, tail
            curve = self.segments.setdefault(key, LagCurve(SEGMENT_POINTS, self._looks_ms))
            curve.add(counted_ms, found.events or 0, found.seconds, moved)
            if found.reader is not None:
                part = found.events or 0, found.seconds or 0.0, moved
                of_readers.setdefault(found.reader, []).append(part)
        for reader, parts in of_readers.items():
            steps = [moved for _, _, moved in parts if moved is not None]
            moved = None
            if len(steps) == len(parts):
                moved = sum(read for read, _ in steps), sum(written for _, written in steps)
            curve = self.readers.setdefault(reader, LagCurve(SEGMENT_POINTS, self._looks_ms))
            seconds = oldest_seconds(seconds for _, seconds, _ in parts)
            curve.add(counted_ms, sum(events for events, _, _ in parts), seconds, moved)
        keys = {SegmentKey(p.stream, p.segment_id) for p in kept}
        self.segments = {key: curve for key, curve in self.segments.items() if key in keys}
        self._offsets = {key: found for key, found in self._offsets.items() if key in keys}
        self.readers = {r: c for r, c in self.readers.items() if r in seen.state.readers}


def _unread(
    log: StreamLog, view: StreamView, cut: StreamCut, end: StreamCut | None, is_open: bool
) -> tuple[list[SegmentBacklog], bool]:
    """Return what is unread, and whether its bytes and ages are known, too.

    They come from the index of the log's files, which a page that is open is worth: it is read
    once. The number of events needs no call.
    """
    if is_open:
        try:
            return known_backlog(log, view, cut, end), True
        except BudgetSpent:  # the index is read by a later look
            pass
    return [SegmentBacklog(unread, 0, 0.0) for unread in unread_ranges(view, cut, end)], False


def _is_kept(view: StreamView, group: str) -> bool:
    """Return whether the retention of a stream waits for a group."""
    policy = view.record.configuration.retention
    if policy is None or not policy.waits_for_subscribers:
        return False
    return any(one.name == group and one.bound is not None for one in view.subscribers)


def _reaches(view: StreamView, cut: StreamCut) -> bool:
    """Return whether a view is as new as a cut."""
    try:
        here = locate(view, cut).above_head().canonical()
    except InvalidInput:  # it names segments that the view does not know yet
        return False
    return view.located_tail.canonical().is_at_or_after(here)


def _status(seen: GroupSeen, curve: LagCurve, now_ms: int) -> str:
    """Return in words how a group is doing."""
    state = seen.state
    if state.phase is Phase.CHANGING:
        return "changing"
    if state.is_at_end:
        return "finished"
    if any(lag.problem for lag in seen.lags.values()):
        return "stream missing"
    if not seen.readers_alive:
        return "no reader"
    if seen.events is None:
        return "unknown"
    return trend(
        seen.events,
        curve.progress(now_ms),
        curve.progress(now_ms, TREND_MS),
        seen.pause_seconds,
    )
