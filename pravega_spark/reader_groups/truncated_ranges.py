"""Which events a truncation took from a reader: only those are reported."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from pravega_spark.engine.stream.segment_ends import segment_ends
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import PravegaSparkError
from pravega_spark.model import SegmentRange
from pravega_spark.reader_groups.group_state import SegmentKey
from pravega_spark.reader_groups.group_table import Streams


def truncated_ranges(
    streams: Streams,
    views: Mapping[str, StreamView],
    lost: tuple[SegmentRange, ...],
    revoked: Mapping[SegmentKey, int],
) -> tuple[tuple[SegmentRange, ...], frozenset[SegmentKey]]:
    """Return the lost ranges and revoked segments that had events.

    An empty range of ``lost`` has an unknown end, and ``revoked`` has the next offset of each
    segment. Segments whose ends the stream's history does not have stay as they are.
    """
    unknown = {SegmentKey(r.stream, r.segment_id): r.start for r in lost if not len(r)}
    offsets = {**revoked, **unknown}
    ends: dict[SegmentKey, int] = {}
    for name in sorted({key.stream for key in offsets}):
        wanted = [key.segment_id for key in offsets if key.stream == name]
        with contextlib.suppress(PravegaSparkError):  # the ends are unknown then, too
            known = segment_ends(streams(name), views[name], wanted)
            ends |= {SegmentKey(name, segment_id): end for segment_id, end in known.items()}
    found = []
    for rng in lost:
        end = rng.end if len(rng) else ends.get(SegmentKey(rng.stream, rng.segment_id))
        if end is None or end > rng.start:
            found.append(rng if end is None else replace(rng, end=end))
    skipped = frozenset(k for k, offset in revoked.items() if k not in ends or ends[k] > offset)
    return tuple(found), skipped
