"""Proves a stream cut consistent and lays it over the key space as cells. Pure, no I/O.

At one key the segments of all epochs are a chain, and a cut is a point on the chain of every key.
It is consistent if it does not pass a segment on some of the segment's keys and not on others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pravega_spark.engine.layout.epochs import Lineage, overlapping, segment_of, short_list
from pravega_spark.errors import InvalidStreamCut
from pravega_spark.values.segments import (
    END,
    NOT_REACHED,
    KeyRange,
    Segment,
    StreamCut,
    segment_epoch,
    segment_text,
)

_ADVICE = "take cuts from readers or `tail()`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A part of the key space on which a cut is at one offset of one segment.

    ``offset`` is the segment's end if the segment is ``ended``. ``since`` is the first epoch that
    the cut has not passed on these keys.
    """

    low: float
    high: float
    segment: Segment
    offset: int
    ended: bool
    since: int

    @property
    def age(self) -> tuple[int, int]:
        """How far along the chain of its keys the cell is: comparable at one key."""
        return segment_epoch(self.segment.segment_id), self.offset


def overlapping_cells(left: Sequence[Cell], right: Sequence[Cell]) -> Iterator[tuple[Cell, Cell]]:
    """Yield every pair of cells of two cuts that share keys, in key order."""
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = left[i], right[j]
        yield a, b
        i += a.high <= b.high
        j += b.high <= a.high


def offset_in(cells: Sequence[Cell], lows: Sequence[float], segment: Segment) -> int:
    """Return how far a segment is read: an offset, END or NOT_REACHED.

    ``lows`` are the lower bounds of the cells.
    """
    cell = cells[bisect_right(lows, segment.key_range.low) - 1]
    if cell.segment.segment_id == segment.segment_id:
        return END if cell.ended else cell.offset
    return END if cell.segment.epoch > segment.epoch else NOT_REACHED


def cells_of(lineage: Lineage, cut: StreamCut) -> tuple[Cell, ...]:
    """Lay a cut over the key space that is consistent because of how it was made."""
    offsets = {lineage.find(s): offset for s, offset in cut}
    return tuple(_joined(_sweep(lineage, cut, offsets, forgetful=False)))


def validate(lineage: Lineage, cut: StreamCut) -> tuple[tuple[Cell, ...], tuple[int, ...]]:
    """Return the cells of a cut, and the ids that it names of segments without a record.

    Such segments are below the head. Their keys continue at the start of the oldest kept epoch,
    and successors no longer wait for them. Raises InvalidStreamCut, with the reason, unless the
    cut belongs to this stream and life, names known segments with offsets up to their ends, covers
    every key exactly once and passes each segment on all of its keys or on none. ``END`` needs a
    sealed segment, ``NOT_REACHED`` an unfinished predecessor. (Pravega's rule for truncation and
    subscribers, corrected for gaps at the low end and for pending merges.)
    """
    layout = lineage.layout
    if cut.stream != layout.stream:
        raise InvalidStreamCut(
            f"cut {cut} is a cut of stream {cut.stream}, and this is stream {layout.stream}: "
            f"{_ADVICE}"
        )
    if cut.life != layout.life:
        raise InvalidStreamCut(
            f"cut {cut} is of life {cut.life} of {cut.stream}, and this is life {layout.life} of "
            f"{layout.stream}; a stream that was deleted and created again, or restored from a "
            f"copy, begins a new life: {_ADVICE}"
        )
    forgotten = {s for s, _ in cut if _is_forgotten(lineage, cut, s)}
    offsets = {lineage.find(s): offset for s, offset in cut if s not in forgotten}
    for segment, offset in offsets.items():
        _check_offset(lineage, cut, segment, offset)
        if forgotten and offset == NOT_REACHED and segment.epoch <= layout.oldest_epoch:
            offsets[segment] = 0
    if not forgotten and all(offset == NOT_REACHED for offset in offsets.values()):
        raise _invalid(cut, "names no segment that is reached")
    cells = tuple(_joined(_sweep(lineage, cut, offsets, bool(forgotten))))
    _check_borders(lineage, cut, cells)
    lows = [cell.low for cell in cells]
    for segment, offset in offsets.items():
        if offset == NOT_REACHED and all(
            offset_in(cells, lows, before) == END for before in lineage.predecessors(segment)
        ):
            raise _invalid(
                cut, f"names segment {segment} as future, but all its predecessors are finished"
            )
    return cells, tuple(sorted(forgotten))


def _invalid(cut: StreamCut, reason: str) -> InvalidStreamCut:
    return InvalidStreamCut(f"cut of {cut.stream} {reason}; {_ADVICE}")


def _is_forgotten(lineage: Lineage, cut: StreamCut, segment_id: int) -> bool:
    layout = lineage.layout
    if layout.has_segment(segment_id):
        return False
    if segment_epoch(segment_id) < layout.oldest_epoch:
        return True
    raise _invalid(
        cut,
        f"names segment {segment_text(segment_id)}, which the stream never had; its current "
        f"segments are {short_list(layout.active.segments)}",
    )


