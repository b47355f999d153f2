"""Operations of located cuts, as functions of a layout and plain stream cuts.

Tests of pure functions change the layout between two calls, so each call locates its cuts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.located_cut import Order, locate, tail
from pravega_spark.retention import decision
from pravega_spark.values.segments import Segment, SegmentRange, StreamCut

__all__ = ["Order", "tail"]


def check(layout: Layout, cut: StreamCut) -> None:
    """Raise InvalidStreamCut unless the cut is a consistent position of the stream."""
    locate(layout, cut)


def resolve(layout: Layout, cut: StreamCut | str) -> StreamCut:
    return locate(layout, cut).cut


def canonical(layout: Layout, cut: StreamCut) -> StreamCut:
    return locate(layout, cut).canonical().cut


def compare(layout: Layout, a: StreamCut, b: StreamCut) -> Order:
    return locate(layout, a).compare(locate(layout, b))


def equal_or_after(layout: Layout, a: StreamCut, b: StreamCut) -> bool:
    return locate(layout, a).is_at_or_after(locate(layout, b))


def segments_between(layout: Layout, a: StreamCut, b: StreamCut) -> list[Segment]:
    return locate(layout, a).segments_to(locate(layout, b))


def ranges_between(layout: Layout, a: StreamCut, b: StreamCut) -> list[SegmentRange]:
    return locate(layout, a).ranges_to(locate(layout, b))


def distance_events(layout: Layout, a: StreamCut, b: StreamCut) -> int:
    return locate(layout, a).events_to(locate(layout, b))


def distance_bytes(
    layout: Layout, a: StreamCut, b: StreamCut, bytes_at: Callable[[int, int], int]
) -> int:
    return locate(layout, a).bytes_to(locate(layout, b), bytes_at)


def clip_to_head(layout: Layout, cut: StreamCut) -> tuple[StreamCut, tuple[SegmentRange, ...]]:
    clipped, lost = locate(layout, cut).clipped_to_head()
    return clipped.cut, lost


def raised(layout: Layout, cut: StreamCut) -> StreamCut:
    return locate(layout, cut).raised_to_head().cut


def next_cut(layout: Layout, cut: StreamCut, approx_events: int) -> StreamCut:
    return read_plan.next_cut(locate(layout, cut), approx_events).cut


class Step(NamedTuple):
    """A ``ReadStep`` whose end is a plain stream cut."""

    ranges: tuple[SegmentRange, ...]
    end: StreamCut
    done: bool


def next_step(layout: Layout, cut: StreamCut, target: StreamCut, **limits: Any) -> Step:
    step = read_plan.next_step(locate(layout, cut), locate(layout, target), **limits)
    return Step(step.ranges, step.end.cut, step.done)


def cut_at(
    layout: Layout,
    offsets: Callable[[int], int | None],
    start: StreamCut = StreamCut.EARLIEST,
) -> StreamCut:
    return read_plan.cut_at(locate(layout, start), offsets).cut


def lower_bound_of(layout: Layout, given: Iterable[StreamCut]) -> StreamCut:
    return decision.lower_bound_of(locate(layout, cut) for cut in given).cut


def upper_bound_of(layout: Layout, a: StreamCut, b: StreamCut) -> StreamCut:
    return decision.upper_bound_of(locate(layout, a), locate(layout, b)).cut
