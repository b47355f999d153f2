"""What a commit that changes writers' marks writes, so that no watermark that was shown goes back.

Whoever asks computes the newest watermark from the marks, recorded or not. Its lower bound is the
lowest time of the writers that are there, or the highest of those that left if none is there, and
not below the recorded one. So a note of a writer that is there, whose time only grows, cannot lower
it, nor can a writer that leaves: its time joins the highest ones. Two changes can: a writer that is
new or comes back with an earlier time, and a mark that is removed. The commit of these records the
watermark that the marks before it show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pravega_spark.engine.stream.time_marks import (
    MARK_PREFIX,
    REMOVED_US,
    WATERMARK_PREFIX,
    TimeNote,
    encode_mark,
    encode_watermark,
    left_after,
    mark_of,
    marks_of,
    watermarks_of,
)
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import next_advance, watermark_at
from pravega_spark.limits import MAX_WATERMARKS
from pravega_spark.model import StreamCut, WriterMark


def noted_changes(
    view: StreamView, notes: Iterable[TimeNote], positions: Mapping[int, int]
) -> dict[str, str | None]:
    """Return the domains that the notes of the next commit change.

    ``positions`` are the tail after that commit: so all that the writers wrote before lies before
    it. A time never goes back: what the log holds may be newer, by whatever way it came there.
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
    return mark_changes(view, marks)


def mark_changes(view: StreamView, marks: Sequence[WriterMark]) -> dict[str, str | None]:
    """Return the domains that the next commit changes to set these marks."""
    domains: dict[str, str | None] = {
        f"{MARK_PREFIX}{mark.writer_id}": encode_mark(mark) for mark in marks
    }
    entering_us = [mark.time_us for mark in marks if _enters_or_is_removed(view, mark)]
    if entering_us:
        domains |= _recorded(view, min(entering_us))
    return domains


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
    known, marks = watermarks_of(view), marks_of(view)
    bounds = next_advance(known, marks).bounds
    if bounds is None or time_us >= bounds.lower_us:
        return {}
    shown = watermark_at(view, bounds, known, marks)
    domains: dict[str, str | None] = {
        f"{WATERMARK_PREFIX}{view.version + 1}": encode_watermark(shown)
    }
    if len(known) >= MAX_WATERMARKS:
        domains[f"{WATERMARK_PREFIX}{known[-1].version}"] = None
    return domains
