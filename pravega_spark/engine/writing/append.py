"""The one way events enter the log: staged chunks get places and their writer its number at once.

A chunk's offset is chosen here, from the snapshot that the commit is made on; a lost race costs
new JSON and never a rewrite of data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.file_index import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.records import StreamState, WriterRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.writer_ids import is_anonymous, opened_at
from pravega_spark.engine.writing.reroute import Recuts, reroute
from pravega_spark.errors import (
    OutOfOrder,
    SegmentSealed,
    StagedTooLate,
    StaleIdentity,
    StreamSealed,
    WriterFenced,
    WriterForgotten,
)
from pravega_spark.model import segment_text


@dataclass(frozen=True, slots=True)
class SessionBatch:
    """A batch of a writer: accepted only if ``previous`` is the last number the log has of it."""

    writer_id: str
    session: int
    previous: int
    last: int
    note: str | None = None

    def check(self, known: WriterRecord | None, view: StreamView) -> bool:
        """Return True if the batch is to be appended, False if the log has it already."""
        if known is None:
            self._check_unknown(view)
            return True
        if known.session != self.session:
            raise WriterFenced(
                f"writer {self.writer_id!r} of stream {view.stream}: session {self.session} was "
                f"fenced by session {known.session}; this writer must stop.",
                writer_id=self.writer_id,
                session=self.session,
                newer_session=known.session,
            )
        if self.last <= known.last and self.previous < self.last:
            return False
        if self.previous != known.last:
            raise OutOfOrder(
                f"writer {self.writer_id!r} of stream {view.stream}: a batch of the events "
                f"{self.previous + 1} to {self.last} does not follow the log's last, {known.last}; "
                "reopen the writer and go on after its last_event_number.",
                writer_id=self.writer_id,
                last_event_number=known.last,
            )
        return True

    def _check_unknown(self, view: StreamView) -> None:
        expected = is_anonymous(self.writer_id) and self.previous == 0
        if not expected or opened_at(self.writer_id) < view.snapshot.horizon:
            raise WriterForgotten(
                f"writer {self.writer_id!r} of stream {view.stream}: the log holds nothing of it, "
                "so whether earlier batches landed cannot be told; open a new writer.",
                writer_id=self.writer_id,
            )

    def record(self, known: WriterRecord | None, version: int) -> WriterRecord:
        """Return what the log holds of the writer after this batch."""
        return _succeed(known, self.writer_id, self.session, self.last, version, self.note)


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A numbered batch of a query or application: at or below the stored number it is skipped."""

    writer_id: str
    number: int
    note: str | None = None

    def check(self, known: WriterRecord | None, view: StreamView) -> bool:
        """Return True if the batch is to be appended, False if it is a repetition."""
        if known is None or self.number <= known.last:
            return known is None
        if known.is_restored and self.number > known.last + 1:
            raise StaleIdentity(
                f"writer {self.writer_id!r} of stream {view.stream}: the stream was restored from "
                f"a copy that holds its batches up to {known.last}, and this is batch "
                f"{self.number}; write those between again, or go on under another id (a streaming "
                "query: with another checkpoint).",
                name=view.stream,
                current_life=view.life,
            )
        return True

    def record(self, known: WriterRecord | None, version: int) -> WriterRecord:
        """Return what the log holds of the writer after this batch."""
        return _succeed(known, self.writer_id, 0, self.number, version, self.note)


def _succeed(
    known: WriterRecord | None,
    writer_id: str,
    session: int,
    last: int,
    version: int,
    note: str | None,
) -> WriterRecord:
    """Return the record with a new last number; a batch without a note leaves the last note."""
    if note is None and known is not None:
        return replace(known, session=session, last=last, version=version)
    return WriterRecord(writer_id, session, last, version, note, last if note is not None else 0)


BatchIdentity = SessionBatch | NumberedBatch


@dataclass(frozen=True, slots=True)
class AppendResult:
    """A batch is in the log: ``places`` has (segment id, base offset, rows) for each chunk.

    A duplicate has no places: the log holds the batch since an earlier commit.
    """

    version: int
    duplicate: bool
    places: tuple[tuple[int, int, int], ...] = ()


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

    ``staging_version`` is the version whose folder holds them. Chunks of a segment that was
    sealed since they were staged go to its successors inside this commit; without
    ``follow_scale`` SegmentSealed tells the caller, who still has the events, to route them anew.
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
        draft = CommitBuilder(view, stream.now_ms())
        draft.append_chunks(reroute(stream, view, staging_version, staged, recuts))
        body = draft.body(operation, parameters)
        if identity is not None:
            record = identity.record(known, view.version + 1)
            body.domains = {**body.domains, **view.writer_changes(record)}
            body.parameters = {**body.parameters, "writer": identity.writer_id}
        return body, AppendResult(view.version + 1, duplicate=False, places=_places(body.adds))

    failpoint("append.staged")
    return stream.commit(decide, life=life).value


def _known(
    stream: StreamLog, view: StreamView, identity: BatchIdentity | None
) -> WriterRecord | None:
    """Return what is known of the writer; one with sessions has to be opened again if it moved."""
    if isinstance(identity, NumberedBatch):
        return archived_records.find_writer(stream, view, identity.writer_id)
    return None if identity is None else view.writer(identity.writer_id)


def _check_segments(view: StreamView, staged: Sequence[StagedChunk]) -> None:
    for chunk in staged:
        if not view.has_segment(chunk.segment_id) or view.segment(chunk.segment_id).is_sealed:
            raise SegmentSealed(
                f"stream {view.stream}: segment {segment_text(chunk.segment_id)} was sealed by a "
                "scale; route its events anew.",
                stream=view.stream,
                segment_id=chunk.segment_id,
            )


def _check_open(view: StreamView, staging_version: int) -> None:
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)
    if staging_version < view.snapshot.horizon:
        raise StagedTooLate(
            f"stream {view.stream}: data staged at version {staging_version} cannot be committed "
            f"since the horizon is at version {view.snapshot.horizon}; write it again.",
            version=staging_version,
            horizon=view.snapshot.horizon,
        )


def sealed_error(view: StreamView) -> StreamSealed:
    """Return the error that a write to a sealed stream raises."""
    return StreamSealed(
        f"stream {view.stream} was sealed{_sealed_at(view)} (seen at version {view.version}); no "
        "event can be written any more.",
        stream=view.stream,
    )


def _sealed_at(view: StreamView) -> str:
    sealed_ms = view.record.sealed_ms
    if sealed_ms is None:
        return ""
    time = datetime.fromtimestamp(sealed_ms / 1_000, timezone.utc)
    return f" at {time:%Y-%m-%d %H:%M:%S} UTC"


def _places(adds: Sequence[Add]) -> tuple[tuple[int, int, int], ...]:
    return tuple(
        (
            int(add.partition[SEGMENT_COLUMN]),
            int(add.partition[OFFSET_COLUMN]),
            int((add.tags or {})["rows"]),
        )
        for add in adds
    )
