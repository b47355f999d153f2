"""An append: what it expects, which batches it takes, and what its commit says.

One commit gives staged chunks their offsets and records each batch's number. The offset of a chunk
follows from the snapshot that the commit builds on. A lost race costs new JSON; data is rewritten
only if a split sealed the chunk's segment.

**Checks.** A batch of another process passes exactly the checks of our own, on the same snapshot,
and needs nothing but its metadata. So it does not matter who commits a batch, nor how often it is
tried. Each refusal is final: at every later version the batch is refused again, or was committed
before. The exceptions are a gap in a writer's numbers, which an earlier batch of it may fill, and a
life.

**Conditional appends.** The process that commits the batch decides its condition, on the snapshot
of that commit and on the batches before it in the same commit. So nothing can come between the
decision and the events.

**Reroute.** Staged chunks of segments that were sealed before the commit move to the successors. If
one active segment covers the sealed one (a merge, a replacement), its chunks move by metadata
alone. After a split, only the chunks concerned are cut again, by the keys in them. The same holds
for a segment that a truncation has removed from the lineage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import pyarrow as pa

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk
from pravega_spark.engine.chunks.reader import read
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.layout.epochs import Layout, overlapping, short_list
from pravega_spark.engine.layout.located_cut import locate, tail
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.fencing import check_token
from pravega_spark.engine.stream.records import (
    PlaceMark,
    StreamState,
    WriterRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import RecordPace, TimeNote, noted_changes, pace_of
from pravega_spark.engine.writing.identity import BatchIdentity, NumberedBatch, SessionBatch
from pravega_spark.errors import (
    ConditionFailed,
    InvalidInput,
    InvalidStreamCut,
    PravegaSparkError,
    SegmentSealed,
    StagedTooLate,
    StaleIdentity,
    StreamSealed,
    TruncatedData,
)
from pravega_spark.values.checks import check_whole, is_whole, shown
from pravega_spark.values.segments import EventPointer, Segment, StreamCut, segment_text
from pravega_spark.values.times import utc_text

ExpectedPosition = StreamCut | EventPointer | int
"""Where the stream, a segment, or the writer must be: its position just before the write."""
ANY_OFFSET = -1
"""The offset of a pointer that only says which segment takes the event, as long as it is open."""


@dataclass(frozen=True, slots=True)
class AppendCondition:
    """What a batch needs; a batch with a condition is committed by its own process alone."""

    expected: StreamCut | EventPointer | None = None
    fencing_token: str | None = None
    marked_by: str | None = None
    """The domain in which the commit marks the place of the batch's only event."""

    def check(self, view: StreamView, draft: Layout | None = None) -> None:
        """Raise ConditionFailed or FencingTokenMismatch unless the next commit may hold the batch.

        ``draft`` has the earlier batches of that commit, by default none.
        """
        if self.fencing_token is not None:
            check_token(view, self.fencing_token)
        layout = cast("Layout", view) if draft is None else draft
        if isinstance(self.expected, EventPointer):
            _check_segment(layout, self.expected)
        elif self.expected is not None:
            _check_tail(layout, self.expected)


def check_expected(expected: object, stream: str, life: int) -> ExpectedPosition:
    """Return what a caller expects; raise InvalidInput or StaleIdentity if it can never hold."""
    if isinstance(expected, int) and is_whole(expected) and expected >= 0:
        return expected
    if not isinstance(expected, (StreamCut, EventPointer)):
        raise InvalidInput(
            "expected must be a StreamCut (the tail of the stream), an EventPointer (where the "
            "first event of the write shall be) or a whole number (the writer's "
            f"last_event_number), got {shown(expected)}."
        )
    if isinstance(expected, EventPointer):
        check_whole("the offset of expected", expected.offset)
    if expected.stream != stream:
        raise InvalidStreamCut(
            f"expected={expected} is not a position of stream {stream}: give one of that stream, "
            "such as its tail."
        )
    if expected.life != life:
        raise StaleIdentity(
            f"expected={expected} is a position in life {expected.life} of stream {stream}, and "
            f"this writer writes to life {life}; read the stream again.",
            name=stream,
            life=expected.life,
            current_life=life,
        )
    return expected


