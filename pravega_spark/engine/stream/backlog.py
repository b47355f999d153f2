"""What is unread of a stream from a cut on, by segment: events, bytes, age and files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.range_reader import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TruncatedData
from pravega_spark.model import SegmentRange, StreamCut


@dataclass(frozen=True, slots=True)
class SegmentBacklog:
    """What is unread of one segment; ``seconds`` is the age of its oldest unread event."""

    unread: SegmentRange
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is unread of a stream at one version; segments with nothing unread are left out."""

    view: StreamView
    segments: tuple[SegmentBacklog, ...]


def backlog(stream: StreamLog, cut: StreamCut, end: StreamCut | None = None) -> Backlog:
    """Return what is unread from a bound cut to the newest tail, or to ``end``.

    Costs a look at the log, and a read of a chunk or two for each segment with anything unread.
    What the head has passed does not count. Raises StaleIdentity, NoSuchStream,
    InvalidStreamCut.
    """
    while True:
        view = stream.view()
        view.check_life(cut.life)
        try:
            found = stream.runtime.each(partial(_measure, stream, view), _unread(view, cut, end))
            return Backlog(view, tuple(found))
        except TruncatedData:
            if stream.view().head == view.head:
                raise  # else the head has moved meanwhile: look again


def files(stream: StreamLog, found: Backlog) -> int:
    """Return the number of chunks that hold what is unread; costs more the more that are."""
    ranges = [segment.unread for segment in found.segments]
    with stream.log.files() as index:
        return sum(len(index.find(r.segment_id, r.start, r.end)) for r in ranges)


def _unread(view: StreamView, cut: StreamCut, end: StreamCut | None) -> list[SegmentRange]:
    here, _ = locate(view, cut).clipped_to_head()
    there = locate(view, view.tail if end is None else end).canonical()
    return here.ranges_to(there) if there.is_at_or_after(here.canonical()) else []


def _measure(stream: StreamLog, view: StreamView, rng: SegmentRange) -> SegmentBacklog:
    first = SegmentRange(rng.stream, rng.life, rng.segment_id, rng.start, rng.start + 1)
    (batch,) = read_range(stream, first, columns=("timestamp",))
    written = batch.column("timestamp")[0].value
    size = stream.bytes_at(rng.segment_id, rng.end, view)
    size -= stream.bytes_at(rng.segment_id, rng.start, view)
    return SegmentBacklog(rng, size, max(0.0, (stream.runtime.now_us() - written) / 1e6))