def _check_offset(lineage: Lineage, cut: StreamCut, segment: Segment, offset: int) -> None:
    if offset == END and not lineage.is_sealed(segment):
        raise _invalid(cut, f"names segment {segment} as read to its end, but it is not sealed")
    if offset > lineage.end(segment):
        raise _invalid(
            cut,
            f"names offset {offset} of segment {segment}, which holds "
            f"{lineage.end(segment)} events",
        )


def _sweep(
    lineage: Lineage, cut: StreamCut, offsets: dict[Segment, int], forgetful: bool
) -> Iterator[Cell]:
    """Go over the key space from edge to edge of the named segments."""
    waiting = sorted(offsets, key=lambda s: (s.key_range.low, s.key_range.high), reverse=True)
    edges = {0.0, 1.0}.union(*((s.key_range.low, s.key_range.high) for s in offsets))
    here: list[Segment] = []
    for low, high in pairwise(sorted(edges)):
        here = [s for s in here if s.key_range.high > low]
        while waiting and waiting[-1].key_range.low == low:
            here.append(waiting.pop())
        future = [s for s in here if offsets[s] == NOT_REACHED]
        reached = [s for s in here if offsets[s] != NOT_REACHED]
        if reached:
            latest = _latest(cut, reached, future, offsets)
            yield _cell(lineage, low, high, latest, offsets[latest])
        else:
            yield from _unreached(lineage, cut, KeyRange(low, high), future, forgetful)


def _latest(
    cut: StreamCut, reached: list[Segment], future: list[Segment], offsets: dict[Segment, int]
) -> Segment:
    """Return the segment that the cut is in, of the reached ones that share keys."""
    latest = max(reached, key=lambda s: s.epoch) if len(reached) > 1 else reached[0]
    for segment in reached:
        if segment is not latest and offsets[segment] != END:
            state = "both to be read" if offsets[latest] != END else "of which only that is read"
            raise _invalid(cut, f"names segment {segment} and its successor {latest}, {state}")
    for segment in future:
        if segment.epoch < latest.epoch:
            raise _invalid(
                cut, f"names segment {segment} as future and its successor {latest} as reached"
            )
    return latest


def _unreached(
    lineage: Lineage, cut: StreamCut, keys: KeyRange, future: list[Segment], forgetful: bool
) -> Iterator[Cell]:
    """Yield the cells of keys on which the cut names no reached segment."""
    if forgetful:
        # A future segment does not say whether its predecessors ended or are forgotten.
        for segment in overlapping(lineage.layout.epoch(lineage.layout.oldest_epoch), keys):
            yield _cell(lineage, keys.low, keys.high, segment, 0)
    elif future:
        # Pravega's own form of a pending merge names the future segment alone.
        first = min(future, key=lambda s: s.epoch)
        before = [s for s in lineage.predecessors(first) if s.key_range.overlaps(keys)]
        if not before:
            raise _invalid(cut, f"names segment {first} as future, but it has no predecessor")
        for segment in before:
            yield _cell(lineage, keys.low, keys.high, segment, END)
    else:
        raise _invalid(cut, f"leaves out the keys [{keys.low}, {keys.high})")


def _cell(lineage: Lineage, low: float, high: float, segment: Segment, offset: int) -> Cell:
    low, high = max(low, segment.key_range.low), min(high, segment.key_range.high)
    if offset == END:
        return Cell(
            low=low,
            high=high,
            segment=segment,
            offset=lineage.end(segment),
            ended=True,
            since=lineage.until(segment),
        )
    return Cell(
        low=low, high=high, segment=segment, offset=offset, ended=False, since=segment.epoch
    )


def _joined(cells: Iterator[Cell]) -> list[Cell]:
    """Join neighbours that are parts of one segment."""
    joined: list[Cell] = []
    for cell in cells:
        if joined and joined[-1].segment.segment_id == cell.segment.segment_id:
            joined[-1] = replace(joined[-1], high=cell.high)
        else:
            joined.append(cell)
    return joined


def _check_borders(lineage: Lineage, cut: StreamCut, cells: Sequence[Cell]) -> None:
    """Prove that the cut passes no segment on one side only of a border between cells.

    Such a segment would lie across the border, in an epoch that one side has passed and the other
    has not.
    """
    for left, right in pairwise(cells):
        border = right.low
        old, new = (left, right) if left.since <= right.since else (right, left)
        number = old.since
        while number < new.since:
            segment = old.segment
            if number > old.since or old.ended:
                segment = segment_of(lineage.layout.epoch(number), border)
            if segment.key_range.low < border < segment.key_range.high:
                raise _invalid(
                    cut,
                    f"is behind segment {segment} with {new.segment} and not behind it with "
                    f"{old.segment}",
                )
            number = lineage.until(segment)
