"""What is known of a segment: its length, times and neighbours, also of one below the head.

The state has what the head needs. For segments of epochs that a truncation moved to the history,
the layouts are read from there, and the bytes from the row of the segment itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from pravega_spark.engine.layout import epochs
from pravega_spark.engine.layout.epochs import Layout, SegmentState
from pravega_spark.engine.stream.epoch_history import epoch_times, layout_since
from pravega_spark.engine.stream.history import read_history
from pravega_spark.engine.stream.records import SEGMENT_PREFIX, SegmentRecord, decode_segment
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import NoSuchSegment
from pravega_spark.values.segments import Segment, SegmentInfo, segment_epoch, segment_text

Neighbours = tuple[tuple[Segment, tuple[Segment, ...]], ...]


def successors(stream: StreamLog, view: StreamView, segment_id: int) -> Neighbours:
    """Return each successor of a segment with all predecessors of that successor.

    Empty while the segment is open, and at the end of a sealed stream. Raises NoSuchSegment.
    """
    return epochs.successors(_layout(stream, view, segment_id), segment_id)


def predecessors(stream: StreamLog, view: StreamView, segment_id: int) -> Neighbours:
    """Return each predecessor of a segment with all successors of that predecessor.

    Empty for a segment of the life's first epoch. Raises NoSuchSegment.
    """
    created = segment_epoch(segment_id)
    layout = _layout_since(stream, view, segment_id, created)
    layout.lineage.find(segment_id)
    if layout.epoch(created).created_ms > view.record.created_ms:
        layout = _layout_since(stream, view, segment_id, created - 1)
    return epochs.predecessors(layout, segment_id)


def segment_info(stream: StreamLog, view: StreamView, segment_id: int) -> SegmentInfo:
    """Return a segment's length, key range and times. Raises NoSuchSegment."""
    layout = _layout(stream, view, segment_id)
    segment = layout.lineage.find(segment_id)
    record = layout.segment(segment_id)
    if not view.has_segment(segment_id):
        record = _past_record(stream, view, segment_id, record)
    times = epoch_times(stream, view, {segment.epoch, record.sealed_epoch})
    return SegmentInfo(
        segment_id,
        record.next_offset,
        record.size_bytes,
        record.sealed_epoch,
        key_range=segment.key_range,
        created_ms=times.get(segment.epoch),
        sealed_ms=sealed_ms(view, segment_id, record.sealed_epoch, times),
    )


def sealed_ms(
    view: StreamView, segment_id: int, sealed_epoch: int | None, times: Mapping[int, int]
) -> int | None:
    """Return when a segment was sealed, by the times of epochs; None for an open one."""
    if sealed_epoch is None:
        return None
    with_stream = sealed_epoch == view.active.number and segment_id in view.active.segment_ids
    return view.record.sealed_ms if with_stream else times.get(sealed_epoch)


def _past_record(
    stream: StreamLog, view: StreamView, segment_id: int, known: SegmentState
) -> SegmentRecord:
    """Return the row of a segment that agrees with its epochs: another life may have written one.

    Raises NoSuchSegment if there is none.
    """
    wanted = known.next_offset, known.sealed_epoch
    for rows in read_history(stream, "segment"):
        for row in rows:
            if row.name == f"{SEGMENT_PREFIX}{segment_id}":
                found = decode_segment(segment_id, row.value)
                if (found.next_offset, found.sealed_epoch) == wanted:
                    return found
    raise _forgotten(view, segment_id)


def _layout(stream: StreamLog, view: StreamView, segment_id: int) -> Layout:
    """Return the view, or it with the epochs of the history from the segment's first one on."""
    if view.has_segment(segment_id):
        return view
    return _layout_since(stream, view, segment_id, segment_epoch(segment_id))


def _layout_since(stream: StreamLog, view: StreamView, segment_id: int, number: int) -> Layout:
    layout = layout_since(stream, view, number)
    if layout is None:
        raise _forgotten(view, segment_id)
    return layout


def _forgotten(view: StreamView, segment_id: int) -> NoSuchSegment:
    return NoSuchSegment(
        f"stream {view.stream} does not know what is asked of segment {segment_text(segment_id)}: "
        f"epochs before {view.oldest_epoch} were truncated, and the stream's history (the table "
        f"metadata/) does not have it for life {view.life}. epochs() returns what is known; a lost "
        "table can be restored from a copy.",
        stream=view.stream,
        segment_id=segment_id,
    )
