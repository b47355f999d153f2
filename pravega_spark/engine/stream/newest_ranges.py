"""Where the newest events of a stream are, by what the log says of chunks: nothing is read."""

from __future__ import annotations

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import SegmentRange


def newest_ranges(stream: StreamLog, view: StreamView, count: int) -> list[SegmentRange]:
    """Return ranges that hold the ``count`` newest events of a view, predecessors first.

    Each is the last of what a segment has, active or not: after a scale the newest events are in
    segments that it sealed. A segment is left out only if the last chunks of others hold so many
    events that are all newer.
    """
    lasts = []
    for rng in view.located_head.ranges_to(view.located_tail):
        last = SegmentRange(rng.stream, rng.life, rng.segment_id, rng.end - 1, rng.end)
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
        SegmentRange(r.stream, r.life, r.segment_id, max(r.start, r.end - count), r.end)
        for r, _, newest_us, _ in lasts
        if bound_us is None or newest_us >= bound_us
    ]
