"""The picture of a stream's segments over time: boxes of keys by time, as Pravega's papers draw it.

Epochs come from the state and the stream's history; how many events a segment had, from its record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pravega_spark.engine.stream.epoch_history import epochs_between
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import Epoch, Segment
from pravega_spark.serve.api_models import PictureEpoch, PictureSegment, SegmentPicture

MAX_EPOCHS: Final = 200


def segment_picture(log: StreamLog, view: StreamView, limit: int = MAX_EPOCHS) -> SegmentPicture:
    """Return the newest ``limit`` epochs of a view as boxes, the oldest first."""
    every = epochs_between(log, view)
    epochs = every[-limit:]
    starts: dict[int, int] = {}
    for epoch in every:
        for segment in epoch.segments:
            starts.setdefault(segment.segment_id, epoch.created_ms)
    now_ms = log.now_ms()
    return SegmentPicture(
        now_ms=now_ms,
        start_ms=epochs[0].created_ms,
        epochs=[
            PictureEpoch(
                epoch=epoch.number,
                created_ms=epoch.created_ms,
                splits=epoch.splits,
                merges=epoch.merges,
                segments=len(epoch.segments),
            )
            for epoch in epochs
        ],
        segments=_boxes(view, epochs, starts, now_ms),
        omitted_epochs=len(every) - len(epochs),
    )


def _boxes(
    view: StreamView, epochs: Sequence[Epoch], starts: Mapping[int, int], now_ms: int
) -> list[PictureSegment]:
    ends: dict[int, int] = {}
    segments: dict[int, Segment] = {}
    open_ids: set[int] = set()
    for epoch in epochs:
        present = {segment.segment_id: segment for segment in epoch.segments}
        for segment_id in open_ids - present.keys():
            ends[segment_id] = epoch.created_ms
        segments |= present
        open_ids = set(present)
    if view.record.sealed_ms is not None:
        ends |= dict.fromkeys(open_ids, view.record.sealed_ms)
    return [_box(view, s, starts[i], ends.get(i), now_ms) for i, s in segments.items()]


def _box(
    view: StreamView, segment: Segment, start_ms: int, end_ms: int | None, now_ms: int
) -> PictureSegment:
    segment_id = segment.segment_id
    box = PictureSegment(
        segment=str(segment),
        low=segment.key_range.low,
        high=segment.key_range.high,
        start_ms=start_ms,
        end_ms=end_ms,
        events=None,
        size_bytes=None,
        readable_events=0,
        events_per_second=None,
        is_active=segment_id in view.active.segment_ids and end_ms is None,
    )
    if view.has_segment(segment_id):
        record = view.segment(segment_id)
        seconds = max(1.0, ((end_ms or now_ms) - start_ms) / 1_000)
        box.events, box.size_bytes = record.next_offset, record.size_bytes
        box.readable_events = record.next_offset - view.head_offset(segment_id)
        box.events_per_second = round(record.next_offset / seconds, 3)
    return box
