"""Which staged batches the next commit takes: the rules of an append, for batches of any process.

A batch of another process passes exactly the checks of an own one, on the same snapshot, and needs
nothing but its metadata. So it does not matter who commits a batch, nor how often it is tried.

Each refusal is final: at every later version the batch is refused again, or was committed before.
The exceptions are a gap in a writer's numbers, which an earlier batch of it may fill, and a life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.mark_changes import noted_changes
from pravega_spark.engine.stream.records import (
    STATE_DOMAIN,
    RevisionMark,
    StreamState,
    WriterRecord,
)
from pravega_spark.engine.stream.time_marks import TimeNote
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_condition import AppendCondition
from pravega_spark.engine.writing.batch_identity import SessionBatch
from pravega_spark.errors import PravegaSparkError, SegmentSealed, StagedTooLate, StreamSealed
from pravega_spark.model import segment_text

APPEND = "APPEND"
"""The operation of a commit of batches."""


class AppendedRange(NamedTuple):
    """The offsets that one chunk received."""

    segment_id: int
    base_offset: int
    rows: int
    end_bytes: int
    """The bytes of the segment's events up to the chunk's end."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The batch is committed. A duplicate is in an earlier commit, and its ``ranges`` are empty."""

    version: int
    duplicate: bool
    ranges: tuple[AppendedRange, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A batch of a writer session whose chunks are stored; its borders never change."""

    life: int
    staging_version: int
    """The version whose folder holds the chunks."""
    chunks: tuple[StagedChunk, ...]
    identity: SessionBatch
    is_offered: bool = False
    """Whether the chunks have the names of an offer, so that other processes can commit them."""
    can_be_offered: bool = True
    condition: AppendCondition | None = None
    """What its owner alone can decide: a batch with a condition is never offered."""
    time_note: TimeNote | None = None
    """The time that the writer notes with the batch, after its events."""


class AppendDraft:
    """The batches of the next commit of a stream, on top of one version."""

    def __init__(self, view: StreamView, now_ms: int) -> None:
        """Start without batches."""
        self._view = view
        self._now_ms = now_ms
        self._builder: CommitBuilder | None = None  # a deleted stream has nothing to build on
        self._records: dict[str, WriterRecord] = {}
        self._time_notes: dict[str, TimeNote] = {}
        self._state: RevisionMark | None = None
        self.batches = 0

    def add(self, batch: StagedBatch) -> tuple[AppendedRange, ...] | None:
        """Take a batch and return its offsets; None if the log or this draft holds it already.

        Raises StaleIdentity, NoSuchStream, WriterFenced, OutOfOrder, WriterForgotten, StreamSealed,
        StagedTooLate or SegmentSealed if the batch cannot be committed on this version;
        ConditionFailed or FencingTokenMismatch if its condition does not hold.
        """
        view, identity = self._view, batch.identity
        known = self._records.get(identity.writer_id) or view.writer(identity.writer_id)
        if not is_new(view, known, batch, self._builder):
            return None
        if self._builder is None:
            self._builder = CommitBuilder(view, self._now_ms)
        first = self.chunks
        self._builder.append_chunks(batch.chunks)
        self._records[identity.writer_id] = identity.record(known, view.version + 1)
        if batch.time_note is not None:
            note = batch.time_note
            self._time_notes[note.writer_id] = note.after(self._time_notes.get(note.writer_id))
        self.batches += 1
        ranges = ranges_of(self._builder, first)
        if batch.condition is not None and batch.condition.begins_state:
            (state,) = ranges
            self._state = RevisionMark(state.segment_id, state.base_offset, view.version + 1)
        return ranges

    def tried(self, batch: StagedBatch, version: int) -> AppendResult | PravegaSparkError:
        """Take a batch for a version, and return the outcome, or why it cannot be committed."""
        try:
            ranges = self.add(batch)
        except PravegaSparkError as error:
            return error
        return AppendResult(version, ranges is None, ranges or ())

    @property
    def chunks(self) -> int:
        """The number of chunks so far."""
        return 0 if self._builder is None else len(self._builder.adds)

    def body(self) -> Body:
        """Return the body of the commit, of at least one batch."""
        assert self._builder is not None
        body = self._builder.body(APPEND)
        domains = dict(body.domains)
        for record in self._records.values():
            domains |= self._view.writer_changes(record)
        if self._time_notes:
            tail = self._builder.open_ends
            domains |= noted_changes(self._view, self._time_notes.values(), tail)
        if self._state is not None:
            domains[STATE_DOMAIN] = self._state.encode()
        body.domains = domains
        if self.batches == 1:
            (writer_id,) = self._records
            body.parameters = {"writer": writer_id}
        else:
            body.parameters = {"batches": self.batches}
        return body


def is_new(
    view: StreamView,
    known: WriterRecord | None,
    batch: StagedBatch,
    draft: CommitBuilder | None = None,
) -> bool:
    """Return whether the next version can take a batch, False if the log holds it already.

    ``known`` is the record of its writer, ``draft`` has the batches before it in that version. A
    batch that the log holds has met its condition. Raises what :meth:`AppendDraft.add` raises.
    """
    view.check_life(batch.life)
    if not batch.identity.check(known, view):
        return False
    check_open(view, batch.staging_version)
    if batch.condition is not None:
        batch.condition.check(view, draft)
    check_segments(view, batch.chunks)
    return True


def ranges_of(builder: CommitBuilder, first: int = 0) -> tuple[AppendedRange, ...]:
    """Return the offsets of the chunks of a commit, from the chunk of that number on."""
    return tuple(
        AppendedRange(chunk.segment_id, offset, chunk.rows, base_bytes + chunk.event_bytes)
        for chunk, offset, base_bytes in builder.adds.placed[first:]
    )


def check_segments(view: StreamView, staged: Sequence[StagedChunk]) -> None:
    """Raise SegmentSealed unless all chunks are for open segments."""
    for chunk in staged:
        if not view.has_segment(chunk.segment_id) or view.segment(chunk.segment_id).is_sealed:
            raise SegmentSealed(
                f"stream {view.stream}: segment {segment_text(chunk.segment_id)} was sealed by a "
                "scale; route its events again.",
                stream=view.stream,
                segment_id=chunk.segment_id,
            )


def check_open(view: StreamView, staging_version: int) -> None:
    """Raise StreamSealed or StagedTooLate if nothing that was staged so can be committed."""
    check_active(view)
    if staging_version < view.snapshot.horizon:
        raise StagedTooLate(
            f"stream {view.stream}: data staged at version {staging_version} is below the staging "
            f"horizon, version {view.snapshot.horizon}, and cannot be committed; write it again.",
            version=staging_version,
            horizon=view.snapshot.horizon,
        )


def check_active(view: StreamView) -> None:
    """Raise StreamSealed if the stream accepts no more events."""
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)


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
