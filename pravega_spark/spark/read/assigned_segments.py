"""A read that is limited to some segments of its streams: the option ``assign``.

Its position is a cut of the whole stream, like that of every read, so a query can be started again
with other segments. The ranges of the segments that it is not assigned are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.located_cut import LocatedCut
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption
from pravega_spark.model import SegmentRange, segment_text
from pravega_spark.spark.settings import ReadSettings


def check_assigned(settings: ReadSettings, view: StreamView) -> None:
    """Raise InvalidOption if the stream does not have one of the segments."""
    if settings.assigned is None:
        return
    unknown = [s for s in settings.assigned[view.stream] if not view.has_segment(s)]
    if unknown:
        known = ", ".join(str(segment) for segment in view.active.segments)
        raise InvalidOption(
            f"option assign: stream {view.stream} has no segment {segment_text(unknown[0])}; "
            f"it was never there, or a truncation removed it. The active segments are {known}."
        )


def only_assigned(
    settings: ReadSettings, stream: str, ranges: Iterable[SegmentRange]
) -> list[SegmentRange]:
    """Return the ranges that the read covers."""
    if settings.assigned is None:
        return list(ranges)
    wanted = settings.assigned[stream]
    return [rng for rng in ranges if rng.segment_id in wanted]


def partial_cut(option: str, view: StreamView, offsets: Mapping[int, int]) -> LocatedCut:
    """Return the cut with these offsets, and with all other segments at their ends.

    Raises InvalidOption for an offset that its segment does not have, or no longer has.
    """
    for segment_id, offset in offsets.items():
        if not view.has_segment(segment_id) or view.is_truncated(segment_id, offset):
            raise InvalidOption(
                f"option {option}: stream {view.stream} has no offset {offset} in segment "
                f"{segment_text(segment_id)} any more, or it has no such segment; the earliest "
                "offset that can be read is -2."
            )
        end = view.segment(segment_id).next_offset
        if offset > end:
            raise InvalidOption(
                f"option {option}: segment {segment_text(segment_id)} of {view.stream} ends at "
                f"offset {end}, and {offset} is asked for; use -1 for its end."
            )
    return read_plan.cut_at(
        view.located_head, lambda s: offsets.get(s, view.segment(s).next_offset)
    )
