"""Watermarks: the times that writers noted, and the rules of what they say together.

A writer's mark says: all that I write after this position is of this time or later. The lowest time
of all writers that still write is the watermark's lower bound, and the furthest of their positions
is its cut. So every event whose time was noted as earlier lies before the cut. Bounds and cut never
go back. A writer that is behind the last watermark, because it came back or is new, holds the next
one until it has caught up, has left, or is silent for too long.

Marks and watermarks are JSON values of the log's domain metadata:

| domain | record |
| --- | --- |
| ``pravega.mark.<writer id>`` | WriterMark: the time, the position, whether the writer is there |
| ``pravega.watermark.<version>`` | Watermark: both bounds, and the cut |

Each reader of a stream computes the newest watermark from the marks, recorded or not. Its lower
bound is the lowest time of the writers that are there, or the highest of those that left if none is
there, and not below the recorded one. So a note of a writer that is there, whose time only grows,
cannot lower it, nor can a writer that leaves: its time joins the highest ones. Two changes can: a
writer that is new or comes back with an earlier time, and a mark that is removed. The commit of
these records the watermark that the marks before it show, so that no watermark that was shown goes
back.

A writer that notes times also records, in the commits of its notes, what the marks show: about
every 10 s, as Pravega's controller computes it, and only while the state has room. Maintenance does
the rest: it drops silent writers, which needs a clock, and moves old watermarks to the history.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pravega_spark.config.descriptions import TimeWindow, Watermark, WriterMark
from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, Order, locate, reached
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.runtime.text_cache import cached_by_text
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptLog, InvalidStreamCut
from pravega_spark.values.checks import MAX_TIME_US, MIN_TIME_US
from pravega_spark.values.limits import (
    DECODED_TEXT_CHARACTERS,
    EVENT_TIME_NOTE_SECONDS,
    MAX_WATERMARKS,
    RECORD_WATERMARK_SECONDS,
)
from pravega_spark.values.segments import END, NOT_REACHED, StreamCut

MARK_PREFIX = "pravega.mark."
WATERMARK_PREFIX = "pravega.watermark."
REMOVED_US = -(1 << 63)
"""The time of a mark that was removed: it counts for no bound, only its position for the cut."""


@dataclass(frozen=True, slots=True)
class TimeNote:
    """What a commit says about its writer's time: the time (None: as before), or that it leaves."""

    writer_id: str
    time_us: int | None
    leaves: bool = False
    began: int | None = None
    """The version that began the transaction, if it is the note of one."""

    def after(self, earlier: TimeNote | None) -> TimeNote:
        """Return one note that says what an earlier one and then this one say."""
        if earlier is None:
            return self
        times = [time for time in (earlier.time_us, self.time_us) if time is not None]
        began = [version for version in (earlier.began, self.began) if version is not None]
        return TimeNote(
            self.writer_id, max(times, default=None), self.leaves, max(began, default=None)
        )


def encode_mark(mark: WriterMark) -> str:
    """Return the JSON text of a mark."""
    return to_json([mark.time_us, mark.version, mark.is_alive, _cells(mark.cut)])


def encode_watermark(watermark: Watermark) -> str:
    """Return the JSON text of a watermark; its version is in the name of the domain."""
    return to_json([watermark.lower_us, watermark.upper_us, _cells(watermark.cut)])


def mark_of(view: StreamView, writer_id: str) -> WriterMark | None:
    """Return the mark of a writer as it is stored, or None."""
    text = view.snapshot.domains.get(f"{MARK_PREFIX}{writer_id}")
    return None if text is None else _decode_mark(view, writer_id, text)


