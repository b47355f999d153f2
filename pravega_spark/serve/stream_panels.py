"""The panels of a stream's page: its details, retention, transactions, watermarks and storage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.stored_bytes import StorageInfo
from pravega_spark.engine.stream.time_marks import REMOVED_US, marks_of
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import known_watermarks
from pravega_spark.model import StreamCut, StreamInfo, TransactionInfo, Watermark, WriterMark
from pravega_spark.retention.explanation import RetentionExplanation, policy_text
from pravega_spark.serve.api_models import (
    RetentionAnswer,
    RetentionHolder,
    SegmentLoadRow,
    StorageAnswer,
    StorageRow,
    StreamDetails,
    StreamRow,
    TransactionRow,
    TransactionsPage,
    WatermarkRow,
    WatermarksPage,
)

SHOWN_MARKS: Final = 100
_Rates = dict[int, tuple[float, float]]


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
    events, size_bytes = rates.get(segment.number, (0.0, 0.0))
    return SegmentLoadRow(
        segment=str(segment),
        low=segment.key_range.low,
        high=segment.key_range.high,
        events=record.next_offset,
        size_bytes=record.size_bytes,
        events_per_second=round(events, 3),
        bytes_per_second=round(size_bytes, 1),
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
