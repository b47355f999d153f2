"""How far streaming queries are behind their streams, in Kafka's words and in Databricks'.

A query's last progress names where each source has come to; the newest tails are looked up when
somebody asks. So a query that was stopped, or that hangs, is told as well as one that runs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pravega_spark.engine.stream.backlog import backlog, files
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import InvalidInput
from pravega_spark.retention.explanation import size_text, time_text
from pravega_spark.spark.source_offsets import StreamOffset, decode, find_record, owner_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryListener,
    )
    from pyspark.sql.streaming.query import StreamingQuery

else:
    try:
        from pyspark.sql.streaming.listener import StreamingQueryListener
    except ImportError:  # without Spark there is no query to listen to, but the names are there
        StreamingQueryListener = object

logger = logging.getLogger(__name__)

HISTORY = 1_000
"""Progresses that a listener remembers, unless told."""

Progress = Mapping[str, Any]
"""A progress as Spark's Python has it, or its JSON."""


@dataclass(frozen=True, slots=True)
class SegmentLagRow:
    """What a query has still to read of one segment: nothing, of one that it is at the end of."""

    stream: str
    segment_id: int
    events: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LagSummary:
    """How far something is behind the tails; ``backlog_files`` hold the events behind.

    ``segments`` are those that it is at, and those further on with events. Offsets behind are
    events, of one segment.
    """

    segments: tuple[SegmentLagRow, ...]
    backlog_files: int

    @property
    def min_offsets_behind_latest(self) -> int:
        """Events behind, of the segment with the least."""
        return min((segment.events for segment in self.segments), default=0)

    @property
    def max_offsets_behind_latest(self) -> int:
        """Events behind, of the segment with the most."""
        return max((segment.events for segment in self.segments), default=0)

    @property
    def avg_offsets_behind_latest(self) -> float:
        """Events behind, of a segment on average."""
        return self.backlog_records / max(1, len(self.segments))

    @property
    def backlog_records(self) -> int:
        """Events behind."""
        return sum(segment.events for segment in self.segments)

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the events behind, as they were written."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def backlog_seconds(self) -> float:
        """The age of the oldest event behind, by its timestamp; 0 if there is none."""
        return max((segment.seconds for segment in self.segments), default=0.0)

    @property
    def metrics(self) -> dict[str, float]:
        """The figures by the names that Kafka's source and Databricks give them."""
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
class SourceLag(LagSummary):
    """How far one source of a query is behind; ``source`` is its place in the progress."""

    source: int
    root: str


