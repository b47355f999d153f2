"""Every metric: name, kind, labels, meaning, and the values that are measured.

The names are Prometheus': lower case, the unit last, ``_total`` for counters. The page
``docs/monitoring.md`` has these tables, and a test compares them. A name or label that was released
is never changed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final


class MetricKind(enum.Enum):
    """What Prometheus may do with the values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of this package; ``pravega`` is Pravega's name for it, empty if it has none."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str
    pravega: str = ""


_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_STREAM = ("scope", "stream")
_GROUP_STREAM = ("group", *_STREAM)

ROOT_METRICS: Final = (
    Metric("pravega_scopes", _GAUGE, (), "scopes of the root"),
    Metric("pravega_streams", _GAUGE, ("scope",), "streams of the scope"),
    Metric("pravega_reader_groups", _GAUGE, ("scope",), "reader groups of the scope"),
    Metric("pravega_key_value_tables", _GAUGE, ("scope",), "key-value tables of the scope"),
    Metric(
        "pravega_stream_info",
        _GAUGE,
        (*_STREAM, "state", "scaling", "retention"),
        "always 1; state and policies of the stream are its labels",
    ),
    Metric(
        "pravega_stream_segments",
        _GAUGE,
        _STREAM,
        "open segments",
        "controller.segments.count",
    ),
    Metric(
        "pravega_stream_segment_splits_total",
        _COUNTER,
        _STREAM,
        "splits of segments since the stream was created",
        "controller.segment.splits",
    ),
    Metric(
        "pravega_stream_segment_merges_total",
        _COUNTER,
        _STREAM,
        "merges of segments since the stream was created",
        "controller.segment.merges",
    ),
    Metric(
        "pravega_stream_written_events_total",
        _COUNTER,
        _STREAM,
        "events that were ever written, truncated ones included",
        "segmentstore.segment.write_events",
    ),
    Metric(
        "pravega_stream_written_bytes_total",
        _COUNTER,
        _STREAM,
        "bytes of the events that were ever written, as writers gave them",
        "segmentstore.segment.write_bytes",
    ),
    Metric("pravega_stream_events", _GAUGE, _STREAM, "events from the head to the tail"),
    Metric(
        "pravega_stream_size_bytes",
        _GAUGE,
        _STREAM,
        "bytes of the events from the head to the tail",
    ),
    Metric(
        "pravega_stream_truncated_events_total",
        _COUNTER,
        _STREAM,
        "events that truncations removed, by users and by retention",
    ),
    Metric(
        "pravega_stream_truncated_bytes_total",
        _COUNTER,
        _STREAM,
        "bytes of the events that truncations removed",
        "controller.retention.truncated_size",
    ),
    Metric(
        "pravega_stream_last_truncation_timestamp_seconds",
        _GAUGE,
        _STREAM,
        "time of the last truncation; absent without one",
        "controller.retention.frequency",
    ),
    Metric("pravega_stream_version", _GAUGE, _STREAM, "version of the stream's log"),
    Metric(
        "pravega_stream_last_commit_timestamp_seconds",
        _GAUGE,
        _STREAM,
        "time of the newest commit; that of its object if a clock was ahead",
    ),
    Metric(
        "pravega_stream_clock_ahead_seconds",
        _GAUGE,
        _STREAM,
        "how far the log's time lies in the future, since a host that committed had a wrong clock; "
        "else 0",
    ),
    Metric("pravega_stream_files", _GAUGE, _STREAM, "live files of the newest version"),
    Metric(
        "pravega_stream_files_bytes",
        _GAUGE,
        _STREAM,
        "bytes of the live files of the newest version, in the storage",
    ),
    Metric(
        "pravega_stream_swept_files_total", _COUNTER, _STREAM, "data files that sweeps have deleted"
    ),
    Metric(
        "pravega_stream_swept_bytes_total",
        _COUNTER,
        _STREAM,
        "bytes of the data files that sweeps have deleted",
    ),
    Metric(
        "pravega_stream_open_transactions",
        _GAUGE,
        _STREAM,
        "transactions without an outcome",
        "controller.transactions.opened",
    ),
    Metric(
        "pravega_stream_oldest_transaction_timestamp_seconds",
        _GAUGE,
        _STREAM,
        "when the oldest open transaction was begun; absent without one",
    ),
    Metric(
        "pravega_stream_recent_transactions",
        _GAUGE,
        (*_STREAM, "outcome"),
        "transactions whose outcome the log still keeps, for `keep_completed`: `committed`, "
        "`aborted` by the application, or `swept`: ended by others, as after its lease",
        "controller.transactions.committed, .aborted, .timedout",
    ),
    Metric("pravega_stream_subscribers", _GAUGE, _STREAM, "subscribers that hold data"),
    Metric(
        "pravega_stream_watermark_lower_timestamp_seconds",
        _GAUGE,
        _STREAM,
        "lower bound of the last watermark, as writers noted it; absent without one",
    ),
    Metric(
        "pravega_stream_watermark_upper_timestamp_seconds",
        _GAUGE,
        _STREAM,
        "upper bound of the last watermark; absent without one",
    ),
    Metric("pravega_group_readers", _GAUGE, ("group",), "readers of the group"),
    Metric(
        "pravega_group_unassigned_segments",
        _GAUGE,
        ("group",),
        "segments that no reader has",
    ),
    Metric(
        "pravega_group_lag_events",
        _GAUGE,
        _GROUP_STREAM,
        "events that the group has not read",
    ),
    Metric(
        "pravega_group_lag_bytes",
        _GAUGE,
        _GROUP_STREAM,
        "bytes that the group has not read; inside a chunk, in proportion to its events",
    ),
    Metric(
        "pravega_group_lag_seconds",
        _GAUGE,
        _GROUP_STREAM,
        "age of the oldest event that the group has not read, by its timestamp; inside a chunk, in "
        "proportion; 0 without any, negative if all are from the future",
    ),
    Metric(
        "pravega_maintenance_age_seconds",
        _GAUGE,
        ("kind", "scope"),
        "since the last finished run of this kind; absent before the first. `scope` is empty for "
        "runs over all scopes",
    ),
    Metric(
        "pravega_maintenance_overdue",
        _GAUGE,
        ("kind", "scope"),
        "1 if the last run, or without one the root, is older than several intervals",
    ),
    Metric(
        "pravega_maintenance_failed_streams",
        _GAUGE,
        ("kind", "scope"),
        "streams at which the last run failed",
    ),
    Metric("pravega_scrape_duration_seconds", _GAUGE, (), "how long the root was read"),
    Metric(
        "pravega_scrape_timestamp_seconds",
        _GAUGE,
        (),
        "when the root was read; scrapes within `cache` get the same values",
    ),
    Metric(
        "pravega_scrape_errors",
        _GAUGE,
        ("kind",),
        "what could not be read: `scope`, `stream`, `group`, `maintenance`; the log says why",
    ),
    Metric(
        "pravega_scrape_skipped",
        _GAUGE,
        ("kind",),
        "streams and groups beyond `max_streams`, which have no metrics",
    ),
)
"""Of a root, computed from its logs when it is scraped."""

