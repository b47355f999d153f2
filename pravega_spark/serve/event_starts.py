"""Where a walk through the events of a stream begins: at an end, a time, a cut, or an offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pravega_spark.engine.chunks import search
from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.layout.read_plan import cut_at
from pravega_spark.engine.stream.stream_log import StreamLog, truncated
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged, InvalidInput, InvalidStreamCut
from pravega_spark.serve.event_walk import KeyChain, OneSegment, Route, WholeStream
from pravega_spark.values.checks import shown
from pravega_spark.values.segments import Segment, SegmentRange, parse_segment, segment_text

MOST_SEGMENTS: Final = 500
"""Of a walk through all segments: their cut is in the address of the page."""
TIME_READS: Final = 128
"""Chunks that are read to begin exactly at a time; in more segments it is the chunk's beginning."""
_WINDOW_EVENTS: Final = 65_536

HEAD, TAIL = "head", "tail"


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkStart:
    """What a request says of the place and the way.

    ``at`` is ``head``, ``tail``, a cut, or ``number#epoch=offset``; ``time_us`` stands instead of
    it. The walk is through all segments, through ``segment``, or along those of ``key``.
    """

    at: str | None
    time_us: int | None
    segment: str | None
    key: str | None
    back: bool


def route_of(log: StreamLog, view: StreamView, start: WalkStart) -> Route:
    """Return the route of a walk.

    Raises InvalidInput, NoSuchSegment, and TruncatedData for a position below the head.
    """
    if start.segment is not None and start.key is not None:
        raise InvalidInput(
            "give a segment or a key, not both: a key is in one segment of an epoch."
        )
    key_at = None if start.key is None else position(start.key)
    if start.time_us is None and start.at is not None and "=" in start.at and "@" not in start.at:
        segment, offset = place_of(view, start.at)
        if start.segment not in (None, str(segment)):
            raise InvalidInput(f"the position {start.at} is not in segment {start.segment}.")
        return _from_place(view, segment, offset, key_at, back=start.back)
    if start.segment is not None:
        segment = view.lineage.find(parse_segment(start.segment))
        return OneSegment(segment, _offset_in(log, view, segment, start))
    cut = _cut(log, view, start)
    if key_at is not None:
        return _along_key(view, cut, key_at, back=start.back)
    if len(cut.cells) > MOST_SEGMENTS:
        raise InvalidInput(
            f"stream {view.stream} has {len(cut.cells)} segments at this position, and a page goes "
            f"through {MOST_SEGMENTS} at most: choose a segment or a key."
        )
    return WholeStream(view, cut, back=start.back)


def place_of(view: StreamView, text: str) -> tuple[Segment, int]:
    """Return the segment and offset of ``number#epoch=offset``.

    Raises InvalidInput, NoSuchSegment, and TruncatedData below the head.
    """
    name, _, number = text.partition("=")
    if not number.isdecimal() or not number.isascii() or len(number) > 18:
        raise InvalidInput(
            f"a position is written number#epoch=offset, such as 0#0=120; got {shown(text)}."
        )
    segment_id, offset = parse_segment(name), int(number)
    if view.is_truncated(segment_id, offset):
        rng = SegmentRange(
            view.stream, life=view.life, segment_id=segment_id, start=offset, end=offset + 1
        )
        if not (view.has_segment(segment_id) and offset == view.segment(segment_id).next_offset):
            raise truncated(view, rng)
    end = view.segment(segment_id).next_offset
    if offset > end:
        raise InvalidInput(
            f"segment {segment_text(segment_id)} of stream {view.stream} has the offsets "
            f"{view.head_offset(segment_id)} to {end}; got {offset}."
        )
    return view.lineage.find(segment_id), offset


def _from_place(
    view: StreamView, segment: Segment, offset: int, key_at: float | None, *, back: bool
) -> Route:
    if key_at is None:
        return OneSegment(segment, offset)
    if not segment.key_range.low <= key_at < segment.key_range.high:
        raise InvalidInput(
            f"the key does not hash to segment {segment} of stream {view.stream}: give a position "
            "that a page with this key has named."
        )
    return KeyChain(view, segment, offset, key_at, back=back)


def _along_key(view: StreamView, cut: LocatedCut, key_at: float, *, back: bool) -> Route:
    (cell,) = (cell for cell in cut.cells if cell.low <= key_at < cell.high)
    return KeyChain(view, cell.segment, cell.offset, key_at, back=back)


def _offset_in(log: StreamLog, view: StreamView, segment: Segment, start: WalkStart) -> int:
    segment_id = segment.segment_id
    if start.time_us is not None:
        return _TimeSearch(log, view, start.time_us).offset(segment_id)
    if start.at == HEAD:
        return view.head_offset(segment_id)
    if start.at in (None, TAIL):
        return view.segment(segment_id).next_offset
    offset = locate(view, str(start.at)).readable().offset_in(segment)
    if offset >= 0:
        return offset
    return view.segment(segment_id).next_offset if offset == -1 else view.head_offset(segment_id)


def _cut(log: StreamLog, view: StreamView, start: WalkStart) -> LocatedCut:
    if start.time_us is not None:
        found = _TimeSearch(log, view, start.time_us)
        return cut_at(view.located_head, found.offset)
    if start.at == HEAD:
        return view.located_head
    if start.at in (None, TAIL):
        return view.located_tail
    try:
        return locate(view, str(start.at)).readable()
    except InvalidStreamCut as error:
        raise InvalidStreamCut(
            f"{error} A position is head, tail, a cut, or number#epoch=offset."
        ) from error


class _TimeSearch:
    """Finds the first event of a segment at or after a time, by the times of the log's chunks.

    As the readers do (``TimeSearch``), but it reads a bounded number of chunks.
    """

    def __init__(self, log: StreamLog, view: StreamView, time_us: int) -> None:
        self._log, self._view, self._time_us = log, view, time_us
        self._reads = TIME_READS

    def offset(self, segment_id: int) -> int:
        """Return its offset; the segment's end if there is none."""
        view, log = self._view, self._log
        head, end = view.head_offset(segment_id), view.segment(segment_id).next_offset
        for start in range(head, end, _WINDOW_EVENTS):
            window = SegmentRange(
                view.stream,
                life=view.life,
                segment_id=segment_id,
                start=start,
                end=min(end, start + _WINDOW_EVENTS),
            )
            for ref in log.known_chunks(window):
                if ref.max_timestamp_us < self._time_us:
                    continue
                first = max(head, ref.base_offset)
                if ref.min_timestamp_us >= self._time_us or not self._reads:
                    return first
                self._reads -= 1
                try:
                    found = search.first_at_or_after(log.store, log.path, ref, self._time_us, head)
                except (Damaged, FileNotFoundError):
                    return first  # the page says what is wrong with it
                if found is not None:
                    return found
        return end
