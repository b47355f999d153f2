"""The backlog of a stream after a cut, by segment: events, bytes, age and files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.values.limits import CLOCK_SKEW_MS
from pravega_spark.values.segments import SegmentRange, StreamCut


@dataclass(frozen=True, slots=True)
class SegmentBacklog:
    """The unread events of one segment.

    ``seconds`` is the age of the oldest one, by its own time. Events whose time lies in the future
    have no age, so those after them count. If all of them do, ``seconds`` is negative: the oldest
    lies that far ahead.
    """

    unread: SegmentRange
    size_bytes: int
    seconds: float


def oldest_seconds(ages: Iterable[float]) -> float:
    """Return the age of the oldest unread event of several segments; 0 without any.

    Negative only if no segment has an event with an age, and one has events from the future.
    """
    found = list(ages)
    most = max(found, default=0.0)
    return most if most > 0 else min(found, default=0.0)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The unread events of a stream at one version; segments without any are left out."""

    view: StreamView
    segments: tuple[SegmentBacklog, ...]


def backlog(stream: StreamLog, cut: StreamCut, end: StreamCut | None = None) -> Backlog:
    """Return the backlog from a bound cut to the newest tail, or to ``end``.

    Costs a refresh of the log, and reads of one or two chunks for each segment with unread events.
    Truncated events do not count. Raises StaleIdentity, NoSuchStream, InvalidStreamCut.
    """

    def measure(view: StreamView) -> Backlog:
        found = stream.runtime.each(partial(_measure, stream, view), unread_ranges(view, cut, end))
        return Backlog(view, tuple(found))

    return stream.on_newest(measure, life=cut.life)


def known_backlog(
    stream: StreamLog, view: StreamView, cut: StreamCut, end: StreamCut | None = None
) -> list[SegmentBacklog]:
    """Return the backlog in a view from what the log says of chunks, without a storage call.

    The events are exact. Bytes and time of a position inside a chunk are estimated: in proportion
    to its events. ``cut`` is of the life of the view; raises InvalidStreamCut.
    """
    return [_known(stream, view, rng) for rng in unread_ranges(view, cut, end)]


def _known(stream: StreamLog, view: StreamView, rng: SegmentRange) -> SegmentBacklog:
    now_us = stream.runtime.now_us()
    start_bytes, oldest_us = _known_place(stream, view, rng.segment_id, rng.start, now_us)
    end_bytes, _ = _known_place(stream, view, rng.segment_id, rng.end, now_us)
    size = max(0, end_bytes - start_bytes)
    return SegmentBacklog(rng, size, _age_seconds(stream, rng, oldest_us, now_us))


def _age_seconds(stream: StreamLog, unread: SegmentRange, oldest_us: int, now_us: int) -> float:
    """Return the age of the oldest unread event; of a later chunk if its time is in the future.

    Only then this looks at all unread chunks, in memory.
    """
    if oldest_us > now_us + CLOCK_SKEW_MS * 1_000:
        times = (ref.min_timestamp_us for ref in stream.known_chunks(unread))
        oldest_us = next((time_us for time_us in times if time_us <= now_us), oldest_us)
        if oldest_us > now_us:
            return (now_us - oldest_us) / 1e6
    return max(0.0, (now_us - oldest_us) / 1e6)


def _known_place(
    stream: StreamLog, view: StreamView, segment_id: int, offset: int, now_us: int
) -> tuple[int, int]:
    """Return the bytes before an offset of a segment, and the time of the event there."""
    record = view.segment(segment_id)
    if offset >= record.next_offset:
        return record.size_bytes, now_us
    event = SegmentRange(
        view.stream, life=view.life, segment_id=segment_id, start=offset, end=offset + 1
    )
    for ref in stream.known_chunks(event):
        part = (offset - ref.base_offset) / ref.rows
        spread_us = ref.max_timestamp_us - ref.min_timestamp_us
        size = ref.base_bytes + round(part * ref.event_bytes)
        return size, ref.min_timestamp_us + round(part * spread_us)
    return 0, now_us  # truncated or compacted since the view was taken


def files(stream: StreamLog, found: Backlog) -> int:
    """Return the number of chunks with unread events; the cost grows with that number."""
    ranges = [segment.unread for segment in found.segments]
    with stream.log.files() as index:
        return sum(len(index.find(r.segment_id, r.start, r.end)) for r in ranges)


def unread_ranges(
    view: StreamView, cut: StreamCut, end: StreamCut | None = None
) -> list[SegmentRange]:
    """Return what is unread in a view, by segment, without a storage call; truncated events not.

    Raises InvalidStreamCut.
    """
    here = locate(view, cut).above_head()
    there = locate(view, view.tail if end is None else end).canonical()
    return here.ranges_to(there) if there.is_at_or_after(here.canonical()) else []


def oldest_written_ms(stream: StreamLog, unread: Sequence[SegmentRange]) -> int:
    """Return when the oldest event of some ranges was written, in ms since 1970.

    Reads a chunk or two for each range. Raises what a read of the events raises.
    """
    return min(stream.runtime.each(partial(_first_us, stream), unread)) // 1_000


def _first_us(stream: StreamLog, rng: SegmentRange) -> int:
    """Return the time of the first event of a range."""
    first = SegmentRange(
        rng.stream, life=rng.life, segment_id=rng.segment_id, start=rng.start, end=rng.start + 1
    )
    (batch,) = read_range(stream, first, columns=("timestamp",))
    written: int = batch.column("timestamp")[0].value
    return written


def _measure(stream: StreamLog, view: StreamView, rng: SegmentRange) -> SegmentBacklog:
    written = _first_us(stream, rng)
    size = stream.bytes_at(rng.segment_id, rng.end, view)
    size -= stream.bytes_at(rng.segment_id, rng.start, view)
    return SegmentBacklog(rng, size, _age_seconds(stream, rng, written, stream.runtime.now_us()))