PROCESS_METRICS: Final = (
    Metric(
        "pravega_writer_events_total",
        _COUNTER,
        _STREAM,
        "events that writers of the process made durable; those of transactions once a commit of "
        "the process makes them visible",
        "segmentstore.segment.write_events",
    ),
    Metric(
        "pravega_writer_bytes_total",
        _COUNTER,
        _STREAM,
        "bytes of these events",
        "segmentstore.segment.write_bytes",
    ),
    Metric(
        "pravega_writer_append_seconds",
        MetricKind.HISTOGRAM,
        _STREAM,
        "from the moment in which a thread takes a batch of writes until it is durable",
        "segmentstore.segment.write_latency_ms, client.segment.append_latency",
    ),
    Metric(
        "pravega_writer_failed_events_total",
        _COUNTER,
        _STREAM,
        "accepted events that could not be committed",
    ),
    Metric("pravega_writers", _GAUGE, _STREAM, "open writers of the process"),
    Metric(
        "pravega_writer_outstanding_writes",
        _GAUGE,
        _STREAM,
        "accepted writes that are not durable yet: the length of the queues",
        "client.segment.outstanding_append_count",
    ),
    Metric(
        "pravega_writer_outstanding_bytes",
        _GAUGE,
        _STREAM,
        "bytes of accepted writes that are not durable yet, as the writers' buffers count them",
    ),
    Metric(
        "pravega_reader_events_total",
        _COUNTER,
        _STREAM,
        "events that the process has read from the storage, for any purpose",
    ),
    Metric(
        "pravega_reader_bytes_total",
        _COUNTER,
        _STREAM,
        "bytes of the events that the process has read",
        "segmentstore.segment.read_bytes",
    ),
    Metric(
        "pravega_reader_lag_events",
        _GAUGE,
        ("group", "reader", *_STREAM),
        "events after a reader's position, by what the process knows of the stream; readers "
        "without a group have empty labels, and the furthest behind counts",
    ),
    Metric(
        "pravega_commits_total",
        _COUNTER,
        (*_STREAM, "operation"),
        "commits of the process, by the operation in the table's history; `stream` is empty for "
        "tables of a scope or the root",
        "controller.stream.created, .sealed, .deleted, .updated, .truncated, "
        "controller.transactions.created, .committed, .aborted",
    ),
    Metric(
        "pravega_commit_races_lost_total",
        _COUNTER,
        _STREAM,
        "commits that another process preceded, and that were decided again",
    ),
    Metric(
        "pravega_storage_retries_total",
        _COUNTER,
        ("root",),
        "calls of object stores that got no answer and were repeated",
    ),
)
"""Of the work of one process, counted since ``start_metrics``."""

