"""Resolves the options of a read's start and end to cuts of one stream."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pravega_spark.engine.layout.located_cut import LocatedCut, Order, locate
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput, InvalidOption, NoSuchCut, TruncatedData
from pravega_spark.spark.option_values import (
    AFTER_ALL_US,
    BEFORE_ALL_US,
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    CutName,
    LogVersion,
    TimesBySegment,
)
from pravega_spark.spark.read.assigned_segments import partial_cut
from pravega_spark.spark.settings import ReadBound
from pravega_spark.values.segments import StreamCut, segment_text
from pravega_spark.values.times import Timestamp

if TYPE_CHECKING:
    from pravega_spark.engine.stream.positions import TimeSearch

BATCH_START = ReadBound("startingOffsets", "earliest")
BATCH_END = ReadBound("endingOffsets", "latest")
STREAMING_START = ReadBound("startingOffsets", "latest")
"""Defaults of the options. A query in a reader group starts at the position of its group."""


def resolve_bound(bound: ReadBound, stream: StreamLog, view: StreamView) -> LocatedCut:
    """Return the cut that a bound means in a stream.

    Raises InvalidOption if the bound does not name the stream, and InvalidStreamCut if it is not
    a consistent position in it.
    """
    value = bound.value
    if isinstance(value, Timestamp | TimesBySegment):
        return _time_search(bound, stream).cut(view)
    if isinstance(value, CutName):
        return locate(view, _saved(value.name, bound, view))
    if isinstance(value, LogVersion):
        return locate(view, _cut_at(value.version, bound, stream, view))
    if isinstance(value, str):
        return locate(view, view.head if value == "earliest" else view.tail)
    found = value.get(view.stream)
    if found is None:
        raise _other_streams(bound, view.stream, value)
    if isinstance(found, StreamCut):
        return locate(view, found)
    positions = {s: _resolve_offset(view, s, offset) for s, offset in found.items()}
    if bound.is_partial:
        return partial_cut(bound.option, view, positions)
    return locate(view, StreamCut(view.stream, view.life, positions))


def _other_streams(bound: ReadBound, stream: str, named: Iterable[str]) -> InvalidOption:
    return InvalidOption(
        f"option {bound.option} names {', '.join(sorted(named))}, but the query also reads "
        f"{stream}: name every stream of the query, or leave the option out."
    )


def _time_search(bound: ReadBound, stream: StreamLog) -> TimeSearch:
    """Return the search for a bound that is a time, or has one for each segment."""
    from pravega_spark.engine.stream.positions import TimeSearch

    value = bound.value
    if isinstance(value, Timestamp):
        return TimeSearch(stream, value.resolve_us())
    assert isinstance(value, TimesBySegment)
    times = value.of(stream.name)
    if times is None:
        raise _other_streams(bound, stream.name, value.by_stream)
    return TimeSearch(stream, *times)


def _saved(name: str, bound: ReadBound, view: StreamView) -> StreamCut:
    """Return the cut that the stream saved under a name."""
    from pravega_spark.engine.stream.saved_cuts import saved_cut

    try:
        return saved_cut(view, name).cut
    except NoSuchCut as error:
        raise InvalidOption(f"option {bound.option}: {error}") from None


def _cut_at(version: int, bound: ReadBound, stream: StreamLog, view: StreamView) -> StreamCut:
    """Return the tail of the stream at a version."""
    from pravega_spark.engine.stream.past_cuts import cut_at

    try:
        return cut_at(stream, view, version)
    except (InvalidInput, TruncatedData) as error:
        raise InvalidOption(f"option {bound.option}: {error}") from None


def _resolve_offset(view: StreamView, segment_id: int, offset: int) -> int:
    if offset == LATEST_OFFSET:
        return view.segment(segment_id).next_offset
    if offset == EARLIEST_OFFSET:
        return view.head_offset(segment_id)
    return offset


def starting_cut(
    bound: ReadBound, timestamp_strategy: str, stream: StreamLog, view: StreamView
) -> LocatedCut:
    """Return the cut where a read starts.

    ``timestamp_strategy`` says what to do if no event is at or after the timestamp: ``error`` or
    ``latest`` (option startingOffsetsByTimestampStrategy, as in Kafka's source).
    """
    if isinstance(bound.value, Timestamp | TimesBySegment):
        search = _time_search(bound, stream)
        _check_segments(bound, search, view)
        cut = search.cut(view)
        if not _has_found(search) and timestamp_strategy == "error":
            raise InvalidOption(
                f"stream {view.stream} has no event at or after {bound.option}; give an earlier "
                "time, or set startingOffsetsByTimestampStrategy to latest to start at the tail."
            )
        return cut
    return resolve_bound(bound, stream, view)


def _check_segments(bound: ReadBound, search: TimeSearch, view: StreamView) -> None:
    """Raise InvalidOption for a time of a segment that the stream lacks: it would have no effect.

    An end is not checked: a query may outlive a segment that its end names.
    """
    for segment_id in search.segment_times:
        if not view.has_segment(segment_id):
            known = ", ".join(str(segment) for segment in view.active.segments)
            raise InvalidOption(
                f"option {bound.option}: stream {view.stream} has no segment "
                f"{segment_text(segment_id)}; it was never there, or a truncation removed it. The "
                f"active segments are {known}."
            )


def _has_found(search: TimeSearch) -> bool:
    """Return whether a time was found, or none was asked for: -1 and -2 always have a place."""
    asked = {search.timestamp_us, *search.segment_times.values()} - {BEFORE_ALL_US, AFTER_ALL_US}
    return not asked or any(search.time_of(s) != BEFORE_ALL_US for s in search.found)


def check_order(
    start: LocatedCut,
    end: LocatedCut,
    starting: ReadBound | None,
    ending: ReadBound | None,
) -> None:
    """Raise InvalidOption if a read of one stream would end before it starts.

    Compares the cuts and, since there may be no event between them, also the timestamps.
    """
    reason = f"the end {end} is before the start {start}"
    are_times_reversed = False
    if starting is not None and ending is not None:
        first, last = starting.value, ending.value
        if isinstance(first, Timestamp) and isinstance(last, Timestamp):
            are_times_reversed = last.resolve_us() < first.resolve_us()
            if are_times_reversed:
                reason = "the end is a time before the start"
    if are_times_reversed or end.compare(start) is Order.BEFORE:
        raise InvalidOption(
            f"stream {start.layout.stream}: {reason}; exchange "
            f"{'the start' if starting is None else starting.option} and "
            f"{'the end' if ending is None else ending.option}, or leave one out."
        )


@dataclass(slots=True)
class EndingCut:
    """Where a streaming query stops reading one stream: at its tail, or at the ending option."""

    stream: StreamLog
    bound: ReadBound | None
    _resolved: StreamCut | None = None
    _search: TimeSearch | None = None

    def resolve(self, view: StreamView) -> LocatedCut:
        """Return the cut in a view.

        A cut or offsets are resolved once in a run. A timestamp is searched again in every view,
        until the stream has events at or after it.
        """
        if self.bound is None or self.bound.is_latest:
            return view.located_tail
        if isinstance(self.bound.value, Timestamp | TimesBySegment):
            if self._search is None:
                self._search = _time_search(self.bound, self.stream)
            return self._search.cut(view)
        if self._resolved is None or self._resolved.life != view.life:
            self._resolved = resolve_bound(self.bound, self.stream, view).cut
        return locate(view, self._resolved)
