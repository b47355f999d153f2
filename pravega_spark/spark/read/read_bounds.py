"""Where a read of one stream begins and ends: the user's options as cuts of a stream's view."""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine.layout.located_cut import LocatedCut, Order, locate
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_search import TimeSearch
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption
from pravega_spark.model import StreamCut
from pravega_spark.spark.option_values import EARLIEST_OFFSET, LATEST_OFFSET, Timestamp
from pravega_spark.spark.settings import ReadBound


def resolve(bound: ReadBound, stream: StreamLog, view: StreamView) -> LocatedCut:
    """Return the cut that a bound means for a stream, checked against its layout.

    Raises InvalidOption if the bound says nothing of this stream, InvalidStreamCut if it says
    what is no place in it.
    """
    value = bound.value
    if isinstance(value, Timestamp):
        return TimeSearch(stream, value.resolve_us()).cut(view)
    if isinstance(value, str):
        return locate(view, view.head if value == "earliest" else view.tail)
    found = value.get(view.stream)
    if found is None:
        raise InvalidOption(
            f"option {bound.option} names {', '.join(sorted(value))}, and the query reads "
            f"{view.stream} too: say where each stream begins or ends, or leave the option out."
        )
    if isinstance(found, StreamCut):
        return locate(view, found)
    positions = {s: _offset(view, s, offset) for s, offset in found.items()}
    return locate(view, StreamCut(view.stream, view.life, positions))


def _offset(view: StreamView, segment_id: int, offset: int) -> int:
    if offset == LATEST_OFFSET:
        return view.segment(segment_id).next_offset
    if offset == EARLIEST_OFFSET:
        return view.head_offset(segment_id)
    return offset


def starting(
    bound: ReadBound | None,
    default: str,
    timestamp_strategy: str,
    stream: StreamLog,
    view: StreamView,
) -> LocatedCut:
    """Return the cut where a read begins; ``timestamp_strategy`` is Kafka's ByTimestampStrategy."""
    bound = bound or ReadBound("startingOffsets", default)
    if isinstance(bound.value, Timestamp):
        search = TimeSearch(stream, bound.value.resolve_us())
        found = search.cut(view)
        if not search.found and timestamp_strategy == "error":
            raise InvalidOption(
                f"stream {view.stream} has no event at or after {bound.option}; give an earlier "
                "time, or set startingOffsetsByTimestampStrategy to latest to begin at the tail."
            )
        return found
    return resolve(bound, stream, view)


def check_order(
    begin: LocatedCut,
    end: LocatedCut,
    start: ReadBound | None,
    stop: ReadBound | None,
) -> None:
    """Raise InvalidOption if a read of one stream would end before it begins.

    That is by the cuts of its two bounds, and by their times: no event may lie between these.
    """
    told = f"the end {end} lies before the start {begin}"
    reversed_times = False
    if start is not None and stop is not None:
        times = start.value, stop.value
        if isinstance(times[0], Timestamp) and isinstance(times[1], Timestamp):
            reversed_times = times[1].resolve_us() < times[0].resolve_us()
            told = "the end is a time before the start" if reversed_times else told
    if reversed_times or end.compare(begin) is Order.BEFORE:
        raise InvalidOption(
            f"stream {begin.layout.stream}: {told}; exchange "
            f"{'the start' if start is None else start.option} and "
            f"{'the end' if stop is None else stop.option}, or leave one out."
        )


@dataclass(slots=True)
class Target:
    """How far a streaming query may read one stream: its tail, or the user's end before it."""

    stream: StreamLog
    bound: ReadBound | None
    _fixed: StreamCut | None = None
    _search: TimeSearch | None = None

    def at(self, view: StreamView) -> LocatedCut:
        """Return the furthest cut as of a view.

        A cut or offsets are resolved once, at the first view of this run; a time is looked up
        again until events at or after it have come.
        """
        if self.bound is None or self.bound.is_latest:
            return locate(view, view.tail)
        if isinstance(self.bound.value, Timestamp):
            if self._search is None:
                self._search = TimeSearch(self.stream, self.bound.value.resolve_us())
            return self._search.cut(view)
        if self._fixed is None or self._fixed.life != view.life:
            self._fixed = resolve(self.bound, self.stream, view).cut
        return locate(view, self._fixed)