METRICS: Final = {metric.name: metric for metric in (*ROOT_METRICS, *PROCESS_METRICS)}
"""Every metric, by its name."""

SCRAPE_CACHE: Final = "10 s"
"""Scrapes of a root within this time get the same values: several scrapers cost as much as one."""
MAX_MEASURED_STREAMS: Final = 1_000
"""Default of the streams, and of the reader groups, that have metrics: it bounds the series."""

APPEND_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of the histogram of appends, in seconds; a last one is infinite."""


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """Counts of a histogram: below each bound of its buckets (not cumulative), above, the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class MetricValues:
    """Values by metric and labels; the order of the catalog is kept when they are read."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float | HistogramValue]] = {}

    def set(self, name: str, value: float | HistogramValue, *labels: str) -> None:
        """Set the value of a metric for its labels, in the order of the catalog."""
        if len(labels) != len(METRICS[name].labels):
            raise AssertionError(f"{name} has the labels {METRICS[name].labels}, got {labels}")
        self._values.setdefault(name, {})[labels] = value

    def get(self, name: str, *labels: str) -> float | HistogramValue | None:
        """Return a value, or None."""
        return self._values.get(name, {}).get(labels)

    def labels(self, name: str) -> list[tuple[str, ...]]:
        """Return the labels of a metric's values."""
        return list(self._values.get(name, ()))

    def read(
        self, metrics: Sequence[Metric]
    ) -> Iterator[tuple[Metric, dict[tuple[str, ...], float | HistogramValue]]]:
        """Yield these metrics with their values by labels; also those without any."""
        for metric in metrics:
            yield metric, self._values.get(metric.name, {})

    def update(self, other: MetricValues) -> None:
        """Add the values of another measurement."""
        for name, values in other._values.items():
            self._values.setdefault(name, {}).update(values)
