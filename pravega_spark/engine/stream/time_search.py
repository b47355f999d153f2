"""Finds the cut of a time: before the first events with timestamps at or after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.located_cut import LocatedCut
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import SegmentRange


@dataclass(slots=True)
class TimeSearch:
    """A search for the first events at or after a time; repeated, it searches new events only.

    ``timestamp_us`` is in us since 1970 (UTC). Writers set timestamps, which need not rise: the
    first event in log order that is late enough counts, as in Kafka. So no readable event before
    the cut is late enough, and each segment of the cut continues with one that is, or is at its
    tail. A segment at its tail moves on with later events that are not late enough, and over its
    end when it is sealed: the cut of one time may move forward until events follow in all its
    segments, and never backward.
    """

    stream: StreamLog
    timestamp_us: int
    segment_times: Mapping[int, int] = field(default_factory=dict)
    """Times of segments that differ, in us; all other segments have ``timestamp_us``."""
    found: dict[int, int] = field(default_factory=dict)
    """The offset of the first event that is late enough, by segment."""
    _searched: dict[int, int] = field(default_factory=dict)

    def cut(self, view: StreamView) -> LocatedCut:
        """Return the cut before the events at or after the time; the tail if none is found."""
        return read_plan.cut_at(view.located_head, lambda s: self._offset(s, view))

    def time_of(self, segment_id: int) -> int:
        """Return the time that is searched in a segment, in us since 1970."""
        return self.segment_times.get(segment_id, self.timestamp_us)

    def _offset(self, segment_id: int, view: StreamView) -> int:
        known = self.found.get(segment_id)
        if known is not None:
            return known
        end = view.segment(segment_id).next_offset
        start = max(view.head_offset(segment_id), self._searched.get(segment_id, 0))
        from pravega_spark.engine.chunks import chunk_search  # late: few reads begin at a time

        rng = SegmentRange(view.stream, view.life, segment_id, start, end)
        for ref in self.stream.chunks(rng):
            offset = chunk_search.first_at_or_after(
                self.stream.store, self.stream.path, ref, self.time_of(segment_id), start
            )
            if offset is not None:
                return self.found.setdefault(segment_id, offset)
        self._searched[segment_id] = end
        return end
