"""Positions in a stream as people write them.

================================  =================================================================
``start``, ``end``                the head; the tail of now
``+N``                            N events after the head, in each segment
``-N``                            N events before the end, in each segment; more if a scale has
                                  just opened segments with fewer events than that in all
``@2026-11-01T12:00:00+01:00``    the first events with this time or a later one; UTC without a zone
``@1793534400000``                likewise, in milliseconds since 1970
``@-2h``                          likewise, two hours ago
``end-of-march``                  a saved cut, by its name
anything else                     a stream cut, as ``stream describe`` prints it
================================  =================================================================
"""

from __future__ import annotations

import re

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.checks import shown
from pravega_spark.values.names import is_cut_name
from pravega_spark.values.segments import StreamCut
from pravega_spark.values.times import parse_timestamp

_COUNT = re.compile(r"([+-])([0-9]+)")


def is_position(text: str) -> bool:
    """Return True for a position that has a meaning in any stream, unlike a cut."""
    name = text.strip()
    is_word = name in ("start", "end") or name.startswith("@")
    return is_word or _COUNT.fullmatch(name) is not None or is_cut_name(name)


def parse_position(manager: StreamManager, stream: str, text: str) -> StreamCut:
    """Return the cut of a position; InvalidInput, or InvalidStreamCut for a cut that is none."""
    name = text.strip()
    if name == "start":
        return manager.head(stream)
    if name == "end":
        return manager.tail(stream)
    if name.startswith("@"):
        return manager.create_reader(stream).cut_at(_time_us(name))
    counted = _COUNT.fullmatch(name)
    if counted is None and is_cut_name(name):
        return manager.saved_cut(stream, name).cut
    if counted is None:
        return StreamCut.parse(name)
    move = _after_head if counted[1] == "+" else _before_end
    return move(root_of(manager).stream(stream).view(), int(counted[2]))


def _after_head(view: StreamView, events: int) -> StreamCut:
    positions = {
        segment: min(offset + events, view.segment(segment).next_offset) if offset >= 0 else offset
        for segment, offset in view.head
    }
    return StreamCut(view.stream, view.life, positions)


def _before_end(view: StreamView, events: int) -> StreamCut:
    """Go back in the segments of the newest epoch that leaves enough events, or to the head."""
    for number in range(view.active.number, view.oldest_epoch - 1, -1):
        ends = {s: view.segment(s).next_offset for s in view.epoch(number).segment_ids}
        positions = {segment: max(0, end - events) for segment, end in ends.items()}
        found, _ = locate(view, StreamCut(view.stream, view.life, positions)).clipped_to_head()
        if found.events_to(view.located_tail) >= events:
            return found.cut
    return view.head


def _time_us(text: str) -> int:
    try:
        return parse_timestamp("a position", text[1:]).resolve_us()
    except InvalidInput:
        raise InvalidInput(
            f"{shown(text)} is not a valid time: write @2026-11-01T12:00:00, milliseconds as in "
            "@1793534400000, or @-2h for two hours ago."
        ) from None
