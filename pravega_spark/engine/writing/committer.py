"""One writer's batches: route the events, stage chunks, append, and compute event pointers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.routing import Router
from pravega_spark.engine.chunks.tiny import LoneEvent
from pravega_spark.engine.stream.fencing import check_token
from pravega_spark.engine.stream.records import anonymous_id, is_anonymous
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import TimeNote
from pravega_spark.engine.writing.append import (
    AppendCondition,
    AppendResult,
    StagedBatch,
    check_active,
    check_number,
    other_segment,
)
from pravega_spark.engine.writing.batch import WriteBatch, ranks
from pravega_spark.engine.writing.group_commit import MustOffer, group_of
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.engine.writing.stage import (
    MAX_OFFER_BYTES,
    RoutedEvents,
    StoredEvent,
    stage_offer,
    stage_routed,
)
from pravega_spark.errors import (
    CommitUnknown,
    ConditionFailed,
    NoSuchStream,
    PravegaSparkError,
    SegmentSealed,
    StagedTooLate,
    StaleIdentity,
    WriterForgotten,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.limits import COMPRESSION, RESTAGE_VERSIONS
from pravega_spark.values.names import check_name
from pravega_spark.values.segments import EventPointer


class BatchPositions:
    """The positions of a batch's events, computed on demand from a byte or two for each event."""

    __slots__ = ("_bases", "_life", "_ranks", "_routed", "_stream")

    def __init__(
        self, stream: str, life: int, routed: RoutedEvents, appended: AppendResult
    ) -> None:
        """Keep the routing of the batch, and its first offset in each segment."""
        self._stream = stream
        self._life = life
        self._bases: dict[int, int] = {}
        for segment_id, base, *_ in appended.ranges:
            self._bases.setdefault(segment_id, base)
        if len(self._bases) == 1:  # all events in one segment: the rank of a row is its number
            routed = RoutedEvents((*self._bases,), np.empty(0, np.uint8))
        self._routed = routed
        self._ranks: np.ndarray[Any, Any] | None = None

    def pointer(self, row: int, *, cache: bool = True) -> EventPointer:
        """Return the pointer of one event; without ``cache`` only this row is computed."""
        segment_ids, indexes = self._routed
        segment_id, rank = segment_ids[0], row
        if len(indexes):
            index = indexes[row]
            segment_id = segment_ids[index]
            if cache:
                if self._ranks is None:
                    self._ranks = ranks(indexes).astype(np.int32)
                rank = int(self._ranks[row])
            else:
                rank = int(np.count_nonzero(indexes[:row] == index))
        return EventPointer(self._stream, self._life, segment_id, self._bases[segment_id] + rank)


class PreparedBatch:
    """A batch with what was encoded and stored of it."""

    __slots__ = ("batch", "error", "events", "routed", "staged")
    routed: RoutedEvents

    def __init__(self, batch: WriteBatch, error: BaseException | None = None) -> None:
        """Begin with nothing stored; the commit raises an error."""
        self.batch = batch
        self.events: pa.Table | LoneEvent | StoredEvent | None = None
        self.staged: StagedBatch | None = None
        self.error = error


