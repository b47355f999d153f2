"""Plans the offsets of a streaming query: where it starts, and where each micro-batch ends.

Lives in the process that Spark keeps for a query's source; it is never pickled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.store.root_marker import is_copy, read_root
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    InvalidInput,
    NoSuchSegment,
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.primitives.lazy_property import lazy_property
from pravega_spark.spark.options import warn_of_leftovers
from pravega_spark.spark.read.assigned_segments import (
    at_end,
    begun_late,
    check_assigned,
    continued,
    covered_losses,
    only_assigned,
    passed,
    passed_error,
    wanted_of,
)
from pravega_spark.spark.read.bounds import STREAMING_START, check_order, starting_cut
from pravega_spark.spark.read.data_loss import check_root, log_skipped, other_root, truncated_error
from pravega_spark.spark.read.discovery import StreamDiscovery
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.source_offsets import StreamOffset, StreamOffsets, present, stale_error
from pravega_spark.values.limits import PACKED_BYTES, PACKED_ROWS
from pravega_spark.values.segments import SegmentRange, StreamCut

if TYPE_CHECKING:
    from pravega_spark.spark.read.watermark import SourceWatermark


_FIRST_WINDOW_EVENTS = 65_536


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """One stream's share of a micro-batch; None means no limit."""

    max_events: int | None
    max_bytes: int | None

    def weight(self, view: StreamView, rng: SegmentRange) -> float:
        """Return what a range is of all that one task, or a batch of this share, may read.

        It counts with the mean size of its segment's events.
        """
        record = view.segment(rng.segment_id)
        size = record.size_bytes * len(rng) // record.next_offset
        rows_share = len(rng) / min(PACKED_ROWS, self.max_events or PACKED_ROWS)
        return max(rows_share, size / min(PACKED_BYTES, self.max_bytes or PACKED_BYTES))


UNLIMITED: Final = StreamLimit(None, None)


