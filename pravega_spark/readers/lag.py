"""How far a group is behind: events, bytes and seconds, by segment and in total."""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine import cuts
from pravega_spark.engine.reading import read_range
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.model import SegmentRange, StreamCut, segment_text
from pravega_spark.readers.state import GroupState, Key


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """What is unread of one segment; ``seconds`` is the age of its oldest unread event.

    ``reader`` is None while no reader has it.
    """

    stream: str
    segment: str
    reader: str | None
    events: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupLag:
    """What is unread, in total: ``seconds`` is the age of the oldest unread event, 0 if none."""

    events: int
    size_bytes: int
    seconds: float
    segments: tuple[SegmentLag, ...]


def lag_of(state: GroupState, streams: dict[str, Stream]) -> GroupLag:
    """Return the lag behind the tails, or behind the end cuts, from the recorded positions."""
    found: list[SegmentLag] = []
    for name, stream in streams.items():
        view = stream.view()
        view.check_life(state.lives[name])
        found += [
            _lag(state, stream, view, rng)
            for rng in _unread(view, state.cut(name), state.ends.get(name))
        ]
    return GroupLag(
        sum(segment.events for segment in found),
        sum(segment.size_bytes for segment in found),
        max((segment.seconds for segment in found), default=0.0),
        tuple(found),
    )


def _unread(view: StreamView, cut: StreamCut, end: StreamCut | None) -> list[SegmentRange]:
    here, _ = cuts.clip_to_head(view, cut)
    there = view.tail if end is None else end
    if not cuts.equal_or_after(view, cuts.canonical(view, there), cuts.canonical(view, here)):
        return []
    return cuts.ranges_between(view, here, cuts.canonical(view, there))


def _lag(state: GroupState, stream: Stream, view: StreamView, rng: SegmentRange) -> SegmentLag:
    owned = state.assigned.get(Key(rng.stream, rng.segment_id))
    first = SegmentRange(rng.stream, rng.life, rng.segment_id, rng.start, rng.start + 1)
    (batch,) = read_range(stream, first, columns=("timestamp",))
    written = batch.column("timestamp")[0].value
    size = stream.bytes_at(rng.segment_id, rng.end, view)
    return SegmentLag(
        rng.stream,
        segment_text(rng.segment_id),
        None if owned is None else owned.reader,
        len(rng),
        size - stream.bytes_at(rng.segment_id, rng.start, view),
        max(0.0, (stream.runtime.now_us() - written) / 1e6),
    )
