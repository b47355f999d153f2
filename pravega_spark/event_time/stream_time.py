"""The event time of one stream for users: watermarks, marks of writers, and cuts by time."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pravega_spark.config.descriptions import TimeWindow, Watermark, WriterMark
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.stream.configuration import stream_settings
from pravega_spark.engine.stream.positions import TimeSearch
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import (
    REMOVED_US,
    known_watermarks,
    locate_clipped,
    mark_changes,
    mark_of,
    marks_of,
    pace_of,
    window_at,
)
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.errors import InvalidPosition, InvalidTime
from pravega_spark.event_time.update import WatermarkUpdate, update_watermark
from pravega_spark.values.checks import check_text, check_time_us
from pravega_spark.values.names import check_name
from pravega_spark.values.segments import StreamCut


class StreamTime:
    """The event time of one stream in one life; made by ``StreamManager.event_time``.

    Writers note times (``EventStreamWriter.note_time``). The watermark says how far all of them
    are. Its cut is a position of the stream: every event whose time was noted as earlier than the
    lower bound lies before it.
    """

    def __init__(self, stream: StreamLog, life: int) -> None:
        self._stream = stream
        self._life = life

    def _view(self) -> StreamView:
        return self._stream.view(life=self._life)

    def watermark(self) -> Watermark | None:
        """Return the newest watermark, as the marks of all writers show it now, or None.

        Silent writers count until an update has dropped them.
        """
        return next(reversed(known_watermarks(self._view())), None)

    def watermarks(self) -> list[Watermark]:
        """Return the known watermarks, oldest first; the older ones are sparse.

        Those that left the stream's log are rows of its ``metadata/`` table.
        """
        return known_watermarks(self._view())

    def update(self, *, dry_run: bool = False) -> WatermarkUpdate:
        """Record the next watermark, as maintenance does; a commit is made only if one follows.

        Writers that have noted nothing for ``timestamp_aggregation_timeout``, a setting of the
        stream or the root, no longer hold it back.
        """
        view = self._view()
        timeout_ms = stream_settings(self._stream, view).timestamp_aggregation_timeout_ms
        return update_watermark(self._stream, timeout_ms, life=self._life, dry_run=dry_run)

    def cut_at(self, time: int | datetime) -> StreamCut | None:
        """Return a cut behind all events before a time: the end of a read of what is earlier.

        It is the cut of the first known watermark whose lower bound has reached the time, and None
        if none has. ``time`` is in ms since 1970, or a datetime with a time zone.
        """
        time_us, view = check_time_us("the time of a watermark", time), self._view()
        found = (one for one in known_watermarks(view) if one.lower_us >= time_us)
        return next((locate_clipped(view, one).cut for one in found), None)

    def cut_before(self, time: int | datetime, *, stored_times: bool = True) -> StreamCut:
        """Return a cut before all events of a time or later: the start of a read of what follows.

        It is the cut of the last known watermark whose upper bound is earlier than the time, and
        before which no event is stored with that time or a later one; or the head. A writer may
        write times later than it has noted, so the notes alone do not promise it: without
        ``stored_times``, for streams whose stored timestamps are not the times that are noted,
        events of the time may lie before the cut. Reads at most one chunk of each segment.
        """
        time_us = check_time_us("the time of a watermark", time)

        def find(view: StreamView) -> StreamCut:
            found = [one for one in known_watermarks(view) if one.upper_us < time_us]
            cuts = (locate_clipped(view, one) for one in reversed(found))
            if stored_times and found:
                limit = TimeSearch(self._stream, time_us).cut(view)
                cuts = (cut for cut in cuts if limit.is_at_or_after(cut))
            return next((located.cut for located in cuts), view.head)

        return self._stream.on_newest(find, life=self._life)

    def window_at(self, cut: StreamCut | str) -> TimeWindow:
        """Return the time window of a reader at a cut. Raises InvalidStreamCut."""
        view = self._view()
        return window_at(view, locate(view, cut))

    def marks(self) -> list[WriterMark]:
        """Return what the writers have noted last, by writer id."""
        return [mark for mark in marks_of(self._view()) if mark.time_us != REMOVED_US]

    def note(
        self, writer_id: str, time: int | datetime, position: StreamCut | str | None = None
    ) -> WriterMark:
        """Note a time for a writer that has no EventStreamWriter, such as a job; return its mark.

        It promises that all that this writer writes after ``position`` is of that time or later.
        Without a position it is the tail of this very commit. Raises InvalidTime, InvalidPosition
        for a position behind that of the writer's last note, InvalidStreamCut, InvalidName and
        StreamSealed.
        """
        name = check_name("writer", writer_id)
        time_us = check_time_us("the time that a writer notes", time)

        def decide(view: StreamView) -> Proposal[WriterMark]:
            if view.record.state is not StreamState.ACTIVE:
                raise sealed_error(view)
            cut = view.tail if position is None else locate(view, position).cut
            known = mark_of(view, name)
            if known is not None:
                _check_forward(view, known, time_us, cut)
            mark = WriterMark(name, time_us, cut, view.version + 1)
            domains = mark_changes(view, [mark], pace_of(self._stream))
            return Body("NOTE TIME", {"writer": name}, domains=domains), mark

        return self._stream.commit(decide, life=self._life).value

    def remove_mark(self, writer_id: str) -> bool:
        """Make a writer no longer hold the watermark back; False if it has no mark.

        A note that the writer makes at the same time wins: then False is returned, too. Its last
        position counts for the next watermark, which then drops the mark.
        """
        name = check_text("a writer's id", writer_id)
        seen = mark_of(self._view(), name)

        def decide(view: StreamView) -> Proposal[bool]:
            known = mark_of(view, name)
            is_seen = known is not None and known == seen and known.time_us != REMOVED_US
            if known is None or not is_seen or view.record.state is StreamState.SEALING:
                return None, False
            domains = mark_changes(view, [replace(known, time_us=REMOVED_US, is_alive=False)])
            return Body("REMOVE MARK", {"writer": name}, domains=domains), True

        return self._stream.commit(decide, life=self._life).value


def _check_forward(view: StreamView, known: WriterMark, time_us: int, cut: StreamCut) -> None:
    """Raise InvalidTime or InvalidPosition for a note that is behind the last one."""
    who = f"writer {known.writer_id!r} of stream {view.stream}"
    if time_us < known.time_us:
        raise InvalidTime(
            f"{who} noted {known.time_us} us and now {time_us} us since 1970: a noted time "
            "promises that nothing earlier follows. Note the last time again, or a later one.",
            writer_id=known.writer_id,
            time_us=time_us,
            last_us=known.time_us,
        )
    last = locate(view, known.cut).above_head()
    if not locate(view, cut).is_at_or_after(last):
        raise InvalidPosition(
            f"{who} noted a time at {known.cut}, and now one at {cut}, which is behind that: note "
            "times at positions that only move forward.",
            writer_id=known.writer_id,
            position=cut,
            last=known.cut,
        )
