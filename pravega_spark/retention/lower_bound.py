"""The lower bound of cuts, and the upper one: what all have read, what any has. Pure, no I/O.

A cut is a point on the chain of segments of every key. The lower bound takes the earliest point
of each key, the upper bound the latest. Both are places of the stream again: a consistent cut has
passed a segment on all of its keys or on none, and so have the earliest and the latest of several.
The order in which the cuts are given does not matter.

(Pravega folds its subscribers' cuts into a map, and what comes out depends on the order in which
their entries are visited; where its result is a cut at all, it is the one of ``lowest``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pravega_spark.engine.layout import cuts
from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.located_cut import Cell, Frontier, LocatedCut, locate, together
from pravega_spark.model import StreamCut


def lowest(layout: Layout, given: Iterable[StreamCut]) -> StreamCut:
    """Return the latest cut that is ahead of none of the given ones, of which there is one.

    Cuts below the head count as the head. The result is in canonical form.
    """
    lineage = layout.lineage
    found: LocatedCut | None = None
    for cut in given:
        place = locate(lineage, raised(layout, cut))
        if found is not None:
            place = LocatedCut(cut, list(_earlier(found, place)), ())
        found = place
    assert found is not None, "a bound of no cuts"
    return Frontier(lineage, found).cut()


def highest(layout: Layout, a: StreamCut, b: StreamCut) -> StreamCut:
    """Return the earliest cut that is behind neither of the two, in canonical form."""
    lineage = layout.lineage
    places = (locate(lineage, raised(layout, cut)) for cut in (a, b))
    frontier = Frontier(lineage, *places)
    frontier.advance()
    return frontier.cut()


def raised(layout: Layout, cut: StreamCut) -> StreamCut:
    """Return the cut in canonical form, at the head where it is below."""
    clipped, _ = cuts.clip_to_head(layout, cut)
    return cuts.canonical(layout, clipped)


def _earlier(a: LocatedCut, b: LocatedCut) -> Iterator[Cell]:
    for pair in together(a, b):
        low, high = max(c.low for c in pair), min(c.high for c in pair)
        yield replace(min(pair, key=_age), low=low, high=high)


def _age(cell: Cell) -> tuple[int, int]:
    return cell.age
