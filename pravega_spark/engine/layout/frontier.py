"""A cut in motion: a successor is entered when all its predecessors have ended. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pravega_spark.engine.layout.cut_validation import Cell, overlapping_cells
from pravega_spark.engine.layout.epochs import Lineage
from pravega_spark.values.segments import END, NOT_REACHED, Segment, StreamCut


class Start(Protocol):
    """A cut that a frontier begins at: a ``LocatedCut``."""

    @property
    def lineage(self) -> Lineage:
        """The lineage of the cut's segments."""

    @property
    def cells(self) -> Sequence[Cell]:
        """The cut's cells, in key order."""

    def offset_in(self, segment: Segment, /) -> int:
        """Return how far the segment is read: an offset, END or NOT_REACHED."""


class Frontier:
    """A cut that moves: ``offsets`` holds the offset of each reached segment, or END."""

    def __init__(self, start: Start, other: Start | None = None) -> None:
        """Begin at a cut; of two, at the later one on each key."""
        self.lineage = start.lineage
        self._starts = (start,) if other is None else (start, other)
        cells = start.cells
        if other is not None:
            pairs = overlapping_cells(start.cells, other.cells)
            cells = [max(pair, key=lambda cell: cell.age) for pair in pairs]
        self.offsets = {c.segment.segment_id: END if c.ended else c.offset for c in cells}

    def offset_in(self, segment: Segment) -> int:
        """Return how far the segment is read: an offset, END or NOT_REACHED."""
        if segment.segment_id in self.offsets:
            return self.offsets[segment.segment_id]
        found = {start.offset_in(segment) for start in self._starts}
        return END if END in found else max(found)

    def open_segments(self) -> list[tuple[Segment, int]]:
        """Return the segments that are reached and not ended, with their offsets, by id."""
        return [(self.lineage.find(s), o) for s, o in sorted(self.offsets.items()) if o != END]

    def is_finished(self, segment: Segment) -> bool:
        """Return True if the segment is sealed and read to its end, as END or as an offset."""
        offset = self.offset_in(segment)
        return offset == END or (
            offset >= self.lineage.end(segment) and self.lineage.is_sealed(segment)
        )

    def is_entered(self, segment: Segment) -> bool:
        """Return True if the segment is reached, or passed."""
        return self.offset_in(segment) != NOT_REACHED

    def ready_successors(self, segment: Segment) -> list[Segment]:
        """Return the unreached successors whose predecessors have all ended."""
        return [
            successor
            for successor in self.lineage.successors(segment)
            if self.offset_in(successor) == NOT_REACHED
            and all(
                self.offset_in(before) == END for before in self.lineage.predecessors(successor)
            )
        ]

    def advance(
        self,
        may_pass: Callable[[Segment], bool] = lambda segment: True,
        begin: Callable[[Segment], int] = lambda segment: 0,
    ) -> None:
        """Move from finished segments to their successors, and over empty sealed ones.

        ``may_pass`` may hold a finished segment back; ``begin`` gives the offset at which a
        successor is entered. Visits only segments that it passes or enters, and each
        predecessor of these once.
        """
        todo = [self.lineage.find(s) for s in self.offsets]
        awaited = dict[int, int]()  # by successor: its predecessors that have not ended
        while todo:
            segment = todo.pop()
            if not self.is_finished(segment):
                continue
            ends_now = self.offset_in(segment) != END
            if ends_now and not may_pass(segment):
                continue
            self.offsets[segment.segment_id] = END
            for successor in self.lineage.successors(segment):
                if self.offset_in(successor) != NOT_REACHED:
                    continue
                key = successor.segment_id
                if key in awaited:
                    awaited[key] -= ends_now
                else:
                    before = self.lineage.predecessors(successor)
                    awaited[key] = sum(self.offset_in(other) != END for other in before)
                if not awaited[key]:
                    self.offsets[key] = begin(successor)
                    todo.append(successor)

    def following(self, segment: Segment) -> list[Segment]:
        """Return the segments that continue a segment and were reached, or passed."""
        found, todo = dict[int, Segment](), [segment]
        while todo:
            for successor in self.lineage.successors(todo.pop()):
                if successor.segment_id not in found and self.is_entered(successor):
                    found[successor.segment_id] = successor
                    todo.append(successor)
        return list(found.values())

    def go_back(self, segment: Segment, offset: int) -> list[Segment]:
        """Go back to an offset of a segment that was passed; return those that are given up.

        These are the ones that follow it. Their other predecessors stay ended.
        """
        given_up = self.following(segment)
        self.offsets |= dict.fromkeys((s.segment_id for s in given_up), NOT_REACHED)
        for successor in given_up:
            for before in self.lineage.predecessors(successor):
                if self.offset_in(before) == END:
                    self.offsets[before.segment_id] = END
        self.offsets[segment.segment_id] = offset
        return given_up

    def cut(self) -> StreamCut:
        """Return the cut in canonical form.

        A reached segment has its offset. An ended segment remains, as END, only while one of its
        successors cannot be reached, and brings that one along as NOT_REACHED; or if it has no
        successor, at the end of a sealed stream.
        """
        positions: dict[int, int] = {}
        for segment_id, offset in self.offsets.items():
            if offset >= 0:
                positions[segment_id] = offset
            if offset != END:
                continue  # one that was given up is in the cut if it follows an ended one
            following = self.lineage.successors(self.lineage.find(segment_id))
            future = [s.segment_id for s in following if self.offset_in(s) == NOT_REACHED]
            if future or not following:
                positions[segment_id] = END
                positions.update(dict.fromkeys(future, NOT_REACHED))
        layout = self.lineage.layout
        return StreamCut(layout.stream, layout.life, positions)