def marks_of(view: StreamView) -> list[WriterMark]:
    """Return the marks of all writers, by id.

    A writer that has left is there as long as a transaction that it began before is open.
    """
    domains = view.snapshot.domains
    marks = [
        _decode_mark(view, name.removeprefix(MARK_PREFIX), domains[name])
        for name in sorted(view.snapshot.names(MARK_PREFIX))
    ]
    if not view.snapshot.open or all(mark.is_alive for mark in marks):
        return marks
    began: dict[str, int] = {}
    for opened in view.transactions.values():
        if opened.writer_id is not None:
            first = began.get(opened.writer_id, opened.version)
            began[opened.writer_id] = min(first, opened.version)
    return [
        replace(mark, is_alive=True) if left_after(mark, began.get(mark.writer_id)) else mark
        for mark in marks
    ]


def left_after(mark: WriterMark | None, began: int | None) -> bool:
    """Return whether a stored mark's writer has left after it began a transaction, if it did."""
    if mark is None or began is None or mark.is_alive or mark.time_us == REMOVED_US:
        return False
    return began < mark.version


def watermarks_of(view: StreamView) -> list[Watermark]:
    """Return the watermarks that the log's state holds, oldest first."""
    domains = view.snapshot.domains
    found = (
        (int(name.removeprefix(WATERMARK_PREFIX)), domains[name])
        for name in view.snapshot.names(WATERMARK_PREFIX)
    )
    try:
        return [_decode_watermark(view.stream, view.life, v, text) for v, text in sorted(found)]
    except DECODE_ERRORS as error:
        raise _damaged(view, "a watermark", error) from error


def _decode_mark(view: StreamView, writer_id: str, text: str) -> WriterMark:
    try:
        return _decoded_mark(view.stream, view.life, writer_id, text)
    except DECODE_ERRORS as error:
        raise _damaged(view, f"the mark of writer {writer_id}", error) from error


@cached_by_text(DECODED_TEXT_CHARACTERS)
def _decoded_mark(stream: str, life: int, writer_id: str, text: str) -> WriterMark:
    time_us, version, is_alive, cells = json.loads(text)
    cut = StreamCut(stream, life, dict(cells))
    known_us = time_us if time_us == REMOVED_US else _clamped(time_us)
    return WriterMark(writer_id, known_us, cut, typed(version, int), bool(is_alive))


@cached_by_text(DECODED_TEXT_CHARACTERS)
def _decode_watermark(stream: str, life: int, version: int, text: str) -> Watermark:
    lower_us, upper_us, cells = json.loads(text)
    cut = StreamCut(stream, life, dict(cells))
    return Watermark(
        lower_us=_clamped(lower_us), upper_us=_clamped(upper_us), cut=cut, version=version
    )


def _clamped(time_us: object) -> int:
    """Return a stored time within the years 1 to 9999; early commits did not check theirs."""
    return min(max(typed(time_us, int), MIN_TIME_US), MAX_TIME_US)


def _damaged(view: StreamView, what: str, error: Exception) -> CorruptLog:
    return CorruptLog(
        f"{view.snapshot.where}: version {view.version} of the log holds a damaged record of "
        f"{what}: {error!r}; restore it from a copy.",
        path=view.snapshot.where,
        version=view.version,
    )


def _cells(cut: StreamCut) -> list[list[int]]:
    return [[segment_id, offset] for segment_id, offset in cut]


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


class RecordPace:
    """How often the notes of one process record the watermark of one stream; without a call.

    A process counts from when it has seen the last recorded one. So writers of several processes
    share the pace, and one that lives for less records none.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Begin without a recorded watermark."""
        self._monotonic = runtime.monotonic
        self._due = -math.inf
        self._newest: int | None = None
        """The version of the last one that was seen."""
        self._proposed = -2, -math.inf
        """The version of the last one that was proposed, and when."""

    def is_due(self, view: StreamView) -> bool:
        """Return whether the next commit after a view is to record a watermark."""
        now = self._monotonic()
        if now < self._due:
            return False
        names = view.snapshot.names(WATERMARK_PREFIX)
        newest = max((int(name.removeprefix(WATERMARK_PREFIX)) for name in names), default=-1)
        if newest != self._newest:
            version, proposed_at = self._proposed
            self._newest = newest
            self._due = (proposed_at if newest == version else now) + RECORD_WATERMARK_SECONDS
            if now < self._due:
                return False
        self._proposed = view.version + 1, now
        return True

    def put_off(self) -> None:
        """Ask again a little later, since nothing follows from the marks or the state is full."""
        self._due = self._monotonic() + EVENT_TIME_NOTE_SECONDS


