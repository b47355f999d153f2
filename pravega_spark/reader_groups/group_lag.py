"""The lag of a group: unread events, bytes and seconds, by segment and in total."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pravega_spark.engine.stream.backlog import SegmentBacklog, backlog, oldest_seconds
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchStream, StaleIdentity
from pravega_spark.model import segment_text
from pravega_spark.reader_groups.group_state import GroupState, SegmentKey
from pravega_spark.reader_groups.stream_rounds import of_each


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """The unread part of one segment; ``seconds`` is the age of its oldest unread event.

    It is negative if all unread events of the segment have times in the future.
    ``reader`` is None while the segment has no reader.
    """

    stream: str
    segment: str
    reader: str | None
    events: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The unread part of all streams; ``seconds`` is the age of the oldest unread event, or 0.

    It is negative if only events with times in the future are unread.
    """

    events: int
    size_bytes: int
    seconds: float
    segments: tuple[SegmentLag, ...]


def lag_of(state: GroupState, streams: dict[str, StreamLog]) -> GroupLag:
    """Return the lag from the recorded positions to the tails or the end cuts.

    A deleted stream has no lag.
    """

    def measure(stream: StreamLog) -> list[SegmentLag]:
        cut, end = state.cut(stream.name), state.ends.get(stream.name)
        with contextlib.suppress(NoSuchStream, StaleIdentity):
            return [_lag(state, segment) for segment in backlog(stream, cut, end).segments]
        return []

    measured = of_each(streams.__getitem__, streams, measure)
    found = [segment for segments in measured.values() for segment in segments]
    return GroupLag(
        sum(segment.events for segment in found),
        sum(segment.size_bytes for segment in found),
        oldest_seconds(segment.seconds for segment in found),
        tuple(found),
    )


def _lag(state: GroupState, found: SegmentBacklog) -> SegmentLag:
    rng = found.unread
    owned = state.assigned.get(SegmentKey(rng.stream, rng.segment_id))
    return SegmentLag(
        rng.stream,
        segment_text(rng.segment_id),
        None if owned is None else owned.reader,
        len(rng),
        found.size_bytes,
        found.seconds,
    )
