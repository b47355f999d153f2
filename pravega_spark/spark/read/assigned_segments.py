"""The part of its streams that a read covers: the options ``assign`` and ``routingKeys``.

Its position is a cut of the whole stream, like that of every read; what it does not cover is
passed. So a query's offset says what it has covered, and a later run may leave out only segments
that are finished, and add only segments that the cut has not passed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.layout.epochs import short_list
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidOption
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.source_offsets import Coverage, StreamOffset
from pravega_spark.values.segments import END, SegmentRange, segment_epoch, segment_text

_WAYS_ON = (
    "start a query with a new checkpoint folder, or set failOnDataLoss to false to go on without "
    "them."
)


def check_assigned(
    settings: ReadSettings,
    stream: StreamLog,
    view: StreamView,
    offset: StreamOffset | None = None,
) -> None:
    """Raise InvalidOption if the stream does not have one of the segments.

    Those that the query has read, by its ``offset``, need not be there any more, nor those that
    were truncated since it began.
    """
    if settings.assigned is None:
        return
    known: Iterable[int] = ()
    if offset is not None:
        known = () if offset.reads is None else offset.reads.segments or ()
    for segment_id in settings.assigned[view.stream]:
        is_there = view.has_segment(segment_id) or segment_id in known
        if not is_there and (offset is None or not _was_there(stream, view, segment_id)):
            raise InvalidOption(
                f"option assign: stream {view.stream} has no segment {segment_text(segment_id)}; "
                "it was never there, or a truncation removed it. The active segments are "
                f"{', '.join(map(str, view.active.segments))}."
            )


def _was_there(stream: StreamLog, view: StreamView, segment_id: int) -> bool:
    """Return whether a segment of this life was truncated; read from the stream's history."""
    from pravega_spark.engine.stream.epoch_history import epochs_between

    number = segment_epoch(segment_id)
    if number >= view.oldest_epoch:
        return False
    epochs = epochs_between(stream, view, number, number)
    return any(segment_id in epoch.segment_ids for epoch in epochs)


def wanted_of(settings: ReadSettings, stream: str) -> Coverage:
    """Return what the options of a read cover of a stream: nothing of one that they do not name."""
    segments = None if settings.assigned is None else settings.assigned.get(stream, ())
    keys = json.dumps(sorted(set(settings.routing_keys))) if settings.routing_keys else ""
    return Coverage(segments, hashlib.sha256(keys.encode()).hexdigest()[:16] if keys else None)


def only_assigned(
    settings: ReadSettings, stream: str, ranges: Iterable[SegmentRange]
) -> list[SegmentRange]:
    """Return the ranges that the read covers."""
    return covered(wanted_of(settings, stream), ranges)


def covered(reads: Coverage, ranges: Iterable[SegmentRange]) -> list[SegmentRange]:
    """Return the ranges of the segments that are read."""
    return [rng for rng in ranges if reads.has(rng.segment_id)]


def covered_losses(reads: Coverage, lost: Iterable[SegmentRange]) -> list[SegmentRange]:
    """Return the lost ranges of segments that are read, and those of an unknown number of events.

    The successors of such a segment may be lost, too.
    """
    return [rng for rng in lost if not len(rng) or reads.has(rng.segment_id)]


def continued(view: StreamView, offset: StreamOffset, wanted: Coverage) -> Coverage:
    """Return the coverage of the offsets that follow one, for a read that now wants another.

    Finished segments stay in it: all of their events were read.
    """
    if offset.reads is None or wanted.segments is None:
        return wanted
    cut = locate(view, offset.cut)
    before = (s for s in _known(view, offset.reads) if _is_finished(cut, s))
    return Coverage(tuple(sorted({*wanted.segments, *before})), wanted.keys)


def passed(view: StreamView, offset: StreamOffset, wanted: Coverage) -> str:
    """Return which events the query would pass without reading them, as text; empty if none.

    For a query that has covered ``offset.reads``, and is to cover ``wanted`` from now on.
    """
    before = offset.reads
    if before is None and wanted.segments == ():
        return (
            f"a batch that is repeated has events of stream {view.stream}, which it does not name"
        )
    if before is None or before.segments == wanted.segments:
        return ""
    cut = locate(view, offset.cut)
    gone = [s for s in _known(view, before) if not wanted.has(s) and not _is_finished(cut, s)]
    if gone:
        return (
            f"the query has read {_texts(gone)} of stream {view.stream}, which "
            f"{'is' if len(gone) == 1 else 'are'} not read to the end, and option assign no longer "
            f"names {'it' if len(gone) == 1 else 'them'}"
        )
    origin = locate(view, offset.origin)
    new = [s for s in _known(view, wanted) if not before.has(s)]
    older = [s for s in new if _reached(cut, s) > _reached(origin, s)]
    truncated = {rng.segment_id for rng in origin.clipped_to_head()[1]}
    older += [
        s for s in truncated if wanted.has(s) and not before.has(s) and not view.has_segment(s)
    ]
    if older:
        return (
            f"the query did not read {_texts(older)} of stream {view.stream} before, and its "
            f"position {offset.cut} is behind events of {'it' if len(older) == 1 else 'them'}"
        )
    return ""


