"""New epochs: the first one, a scale and which ranges it may open, a repetition. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from pravega_spark.engine.layout.epochs import Layout, lowest_key, overlapping, short_list, split
from pravega_spark.errors import InvalidConfiguration, StreamSealed
from pravega_spark.values.limits import MAX_SEGMENTS
from pravega_spark.values.segments import Epoch, KeyRange, Segment, make_segment_id, segment_text
from pravega_spark.values.units import count_text


def first_epoch(count: int, first_number: int, number: int, created_ms: int) -> Epoch:
    """Lay out a new stream: ``count`` equal ranges, numbered from ``first_number``.

    Raises InvalidConfiguration unless 1 <= count <= MAX_SEGMENTS.
    """
    if not 1 <= count <= MAX_SEGMENTS:
        raise InvalidConfiguration(f"a stream has 1 to {MAX_SEGMENTS} segments, got {count}.")
    ranges = split(KeyRange(0.0, 1.0), count)
    return Epoch(
        number=number,
        reference=number,
        created_ms=created_ms,
        segments=_new_segments(ranges, first_number, number),
    )


def duplicate(source: Epoch, number: int, created_ms: int) -> Epoch:
    """Repeat an epoch's layout under a new number, as Pravega's rolling transactions do.

    Segments keep numbers and ranges and get the new epoch in their ids. The reference is the
    source's: by it a later transaction sees that the layouts are the same.
    """
    segments = tuple(
        Segment(make_segment_id(s.number, number), s.key_range) for s in source.segments
    )
    return Epoch(
        number=number, reference=source.reference, created_ms=created_ms, segments=segments
    )


def scale(
    layout: Layout,
    seal: Collection[int],
    ranges: Sequence[KeyRange],
    created_ms: int,
    next_number: int,
    *,
    minimum: int = 1,
) -> Epoch:
    """Return the epoch that follows when segments of new ranges replace those of ``seal``.

    One call may make any number of disjoint splits and merges, in any order; ranges may equal the
    old ones (Pravega's scaleStream). New segments are numbered from ``next_number`` in range
    order. The epoch's time is ``created_ms``, or 1 ms after the active epoch's if that is later.
    Raises InvalidConfiguration if a segment is not current, if the new ranges overlap or do not
    cover the same keys as the sealed ones, or if fewer than ``minimum`` segments would remain;
    StreamSealed if the stream is sealed.
    """
    what = f"scale of {layout.stream}"
    sealed = _current(layout, what, seal)
    fresh = sorted(ranges)
    _check_same_keys(what, sealed, fresh)
    kept = [s for s in layout.active.segments if s not in sealed]
    count = len(kept) + len(fresh)
    if not minimum <= count <= MAX_SEGMENTS:
        raise InvalidConfiguration(
            f"{what} would leave {count_text(count, 'segment')}; its policy asks for at least "
            f"{minimum}, and a stream has at most {MAX_SEGMENTS}."
        )
    number = layout.active.number + 1
    segments = _new_segments(fresh, next_number, number)
    assert not any(layout.has_segment(s.segment_id) for s in segments), f"{what} repeats an id"
    epoch = Epoch(
        number=number,
        reference=number,
        created_ms=max(created_ms, layout.active.created_ms + 1),
        segments=tuple(sorted([*kept, *segments], key=lowest_key)),
    )
    splits = sum(len(overlapping(epoch, s.key_range)) > 1 for s in sealed)
    merges = sum(len(overlapping(layout.active, s.key_range)) > 1 for s in segments)
    return Epoch(
        number=number,
        reference=number,
        created_ms=epoch.created_ms,
        segments=epoch.segments,
        splits=splits,
        merges=merges,
    )


def _new_segments(ranges: Iterable[KeyRange], first: int, epoch: int) -> tuple[Segment, ...]:
    return tuple(Segment(make_segment_id(first + i, epoch), r) for i, r in enumerate(ranges))


def _current(layout: Layout, what: str, seal: Collection[int]) -> frozenset[Segment]:
    """Return the segments to seal; all must be current and open."""
    active = layout.active
    current = {s.segment_id: s for s in active.segments}
    shown = f"epoch {active.number} has {short_list(active.segments)}"
    if not seal:
        raise InvalidConfiguration(f"{what} names no segment to seal; {shown}.")
    for segment_id in seal:
        if segment_id not in current:
            raise InvalidConfiguration(
                f"{what}: segment {segment_text(segment_id)} is not current; {shown}."
            )
        if layout.segment(segment_id).sealed_epoch is not None:
            raise StreamSealed(
                f"{what}: the stream is sealed; its segments cannot change.",
                stream=layout.stream,
            )
    return frozenset(current[segment_id] for segment_id in seal)


def _check_same_keys(what: str, sealed: Iterable[Segment], fresh: Sequence[KeyRange]) -> None:
    """Compare the maximal blocks of both sides, which finds gaps and foreign keys alike."""
    for left, right in pairwise(fresh):
        if left.overlaps(right):
            raise InvalidConfiguration(
                f"{what}: the new ranges {_shown(left)} and {_shown(right)} overlap; give disjoint "
                "ones."
            )
    old, new = _blocks(sorted(s.key_range for s in sealed)), _blocks(fresh)
    if old != new:
        raise InvalidConfiguration(
            f"{what}: the segments to seal cover {short_list(map(_shown, old))}, the new ranges "
            f"cover {short_list(map(_shown, new)) or 'nothing'}; both must cover the same keys."
        )


def _blocks(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Join neighbouring ranges (sorted, disjoint) into maximal ones."""
    blocks: list[KeyRange] = []
    for key_range in ranges:
        if blocks and blocks[-1].high == key_range.low:
            blocks[-1] = KeyRange(blocks[-1].low, key_range.high)
        else:
            blocks.append(key_range)
    return blocks


def _shown(key_range: KeyRange) -> str:
    return f"[{key_range.low}, {key_range.high})"