@dataclass(slots=True)
class ReadLimits:
    """The limits of one run of a query."""

    settings: ReadSettings
    clock: Callable[[], float]
    _admitted_at: float | None = None

    def must_wait(self, backlog: Mapping[str, int]) -> bool:
        """Tell whether to wait for minOffsetsPerTrigger events; the first batch never waits."""
        minimum = self.settings.min_events
        if minimum is None:
            return False
        since = None if self._admitted_at is None else self.clock() - self._admitted_at
        early = since is not None and since * 1_000 < self.settings.max_trigger_delay_ms
        if early and sum(backlog.values()) < minimum:
            return True
        self.admit()
        return False

    def admit(self) -> None:
        """Note that a batch begins, after which the next one may have to wait."""
        self._admitted_at = self.clock()

    def shares(self, backlog: Mapping[str, int]) -> dict[str, StreamLimit]:
        """Share the maximum events and bytes over the streams by backlog in events.

        Without a maximum the result is empty; a stream without a backlog has no share.
        """
        events, size = self.settings.max_events, self.settings.max_bytes
        if events is None and size is None:
            return {}
        behind = {name: count for name, count in backlog.items() if count}
        total = sum(behind.values())
        parts = {} if events is None else read_plan.share(dict(enumerate(behind.values())), events)
        return {
            name: StreamLimit(parts.get(i), None if size is None else max(1, size * count // total))
            for i, (name, count) in enumerate(behind.items())
        }


def events_within(
    stream: StreamLog, view: StreamView, segment_id: int, start: int, max_bytes: int
) -> int:
    """Return the offset up to which about ``max_bytes`` suffice, in proportion inside a chunk."""
    end = view.segment(segment_id).next_offset
    window, left, at = _FIRST_WINDOW_EVENTS, max_bytes, start
    while at < end:
        until = min(end, at + window)
        rng = SegmentRange(view.stream, life=view.life, segment_id=segment_id, start=at, end=until)
        for ref in stream.chunks(rng):
            rows = ref.end - at
            size = ref.event_bytes * rows // ref.rows
            if size > left:
                return at + rows * left // size
            left, at = left - size, ref.end
        window *= 4
    return end


logger = own_logger(__name__)

_Value = TypeVar("_Value")


class OffsetPlanner:
    """Keeps the state of one run of a streaming query between Spark's calls."""

    def __init__(
        self,
        settings: ReadSettings,
        clock: Callable[[], float] = time.monotonic,
        since: float | None = None,
    ) -> None:
        """Take the settings, and when planning began by the boot clock; nothing is read yet."""
        what = settings.pattern or ", ".join(settings.streams)
        warn_of_leftovers(settings.leftovers, f"a query of {what}")
        self._settings = settings
        self._streams = StreamDiscovery(settings, clock, since)
        self._limits = ReadLimits(settings, clock)
        self._clock = clock
        self._initial: StreamOffsets | None = None
        self._unresolved: PravegaSparkError | None = None
        self._last: StreamOffsets = {}
        self._warned: set[str] = set()
        self._initial_order_is_checked = True
        self._available_now_end: dict[str, StreamCut] | None = None
        self._unprepared: PravegaSparkError | None = None
        self._root_ids: set[str | None] = set()
        self._idle: tuple[StreamOffsets, tuple[tuple[str, int], ...]] | None = None

    @lazy_property
    def watermark(self) -> SourceWatermark:
        """The watermark of this run; few queries ask for it."""
        from pravega_spark.spark.read.watermark import SourceWatermark

        return SourceWatermark(self._clock)

    @lazy_property
    def root_id(self) -> str | None:
        """The token of the root's marker; None if there is no root."""
        root = read_root(open_store(self._settings.root))
        return None if root is None else root.token

    def check_root(self, offsets: StreamOffsets, recorded: str | None) -> None:
        """Raise RootChanged if the root is not the one where the query got to some offsets.

        ``recorded`` is the root of the offsets, if they say it. A copy of a root may be read on. So
        may a root whose marker was lost, or written anew: it still has one of the streams.
        """
        if not offsets or recorded in self._root_ids:
            return
        store, here = open_store(self._settings.root), self.root_id
        if here is None or (recorded not in (None, here) and not is_copy(store)):

            def has(name: str) -> bool:
                return _is_of(open_stream(store, name).current_view(), offsets[name])

            if not any(in_rounds(store, has, list(offsets))):
                check_root(store)
                raise other_root(store, offsets)
        self._root_ids.add(recorded)

    def _of_each(
        self, names: Collection[str], function: Callable[[str], _Value]
    ) -> dict[str, _Value]:
        """Return what a function finds of each stream, or raise the error of the first one."""
        found = in_rounds(open_store(self._settings.root), function, list(names))
        return dict(zip(names, found, strict=True))

    # The start of the query

    def initial_offsets(self, group_cuts: Mapping[str, StreamCut] | None = None) -> StreamOffsets:
        """Return where the query starts, which stays the same for the whole run.

        ``group_cuts`` are the positions of the query's reader group, if it has any. Where the start
        options have no place in the streams any more, or a stream is missing, there are no offsets,
        and :meth:`check_start` raises the error: after a crash in the first batch Spark asks for
        the start again, and that batch has its own.
        """
        if self._initial is None:
            try:
                views = self._streams.views(self._streams.names())
                self._initial = self._of_each(
                    views, lambda name: self._initial_offset(name, views[name], group_cuts)
                )
            except (InvalidInput, NoSuchSegment, NoSuchStream, TruncatedData) as error:
                self._initial, self._unresolved = {}, error
            self._initial_order_is_checked = group_cuts is not None
        return self._initial

    def _initial_offset(
        self, name: str, view: StreamView, group_cuts: Mapping[str, StreamCut] | None
    ) -> StreamOffset:
        self._check_assigned(view)
        if group_cuts is not None:
            cut = self._group_cut(name, view, group_cuts[name])
        else:
            stream, settings = self._streams.tracked(name).stream, self._settings
            bound = settings.starting or STREAMING_START
            cut = starting_cut(bound, settings.timestamp_strategy, stream, view).cut
        return self._beginning(view, cut)

    def _beginning(self, view: StreamView, cut: StreamCut) -> StreamOffset:
        reads = wanted_of(self._settings, view.stream)
        return StreamOffset(view.record.stream_id, cut, cut, reads)

    def _group_cut(self, name: str, view: StreamView, cut: StreamCut) -> StreamCut:
        """Return the group's cut, or the head if the cut is of another life and loss is allowed."""
        if cut.life == view.life:
            return cut
        self._check_loss_allowed(
            StaleIdentity(
                f"stream {name} was deleted and created again, or restored from a copy: reader "
                f"group {self._settings.group} is in life {cut.life}, and the stream is now in "
                f"life {view.life}. Update the group: remove the stream and add it; or set "
                "failOnDataLoss to false to continue at the head.",
                name=name,
                life=cut.life,
                current_life=view.life,
            )
        )
        return view.head

    def check_start(self, start: StreamOffsets) -> None:
        """Raise an error if this run starts at ``start``, and its start or its end cannot be.

        InvalidOption if the ending options are before the start; and what the start options raised.

        :meth:`initial_offsets` cannot check this: after a crash in the first batch Spark asks for
        the initial offset again, and by then ``latest`` may lie behind the end.
        """
        if start != self._initial:
            return
        if self._unresolved is not None:
            raise self._unresolved
        if self._initial_order_is_checked:
            return
        settings = self._settings
        starting = settings.starting or STREAMING_START

        def check(name: str) -> None:
            tracked, view = self._streams.track(name, refresh=False)
            end = tracked.ending.resolve(view)
            check_order(locate(view, start[name].cut), end, starting, settings.ending)

        self._of_each(start, check)
        self._initial_order_is_checked = True

    def is_initial(self, offsets: StreamOffsets) -> bool:
        """Return whether offsets are where this run starts if the query has no checkpoint."""
        return offsets == self._initial

    # The end of a micro-batch

    @property
    def is_available_now(self) -> bool:
        """Whether the run ends at the tails that :meth:`prepare_available_now` found."""
        return self._available_now_end is not None

    def prepare_available_now(self) -> None:
        """Fix the end of the run at the present tails, for Trigger.AvailableNow."""
        self._streams.expire_names()
        try:
            views = self._streams.views(self._streams.names())
        except NoSuchStream as error:  # where the query has read decides which error it is
            self._unprepared = error
            return
        self._available_now_end = self._of_each(
            views, lambda name: self._streams.tracked(name).ending.resolve(views[name]).cut
        )

    def latest_offsets(self) -> StreamOffsets:
        """Return the tail of every stream in its last view, without a refresh.

        A query that has read everything is exactly there: the rest is as in its last offset.
        """
        found = dict(self._last)
        for name, view in self._streams.known_views().items():
            at = found.get(name)
            if at is None or (at.stream_id, at.life) != (view.record.stream_id, view.life):
                at = self._beginning(view, view.tail)
            found[name] = replace(at, cut=view.tail)
        return found

    def next_offsets(
        self, start: StreamOffsets, *, limited: bool, whole: bool = False
    ) -> StreamOffsets:
        """Return the end of the micro-batch from ``start``; ``start`` if there is nothing to read.

        The batch is a round of each stream, or several small ones (see ``read_plan``); with
        ``whole`` it is all of them. ``limited`` is False if Spark asks for all available data.
        """
        self._last = start
        views = self._streams.views(self._names(start), start)
        if self._unprepared is not None:
            raise self._unprepared
        state = (start, tuple((name, view.version) for name, view in views.items()))
        if state == self._idle:
            return start

        def plan(name: str) -> tuple[StreamOffset, read_plan.ReadStep]:
            begin = self._resume(name, views[name], start.get(name))
            limit = None if whole else UNLIMITED
            return begin, self._step(name, views[name], begin.cut, limit)

        planned = self._of_each(views, plan)
        offsets = {name: begin for name, (begin, _) in planned.items()}
        steps = {name: step for name, (_, step) in planned.items()}
        if limited:
            backlog = {
                name: sum(map(len, only_assigned(self._settings, name, step.ranges)))
                for name, step in steps.items()
            }
            if not self.is_available_now and self._limits.must_wait(backlog):
                return start
            limits = self._limits.shares(backlog)
            steps |= self._of_each(
                limits, lambda name: self._step(name, views[name], offsets[name].cut, limits[name])
            )
        elif whole:
            self._limits.admit()
        for name, step in steps.items():
            offsets[name] = replace(offsets[name], cut=step.end.cut)
        left = sorted(set(start) - set(views))
        for name, is_deleted in self._of_each(left, self._streams.is_deleted).items():
            if not is_deleted:
                offsets[name] = replace(start[name], is_away=True)
        is_idle = _places(offsets) == _places(start)
        self._idle = state if is_idle else None
        if not is_idle:
            self._last = offsets
        return self._last

    def _names(self, start: StreamOffsets) -> set[str]:
        """Return the streams to read: those that the options name, and all of the checkpoint."""
        reading = present(start)
        left = self._streams.dropped(reading)
        end = self._available_now_end
        names = self._streams.names() if end is None else tuple(end)
        return {*names, *reading} - set(left)

    def _resume(self, name: str, view: StreamView, start: StreamOffset | None) -> StreamOffset:
        """Return the offset to continue at in a stream; a new stream starts at its head."""
        if start is None:
            return self._at_head(view)
        if start.is_of(view):
            self._check_assigned(view, start)
            resumed = self._resume_at_or_after_head(view, start)
            return replace(self._covering(view, resumed), is_away=False)
        self._check_loss_allowed(stale_error(start.cut, view.life))
        return self._at_head(view)

    def _check_assigned(self, view: StreamView, offset: StreamOffset | None = None) -> None:
        check_assigned(self._settings, self._streams.tracked(view.stream).stream, view, offset)

    def _at_head(self, view: StreamView) -> StreamOffset:
        self._check_assigned(view)
        return self._beginning(view, view.head)

    def _resume_at_or_after_head(self, view: StreamView, start: StreamOffset) -> StreamOffset:
        clipped, all_lost = locate(view, start.cut).clipped_to_head()
        if not all_lost:
            return start
        lost = tuple(covered_losses(wanted_of(self._settings, view.stream), all_lost))
        if lost and self._settings.fail_on_data_loss:
            raise truncated_error(view, clipped, lost, self._settings.group)
        if lost:
            log_skipped(view, lost)
        return replace(start, cut=clipped.cut)

    def _covering(self, view: StreamView, offset: StreamOffset) -> StreamOffset:
        """Return an offset with what the options now cover."""
        self.check_coverage(view, offset)
        wanted = wanted_of(self._settings, view.stream)
        for text in (begun_late(view, offset, wanted), at_end(view, offset, wanted)):
            if text:
                self._warn(text, view.stream)
        return replace(offset, reads=continued(view, offset, wanted))

    def check_coverage(self, view: StreamView, offset: StreamOffset) -> None:
        """Raise InvalidOption if the options pass events of a stream that no run has read.

        Events before the offset were read as it says. Warns once, if such a loss is allowed, and of
        other routing keys.
        """
        name, wanted = view.stream, wanted_of(self._settings, view.stream)
        lost = passed(view, offset, wanted)
        if lost:
            error = passed_error(lost, view, offset)
            if self._settings.fail_on_data_loss:
                raise error
            self._warn(f"failOnDataLoss=false: {error}", name)
        if offset.reads is not None and offset.reads.keys != wanted.keys:
            self._warn(
                f"stream {name}: option routingKeys has changed, and the query goes on at "
                f"{offset.cut}: earlier events of the keys that are new are not read, and a query "
                "with a new checkpoint folder reads them.",
                name,
            )

    def _warn(self, text: str, stream: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("%s", text, extra=log_fields("read", stream))

    def _check_loss_allowed(self, error: StaleIdentity) -> None:
        """Raise the error, or log it if failOnDataLoss is false."""
        if self._settings.fail_on_data_loss:
            raise error
        logger.warning(
            "failOnDataLoss=false: %s", error, extra=log_fields("read", error.name or "")
        )

    def _end(self, name: str, view: StreamView) -> LocatedCut:
        if self._available_now_end is None:
            return self._streams.tracked(name).ending.resolve(view)
        end = self._available_now_end.get(name)
        # A stream of a later life was empty, if it existed, when the run began.
        if end is None or end.life != view.life:
            return view.located_head
        return locate(view, end)

    def _step(
        self, name: str, view: StreamView, start: StreamCut, limit: StreamLimit | None
    ) -> read_plan.ReadStep:
        """Return what is to be read next within a limit; without one, all up to the end."""
        stream = self._streams.tracked(name).stream
        if limit is None:
            return read_plan.next_steps(locate(view, start), self._end(name, view), lambda rng: 0.0)
        return read_plan.next_steps(
            locate(view, start),
            self._end(name, view),
            partial(limit.weight, view),
            max_events=limit.max_events,
            max_bytes=limit.max_bytes,
            events_within=lambda s, at, size: events_within(stream, view, s, at, size),
        )

    # Planning of a batch

    def newest(self, name: str) -> tuple[StreamLog, StreamView]:
        """Return a stream and the newest view that this process has, without a refresh."""
        return self._streams.newest(name)


def _is_of(view: StreamView | None, offset: StreamOffset) -> bool:
    """Return whether an offset is of this very stream and life."""
    return view is not None and offset.is_of(view)


def _places(offsets: StreamOffsets) -> dict[str, object]:
    """Return what of an offset makes a batch if it changes: without what the options cover."""
    return {name: replace(offset, reads=None) for name, offset in offsets.items()}
