"""Admission limits of a micro-batch: minimum and maximum events, and bytes, as Kafka's source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pravega_spark.engine.layout import read_plan
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import PACKED_BYTES, PACKED_ROWS
from pravega_spark.model import SegmentRange
from pravega_spark.spark.settings import ReadSettings

_FIRST_WINDOW_EVENTS = 65_536


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """One stream's share of a micro-batch; None is no limit."""

    max_events: int | None
    max_bytes: int | None

    def weight(self, view: StreamView, rng: SegmentRange) -> float:
        """Return what a range is of all that one task, or a batch of this share, may read.

        It counts with the mean size of its segment's events.
        """
        record = view.segment(rng.segment_id)
        size = record.size_bytes * len(rng) // record.next_offset
        rows_share = len(rng) / min(PACKED_ROWS, self.max_events or PACKED_ROWS)
        return max(rows_share, size / min(PACKED_BYTES, self.max_bytes or PACKED_BYTES))


UNLIMITED: Final = StreamLimit(None, None)


@dataclass(slots=True)
class ReadLimits:
    """The limits of one run of a query."""

    settings: ReadSettings
    clock: Callable[[], float]
    _admitted_at: float | None = None

    def must_wait(self, backlog: Mapping[str, int]) -> bool:
        """Tell whether to wait for minOffsetsPerTrigger events; the first batch never waits."""
        minimum = self.settings.min_events
        if minimum is None:
            return False
        now = self.clock()
        since = None if self._admitted_at is None else now - self._admitted_at
        early = since is not None and since * 1_000 < self.settings.max_trigger_delay_ms
        if early and sum(backlog.values()) < minimum:
            return True
        self._admitted_at = now
        return False

    def shares(self, backlog: Mapping[str, int]) -> dict[str, StreamLimit]:
        """Share the maximum events and bytes over the streams by backlog in events.

        Without a maximum the result is empty; a stream without a backlog has no share.
        """
        events, size = self.settings.max_events, self.settings.max_bytes
        if events is None and size is None:
            return {}
        behind = {name: count for name, count in backlog.items() if count}
        total = sum(behind.values())
        parts = {} if events is None else read_plan.share(dict(enumerate(behind.values())), events)
        return {
            name: StreamLimit(parts.get(i), None if size is None else max(1, size * count // total))
            for i, (name, count) in enumerate(behind.items())
        }


def events_within(
    stream: StreamLog, view: StreamView, segment_id: int, start: int, max_bytes: int
) -> int:
    """Return the offset up to which about ``max_bytes`` suffice, in proportion inside a chunk."""
    end = view.segment(segment_id).next_offset
    window, left, at = _FIRST_WINDOW_EVENTS, max_bytes, start
    while at < end:
        until = min(end, at + window)
        rng = SegmentRange(view.stream, view.life, segment_id, at, until)
        for ref in stream.chunks(rng):
            rows = ref.end - at
            size = ref.event_bytes * rows // ref.rows
            if size > left:
                return at + rows * left // size
            left, at = left - size, ref.end
        window *= 4
    return end
