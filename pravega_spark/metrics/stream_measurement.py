"""Measures one stream for metrics: from its newest version, and one small object beside its log.

Events, splits and merges of a stream are counted over its whole life. What a truncation dropped
from the log's state is in the stream's history, which is read once, and again only after a
truncation that dropped more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

from pravega_spark.engine.log.swept_totals import read_swept
from pravega_spark.engine.stream.commit_time import clock_ahead_seconds, committed_ms
from pravega_spark.engine.stream.epoch_history import epochs_between
from pravega_spark.engine.stream.history_table import read_history
from pravega_spark.engine.stream.records import OUTCOME_PREFIX, SEGMENT_PREFIX, decode_segment
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import known_watermarks
from pravega_spark.metrics.metric_values import MetricValues
from pravega_spark.model import FileTotals, segment_epoch
from pravega_spark.names import split_log
from pravega_spark.transactions.transaction_lifecycle import ASKED_BY_APPLICATION

JUMP_COMMITS = 1_024
"""A measurement that is further behind a log than this opens it again, instead of reading on."""
OUTCOMES = ("committed", "aborted", "swept")


@dataclass(frozen=True, slots=True)
class DroppedTotals:
    """What a life of a stream had before the oldest epoch that its log's state keeps."""

    life: int
    oldest_epoch: int
    events: int
    splits: int
    merges: int


def dropped_totals(
    stream: StreamLog, view: StreamView, known: DroppedTotals | None
) -> DroppedTotals:
    """Return the totals; the history is read unless ``known`` holds for the view, too."""
    if known is not None and (known.life, known.oldest_epoch) == (view.life, view.oldest_epoch):
        return known
    if view.epoch(view.oldest_epoch).created_ms <= view.record.created_ms:
        return DroppedTotals(view.life, view.oldest_epoch, 0, 0, 0)
    epochs = epochs_between(stream, view, end=view.oldest_epoch - 1)
    first = epochs[0].number if epochs else view.oldest_epoch
    ends = dict[int, int]()
    for rows in read_history(stream, "segment"):
        for row in rows:  # by falling versions: what was appended last counts
            segment_id = int(row.name.removeprefix(SEGMENT_PREFIX))
            is_of_life = segment_epoch(segment_id) >= first and not view.has_segment(segment_id)
            if is_of_life and segment_id not in ends:
                ends[segment_id] = decode_segment(segment_id, row.value).next_offset
    splits, merges = sum(e.splits for e in epochs), sum(e.merges for e in epochs)
    return DroppedTotals(view.life, view.oldest_epoch, sum(ends.values()), splits, merges)


def measure_stream(
    stream: StreamLog, values: MetricValues, known: DroppedTotals | None = None
) -> tuple[StreamView, DroppedTotals]:
    """Set the values of a stream; return its newest view, and what was dropped before that.

    Costs three storage calls, however many events there are, and one for each commit since the
    last measurement: at most some JUMP_COMMITS, since beyond the log is opened again from
    its newest state file. Raises NoSuchStream, and errors of damage.
    """
    log, seen = stream.log, stream.log.snapshot
    if seen is not None and log.reader.hint().newest - seen.version > JUMP_COMMITS:
        log.forget()
    log.expect_files()

    def measured(view: StreamView) -> tuple[StreamView, int, FileTotals]:
        size = stream.readable_bytes(view)
        with log.files() as files:
            return view, size, files.totals()

    view, size, files = stream.on_newest(measured, view=begun_view(stream))
    dropped = dropped_totals(stream, view, known)
    put = partial(_put, values, split_log(stream.name))
    _measure_amounts(view, size, dropped, put)
    put("last_commit_timestamp_seconds", committed_ms(stream, view) / 1_000)
    put("clock_ahead_seconds", clock_ahead_seconds(stream, view))
    put("files", files.files)
    put("files_bytes", files.size_bytes)
    swept = read_swept(log)
    put("swept_files_total", swept.files)
    put("swept_bytes_total", swept.size_bytes)
    _measure_transactions(view, put)
    put("subscribers", len(view.subscribers))
    for watermark in known_watermarks(view)[-1:]:
        put("watermark_lower_timestamp_seconds", watermark.lower_us / 1e6)
        put("watermark_upper_timestamp_seconds", watermark.upper_us / 1e6)
    return view, dropped


def _put(
    values: MetricValues, stream: tuple[str, str], name: str, value: float, *labels: str
) -> None:
    values.set(f"pravega_stream_{name}", value, *stream, *labels)


def _measure_amounts(
    view: StreamView, size: int, dropped: DroppedTotals, put: partial[None]
) -> None:
    record, configuration = view.record, view.record.configuration
    retention = "none" if configuration.retention is None else configuration.retention.type.value
    put("info", 1, record.state.value, configuration.scaling.type.value, retention)
    put("segments", len(view.active.segments))
    kept = [view.epoch(n) for n in range(view.oldest_epoch, record.active_epoch + 1)]
    put("segment_splits_total", dropped.splits + sum(epoch.splits for epoch in kept))
    put("segment_merges_total", dropped.merges + sum(epoch.merges for epoch in kept))
    ids = (int(n.removeprefix(SEGMENT_PREFIX)) for n in view.snapshot.names(SEGMENT_PREFIX))
    written = dropped.events + sum(view.segment(segment_id).next_offset for segment_id in ids)
    events = view.located_head.events_to(view.located_tail)
    put("written_events_total", written)
    put("written_bytes_total", view.total_bytes)
    put("events", events)
    put("size_bytes", size)
    put("truncated_events_total", written - events)
    put("truncated_bytes_total", view.total_bytes - size)
    if record.truncation is not None:
        put("last_truncation_timestamp_seconds", record.truncation.time_ms / 1_000)
    put("version", view.version)


def _measure_transactions(view: StreamView, put: partial[None]) -> None:
    put("open_transactions", len(view.transactions))
    if view.transactions:
        oldest_ms = min(opened.created_ms for opened in view.transactions.values())
        put("oldest_transaction_timestamp_seconds", oldest_ms / 1_000)
    counts = Counter[str]()
    for domain in view.snapshot.names(OUTCOME_PREFIX):
        outcome = view.outcome(domain.removeprefix(OUTCOME_PREFIX))
        if outcome is not None:
            ended = "aborted" if outcome.reason == ASKED_BY_APPLICATION else "swept"
            counts["committed" if outcome.committed else ended] += 1
    for name in OUTCOMES:
        put("recent_transactions", counts[name], name)
