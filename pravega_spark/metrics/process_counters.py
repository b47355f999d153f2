"""Counts what this process does, as the engine reports it; no library of metrics is needed."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict

from pravega_spark.engine.runtime.observers import Observer, readers
from pravega_spark.engine.writing.process_exit import open_queues
from pravega_spark.metrics.catalog import APPEND_BUCKETS, HistogramValue, MetricValues
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.names import split_log, split_path

OTHERS = ("", "(others)")
"""The labels of the streams beyond the limit, together; no stream has such a name."""

_FROM_ZERO = ("pravega_writer_failed_events_total", "pravega_commit_races_lost_total")
"""Counters that writers show before their first event: Prometheus counts no first appearance."""

_Labels = tuple[str, ...]


class ProcessCounters(Observer):
    """Sums since it was made; thread-safe. The first ``max_streams`` streams have their own."""

    def __init__(self, max_streams: int) -> None:
        self._max = max_streams
        self._lock = new_lock()
        self._counts: dict[str, Counter[_Labels]] = defaultdict(Counter)
        self._buckets: dict[_Labels, list[int]] = {}
        self._seconds: Counter[_Labels] = Counter()
        self._known: dict[str, _Labels] = {}

    # The engine's reports

    def appended(self, stream: str, events: int, size_bytes: int, seconds: float) -> None:
        """Count a durable batch."""
        with self._lock:
            labels = self._written(stream, events, size_bytes)
            buckets = self._buckets.setdefault(labels, [0] * (len(APPEND_BUCKETS) + 1))
            buckets[bisect_left(APPEND_BUCKETS, seconds)] += 1
            self._seconds[labels] += seconds  # type: ignore[assignment]

    def transactions_committed(self, stream: str, events: int, size_bytes: int) -> None:
        """Count the events of transactions."""
        with self._lock:
            self._written(stream, events, size_bytes)

    def append_failed(self, stream: str, events: int) -> None:
        """Count lost events."""
        with self._lock:
            self._counts["pravega_writer_failed_events_total"][self._labels(stream)] += events

    def events_read(self, stream: str, events: int, size_bytes: int) -> None:
        """Count events that were read."""
        with self._lock:
            labels = self._labels(stream)
            self._counts["pravega_reader_events_total"][labels] += events
            self._counts["pravega_reader_bytes_total"][labels] += size_bytes

    def committed(self, path: str, operation: str) -> None:
        """Count a commit."""
        with self._lock:
            labels = *self._labels_of_path(path), operation
            self._counts["pravega_commits_total"][labels] += 1

    def race_lost(self, path: str) -> None:
        """Count a lost race."""
        with self._lock:
            labels = self._labels_of_path(path)
            self._counts["pravega_commit_races_lost_total"][labels] += 1

    def call_repeated(self, url: str) -> None:
        """Count a repeated call."""
        with self._lock:
            self._counts["pravega_storage_retries_total"][(url,)] += 1

    def _written(self, stream: str, events: int, size_bytes: int) -> _Labels:
        labels = self._labels(stream)
        self._counts["pravega_writer_events_total"][labels] += events
        self._counts["pravega_writer_bytes_total"][labels] += size_bytes
        return labels

    def _labels(self, stream: str) -> _Labels:
        return self._limited(stream, split_log(stream))

    def _labels_of_path(self, path: str) -> _Labels:
        labels = split_path(path)
        return self._limited("/".join(labels), labels)

    def _limited(self, name: str, labels: _Labels) -> _Labels:
        """Return the labels of a name that is known, or the common ones if there are too many."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= self._max:
                return OTHERS
            known = self._known[name] = labels
        return known

    # Reading

    def values(self) -> MetricValues:
        """Return the sums, and the state of the open writers and readers."""
        values = MetricValues()
        with self._lock:
            for name, counts in self._counts.items():
                for labels, count in counts.items():
                    values.set(name, count, *labels)
            for labels, buckets in self._buckets.items():
                found = HistogramValue(APPEND_BUCKETS, tuple(buckets), self._seconds[labels])
                values.set("pravega_writer_append_seconds", found, *labels)
            self._set_gauges(values)
            for labels in {*self._buckets, *values.labels("pravega_writers")}:
                for name in _FROM_ZERO:
                    if values.get(name, *labels) is None:
                        values.set(name, 0, *labels)
        return values

    def _set_gauges(self, values: MetricValues) -> None:
        sums: dict[str, Counter[_Labels]] = defaultdict(Counter)
        for queue in open_queues():
            labels = self._labels(queue.name)
            writes, size_bytes = queue.outstanding
            sums["pravega_writers"][labels] += 1
            sums["pravega_writer_outstanding_writes"][labels] += writes
            sums["pravega_writer_outstanding_bytes"][labels] += size_bytes
        lags = sums["pravega_reader_lag_events"]
        for reader in readers():
            try:
                found, names = reader.known_lag(), reader.observed_as
            except Exception:  # its thread works on in this moment; the next scrape sees it
                continue
            for stream, events in found.items():
                labels = *names, *self._labels(stream)
                lags[labels] = max(lags[labels], events)
        for name, counts in sums.items():
            for labels, count in counts.items():
                values.set(name, count, *labels)
