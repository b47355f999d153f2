"""How many events and bytes lie between two cuts of a stream, and how old the oldest event is."""

from __future__ import annotations

from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import SegmentRange, StreamCut
from pravega_spark.retention.cut_bounds import lower_bound_of
from pravega_spark.retention.explanation import DataAmount
from pravega_spark.retention.retention_set import LogRetentionSet
from pravega_spark.retention.truncation_inputs import RetentionEntry


class StreamAmounts:
    """Amounts at one version of a stream; remembers sizes, so that few chunks are read."""

    @classmethod
    def read(cls, stream: StreamLog, view: StreamView, ages: VersionAges) -> StreamAmounts:
        """Return the amounts of a version, at the time of ``ages``; reads nothing yet."""
        return cls(stream, view, LogRetentionSet(stream, view, ages), ages.now_ms)

    def __init__(
        self, stream: StreamLog, view: StreamView, entries: LogRetentionSet, now_ms: int
    ) -> None:
        """Take the sizes that the version's records name; reads nothing."""
        self._stream = stream
        self._view = view
        self.entries = entries
        self._now_ms = now_ms
        self._ages = dict[tuple[StreamCut, StreamCut], float]()
        self._sizes = dict[tuple[int, int], int]()
        for record in view.subscribers:
            if record.bound is not None:
                for segment_id, size in record.bound.sizes.items():
                    self._sizes[segment_id, record.bound.positions[segment_id]] = size

    def bytes_at(self, segment_id: int, offset: int) -> int:
        """Return the bytes of a segment before an offset, from records where they name them."""
        found = self._sizes.get((segment_id, offset))
        if found is None:
            found = self.entries.sizes.get((segment_id, offset))
        if found is None:
            found = self._stream.bytes_at(segment_id, offset, self._view)
            self._sizes[segment_id, offset] = found
        return found

    def offset_after(self, segment_id: int, start: int, end: int, size_bytes: int) -> int:
        """Return the first offset of a range with at least these bytes of the segment before it."""
        rng = SegmentRange(self._stream.name, self._view.life, segment_id, start, end)
        offset, size = self._stream.offset_after(rng, size_bytes)
        self._sizes[segment_id, offset] = size
        return offset

    def amount(self, start: LocatedCut, end: LocatedCut | None = None) -> DataAmount:
        """Return the amount of data between two cuts; without ``end``, up to the tail."""
        events = start.events_to(end or self._view.located_tail)
        if not events:
            return DataAmount()
        size_bytes = start.bytes_to(end or self._view.located_tail, self.bytes_at)
        return DataAmount(events, size_bytes, self.age_seconds(start, end))

    def age_seconds(self, start: LocatedCut, end: LocatedCut | None = None) -> float:
        """Return the age of the oldest event between two cuts; without ``end``, up to the tail.

        Where a scale made an entry and no event lies between, the entry passes: cuts are compared
        in the one form that a position has, in which successors replace finished segments.
        """
        key = start.cut, self._view.tail if end is None else end.cut
        first = start.canonical()

        def is_passed(entry: RetentionEntry) -> bool:
            reached = locate(self._view, entry.cut)
            return first.is_at_or_after(reached if end is None else lower_bound_of((reached, end)))

        if key not in self._ages:
            _, after = self.entries.partition(is_passed)
            since_ms = self._now_ms if after is None else self.entries.written_ms(after)
            self._ages[key] = (self._now_ms - since_ms) / 1_000
        return self._ages[key]
