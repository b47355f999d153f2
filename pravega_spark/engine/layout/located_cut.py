"""A cut as a place: for every key, how far the stream was read. Pure, no I/O.

A stream cut names a few segments; ``locate`` proves it consistent and lays it over the key
space as cells, so that ``Place.of`` answers for ANY segment of the layout: an offset, ``END``
(every event of it lies before the cut) or ``NOT_REACHED`` (every event lies after it).
``Frontier`` is a place in motion: it moves on over finished segments to what follows them.

The rule behind both: at one key the segments of all epochs are a chain, and a cut is a point of
each chain. It is consistent if no segment is passed on some of its keys and not on others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pravega_spark.engine.layout.epochs import Lineage, few, overlapping, segment_of
from pravega_spark.errors import InvalidStreamCut
from pravega_spark.model import (
    END,
    NOT_REACHED,
    KeyRange,
    Segment,
    StreamCut,
    segment_epoch,
    segment_text,
)

_ADVICE = "take cuts from readers or `tail()`."
_REMEMBERED = 8
"""So many cuts of one version are proved once: one operation asks for few of them, and often."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of the key space that a cut sees alike: the segment it is in, and how far.

    ``offset`` is the segment's end if it is ``ended``. ``since`` is the first epoch of which
    not everything lies before the cut here.
    """

    low: float
    high: float
    segment: Segment
    offset: int
    ended: bool
    since: int

    @property
    def age(self) -> tuple[int, int]:
        """How far this is along the chain of its keys: two ages at one key can be compared."""
        return segment_epoch(self.segment.segment_id), self.offset


class LocatedCut:
    """A consistent cut, laid over the key space; made by :func:`locate`."""

    __slots__ = ("_lows", "cells", "cut", "forgotten")

    def __init__(self, cut: StreamCut, cells: Sequence[Cell], forgotten: Sequence[int]) -> None:
        """Take cells in key order, and the ids of the cut that have no record any more."""
        self.cut = cut
        self.cells = tuple(cells)
        self.forgotten = tuple(forgotten)
        self._lows = [cell.low for cell in cells]

    def of(self, segment: Segment) -> int:
        """Return how far the segment is read: an offset, END or NOT_REACHED."""
        cell = self.cells[bisect_right(self._lows, segment.key_range.low) - 1]
        if cell.segment.segment_id == segment.segment_id:
            return END if cell.ended else cell.offset
        return END if cell.segment.epoch > segment.epoch else NOT_REACHED


def together(left: LocatedCut, right: LocatedCut) -> Iterator[tuple[Cell, Cell]]:
    """Walk two places at once: every pair of cells that share keys, in key order."""
    i = j = 0
    while i < len(left.cells) and j < len(right.cells):
        a, b = left.cells[i], right.cells[j]
        yield a, b
        i += a.high <= b.high
        j += b.high <= a.high


def locate(lineage: Lineage, cut: StreamCut) -> LocatedCut:
    """Lay a bound cut over the key space.

    Segments that have no record any more are below the head: the keys that the others leave
    over go on at the start of the oldest kept epoch, and what waited for them waits no longer.
    Raises InvalidStreamCut, with the reason, if the cut is not a place of this stream. A cut that
    was located before is found again in the lineage.
    """
    known = lineage.places.get(cut)
    if isinstance(known, LocatedCut):
        return known
    place = _proved(lineage, cut)
    if len(lineage.places) >= _REMEMBERED:
        lineage.places.clear()
    lineage.places[cut] = place
    return place


def _proved(lineage: Lineage, cut: StreamCut) -> LocatedCut:
    layout = lineage.layout
    if (cut.stream, cut.life) != (layout.stream, layout.life):
        raise InvalidStreamCut(
            f"cut {cut} is of life {cut.life} of {cut.stream}, and this is life {layout.life} of "
            f"{layout.stream}; a stream that was deleted and created again, or restored from a "
            f"copy, begins a new life: {_ADVICE}"
        )
    forgotten = {s for s, _ in cut if _is_forgotten(lineage, cut, s)}
    marks = {lineage.find(s): mark for s, mark in cut if s not in forgotten}
    for segment, mark in marks.items():
        _check_mark(lineage, cut, segment, mark)
        if forgotten and mark == NOT_REACHED and segment.epoch <= layout.oldest_epoch:
            marks[segment] = 0
    if not forgotten and all(mark == NOT_REACHED for mark in marks.values()):
        raise _invalid(cut, "names no segment that is reached")
    cells = _joined(_sweep(lineage, cut, marks, bool(forgotten)))
    _check_borders(lineage, cut, cells)
    place = LocatedCut(cut, cells, sorted(forgotten))
    for segment, mark in marks.items():
        if mark == NOT_REACHED and all(
            place.of(before) == END for before in lineage.predecessors(segment)
        ):
            raise _invalid(
                cut, f"names segment {segment} as future, but no predecessor of it is unfinished"
            )
    return place


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
        f"segments are {few(layout.active.segments)}",
    )


def _check_mark(lineage: Lineage, cut: StreamCut, segment: Segment, mark: int) -> None:
    if mark == END and not lineage.is_sealed(segment):
        raise _invalid(cut, f"marks segment {segment} as read to its end, but it is not sealed")
    if mark > lineage.end(segment):
        raise _invalid(
            cut,
            f"names offset {mark} of segment {segment}, which holds {lineage.end(segment)} events",
        )


def _sweep(
    lineage: Lineage, cut: StreamCut, marks: dict[Segment, int], forgetful: bool
) -> Iterator[Cell]:
    """Go over the key space from edge to edge of the named segments."""
    waiting = sorted(marks, key=lambda s: (s.key_range.low, s.key_range.high), reverse=True)
    edges = {0.0, 1.0}.union(*((s.key_range.low, s.key_range.high) for s in marks))
    here: list[Segment] = []
    for low, high in pairwise(sorted(edges)):
        here = [s for s in here if s.key_range.high > low]
        while waiting and waiting[-1].key_range.low == low:
            here.append(waiting.pop())
        future = [s for s in here if marks[s] == NOT_REACHED]
        reached = [s for s in here if marks[s] != NOT_REACHED]
        if reached:
            latest = _latest(cut, reached, future, marks)
            yield _cell(lineage, low, high, latest, marks[latest])
        else:
            yield from _unreached(lineage, cut, KeyRange(low, high), future, forgetful)


def _latest(
    cut: StreamCut, reached: list[Segment], future: list[Segment], marks: dict[Segment, int]
) -> Segment:
    """Return the segment in which the cut is, of those that share keys and are reached."""
    latest = max(reached, key=lambda s: s.epoch) if len(reached) > 1 else reached[0]
    for segment in reached:
        if segment is not latest and marks[segment] != END:
            to_read = "both to be read" if marks[latest] != END else "which is marked as read"
            raise _invalid(cut, f"names segment {segment} and its successor {latest}, {to_read}")
    for segment in future:
        if segment.epoch < latest.epoch:
            raise _invalid(
                cut, f"names segment {segment} as future and its successor {latest} as reached"
            )
    return latest


def _unreached(
    lineage: Lineage, cut: StreamCut, keys: KeyRange, future: list[Segment], forgetful: bool
) -> Iterator[Cell]:
    """Decide where the cut is on keys that no reached segment of it covers."""
    if forgetful:
        # A future segment cannot tell whether what was here ended or is forgotten.
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


def _cell(lineage: Lineage, low: float, high: float, segment: Segment, mark: int) -> Cell:
    low, high = max(low, segment.key_range.low), min(high, segment.key_range.high)
    if mark == END:
        return Cell(low, high, segment, lineage.end(segment), True, lineage.until(segment))
    return Cell(low, high, segment, mark, False, segment.epoch)


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
    """Prove that no segment is passed on one side of a border of cells and not on the other.

    Such a segment would lie across the border, in an epoch that one side has passed and the
    other has not. A cell that is alive now needs no look beyond its own segment.
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


