"""How far a streaming query is behind the tails of its streams, under Kafka's metric names.

The query's last progress report says how far each source has read; the tails are looked up when
the lag is measured. So the lag of a query that was stopped, or that hangs, is measured as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.backlog import backlog, files, oldest_seconds
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidInput
from pravega_spark.spark.source_offsets import (
    StreamOffset,
    decode,
    find_record,
    owner_of,
    present,
)
from pravega_spark.values.times import iso_time
from pravega_spark.values.units import age_text, count_text, size_text

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Progress = Mapping[str, Any]
"""A progress report as PySpark has it, or its JSON."""


@dataclass(frozen=True, slots=True)
class QuerySegmentLag:
    """What a query has still to read of one segment: no events if it is at the end."""

    stream: str
    segment_id: int
    events: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LagMetrics:
    """How far a source or a query is behind the tails.

    ``segments`` are those that it reads at present and later ones with events. ``backlog_files``
    is the number of files that hold the events behind. The offsets behind are those of a segment.
    """

    segments: tuple[QuerySegmentLag, ...]
    backlog_files: int

    @property
    def min_offsets_behind_latest(self) -> int:
        """Events behind in the segment with the fewest."""
        return min((segment.events for segment in self.segments), default=0)

    @property
    def max_offsets_behind_latest(self) -> int:
        """Events behind in the segment with the most."""
        return max((segment.events for segment in self.segments), default=0)

    @property
    def avg_offsets_behind_latest(self) -> float:
        """Average of the events behind over the segments."""
        return self.backlog_records / max(1, len(self.segments))

    @property
    def backlog_records(self) -> int:
        """Events behind in all segments."""
        return sum(segment.events for segment in self.segments)

    @property
    def backlog_bytes(self) -> int:
        """Payload bytes of the events behind."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def backlog_seconds(self) -> float:
        """Age of the oldest event behind, by its timestamp; 0 if no event is behind.

        Negative if only events with times in the future are.
        """
        return oldest_seconds(segment.seconds for segment in self.segments)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics under the names of Kafka's source and of Databricks."""
        return {
            "minOffsetsBehindLatest": self.min_offsets_behind_latest,
            "maxOffsetsBehindLatest": self.max_offsets_behind_latest,
            "avgOffsetsBehindLatest": self.avg_offsets_behind_latest,
            "backlogRecords": self.backlog_records,
            "backlogBytes": self.backlog_bytes,
            "backlogSeconds": self.backlog_seconds,
            "backlogFiles": self.backlog_files,
        }


@dataclass(frozen=True, slots=True)
class SourceLag(LagMetrics):
    """How far one source of a query is behind; ``source`` is its index in the progress report."""

    source: int
    root: str


@dataclass(frozen=True, slots=True)
class QueryLag(LagMetrics):
    """How far a query was behind at the time ``measured``, from the end of a finished batch.

    ``progressed`` is the time at which that batch began. The lag counts up to the tails, even if
    the query's options end it earlier.
    """

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    progressed: datetime
    measured: datetime
    sources: tuple[SourceLag, ...]

    @property
    def age_seconds(self) -> float:
        """Seconds since the measurement."""
        return max(0.0, (datetime.now(timezone.utc) - self.measured).total_seconds())

    def __str__(self) -> str:
        behind = "nothing"
        if self.backlog_records:
            parts = f"{count_text(self.backlog_records, 'event')}", size_text(self.backlog_bytes)
            behind = ", ".join((*parts, age_text(self.backlog_seconds)))
        return f"query {self.name or self.query_id}, batch {self.batch_id}: {behind} behind"


def query_lag(query: StreamingQuery, *, root: str | None = None) -> QueryLag | None:
    """Return how far a query is behind now; None before its first progress report.

    The query may have ended. ``root`` is needed for offsets of old versions, which do not name
    their root. Costs a few reads of each stream's log in the calling process. Raises InvalidInput
    if the query reads no stream of this package, and NoSuchStream or StaleIdentity if a stream was
    deleted or created again.
    """
    progress = query.lastProgress
    return None if progress is None else lag_of(progress, root=root)


def lag_of(progress: Progress, *, root: str | None = None) -> QueryLag:
    """Return how far the query of a progress report is behind now; see :func:`query_lag`."""
    sources = [
        _measure(number, record, root)
        for number, source in enumerate(progress["sources"])
        if (record := find_record(source.get("endOffset"))) is not None
    ]
    if not sources:
        raise InvalidInput(
            f"query {progress.get('name') or progress['id']} reads no stream of pravega_spark, or "
            "has not finished a batch: its progress report has no offset of one."
        )
    return QueryLag(
        segments=tuple(segment for source in sources for segment in source.segments),
        backlog_files=sum(source.backlog_files for source in sources),
        query_id=str(progress["id"]),
        run_id=str(progress["runId"]),
        name=progress.get("name"),
        batch_id=progress["batchId"],
        progressed=iso_time(progress["timestamp"]),
        measured=datetime.now(timezone.utc),
        sources=tuple(sources),
    )


def _measure(number: int, record: Progress, root: str | None) -> SourceLag:
    owner = owner_of(record)
    root = root if owner is None else owner.root
    if root is None:
        raise InvalidInput(
            "the query's offsets do not name their root, since an old version wrote them: pass "
            "the argument root, the folder or URL that holds the streams."
        )
    store, offsets = open_store(root), present(decode(record))
    found = in_rounds(store, lambda name: _stream_lag(store, name, offsets[name]), list(offsets))
    segments = tuple(segment for of_stream, _ in found for segment in of_stream)
    return SourceLag(
        segments, backlog_files=sum(count for _, count in found), source=number, root=root
    )


def _stream_lag(store: Store, name: str, offset: StreamOffset) -> tuple[list[QuerySegmentLag], int]:
    """Return the lag of each segment at or after an offset, and the number of files behind."""
    stream = open_stream(store, name)
    found = backlog(stream, offset.cut)
    lags = {segment_id: (0, 0, 0.0) for segment_id, at in offset.cut if at >= 0}
    for segment in found.segments:
        lag = len(segment.unread), segment.size_bytes, segment.seconds
        lags[segment.unread.segment_id] = lag
    segments = [QuerySegmentLag(name, s, *lag) for s, lag in sorted(lags.items())]
    return segments, files(stream, found)
