"""A listener that measures the lag of a session's streaming queries at every progress report."""

from __future__ import annotations

from collections import deque
from typing import Any

import pyarrow as pa

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.spark.jvm.run_listener import Progress, RunListener
from pravega_spark.spark.monitor.query_lag import QueryLag, SourceLag, lag_of
from pravega_spark.values.limits import LAG_HISTORY_BATCHES

logger = own_logger(__name__)

_HISTORY_SCHEMA = pa.schema(
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


class _RunLag:
    """Measures one run at every report and while it is idle, from its last report."""

    def __init__(self, listener: StreamLagListener) -> None:
        self._listener = listener
        self._progress: Progress = {}

    def progressed(self, progress: Progress) -> None:
        self._progress = progress
        self.idled()

    def idled(self) -> None:
        """Measure again: an idle query can fall behind."""
        self._listener._measure(self._progress)

    def ended(self) -> None:
        """Keep the measurements."""

    def abandoned(self) -> None:
        """Leave what was not measured."""

    def seconds_left(self) -> None:
        """Measure by events alone."""


class StreamLagListener(RunListener):
    """Measures the lag of each query of a session at every progress report, and while it is idle.

    Add it by ``spark.streams.addListener(listener)``. A thread for each query that has not ended
    measures it soon after Spark's report. Measurements are kept when a query ends. The listener
    never fails a query, or holds it: it logs a lag that it cannot measure. Thread-safe.
    """

    def __init__(self, *, root: str | None = None, history: int = LAG_HISTORY_BATCHES) -> None:
        """Keep the last ``history`` measurements; ``root`` is that of :func:`query_lag`."""
        super().__init__(history)
        self._root = root
        self._lock = new_lock()
        self._limit = history
        self._history: deque[QueryLag] = deque(maxlen=history)
        self._latest: dict[str, QueryLag] = {}

    @property
    def latest(self) -> tuple[QueryLag, ...]:
        """The last measurement of each query, the newest one last."""
        with self._lock:
            return tuple(self._latest.values())

    @property
    def history(self) -> tuple[QueryLag, ...]:
        """The kept measurements, oldest first."""
        with self._lock:
            return tuple(self._history)

    def find(self, query: str) -> QueryLag | None:
        """Return the last measurement of a query by its name, id or run id; None if unknown."""
        known = reversed(self.latest)
        return next((q for q in known if query in (q.name, q.query_id, q.run_id)), None)

    def to_arrow(self) -> pa.Table:
        """Return the history as a table for ``spark.createDataFrame``, one row per source."""
        rows = [_row(lag, source) for lag in self.history for source in lag.sources]
        return pa.Table.from_pylist(rows, schema=_HISTORY_SCHEMA)

    def _reports_of(self, run: str) -> _RunLag:
        return _RunLag(self)

    def _measure(self, progress: Progress) -> None:
        try:
            lag = lag_of(progress, root=self._root)
        except Exception:  # Spark must not fail for it
            logger.warning(
                "failed to measure the lag of query %s",
                progress["id"],
                exc_info=True,
                extra=log_fields("measure lag", query=progress["id"]),
            )
            return
        logger.info("%s", lag, extra=log_fields("measure lag", query=lag.query_id))
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