class Frontier:
    """A place that moves: ``at`` holds the offset of each reached segment, or END."""

    def __init__(self, lineage: Lineage, *places: LocatedCut) -> None:
        """Begin at the latest of the places, key by key."""
        self.lineage = lineage
        self._places = places
        self.at: dict[int, int] = {}
        cells = places[0].cells
        if len(places) > 1:
            cells = tuple(max(pair, key=lambda c: c.age) for pair in together(*places))
        for cell in cells:
            self.at[cell.segment.segment_id] = END if cell.ended else cell.offset

    def of(self, segment: Segment) -> int:
        """Return how far the segment is read: an offset, END or NOT_REACHED."""
        if segment.segment_id in self.at:
            return self.at[segment.segment_id]
        marks = {place.of(segment) for place in self._places}
        return END if END in marks else max(marks)

    def open(self) -> list[tuple[Segment, int]]:
        """Return the segments that are reached and not ended, with their offsets, by id."""
        return [(self.lineage.find(s), o) for s, o in sorted(self.at.items()) if o != END]

    def is_finished(self, segment: Segment) -> bool:
        """Tell whether the segment is sealed and read to its end, marked so or not."""
        mark = self.of(segment)
        return mark == END or (
            mark >= self.lineage.end(segment) and self.lineage.is_sealed(segment)
        )

    def ready(self, segment: Segment) -> list[Segment]:
        """Return the successors that are not reached yet though all their predecessors ended."""
        return [
            successor
            for successor in self.lineage.successors(segment)
            if self.of(successor) == NOT_REACHED
            and all(self.of(before) == END for before in self.lineage.predecessors(successor))
        ]

    def advance(
        self,
        may_pass: Callable[[Segment], bool] = lambda segment: True,
        begin: Callable[[Segment], int] = lambda segment: 0,
    ) -> None:
        """Move on from finished segments to their successors, over empty sealed ones too.

        ``may_pass`` may hold a finished segment back; ``begin`` gives the offset at which a
        successor is entered. Visits only what is passed.
        """
        todo = [self.lineage.find(s) for s in self.at]
        while todo:
            segment = todo.pop()
            if not self.is_finished(segment):
                continue
            if self.of(segment) != END and not may_pass(segment):
                continue
            self.at[segment.segment_id] = END
            for successor in self.ready(segment):
                self.at[successor.segment_id] = begin(successor)
                todo.append(successor)

    def cut(self) -> StreamCut:
        """Return the place as a cut in canonical form.

        A reached segment has its offset. An ended one stays, as END, only while a successor
        cannot be reached, and brings that one along as NOT_REACHED; or if it has no successor,
        at the end of a sealed stream.
        """
        positions: dict[int, int] = {}
        for segment_id, mark in self.at.items():
            if mark != END:
                positions[segment_id] = mark
                continue
            following = self.lineage.successors(self.lineage.find(segment_id))
            future = [s.segment_id for s in following if self.of(s) == NOT_REACHED]
            if future or not following:
                positions[segment_id] = END
                positions.update(dict.fromkeys(future, NOT_REACHED))
        layout = self.lineage.layout
        return StreamCut(layout.stream, layout.life, positions)
