"""How far a streaming query may go next: discovery of streams, their tails, and rate limits.

Lives in the one process that Spark keeps for a query's source; nothing of it is pickled.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.located_cut import LocatedCut, locate, lost_text
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption, NoSuchStream, StaleIdentity, TruncatedData
from pravega_spark.manager import StreamManager
from pravega_spark.model import SegmentRange, StreamCut
from pravega_spark.spark.read.read_bounds import Target, check_order, starting
from pravega_spark.spark.settings import ReadBound, ReadSettings
from pravega_spark.spark.source_offsets import StreamOffset

logger = logging.getLogger(__name__)


def start_again(group: str | None) -> str:
    """Tell what to do about lost events, for errors of a query in that reader group."""
    reset = "" if group is None else f"reset reader group {group} to StreamCut.EARLIEST and "
    return (
        "Events that the query has still to read are gone. Set failOnDataLoss to false to go on "
        f"at the head, or {reset}start again with a new checkpoint."
    )


TAIL_SECONDS = 1.0
"""On remote storage the tail is looked up at most this often; a local look costs microseconds."""
DISCOVERY_SECONDS = 10.0
"""New streams of a pattern, and streams that were deleted, are looked for at most this often."""

Places = dict[str, StreamOffset]


@dataclass(slots=True)
class _KnownStream:
    """An open stream and its view of a moment ago."""

    stream: StreamLog
    target: Target
    view: StreamView | None = None
    seen: float = 0.0


@dataclass(slots=True)
class OffsetPlanner:
    """The state of one run of a streaming query, between the calls of Spark."""

    settings: ReadSettings
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, _KnownStream] = field(default_factory=dict)
    _missing: dict[str, tuple[float, NoSuchStream]] = field(default_factory=dict)
    _names: tuple[str, ...] = ()
    _named: float | None = None
    _initial: Places | None = None
    _unchecked: bool = False
    _frozen: dict[str, StreamCut] | None = None
    _triggered: float | None = None
    _idle: tuple[Places, tuple[tuple[str, int], ...]] | None = None

    # What there is

    def names(self) -> tuple[str, ...]:
        """Return the names of the streams that the query reads, as of now."""
        if self.settings.pattern is None:
            return self.settings.streams
        now = self.clock()
        if self._named is None or now - self._named >= DISCOVERY_SECONDS:
            self._names = tuple(matching(self.settings.root, self.settings.pattern))
            self._named = now
        return self._names

    def known(self, name: str, *, refresh: bool = True) -> tuple[_KnownStream, StreamView]:
        """Return an open stream and its view; refreshed, on remote storage not too often."""
        known = self._known.get(name)
        if known is None:
            stream = open_stream(self.settings.root, name)
            known = self._known[name] = _KnownStream(stream, Target(stream, self.settings.ending))
        now = self.clock()
        old = known.stream.store.is_local or now - known.seen >= TAIL_SECONDS
        if known.view is None or (refresh and old):
            known.view, known.seen = existing_view(known.stream), now
        return known, known.view

    def newest(self, name: str) -> tuple[StreamLog, StreamView]:
        """Return a stream and the newest view that this process has of it, without a look."""
        stream = self.known(name, refresh=False)[0].stream
        return stream, stream.view(refresh=False)

    # Where the query begins

    def initial(self, places: Mapping[str, StreamCut] | None = None) -> Places:
        """Return where the query begins; the same however often it is asked for in one run.

        ``places`` are those of its reader group, if that has any.
        """
        if self._initial is None:
            views = self._views(self.names())
            self._initial = {name: self._begin(name, view, places) for name, view in views.items()}
            self._unchecked = places is None
        return self._initial

    def _begin(
        self, name: str, view: StreamView, places: Mapping[str, StreamCut] | None
    ) -> StreamOffset:
        if places is not None:
            place = self._of_this_life(name, view, places[name])
            return StreamOffset(view.record.stream_id, place, place)
        cut = starting(
            self.settings.starting,
            "latest",
            self.settings.timestamp_strategy,
            self._known[name].stream,
            view,
        ).cut
        return StreamOffset(view.record.stream_id, cut, cut)

    def check_order(self, start: Places) -> None:
        """Raise InvalidOption if the query begins at ``start`` and its end lies before that.

        :meth:`initial` cannot tell: Spark asks for it again after a crash in the first batch, and
        by then latest may be after the end.
        """
        if not self._unchecked or start != self._initial:
            return
        settings = self.settings
        begin = settings.starting or ReadBound("startingOffsets", "latest")
        for name, offset in start.items():
            known, view = self.known(name, refresh=False)
            check_order(locate(view, offset.cut), known.target.at(view), begin, settings.ending)
        self._unchecked = False

    def _of_this_life(self, name: str, view: StreamView, place: StreamCut) -> StreamCut:
        """Return the group's place in a stream, or the head if that is allowed."""
        if place.life == view.life:
            return place
        error = StaleIdentity(
            f"stream {name} was deleted and created again, or restored from a copy: reader group "
            f"{self.settings.group} is "
            f"in life {place.life} of it, and now it is in life {view.life}. Reset the group, or "
            "set failOnDataLoss to false to go on at the head.",
            name=name,
            life=place.life,
            current_life=view.life,
        )
        if self.settings.fail_on_data_loss:
            raise error
        logger.warning("failOnDataLoss=false: %s", error)
        return view.head

    # How far it may go

    @property
    def is_frozen(self) -> bool:
        """Whether the run ends at what there was when it began."""
        return self._frozen is not None

    def freeze(self) -> None:
        """Fix the end for Trigger.AvailableNow: what is there now, and nothing later."""
        self._named = None
        views = self._views(self.names())
        self._frozen = {name: self._known[name].target.at(view).cut for name, view in views.items()}

    def tail(self) -> Places:
        """Return the newest place of every stream, of what is known here."""
        found = {}
        for name in self.names():
            known = self._known.get(name)
            if known is not None and known.view is not None:
                cut = known.view.tail
                found[name] = StreamOffset(known.view.record.stream_id, cut, cut)
        return found

    def next(self, start: Places, *, limited: bool) -> Places:
        """Return the end of the next micro-batch from ``start``: one round of each stream.

        ``limited`` is False where Spark wants all there is. ``start`` itself where nothing is
        to be read.
        """
        left_out = self._left_out(start)
        named = self.names() if self._frozen is None else self._frozen
        views = self._views({*named, *start} - set(left_out), start)
        state = (start, tuple((name, view.version) for name, view in views.items()))
        if state == self._idle:
            return start
        steps, here = {}, dict[str, StreamOffset]()
        for name, view in views.items():
            here[name] = self._here(name, view, start.get(name))
            cut = locate(view, here[name].cut)
            steps[name] = read_plan.next_step(cut, self._end(name, view))
        if limited and self._delayed({n: sum(map(len, s.ranges)) for n, s in steps.items()}):
            return start
        limits = self._limits(steps) if limited else {}
        for name, limit in limits.items():
            steps[name] = self._limited(name, views[name], here[name].cut, limit)
        for name, step in steps.items():
            here[name] = replace(here[name], cut=step.end.cut)
        self._idle = state if here == start else None
        return here

    def _left_out(self, start: Places) -> list[str]:
        """Return the streams of the start that the query does not name any more.

        Raises InvalidOption unless what is unread of them may be left out.
        """
        settings = self.settings
        pattern = None if settings.pattern is None else re.compile(settings.pattern)
        left_out = [
            name
            for name in sorted(start)
            if (name not in settings.streams if pattern is None else not pattern.fullmatch(name))
        ]
        if left_out:
            named = settings.pattern or ", ".join(settings.streams)
            told = (
                f"the query's checkpoint has read {', '.join(left_out)}, and the query now reads "
            )
            told += f"{named} instead"
            if settings.fail_on_data_loss:
                raise InvalidOption(
                    f"{told}. Name {', '.join(left_out)} too, start with a new checkpoint folder, "
                    "or set failOnDataLoss to false to leave unread events there and go on "
                    "without."
                )
            logger.warning("failOnDataLoss=false: %s.", told)
        return left_out

    def _views(self, names: Collection[str], read: Collection[str] = ()) -> dict[str, StreamView]:
        """Return the views of the streams that exist; ``read`` are those of the checkpoint.

        With failOnDataLoss=false a deleted stream is left out, if the query has another one to
        read or finds streams by a pattern. Raises NoSuchStream otherwise.
        """
        strict = self.settings.fail_on_data_loss
        found: dict[str, StreamView] = {}
        errors = []
        for name in sorted(names):
            try:
                found[name] = self._view(name)
            except NoSuchStream as error:
                errors.append(_unread(name, error) if strict and name in read else error)
        if errors and (strict or not (found or self.settings.pattern)):
            raise errors[0]
        return found

    def _view(self, name: str) -> StreamView:
        """Return a stream's view; one that is missing is looked for as seldom as new ones."""
        now = self.clock()
        if name in self._missing:
            looked, error = self._missing[name]
            if now - looked < DISCOVERY_SECONDS:
                raise error
        try:
            view = self.known(name)[1]
        except NoSuchStream as error:
            if name not in self._missing and not self.settings.fail_on_data_loss:
                logger.warning("failOnDataLoss=false: the query goes on without: %s", error)
            self._missing[name] = now, error
            self._known.pop(name, None)
            raise
        self._missing.pop(name, None)
        return view

    def _here(self, name: str, view: StreamView, start: StreamOffset | None) -> StreamOffset:
        """Return where to go on in a stream; a new one begins at its head."""
        if start is None:
            return StreamOffset(view.record.stream_id, view.head, view.head)
        if (start.stream_id, start.life) == (view.record.stream_id, view.life):
            return self._unharmed(view, start)
        error = StaleIdentity(
            f"stream {name} was deleted and created again, or restored from a copy: the query has "
            f"read life {start.life} up "
            f"to {start.cut}, and now it is in life {view.life}. Start a query with a new "
            "checkpoint, or set failOnDataLoss to false to go on at its head.",
            name=name,
            life=start.life,
            current_life=view.life,
        )
        if self.settings.fail_on_data_loss:
            raise error
        logger.warning("failOnDataLoss=false: %s", error)
        return StreamOffset(view.record.stream_id, view.head, view.head)

    def _unharmed(self, view: StreamView, start: StreamOffset) -> StreamOffset:
        """Return the start, brought up to the head if that is allowed; else raise TruncatedData."""
        clipped, lost = locate(view, start.cut).clipped_to_head()
        if not lost:
            return start
        if self.settings.fail_on_data_loss:
            raise TruncatedData(
                f"{_told(view, lost)}. {start_again(self.settings.group)}",
                head=clipped.cut,
                lost=lost,
            )
        report_lost(view, lost)
        return replace(start, cut=clipped.cut)

    def _end(self, name: str, view: StreamView) -> LocatedCut:
        if self._frozen is None:
            return self._known[name].target.at(view)
        # A stream that came back in a later life has nothing below the frozen end.
        frozen = self._frozen.get(name)
        if frozen is None or frozen.life != view.life:
            return view.located_head
        return locate(view, frozen)

    # Limits

    def _delayed(self, backlog: Mapping[str, int]) -> bool:
        """Tell whether to wait for minOffsetsPerTrigger events, as Kafka's source does."""
        least = self.settings.min_events
        if least is None or self._frozen is not None:
            return False
        now = self.clock()
        since = None if self._triggered is None else now - self._triggered
        early = since is not None and since * 1_000 < self.settings.max_trigger_delay_ms
        if early and sum(backlog.values()) < least:
            return True
        self._triggered = now
        return False

    def _limits(
        self, steps: Mapping[str, read_plan.ReadStep]
    ) -> dict[str, tuple[int | None, int | None]]:
        """Return each stream's share of the limits in events and bytes, by backlog."""
        events, size = self.settings.max_events, self.settings.max_bytes
        if events is None and size is None:
            return {}
        backlog = {name: sum(map(len, step.ranges)) for name, step in steps.items()}
        backlog = {name: count for name, count in backlog.items() if count}
        total = sum(backlog.values())
        parts = {} if events is None else read_plan.share(dict(enumerate(backlog.values())), events)
        return {
            name: (parts.get(i), None if size is None else max(1, size * count // total))
            for i, (name, count) in enumerate(backlog.items())
        }

    def _limited(
        self, name: str, view: StreamView, here: StreamCut, limit: tuple[int | None, int | None]
    ) -> read_plan.ReadStep:
        stream = self._known[name].stream
        return read_plan.next_step(
            locate(view, here),
            self._end(name, view),
            max_events=limit[0],
            max_bytes=limit[1],
            events_within=lambda s, start, size: events_within(stream, view, s, start, size),
        )


def matching(root: str, pattern: str) -> list[str]:
    """Return the streams under a root whose whole name matches."""
    manager = StreamManager(root)
    wanted = re.compile(pattern)
    found = (name for scope in manager.list_scopes() for name in manager.list_streams(scope))
    return sorted(name for name in found if wanted.fullmatch(name))


def events_within(
    stream: StreamLog, view: StreamView, segment_id: int, start: int, most_bytes: int
) -> int:
    """Return the offset up to which about so many bytes suffice; inside a chunk, in proportion."""
    end = view.segment(segment_id).next_offset
    window, left, at = 65_536, most_bytes, start
    while at < end:
        until = min(end, at + window)
        rng = SegmentRange(view.stream, view.life, segment_id, at, until)
        for ref in stream.chunks(rng):
            rows = ref.end - at
            size = ref.event_bytes * rows // ref.rows
            if size > left:
                return at + rows * left // size
            left, at = left - size, ref.end
        window *= 4
    return end


def _unread(name: str, error: NoSuchStream) -> NoSuchStream:
    return NoSuchStream(
        f"{error} The query's checkpoint has read stream {name}, which may have had unread events "
        "when it was deleted. Start without it and with a new checkpoint folder, or set "
        "failOnDataLoss to false to go on with the other streams.",
        stream=name,
    )


def report_lost(view: StreamView, lost: tuple[SegmentRange, ...]) -> None:
    """Log what failOnDataLoss=false skips."""
    count, told = sum(map(len, lost)), _told(view, lost)
    logger.warning("failOnDataLoss=false: at least %d events are skipped: %s", count, told)


def _told(view: StreamView, lost: tuple[SegmentRange, ...]) -> str:
    return f"stream {view.stream}: {lost_text(view, lost)} up to the head {view.head}"