def begun_late(view: StreamView, offset: StreamOffset, wanted: Coverage) -> str:
    """Return which new segments a query reads from the middle on, as text; empty if none."""
    before = offset.reads
    if before is None or before.segments is None:
        return ""
    origin = locate(view, offset.origin)
    late = [
        f"{segment_text(s)} from offset {at} on"
        for s in _known(view, wanted)
        if not before.has(s) and (at := _reached(origin, s)) > view.head_offset(s)
    ]
    if not late:
        return ""
    return (
        f"option assign: the query now also reads, of stream {view.stream}, {short_list(late)}: "
        "that is where it was when the query began."
    )


def passed_error(lost: str, view: StreamView, offset: StreamOffset) -> InvalidOption:
    """Return the error of a query that would pass events; ``lost`` is the text of :func:`passed`.

    ``offset`` has what the query has covered until now.
    """
    segments = None if offset.reads is None else offset.reads.segments
    same = "without assign" if segments is None else f"with assign {_option(view.stream, segments)}"
    go_on = f"Go on {same}; or {_WAYS_ON}"
    if segments is not None and _is_at_end(view, offset, segments):
        go_on = (
            f"What it has read until now is at its end, so {same} nothing would follow. To read "
            f"all events of these segments, start a query with a new checkpoint folder, this "
            "assign and startingOffsets=earliest; or set failOnDataLoss to false to go on without "
            "the events behind the position."
        )
    return InvalidOption(f"option assign: {lost}; these events would never be read. {go_on}")


def at_end(view: StreamView, offset: StreamOffset, wanted: Coverage) -> str:
    """Return a warning of a query whose segments are all at their ends; empty if one is not."""
    segments = wanted.segments
    others = [s for s in view.active.segment_ids if not wanted.has(s)]
    if not segments or not others or not _is_at_end(view, offset, segments):
        return ""
    return (
        f"option assign: {_texts(list(segments))} of stream {view.stream} "
        f"{'is' if len(segments) == 1 else 'are'} sealed and read to the end: the query reads "
        "nothing more of the stream, and passes events of "
        f"{short_list(map(segment_text, others))}. To read those, start it with them; if it has "
        "passed some, with a new checkpoint folder and startingOffsets=earliest."
    )


def _is_at_end(view: StreamView, offset: StreamOffset, segments: Iterable[int]) -> bool:
    """Return whether segments are sealed and read to their ends, or truncated."""
    cut = locate(view, offset.cut)
    return all(not view.has_segment(s) or _is_finished(cut, s) for s in segments)


def _option(stream: str, segments: Iterable[int]) -> str:
    return json.dumps({stream: [segment_text(segment) for segment in segments]})


def _texts(segments: list[int]) -> str:
    return f"segment{'' if len(segments) == 1 else 's'} {short_list(map(segment_text, segments))}"


def _known(view: StreamView, reads: Coverage) -> list[int]:
    """Return the segments of a coverage that have a record; the others were truncated."""
    if reads.segments is None:
        names = view.snapshot.names(SEGMENT_PREFIX)
        return sorted(int(name.removeprefix(SEGMENT_PREFIX)) for name in names)
    return [segment_id for segment_id in reads.segments if view.has_segment(segment_id)]


def _is_finished(cut: LocatedCut, segment_id: int) -> bool:
    lineage = cut.lineage
    segment = lineage.find(segment_id)
    return lineage.is_sealed(segment) and _reached(cut, segment_id) >= lineage.end(segment)


def _reached(cut: LocatedCut, segment_id: int) -> int:
    """Return how far a cut has read a segment, as an offset of events."""
    segment = cut.lineage.find(segment_id)
    offset = cut.offset_in(segment)
    return cut.lineage.end(segment) if offset == END else max(0, offset)


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
