"""Where to split a segment so that its parts get equal load, by the keys of its newest events."""

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
from pravega_spark.scaling.scale_decision import SplitRange, split_evenly


def split_by_keys(stream: StreamLog, view: StreamView) -> SplitRange:
    """Return a function that splits segments by their newest keys where that balances better."""

    def split_range(segment: Segment, parts: int) -> tuple[tuple[KeyRange, ...], str]:
        found = newest_key_positions(stream, view, segment)
        ranges = balanced_ranges(found, segment.key_range, parts)
        if ranges is None:
            return split_evenly(segment, parts)
        even = largest_share(found, split(segment.key_range, parts))
        share = largest_share(found, ranges)
        return ranges, f"parts by keys, the fullest with {share:.0%} instead of {even:.0%}"

    return split_range


def newest_key_positions(
    stream: StreamLog, view: StreamView, segment: Segment, limit: int = SPLIT_SAMPLE_EVENTS
) -> NDArray[np.float64]:
    """Return the sorted key positions of the segment's newest events, at most ``limit`` of them.

    Events without a key have no position: they are spread over all segments, however split.
    """
    end = view.segment(segment.segment_id).next_offset
    start = max(0, view.record.head.get(segment.segment_id, 0), end - limit)
    rng = SegmentRange(stream.name, view.life, segment.segment_id, start, end)
    batches = read_range(stream, rng, stream.chunks(rng), columns=["routing_key"])
    found = [positions(batch.column(0)) for batch in batches]
    joined = np.concatenate([np.empty(0), *found])
    return np.sort(joined[~np.isnan(joined)])


def balanced_ranges(
    found: NDArray[np.float64], key_range: KeyRange, parts: int
) -> tuple[KeyRange, ...] | None:
    """Split a range where its sorted positions are best balanced; None if even parts do as well.

    Each border is between two keys, as near to an equal share of the events as possible. A key
    with more than an equal share leads to fewer parts.
    """
    distinct, counts = np.unique(found, return_counts=True)
    if len(distinct) < 2:
        return None
    below = np.cumsum(counts)[:-1]
    shares = np.arange(1, parts) * (len(found) / parts)
    after = np.minimum(np.searchsorted(below, shares), len(below) - 1)
    before = np.maximum(after - 1, 0)
    nearest = np.where(shares - below[before] < below[after] - shares, before, after)
    inner = [float(key) for key in np.unique(distinct[1:][nearest]) if key > key_range.low]
    borders = [key_range.low, *inner, key_range.high]
    ranges = tuple(KeyRange(low, high) for low, high in pairwise(borders))
    even = split(key_range, parts)
    return ranges if largest_share(found, ranges) < largest_share(found, even) else None


def largest_share(found: NDArray[np.float64], ranges: tuple[KeyRange, ...]) -> float:
    """Return the share of the sorted positions in the range that has most of them."""
    borders = [key_range.low for key_range in ranges] + [ranges[-1].high]
    return float(np.diff(np.searchsorted(found, borders)).max() / len(found))
