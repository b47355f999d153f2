"""Where to cut a segment so that its parts get the same load: by the keys of its newest events."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pravega_spark.engine.chunks.routing import positions
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.stream.range_reader import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import SPLIT_SAMPLE_EVENTS
from pravega_spark.model import KeyRange, Segment, SegmentRange
from pravega_spark.scaling.scale_decision import Divide, equal_parts


def by_keys(stream: StreamLog, view: StreamView) -> Divide:
    """Return what divides a segment by its newest keys, where that evens the load better."""

    def divide(segment: Segment, parts: int) -> tuple[tuple[KeyRange, ...], str]:
        found = newest_positions(stream, view, segment)
        ranges = balanced(found, segment.key_range, parts)
        if ranges is None:
            return equal_parts(segment, parts)
        even = most_loaded(found, split(segment.key_range, parts))
        share = most_loaded(found, ranges)
        return ranges, f"parts by keys, the fullest with {share:.0%} instead of {even:.0%}"

    return divide


def newest_positions(
    stream: StreamLog, view: StreamView, segment: Segment, limit: int = SPLIT_SAMPLE_EVENTS
) -> NDArray[np.float64]:
    """Return the sorted positions of the keys of the segment's newest events, at most ``limit``.

    Events without a key have none: they go to all segments in turn, however these are cut.
    """
    end = view.segment(segment.segment_id).next_offset
    start = max(0, view.record.head.get(segment.segment_id, 0), end - limit)
    rng = SegmentRange(stream.name, view.life, segment.segment_id, start, end)
    batches = read_range(stream, rng, stream.chunks(rng), columns=["routing_key"])
    found = [positions(batch.column(0)) for batch in batches]
    every = np.concatenate([np.empty(0), *found])
    return np.sort(every[~np.isnan(every)])


def balanced(
    found: NDArray[np.float64], key_range: KeyRange, parts: int
) -> tuple[KeyRange, ...] | None:
    """Cut the range where its sorted positions are best divided; None if even parts do as well.

    Each cut is between two keys, as near to its share of the events as there is one. A key that
    has more than a share of its own makes for fewer parts.
    """
    places, counts = np.unique(found, return_counts=True)
    if len(places) < 2:
        return None
    below = np.cumsum(counts)[:-1]
    shares = np.arange(1, parts) * (len(found) / parts)
    after = np.minimum(np.searchsorted(below, shares), len(below) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(shares - below[before] < below[after] - shares, before, after)
    inner = [float(place) for place in np.unique(places[1:][nearest]) if place > key_range.low]
    edges = [key_range.low, *inner, key_range.high]
    ranges = tuple(KeyRange(low, high) for low, high in pairwise(edges))
    even = split(key_range, parts)
    return ranges if most_loaded(found, ranges) < most_loaded(found, even) else None


def most_loaded(found: NDArray[np.float64], ranges: tuple[KeyRange, ...]) -> float:
    """Return the share of the sorted positions that lie in the fullest of the ranges."""
    edges = [key_range.low for key_range in ranges] + [ranges[-1].high]
    return float(np.diff(np.searchsorted(found, edges)).max() / len(found))