def check_number(stream: str, expected: int, actual: int) -> None:
    """Raise ConditionFailed unless the writer's last event number is the expected one."""
    if expected != actual:
        raise ConditionFailed(
            f"stream {stream}: the writer's last event number is {actual}, not {expected}; nothing "
            "was written. Decide again with that number.",
            stream=stream,
            expected=expected,
            actual=actual,
        )


def _check_segment(layout: Layout, expected: EventPointer) -> None:
    """Raise ConditionFailed unless the next event of the pointer's segment gets the pointer."""
    segment_id = expected.segment_id
    if not layout.has_segment(segment_id):
        raise _elsewhere(layout, expected, "is not in the stream, or was truncated")
    record = layout.segment(segment_id)
    if record.sealed_epoch is not None:
        lineage = layout.lineage
        after = [segment_text(s.segment_id) for s in lineage.successors(lineage.find(segment_id))]
        raise _elsewhere(
            layout, expected, f"was sealed by a scale; {short_list(after)} followed it"
        )
    if expected.offset not in (record.next_offset, ANY_OFFSET):
        actual = EventPointer(
            expected.stream, life=expected.life, segment_id=segment_id, offset=record.next_offset
        )
        raise ConditionFailed(
            f"the next event of segment {expected.segment} is {actual}, not {expected}; nothing "
            "was written. Read on from there, and decide again.",
            stream=expected.stream,
            expected=expected,
            actual=actual,
        )


def other_segment(layout: Layout, expected: EventPointer, key: str | None) -> ConditionFailed:
    """Return the error of a write whose routing key belongs to another segment."""
    return _elsewhere(layout, expected, f"does not take the routing key {shown(key)}")


def _check_tail(layout: Layout, expected: StreamCut) -> None:
    """Raise ConditionFailed if there is an event after the cut; a scale is none."""
    actual, reason = tail(layout), "there are events after it"
    if actual == expected:
        return
    try:
        if not locate(layout, expected).events_to(locate(layout, actual)):
            return
    except (InvalidStreamCut, TruncatedData) as error:
        reason = str(error).rstrip(".")
    raise ConditionFailed(
        f"the tail of stream {layout.stream} is {actual}, not {expected}: {reason}. Nothing was "
        "written. Read up to the tail, and decide again.",
        stream=layout.stream,
        expected=expected,
        actual=actual,
    )


def _elsewhere(layout: Layout, expected: EventPointer, why: str) -> ConditionFailed:
    actual = tail(layout)
    return ConditionFailed(
        f"stream {layout.stream}: segment {expected.segment} of expected={expected} {why}. Nothing "
        f"was written. Read up to the tail, {actual}, and decide again.",
        stream=layout.stream,
        expected=expected,
        actual=actual,
    )


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
    """What its own process alone can decide: a batch with a condition is never offered."""
    time_note: TimeNote | None = None
    """The time that the writer notes with the batch, after its events."""


