"""What the page shows of streams: commits, segments over time, panels, and groups.

The picture of a stream's segments over time: boxes of keys by time, as Pravega's papers draw it.
Epochs come from the state and the stream's history; how many events a segment had, from its record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pravega_spark.config.descriptions import (
    StreamInfo,
    TransactionInfo,
    Watermark,
    WriterMark,
)
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream.epoch_history import epochs_between
from pravega_spark.engine.stream.stored_bytes import StorageInfo
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import REMOVED_US, known_watermarks, marks_of
from pravega_spark.retention.explanation import RetentionExplanation, policy_text
from pravega_spark.serve.api_models import (
    CommitRow,
    HistoryPage,
    PictureEpoch,
    PictureSegment,
    RetentionAnswer,
    RetentionHolder,
    SegmentLoadRow,
    SegmentPicture,
    StorageAnswer,
    StorageRow,
    StreamDetails,
    StreamRow,
    TransactionRow,
    TransactionsPage,
    WatermarkRow,
    WatermarksPage,
)
from pravega_spark.values.segments import Epoch, Segment, StreamCut

SCANNED_COMMITS: Final = 256
"""The most commits that an answer reads."""
_MERGED: Final = frozenset({"APPEND"})
_SHOWN_TEXT: Final = 2_000


def commit_history(log: StreamLog, view: StreamView, before: int | None, limit: int) -> HistoryPage:
    """Return up to ``limit`` rows of commits below the version ``before``, the newest first.

    Only commits that the log still has; ``next`` is None at the oldest one.
    """
    last = view.version if before is None else min(before - 1, view.version)
    oldest = view.snapshot.commit_deletion_mark
    first = max(oldest, last - SCANNED_COMMITS + 1)
    if last < first:
        return HistoryPage(commits=[], next=None)
    found = list(log.log.reader.span(first - 1, last, light=True))
    rows: list[CommitRow] = []
    for commit in reversed(found):
        row = _commit_row(commit)
        if rows and row.operation in _MERGED and rows[-1].operation == row.operation:
            rows[-1] = _merged(rows[-1], row)
        elif len(rows) == limit:
            break
        else:
            rows.append(row)
    reached = rows[-1].first_version
    return HistoryPage(commits=rows, next=reached if reached > oldest else None)


def _commit_row(commit: Commit) -> CommitRow:
    info = commit.info
    metrics = info.get("operationMetrics") or {}
    parameters = info.get("operationParameters") or {}
    return CommitRow(
        version=commit.version,
        first_version=commit.version,
        time_ms=commit.timestamp_ms,
        operation=commit.operation,
        commits=1,
        events=_whole(metrics.get("numOutputRows")),
        size_bytes=_whole(metrics.get("numOutputBytes")),
        parameters={name: _value(value) for name, value in parameters.items()},
        user=info.get("userName"),
    )


def _merged(newer: CommitRow, older: CommitRow) -> CommitRow:
    """Return two rows as one; of their parameters only equal ones stay."""
    same = {n: v for n, v in newer.parameters.items() if older.parameters.get(n) == v}
    return newer.model_copy(
        update={
            "first_version": older.first_version,
            "commits": newer.commits + older.commits,
            "events": newer.events + older.events,
            "size_bytes": newer.size_bytes + older.size_bytes,
            "parameters": same,
        }
    )


def _value(text: Any) -> Any:
    """Return a parameter, which Delta keeps as JSON in a text."""
    if not isinstance(text, str):
        return text
    if len(text) > _SHOWN_TEXT:
        return f"{text[:_SHOWN_TEXT]}..."
    try:
        return json.loads(text)
    except ValueError:
        return text


def _whole(text: Any) -> int:
    return int(text) if isinstance(text, (int, str)) and str(text).isdigit() else 0


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


SHOWN_MARKS: Final = 100
_Rates = dict[int, tuple[float, float]] | None


def stream_details(
    row: StreamRow, view: StreamView, info: StreamInfo, rates: _Rates
) -> StreamDetails:
    """Return a stream's row with its configuration, cuts, files and active segments."""
    record = view.record
    configuration, truncation = record.configuration, record.truncation
    policy = configuration.encryption
    return StreamDetails(
        row=row,
        life=view.life,
        scaling=configuration.scaling.to_json(),
        retention=policy_text(configuration.retention),
        settings={name: str(value) for name, value in configuration.settings.items()},
        encryption_key=None if policy is None else policy.key,
        head=str(view.head),
        tail=str(view.tail),
        truncated_ms=None if truncation is None else truncation.time_ms,
        truncated_by=None if truncation is None else truncation.by,
        files=info.files.files,
        file_bytes=info.files.size_bytes,
        segments=[_load(view, s.segment_id, rates) for s in view.active.segments],
    )


