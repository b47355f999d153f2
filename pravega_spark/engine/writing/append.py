"""Append: one commit gives staged chunks their offsets and records the writer's batch number.

The offset of a chunk follows from the snapshot that the commit builds on. A lost race costs new
JSON; data is rewritten only if a split sealed the chunk's segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.records import StreamState, WriterRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.batch_identity import BatchIdentity, NumberedBatch
from pravega_spark.engine.writing.reroute import Recuts, reroute
from pravega_spark.errors import (
    SegmentSealed,
    StagedTooLate,
    StreamSealed,
)
from pravega_spark.model import segment_text


class AppendedRange(NamedTuple):
    """The offsets that one chunk received."""

    segment_id: int
    base_offset: int
    rows: int


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The batch is committed. A duplicate is in an earlier commit, and its ``ranges`` are empty."""

    version: int
    duplicate: bool
    ranges: tuple[AppendedRange, ...] = ()


def append(
    stream: StreamLog,
    life: int,
    staging_version: int,
    staged: Sequence[StagedChunk],
    identity: BatchIdentity | None = None,
    *,
    operation: str = "APPEND",
    parameters: Mapping[str, object] | None = None,
    follow_scale: bool = True,
) -> AppendResult:
    """Commit staged chunks, all or none; chunks enter each segment in the given order.

    ``staging_version`` is the version whose folder holds the chunks. If a segment was sealed since
    its chunks were staged, this commit moves them to its successors; without ``follow_scale`` it
    raises SegmentSealed, so that a caller that still has the events can route them again.
    Raises StreamSealed, NoSuchStream, StaleIdentity, StagedTooLate, WriterFenced, OutOfOrder or
    CommitUnknown.
    """
    recuts: Recuts = {}

    def decide(view: StreamView) -> Proposal[AppendResult]:
        known = _known(stream, view, identity)
        if identity is not None and not identity.check(known, view):
            return None, AppendResult(view.version, duplicate=True)
        _check_open(view, staging_version)
        if not follow_scale:
            _check_segments(view, staged)
        builder = CommitBuilder(view, stream.now_ms())
        builder.append_chunks(reroute(stream, view, staging_version, staged, recuts))
        body = builder.body(operation, parameters)
        if identity is not None:
            record = identity.record(known, view.version + 1)
            body.domains = {**body.domains, **view.writer_changes(record)}
            body.parameters = {**body.parameters, "writer": identity.writer_id}
        return body, AppendResult(view.version + 1, duplicate=False, ranges=_ranges(builder))

    failpoint("append.staged")
    return stream.commit(decide, life=life).value


def _known(
    stream: StreamLog, view: StreamView, identity: BatchIdentity | None
) -> WriterRecord | None:
    """Return the writer's record, or None.

    A numbered writer's record may be archived. A session whose record was archived must be opened
    again, so only the view counts.
    """
    if isinstance(identity, NumberedBatch):
        return archived_records.find_writer(stream, view, identity.writer_id)
    return None if identity is None else view.writer(identity.writer_id)


def _check_segments(view: StreamView, staged: Sequence[StagedChunk]) -> None:
    for chunk in staged:
        if not view.has_segment(chunk.segment_id) or view.segment(chunk.segment_id).is_sealed:
            raise SegmentSealed(
                f"stream {view.stream}: segment {segment_text(chunk.segment_id)} was sealed by a "
                "scale; route its events again.",
                stream=view.stream,
                segment_id=chunk.segment_id,
            )


def _check_open(view: StreamView, staging_version: int) -> None:
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)
    if staging_version < view.snapshot.horizon:
        raise StagedTooLate(
            f"stream {view.stream}: data staged at version {staging_version} is below the staging "
            f"horizon, version {view.snapshot.horizon}, and cannot be committed; write it again.",
            version=staging_version,
            horizon=view.snapshot.horizon,
        )


def sealed_error(view: StreamView) -> StreamSealed:
    """Return the error of a write to a sealed stream."""
    return StreamSealed(
        f"stream {view.stream} was sealed{_sealed_at(view)} (seen at version {view.version}); it "
        "accepts no more events. Create a new stream.",
        stream=view.stream,
    )


def _sealed_at(view: StreamView) -> str:
    sealed_ms = view.record.sealed_ms
    if sealed_ms is None:
        return ""
    time = datetime.fromtimestamp(sealed_ms / 1_000, timezone.utc)
    return f" at {time:%Y-%m-%d %H:%M:%S} UTC"


def _ranges(builder: CommitBuilder) -> tuple[AppendedRange, ...]:
    return tuple(
        AppendedRange(chunk.segment_id, offset, chunk.rows)
        for chunk, offset, _ in builder.adds.placed
    )
