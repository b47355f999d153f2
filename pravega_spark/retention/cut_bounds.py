"""The lower and the upper bound of cuts: what all have read, and what any has read. Pure, no I/O.

A cut is a point on the chain of segments of each key. The lower bound takes the earliest point of
each key, the upper bound the latest. Both are consistent cuts: each cut has passed a segment on all
of its keys or on none, and so have the earliest and the latest of several. The order of the cuts
does not matter.

(Pravega folds its subscribers' cuts into a map, and the result depends on the order in which their
entries are visited; where that result is a valid cut, it is that of ``lower_bound_of``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from pravega_spark.engine.layout.cut_validation import Cell, offset_in, overlapping_cells
from pravega_spark.engine.layout.epochs import Lineage
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, reached
from pravega_spark.model import Segment


@dataclass(frozen=True, slots=True)
class _Bound:
    """A consistent cut of which only the cells are known."""

    lineage: Lineage
    cells: Sequence[Cell]

    def offset_in(self, segment: Segment, /) -> int:
        return offset_in(self.cells, [cell.low for cell in self.cells], segment)


def lower_bound_of(given: Iterable[LocatedCut]) -> LocatedCut:
    """Return the latest cut that is ahead of none of the given ones; there is exactly one.

    Cuts below the head count as the head. The result is in canonical form.
    """
    first, *others = [cut.raised_to_head() for cut in given]
    bound = _Bound(first.lineage, first.cells)
    for cut in others:
        bound = replace(bound, cells=list(_earlier(bound.cells, cut.cells)))
    return reached(Frontier(bound))


def upper_bound_of(a: LocatedCut, b: LocatedCut) -> LocatedCut:
    """Return the earliest cut that is behind neither of the two, in canonical form."""
    frontier = Frontier(a.raised_to_head(), b.raised_to_head())
    frontier.advance()
    return reached(frontier)


def _earlier(left: Sequence[Cell], right: Sequence[Cell]) -> Iterator[Cell]:
    for pair in overlapping_cells(left, right):
        low, high = max(cell.low for cell in pair), min(cell.high for cell in pair)
        yield replace(min(pair, key=lambda cell: cell.age), low=low, high=high)
