"""The rules of watermarks: what the times that writers noted say together. Pure, no I/O.

A writer's mark says: all that I write after this position is of this time or later. The lowest time
of all writers that still write is the watermark's lower bound, and the furthest of their positions
is its cut. So every event whose time was noted as earlier lies before the cut. Bounds and cut never
go back. A writer that is behind the last watermark, because it came back or is new, holds the next
one until it has caught up, has left, or is silent for too long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, Order, locate, reached
from pravega_spark.engine.stream.time_marks import REMOVED_US, marks_of, watermarks_of
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidStreamCut
from pravega_spark.model import END, NOT_REACHED, StreamCut, TimeWindow, Watermark, WriterMark


class Bounds(NamedTuple):
    """The times of a watermark, in us since 1970."""

    lower_us: int
    upper_us: int


class Advance(NamedTuple):
    """What the marks say after the last watermark."""

    bounds: Bounds | None
    """The next watermark's; None if there is none yet."""
    unneeded: tuple[WriterMark, ...]
    """The marks that no later watermark needs."""
    held_by: tuple[WriterMark, ...]
    """The writers that hold the next watermark: they are not ahead of the last one."""


def advance(
    previous: Bounds | None,
    marks: Sequence[WriterMark],
    is_silent: Callable[[WriterMark], bool] = lambda mark: False,
) -> Advance:
    """Return the next watermark, as far as the marks allow it.

    ``is_silent`` tells whether a writer has noted nothing for too long; it is asked only of living
    writers that are not ahead of the watermark. The result is what several watermarks in a row
    would come to, since those between would have the same cut.
    """
    found, held = previous, list[WriterMark]()
    gone = [mark for mark in marks if mark.time_us == REMOVED_US]
    by_time = sorted(marks, key=lambda mark: mark.time_us)[len(gone) :]
    upper_us = max(
        [mark.time_us for mark in marks] + ([found.upper_us] if found else []), default=0
    )
    at = 0
    while True:
        while found and at < len(by_time) and by_time[at].time_us <= found.lower_us:
            mark, at = by_time[at], at + 1
            (gone if not mark.is_alive or is_silent(mark) else held).append(mark)
        if held or at == len(by_time):
            break
        found = Bounds(by_time[at].time_us, upper_us)
    is_new = found is not None and found != previous
    # A position counts in the cut of a later watermark while another writer can make one.
    is_last = not held and at == len(by_time)
    unneeded = tuple(gone) if is_new or is_last else ()
    return Advance(found if is_new else None, unneeded, tuple(held))


def furthest(layout: Layout, cuts: Iterable[StreamCut]) -> LocatedCut:
    """Return the cut that is, at every key, at the furthest of some cuts, and not below the head.

    Cuts of which the stream knows nothing any more do not count.
    """
    best = locate(layout, StreamCut.EARLIEST)
    for cut in _joined(layout, cuts):
        try:
            other = locate(layout, cut).above_head()
        except InvalidStreamCut:  # of events that a restore of the log did not bring back
            continue
        if best.is_at_or_after(other):
            continue
        if other.is_at_or_after(best):
            best = other
        else:
            frontier = Frontier(best, other)
            frontier.advance()
            best = reached(frontier)
    return best


def _joined(layout: Layout, cuts: Iterable[StreamCut]) -> Iterator[StreamCut]:
    """Yield few cuts with the same furthest one: those that differ in offsets alone are one.

    Thousands of writers note their positions in a few epochs, and to locate a cut takes long.
    """
    special: tuple[int, ...]
    alike = dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[int, ...]]]()
    for cut in cuts:
        positions = cut.positions
        offsets, special = tuple(positions.values()), ()
        if END in offsets or NOT_REACHED in offsets:
            special = tuple(min(offset, 0) for offset in offsets)
        alike.setdefault((tuple(positions), special), []).append(offsets)
    for (segments, _), found in alike.items():
        held = found
        for place, segment_id in enumerate(segments):
            if layout.has_segment(segment_id):  # beyond its end a restore brought nothing back
                end = layout.segment(segment_id).next_offset
                held = [offsets for offsets in held if offsets[place] <= end]
        if held:
            most = map(max, zip(*held, strict=True))
            yield StreamCut(layout.stream, layout.life, dict(zip(segments, most, strict=True)))


def next_advance(
    known: Sequence[Watermark],
    marks: Sequence[WriterMark],
    is_silent: Callable[[WriterMark], bool] = lambda mark: False,
) -> Advance:
    """Return what the marks of a view say after the last known watermark, without its cut."""
    previous = Bounds(known[-1].lower_us, known[-1].upper_us) if known else None
    return advance(previous, marks, is_silent)


def watermark_at(
    view: StreamView, bounds: Bounds, known: Sequence[Watermark], marks: Sequence[WriterMark]
) -> Watermark:
    """Return the watermark of these bounds that follows the last known one."""
    cuts = [mark.cut for mark in marks] + [watermark.cut for watermark in known[-1:]]
    return Watermark(*bounds, furthest(view, cuts).cut)


def next_watermark(
    view: StreamView,
    known: Sequence[Watermark],
    is_silent: Callable[[WriterMark], bool] = lambda mark: False,
) -> tuple[Watermark | None, Advance]:
    """Return the watermark that follows the last known one in a view, if any."""
    marks = marks_of(view)
    found = next_advance(known, marks, is_silent)
    if found.bounds is None:
        return None, found
    return watermark_at(view, found.bounds, known, marks), found


def known_watermarks(view: StreamView) -> list[Watermark]:
    """Return the watermarks of a view, oldest first, with the one that its marks show by now.

    Without a clock: silent writers count until maintenance has dropped them.
    """
    stored = watermarks_of(view)
    newest, _ = next_watermark(view, stored)
    return stored if newest is None else [*stored, newest]


def window_at(
    view: StreamView, position: LocatedCut, known: Sequence[Watermark] | None = None
) -> TimeWindow:
    """Return the time window of a position, by the watermarks of its view."""
    found = known_watermarks(view) if known is None else known

    def is_passed(watermark: Watermark) -> bool:
        return position.is_at_or_after(locate_clipped(view, watermark))

    def is_ahead(watermark: Watermark) -> bool:
        return position.compare(locate_clipped(view, watermark)) is Order.BEFORE

    # Cuts of watermarks never go back, so both questions have one answer up to some watermark.
    passed = bisect_left(found, True, key=lambda watermark: not is_passed(watermark))
    ahead = bisect_left(found, True, lo=passed, key=is_ahead)
    lower_us = found[passed - 1].lower_us if passed else None
    return TimeWindow(lower_us, found[ahead].upper_us if ahead < len(found) else None)


def locate_clipped(view: StreamView, watermark: Watermark) -> LocatedCut:
    """Return the cut of a watermark, or the head where that is further."""
    return locate(view, watermark.cut).above_head()


def latest_window(before: TimeWindow | None, found: TimeWindow) -> TimeWindow:
    """Return the window that is found, but not behind the one that was returned before."""
    if before is None:
        return found
    lowers = [time for time in (before.lower_us, found.lower_us) if time is not None]
    lower_us, upper_us = max(lowers, default=None), found.upper_us
    if upper_us is not None and before.upper_us is not None:
        upper_us = max(before.upper_us, upper_us)
    return TimeWindow(lower_us, upper_us)