@dataclass(frozen=True, slots=True)
class QueryLag(LagSummary):
    """How far a query was behind, when ``measured``, from where a progress left its sources.

    ``progressed`` is when the batch of that progress began. What is behind counts up to the
    tails, whatever the query's end options say.
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
        """How long ago this was measured."""
        return max(0.0, (datetime.now(timezone.utc) - self.measured).total_seconds())

    def __str__(self) -> str:
        """Tell it as people read it."""
        behind = "nothing"
        if self.backlog_records:
            parts = f"{self.backlog_records:,} events", size_text(self.backlog_bytes)
            behind = ", ".join((*parts, time_text(self.backlog_seconds)))
        return f"query {self.name or self.query_id}, batch {self.batch_id}: {behind} behind"


def query_lag(query: StreamingQuery, *, root: str | None = None) -> QueryLag | None:
    """Return how far a query is behind now; None before its first progress.

    The query may have ended. ``root`` is for checkpoints of before offsets named their root. Costs
    a few reads of each stream's log, by the process that asks. Raises InvalidInput for a query
    without a source of ours, NoSuchStream and StaleIdentity for a stream that is gone.
    """
    progress = query.lastProgress
    return None if progress is None else lag_of(progress, root=root)


def lag_of(progress: Progress, *, root: str | None = None) -> QueryLag:
    """Return how far the query of a progress, or of its JSON, is behind now; see `query_lag`."""
    sources = [
        _measure(number, record, root)
        for number, source in enumerate(progress["sources"])
        if (record := find_record(source.get("endOffset"))) is not None
    ]
    if not sources:
        raise InvalidInput(
            f"query {progress.get('name') or progress['id']} reads no stream of pravega_spark, or "
            "has not begun: its progress names no offset of one."
        )
    return QueryLag(
        tuple(segment for source in sources for segment in source.segments),
        sum(source.backlog_files for source in sources),
        str(progress["id"]),
        str(progress["runId"]),
        progress.get("name"),
        progress["batchId"],
        _time(progress["timestamp"]),
        datetime.now(timezone.utc),
        tuple(sources),
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _measure(number: int, record: Progress, root: str | None) -> SourceLag:
    owner = owner_of(record)
    root = root if owner is None else owner.root
    if root is None:
        raise InvalidInput(
            "the query's offsets are of before they named their root: say where the streams are, "
            "by the argument root."
        )
    segments: list[SegmentLagRow] = []
    count = 0
    for name, offset in decode(record).items():
        found, behind = _of_stream(root, name, offset)
        segments += found
        count += behind
    return SourceLag(tuple(segments), count, number, root)


def _of_stream(root: str, name: str, offset: StreamOffset) -> tuple[list[SegmentLagRow], int]:
    """Return the segments that the offset is in, and those behind it, and how many files."""
    stream = open_stream(root, name)
    found = backlog(stream, offset.cut)
    places = {segment_id: (0, 0, 0.0) for segment_id, mark in offset.cut if mark >= 0}
    for segment in found.segments:
        behind = len(segment.unread), segment.size_bytes, segment.seconds
        places[segment.unread.segment_id] = behind
    segments = [SegmentLagRow(name, s, *behind) for s, behind in sorted(places.items())]
    return segments, files(stream, found)


_ARROW = pa.schema(
    [
        ("queryId", pa.string()),
        ("runId", pa.string()),
        ("name", pa.string()),
        ("batchId", pa.int64()),
        ("source", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("measured", pa.timestamp("us", tz="UTC")),
        ("minOffsetsBehindLatest", pa.int64()),
        ("maxOffsetsBehindLatest", pa.int64()),
        ("avgOffsetsBehindLatest", pa.float64()),
        ("backlogRecords", pa.int64()),
        ("backlogBytes", pa.int64()),
        ("backlogSeconds", pa.float64()),
        ("backlogFiles", pa.int64()),
    ]
)


class StreamLagListener(StreamingQueryListener):
    """Measures the lag of every query of a session at each progress, and while it is idle.

    Add it by ``spark.streams.addListener(listener)``. What it knows stays when a query ends. It
    never fails a query: what cannot be measured is logged. Thread-safe.
    """

    def __init__(self, *, root: str | None = None, history: int = HISTORY) -> None:
        """Remember so many measurements; ``root`` is as for :func:`query_lag`."""
        self._root = root
        self._lock = threading.Lock()
        self._limit = history
        self._history: deque[QueryLag] = deque(maxlen=history)
        self._progress: dict[str, Progress] = {}
        self._latest: dict[str, QueryLag] = {}

    @property
    def latest(self) -> tuple[QueryLag, ...]:
        """The last measurement of each query, the newest one last; ``age_seconds`` is its age."""
        with self._lock:
            return tuple(self._latest.values())

    @property
    def history(self) -> tuple[QueryLag, ...]:
        """The measurements that are remembered, oldest first."""
        with self._lock:
            return tuple(self._history)

    def find(self, query: str) -> QueryLag | None:
        """Return the last measurement of a query, by its name, id or run id; None if unknown."""
        known = reversed(self.latest)
        return next((q for q in known if query in (q.name, q.query_id, q.run_id)), None)

    def to_arrow(self) -> pa.Table:
        """Return the history as a table, for ``spark.createDataFrame``: a row for each source."""
        rows = [_row(lag, source) for lag in self.history for source in lag.sources]
        return pa.Table.from_pylist(rows, schema=_ARROW)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Measure, and log it."""
        progress = event.progress
        if any(find_record(source.get("endOffset")) for source in progress["sources"]):
            with self._lock:
                self._progress[progress["runId"]] = progress
            self._measure(progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Measure again from the last progress: a query that waits may fall behind, too."""
        progress = self._progress.get(str(event.runId))
        if progress is not None:
            self._measure(progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep what was measured; it is not measured again."""
        with self._lock:
            self._progress.pop(str(event.runId), None)

    def _measure(self, progress: Progress) -> None:
        try:
            lag = lag_of(progress, root=self._root)
        except Exception:  # whatever it is, the query goes on
            logger.warning("lag of query %s cannot be measured", progress["id"], exc_info=True)
            return
        logger.info("%s", lag)
        with self._lock:
            self._history.append(lag)
            self._latest.pop(lag.query_id, None)
            self._latest[lag.query_id] = lag
            if len(self._latest) > self._limit:
                del self._latest[next(iter(self._latest))]


def _row(lag: QueryLag, source: SourceLag) -> dict[str, Any]:
    return {
        "queryId": lag.query_id,
        "runId": lag.run_id,
        "name": lag.name,
        "batchId": lag.batch_id,
        "source": source.source,
        "timestamp": lag.progressed,
        "measured": lag.measured,
        **source.metrics,
    }
