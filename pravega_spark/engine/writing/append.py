"""Append: one commit gives staged chunks their offsets and records the writer's batch number.

The offset of a chunk follows from the snapshot that the commit builds on. A lost race costs new
JSON; data is rewritten only if a split sealed the chunk's segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.mark_changes import noted_changes
from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_marks import TimeNote
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_draft import (
    AppendResult,
    check_open,
    ranges_of,
)
from pravega_spark.engine.writing.batch_identity import BatchIdentity, NumberedBatch
from pravega_spark.engine.writing.reroute import Recuts, reroute


def append(
    stream: StreamLog,
    life: int,
    staging_version: int,
    staged: Sequence[StagedChunk],
    identity: BatchIdentity | None = None,
    *,
    operation: str = "APPEND",
    time_us: int | None = None,
    parameters: Mapping[str, object] | None = None,
) -> AppendResult:
    """Commit staged chunks, all or none; chunks enter each segment in the given order.

    ``staging_version`` is the version whose folder holds the chunks. If a segment was sealed since
    its chunks were staged, this commit moves them to its successors. ``time_us`` is noted for the
    writer of ``identity``: all that it writes later is of this time or later. Raises StreamSealed,
    NoSuchStream, StaleIdentity, StagedTooLate, WriterFenced, OutOfOrder or CommitUnknown.
    """
    recuts: Recuts = {}

    def decide(view: StreamView) -> Proposal[AppendResult]:
        known = _known(stream, view, identity)
        if identity is not None and not identity.check(known, view):
            return None, AppendResult(view.version, duplicate=True)
        check_open(view, staging_version)
        builder = CommitBuilder(view, stream.now_ms())
        builder.append_chunks(reroute(stream, view, staging_version, staged, recuts))
        body = builder.body(operation, parameters)
        if identity is not None:
            record = identity.record(known, view.version + 1)
            domains = {**body.domains, **view.writer_changes(record)}
            if time_us is not None:
                note = TimeNote(identity.writer_id, time_us)
                domains |= noted_changes(view, [note], builder.open_ends)
            body.domains = domains
            given = identity.source.parameters if isinstance(identity, NumberedBatch) else {}
            body.parameters = {**body.parameters, "writer": identity.writer_id, **given}
        return body, AppendResult(view.version + 1, duplicate=False, ranges=ranges_of(builder))

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
