"""Where in a stream a time is, and where its newest events are, by what the log says of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.located_cut import LocatedCut
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.values.segments import SegmentRange


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
        from pravega_spark.engine.chunks import search  # late: few reads begin at a time

        rng = SegmentRange(view.stream, life=view.life, segment_id=segment_id, start=start, end=end)
        for ref in self.stream.chunks(rng):
            offset = search.first_at_or_after(
                self.stream.store, self.stream.path, ref, self.time_of(segment_id), start
            )
            if offset is not None:
                return self.found.setdefault(segment_id, offset)
        self._searched[segment_id] = end
        return end


def newest_ranges(stream: StreamLog, view: StreamView, count: int) -> list[SegmentRange]:
    """Return ranges that hold the ``count`` newest events of a view, predecessors first.

    Each is the last of what a segment has, active or not: after a scale the newest events are in
    segments that it sealed. A segment is left out only if the last chunks of others hold ``count``
    events that are all newer.
    """
    lasts = []
    for rng in view.located_head.ranges_to(view.located_tail):
        last = SegmentRange(
            rng.stream, life=rng.life, segment_id=rng.segment_id, start=rng.end - 1, end=rng.end
        )
        for ref in stream.known_chunks(last):  # none: it was truncated since
            rows = rng.end - max(rng.start, ref.base_offset)
            lasts.append((rng, ref.min_timestamp_us, ref.max_timestamp_us, rows))
    known, bound_us = 0, None
    for _, oldest_us, _, rows in sorted(lasts, key=lambda last: last[1], reverse=True):
        known += rows
        if known >= count:
            bound_us = oldest_us
            break
    return [
        SegmentRange(
            r.stream,
            life=r.life,
            segment_id=r.segment_id,
            start=max(r.start, r.end - count),
            end=r.end,
        )
        for r, _, newest_us, _ in lasts
        if bound_us is None or newest_us >= bound_us
    ]