def pace_of(stream: StreamLog) -> RecordPace:
    """Return the pace that the writers of an open stream share."""
    return stream.kept(RecordPace, partial(RecordPace, stream.runtime))


def noted_changes(
    view: StreamView,
    notes: Iterable[TimeNote],
    positions: Mapping[int, int],
    pace: RecordPace | None = None,
) -> dict[str, str | None]:
    """Return the domains that the notes of the next commit change.

    ``positions`` are the tail after that commit: so all that the writers wrote before lies before
    it. With a ``pace`` the commit records the watermark when that is due.
    A time never goes back: what the log holds may be newer, from any source.
    A transaction of a writer that has left since does not bring it back: its events only move the
    position.
    """
    marks = []
    for note in notes:
        known = mark_of(view, note.writer_id)
        before_us = None if known is None else known.time_us
        times = [time for time in (note.time_us, before_us) if time is not None]
        if not times:
            continue  # it leaves, and its mark was dropped before
        cut = StreamCut(view.stream, view.life, positions)
        is_left, version = note.leaves, view.version + 1
        if known is not None and left_after(known, note.began):
            is_left, version = True, known.version
        marks.append(WriterMark(note.writer_id, max(times), cut, version, not is_left))
    return mark_changes(view, marks, pace)


def mark_changes(
    view: StreamView, marks: Sequence[WriterMark], pace: RecordPace | None = None
) -> dict[str, str | None]:
    """Return the domains that the next commit changes to set these marks, as above."""
    domains: dict[str, str | None] = {
        f"{MARK_PREFIX}{mark.writer_id}": encode_mark(mark) for mark in marks
    }
    entering_us = [mark.time_us for mark in marks if _enters_or_is_removed(view, mark)]
    recorded = _recorded(view, min(entering_us)) if entering_us else {}
    if not recorded and marks and pace is not None and pace.is_due(view):
        known = watermarks_of(view)
        recorded = _shown(view, known) if len(known) < MAX_WATERMARKS else {}
        if not recorded:
            pace.put_off()
    return domains | recorded


def _enters_or_is_removed(view: StreamView, mark: WriterMark) -> bool:
    """Return whether a mark can lower what is shown; of a writer that is there it cannot."""
    if mark.time_us == REMOVED_US:
        return True
    known = mark_of(view, mark.writer_id) if mark.is_alive else None
    return mark.is_alive and (known is None or not known.is_alive)


def _recorded(view: StreamView, time_us: int) -> dict[str, str | None]:
    """Return the domains that record what a view shows, if a new mark of that time could lower it.

    If the state is full, it takes the place of the last one: only an update, which can write the
    history, thins the older ones.
    """
    known = watermarks_of(view)
    domains = _shown(view, known, above_us=time_us)
    if domains and len(known) >= MAX_WATERMARKS:
        domains[f"{WATERMARK_PREFIX}{known[-1].version}"] = None
    return domains


def _shown(
    view: StreamView, known: Sequence[Watermark], above_us: int | None = None
) -> dict[str, str | None]:
    """Return the domain of what a view shows after the last known watermark, if anything.

    Only if its lower bound is above a time, where that is given.
    """
    marks = marks_of(view)
    bounds = next_advance(known, marks).bounds
    if bounds is None or (above_us is not None and above_us >= bounds.lower_us):
        return {}
    shown = watermark_at(view, bounds, known, marks)
    return {f"{WATERMARK_PREFIX}{view.version + 1}": encode_watermark(shown)}