class BatchCommitter:
    """Commits the batches of one writer id; one thread at a time prepares, and one commits."""

    def __init__(
        self,
        stream: StreamLog,
        writer_id: str | None,
        *,
        life: int | None = None,
        fencing_token: str | None = None,
        compression: str = COMPRESSION,
    ) -> None:
        """Open the writer; an id of the user's own costs a commit, which opens a session.

        ``life`` is the life of the stream that the writer is for: that of the newest view, which
        the caller has just read. By default it is read here. With a fencing token, every batch is
        refused once the stream has another one. ``compression`` is of the chunks.
        """
        self._stream = stream
        self._compression = compression
        view = stream.view(refresh=life is None, life=life)
        check_active(view)
        self.life = view.life
        self.event_format = view.event_format
        """The columns of the events that are written; those of a later schema once it is known."""
        self._fencing_token = fencing_token
        self._session = self.last = self._previous = self.note_number = 0
        self._lock = new_lock()
        """Held while numbers change that the thread that prepares reads, too."""
        self.note: str | None = None
        if writer_id is None:
            if fencing_token is not None:
                check_token(view, fencing_token)
            self.writer_id = anonymous_id(view.version, stream.runtime.token())
        else:
            self.writer_id = self._id_of(writer_id)
            record = open_session(stream, view.life, self.writer_id, fencing_token)
            self._session, self.last, self._previous = record.session, record.last, record.last
            self.note, self.note_number = record.note, record.note_number
        self.mark_id = self.writer_id
        """The id under which the log keeps the times that are noted: it never changes."""
        self._prepared = self._previous
        """The number of the last event that was prepared."""
        self._staging_version = stream.view(refresh=False).version
        self.group = group_of(stream)
        """What the writers of the stream share in this process."""
        self._router: tuple[int, Router] | None = None
        self._keyless = 0

    def _id_of(self, writer_id: str) -> str:
        """Return the id in the log of an id of the user's own; raise InvalidName."""
        return check_name("writer", writer_id)

    def _numbers(self, batch: WriteBatch) -> int:
        """Return how many numbers of the writer a batch takes: one for each event."""
        return batch.count

    @property
    def is_ahead_useful(self) -> bool:
        """Whether to prepare even a small batch during a commit, because a call takes long.

        Not while others write: a batch that was prepared early could not be offered.
        """
        return not (self._stream.store.is_local or self.group.offers)

    @property
    def is_anonymous(self) -> bool:
        """Whether the writer id is random, not the user's own."""
        return is_anonymous(self.writer_id)

    def check_life(self) -> None:
        """Raise NoSuchStream or StaleIdentity if the life has ended; nothing else."""
        try:
            self._stream.view(life=self.life)
        except (NoSuchStream, StaleIdentity):
            raise
        except PravegaSparkError:
            pass

    def prepare(self, batch: WriteBatch) -> PreparedBatch:
        """Encode, route and store a batch, while those that were prepared before are committed.

        One thread at a time prepares, in the order of the commits. The commit raises an error. A
        conditional batch is stored by its commit, which looks at the condition before.
        """
        with self._lock:
            previous, self._prepared = self._prepared, self._prepared + self._numbers(batch)
        prepared = PreparedBatch(batch)
        try:
            prepared.events = batch.content(self.event_format)
            if batch.conditional is None:
                self._stage(prepared, previous)
        except BaseException as error:
            prepared.error = error
        return prepared

    def commit(self, batch: WriteBatch, prepared: PreparedBatch | None = None) -> BatchPositions:
        """Make a batch durable and visible; return the positions of its events.

        The chunks that ``prepare`` stored are used unless an earlier batch, or the stream, came
        otherwise.
        """
        prepared = prepared or self.prepare(batch)
        while True:
            try:
                appended = self._append(prepared)
                break
            except (SegmentSealed, MustOffer):
                self._router = None
            except WriterForgotten:
                staged = prepared.staged
                if not self.is_anonymous or (staged is not None and staged.is_offered):
                    raise
                self._renew()
            except ConditionFailed:
                with self._lock:
                    self._prepared -= batch.count  # what was prepared since is stored again
                raise
            except StagedTooLate:
                if isinstance(prepared.events, StoredEvent):
                    raise  # its payload cannot be read a second time
                self._staging_version = self._stream.view().version
            prepared.staged = None
        self.last += self._numbers(batch)
        self._previous += self._numbers(batch)
        if batch.note is not None:
            self.note, self.note_number = batch.note, self.last
        positions = self._positions(prepared.routed, appended)
        # One folder serves many batches, but not forever: the staging horizon follows the log.
        if appended.version - self._staging_version > RESTAGE_VERSIONS:
            self._staging_version = appended.version
        return positions

    def _append(self, prepared: PreparedBatch) -> AppendResult:
        """Append what is stored, or store it; batches before it are in the log."""
        error, prepared.error = prepared.error, None
        if error is not None:
            raise error
        staged = prepared.staged
        if staged is None or staged.identity != self._identity(prepared.batch, self._previous):
            prepared.staged = None
            staged = self._stage(prepared, self._previous)
        return self.group.append(staged)

    def _stage(self, prepared: PreparedBatch, previous: int) -> StagedBatch:
        view = self._stream.view(refresh=False, life=self.life)
        condition = self._condition(prepared.batch)
        if prepared.batch.conditional is not None:
            view = self._view_that_meets(condition)
        prepared.routed = self._route(view, prepared.events, prepared.batch)
        identity = self._identity(prepared.batch, previous)
        events = prepared.events
        owned = condition, prepared.batch.time_note
        if isinstance(events, StoredEvent):
            segment_id = prepared.routed.segment_ids[0]
            prepared.staged = events.batch(self.life, segment_id, identity, *owned)
        else:
            prepared.staged = self._staged(view, events, prepared.routed, identity, *owned)
        return prepared.staged

    def _condition(self, batch: WriteBatch) -> AppendCondition | None:
        """Return what the log must decide; all batches before are in the log, or have none."""
        expected = None if (write := batch.conditional) is None else write.expected
        if isinstance(expected, int):
            check_number(self._stream.name, expected, self.last)
            expected = None
        if expected is None and self._fencing_token is None:
            return None
        marked_by = None if write is None else write.marked_by
        return AppendCondition(expected, self._fencing_token, marked_by)

    def _view_that_meets(self, condition: AppendCondition | None) -> StreamView:
        """Return a view on which a condition holds; raise its error if it does not on the newest.

        So nothing is stored for a write that is refused anyway. Raises StreamSealed.
        """
        view = self._stream.view(refresh=False)
        if condition is not None:
            check_active(view)
            try:
                condition.check(view)
            except ConditionFailed:
                view = self._stream.view(life=self.life)
                check_active(view)
                condition.check(view)
        return view

    def _identity(self, batch: WriteBatch, previous: int) -> SessionBatch:
        last = previous + self._numbers(batch)
        return SessionBatch(
            self.writer_id, session=self._session, previous=previous, last=last, note=batch.note
        )

    def _staged(
        self,
        view: StreamView,
        events: pa.Table | LoneEvent | None,
        routed: RoutedEvents,
        identity: SessionBatch,
        condition: AppendCondition | None,
        time_note: TimeNote | None,
    ) -> StagedBatch:
        """Store the chunks of a batch; as an offer to other processes if they write, too.

        A batch is offered only if all before it are in the log: nobody can take it earlier. One
        with a note is not: the name of an offer has no place for that.
        Raises WriterForgotten if the log has no record of the writer, before anything is offered.
        """
        stream = self._stream
        can_be_offered = (
            events is not None
            and condition is None
            and identity.note is None
            and time_note is None
            and events.nbytes <= MAX_OFFER_BYTES
        )
        if can_be_offered and identity.previous == self._previous and self.group.offers:
            assert events is not None
            identity.check(view.writer(self.writer_id), view)
            offered = stage_offer(
                stream,
                view,
                events=events,
                routed=routed,
                identity=identity,
                life=self.life,
                compression=self._compression,
            )
            if offered is not None:
                return offered
            can_be_offered = False
        version = self._staging_version
        # If its own commit comes next, a chunk is fsynced beside the commit's file: so an append
        # takes about 0.6 times what four fsyncs take in turn (ADR 34). Behind a commit that is
        # under way it is fsynced at once, while that one waits.
        folder, alone = version_folder(version), not self.group.is_committing
        chunks = stage_routed(
            stream, folder, events, routed, before_commit=alone, compression=self._compression
        )
        return StagedBatch(
            life=self.life,
            staging_version=version,
            chunks=tuple(chunks),
            identity=identity,
            can_be_offered=can_be_offered,
            condition=condition,
            time_note=time_note,
        )

    def _renew(self) -> None:
        """Continue under a new id: the log dropped the old one's record during a long pause.

        Earlier batches have landed and this one was never sent, so no outcome is unknown.
        """
        writer_id = anonymous_id(self._stream.view().version, self._stream.runtime.token())
        with self._lock:
            self.writer_id = writer_id
            self._prepared -= self._previous
            self._previous = 0

    def _route(
        self,
        view: StreamView,
        events: pa.Table | LoneEvent | StoredEvent | None,
        batch: WriteBatch,
    ) -> RoutedEvents:
        if self._router is None or self._router[0] != view.record.active_epoch:
            self._router = (view.record.active_epoch, Router(view.active.segments))
        router = self._router[1]
        if batch.conditional is not None and isinstance(batch.conditional.expected, EventPointer):
            return self._routed_to(router, events, batch.conditional.expected)
        if events is None:
            return RoutedEvents(router.segment_ids, np.empty(0, np.uint8))
        if isinstance(events, (LoneEvent, StoredEvent)):
            if events.key is None:
                segment_id = router.segment_ids[self._keyless % len(router.segment_ids)]
                self._keyless += 1
            else:
                segment_id = router.segment_of(events.key)
            return RoutedEvents((segment_id,), np.zeros(1, np.uint8))
        indexes = router.segment_indexes(events.column("routing_key"), start=self._keyless)
        self._keyless += events.column("routing_key").null_count
        for first, size in batch.keyless_groups:
            indexes[first : first + size] = indexes[first]
        return RoutedEvents(router.segment_ids, indexes)

    def _routed_to(
        self, router: Router, events: pa.Table | LoneEvent | None, expected: EventPointer
    ) -> RoutedEvents:
        """Route events to the segment of an expected position, those without a key, too.

        Raises ConditionFailed for a key of another segment. A segment's range never changes, so the
        known view decides; the tail that the error names is that of the newest one.
        """
        assert events is not None
        keys: set[str | None]
        if isinstance(events, LoneEvent):
            keys, count = {events.key}, 1
        else:
            keys, count = set(events.column("routing_key").unique().to_pylist()), events.num_rows
        for key in keys:
            if key is not None and router.segment_of(key) != expected.segment_id:
                raise other_segment(self._stream.view(life=self.life), expected, key)
        return RoutedEvents((expected.segment_id,), np.zeros(count, np.uint8))

    def _positions(self, routed: RoutedEvents, appended: AppendResult) -> BatchPositions:
        """Return the positions of the events; raise CommitUnknown for a duplicate batch."""
        if appended.duplicate and len(routed.indexes):
            raise CommitUnknown(
                f"writer {self.writer_id!r} of stream {self._stream.name}: the log already holds "
                "this batch, at positions that are unknown; open a new writer."
            )
        return BatchPositions(self._stream.name, self.life, routed, appended)