def _load(view: StreamView, segment_id: int, rates: _Rates) -> SegmentLoadRow:
    segment = view.active.segment(segment_id)
    assert segment is not None, f"segment {segment_id} is active"
    record = view.segment(segment_id)
    rate = None if rates is None else rates.get(segment.number, (0.0, 0.0))
    return SegmentLoadRow(
        segment=str(segment),
        low=segment.key_range.low,
        high=segment.key_range.high,
        events=record.next_offset,
        size_bytes=record.size_bytes,
        events_per_second=None if rate is None else round(rate[0], 3),
        bytes_per_second=None if rate is None else round(rate[1], 1),
    )


def retention_answer(found: RetentionExplanation) -> RetentionAnswer:
    """Return what a run of retention would do."""
    return RetentionAnswer(
        policy=policy_text(found.policy),
        decision=found.rule.value,
        goes_events=found.goes.events,
        goes_bytes=found.goes.size_bytes,
        stays_events=found.stays.events,
        stays_bytes=found.stays.size_bytes,
        stays_seconds=found.stays.seconds,
        holders=[
            RetentionHolder(
                holder=claim.holder,
                cut=str(claim.cut),
                events=claim.holds.events,
                size_bytes=claim.holds.size_bytes,
                seconds=claim.holds.seconds,
            )
            for claim in found.claims
        ],
        loses=[str(passed) for passed in found.passed],
        idle=list(found.idle),
        overdue=found.overdue,
    )


def transactions_page(
    opened: Iterable[TransactionInfo], completed: list[TransactionInfo], offset: int, limit: int
) -> TransactionsPage:
    """Return the open transactions, and a part of the completed ones, which are newest first."""
    return TransactionsPage(
        open=[_transaction(info) for info in opened],
        completed=[_transaction(info) for info in completed[offset : offset + limit]],
        total_completed=len(completed),
    )


def _transaction(info: TransactionInfo) -> TransactionRow:
    return TransactionRow(
        transaction=info.transaction_id,
        status=info.status.value,
        writer=info.writer_id,
        created_ms=info.created_ms,
        ended_ms=info.ended_ms or None,
        events=info.events,
        size_bytes=info.size_bytes,
        reason=info.reason,
    )


def watermarks_page(view: StreamView) -> WatermarksPage:
    """Return the newest watermarks, the newest first, and the marks of writers."""
    known = [*reversed(known_watermarks(view))][:SHOWN_MARKS]
    marks = [mark for mark in marks_of(view) if mark.time_us != REMOVED_US]
    return WatermarksPage(
        watermarks=[_watermark(view, found) for found in known],
        writers=[_mark(view, mark) for mark in marks[:SHOWN_MARKS]],
    )


def _watermark(view: StreamView, found: Watermark) -> WatermarkRow:
    return WatermarkRow(
        kind="present" if found.version is None else "recorded",
        writer=None,
        is_alive=None,
        lower_us=found.lower_us,
        upper_us=found.upper_us,
        cut=str(found.cut),
        events=_events_after(view, found.cut),
    )


def _mark(view: StreamView, mark: WriterMark) -> WatermarkRow:
    return WatermarkRow(
        kind="writer",
        writer=mark.writer_id,
        is_alive=mark.is_alive,
        lower_us=mark.time_us,
        upper_us=mark.time_us,
        cut=str(mark.cut),
        events=_events_after(view, mark.cut),
    )


def _events_after(view: StreamView, cut: StreamCut) -> int:
    return locate(view, cut).above_head().events_to(view.located_tail)


def storage_answer(found: StorageInfo) -> StorageAnswer:
    """Return what a stream stores."""
    total = found.total
    return StorageAnswer(
        parts=[
            StorageRow(
                kind=part.kind.value,
                files=part.files,
                size_bytes=part.size_bytes,
                reason=part.reason,
                deletable_ms=part.deletable_ms,
            )
            for part in found.parts
        ],
        files=total.files,
        size_bytes=total.size_bytes,
    )