class AppendDraft:
    """The batches of the next commit of a stream, on top of one version."""

    def __init__(self, view: StreamView, now_ms: int, pace: RecordPace | None = None) -> None:
        self._view = view
        self._now_ms = now_ms
        self._pace = pace
        self._builder: CommitBuilder | None = None  # a deleted stream has nothing to build on
        self._records: dict[str, WriterRecord] = {}
        self._time_notes: dict[str, TimeNote] = {}
        self._marks: dict[str, str] = {}
        self.batches = 0

    def add(self, batch: StagedBatch) -> tuple[AppendedRange, ...] | None:
        """Take a batch and return its offsets; None if the log or this draft holds it already.

        Raises StaleIdentity, NoSuchStream, WriterFenced, OutOfOrder, WriterForgotten, StreamSealed,
        StagedTooLate or SegmentSealed if the batch cannot be committed on this version;
        ConditionFailed or FencingTokenMismatch if its condition does not hold.
        """
        view, identity = self._view, batch.identity
        # A commit may hold several batches of one writer: each continues what the one before left.
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
        if batch.condition is not None and batch.condition.marked_by is not None:
            (only,) = ranges
            mark = PlaceMark(only.segment_id, only.base_offset, view.version + 1)
            self._marks[batch.condition.marked_by] = mark.encode()
        return ranges

    def add_or_error(self, batch: StagedBatch, version: int) -> AppendResult | PravegaSparkError:
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
            domains |= noted_changes(self._view, self._time_notes.values(), tail, self._pace)
        body.domains = domains | self._marks
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
        AppendedRange(
            segment_id=chunk.segment_id,
            base_offset=offset,
            rows=chunk.rows,
            end_bytes=base_bytes + chunk.event_bytes,
        )
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
    return "" if sealed_ms is None else f" at {utc_text(sealed_ms)}"


Recuts = dict[tuple[str, int], list[StagedChunk]]
"""The parts of a chunk that was cut again for an epoch, kept so that a lost race reuses them."""


def targets(layout: Layout, segment_id: int) -> tuple[Segment, ...]:
    """Return the active segments that cover a segment's keys; empty if the lineage lost it.

    Any number of scales may lie between. If there is one segment, it takes the chunks as they are.
    """
    if not layout.has_segment(segment_id):
        return ()
    return overlapping(layout.active, layout.lineage.find(segment_id).key_range)


def reroute(
    stream: StreamLog,
    view: StreamView,
    staging_version: int,
    staged: Sequence[StagedChunk],
    recuts: Recuts,
) -> list[StagedChunk]:
    """Return the chunks in open segments only, in an order that keeps the order of each key."""
    result: list[StagedChunk] = []
    for chunk in staged:
        if view.has_segment(chunk.segment_id) and not view.segment(chunk.segment_id).is_sealed:
            result.append(chunk)
            continue
        found = targets(view, chunk.segment_id)
        if len(found) == 1:
            result.append(replace(chunk, segment_id=found[0].segment_id))
            continue
        key = (chunk.path, view.active.number)
        if key not in recuts:
            recuts[key] = _recut(stream, view, staging_version, chunk)
        result.extend(recuts[key])
    return result


def read_staged(
    stream: StreamLog, view: StreamView, chunk: StagedChunk, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk that has no offsets yet."""
    ref = ChunkRef(
        path=chunk.path,
        segment_id=chunk.segment_id,
        base_offset=0,
        rows=chunk.rows,
        size=chunk.size,
        event_bytes=chunk.event_bytes,
        base_bytes=0,
        min_timestamp_us=chunk.min_timestamp_us,
        max_timestamp_us=chunk.max_timestamp_us,
        footer=chunk.footer,
        attachment=chunk.attachment,
    )
    return read(
        stream.store,
        stream.path,
        ref,
        0,
        chunk.rows,
        columns=columns,
        event_format=view.event_format,
    )


def _recut(
    stream: StreamLog, view: StreamView, staging_version: int, chunk: StagedChunk
) -> list[StagedChunk]:
    batches = read_staged(stream, view, chunk, view.event_format.events.names)
    events = pa.Table.from_batches(batches)
    folder, token = version_folder(staging_version), stream.runtime.token()

    def staged(part: tuple[int, pa.Table]) -> list[StagedChunk]:
        segment_id, rows = part
        name = f"recut-{token}-{segment_id}"
        return stage(
            stream.store, stream.path, folder, segment_id, rows, name=name, key=stream.chunk_key
        )

    parts = split(events, Router(view.active.segments))
    if chunk.attachment:  # one event: it moves with its object, and nothing is copied
        return [replace(chunk, segment_id=segment_id) for segment_id, _ in parts]
    return [new for chunks in stream.runtime.each(staged, parts) for new in chunks]


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
                domains |= noted_changes(view, [note], builder.open_ends, pace_of(stream))
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
