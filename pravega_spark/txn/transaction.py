"""Transaction: the handle of one transaction, in any process that has its id, and its buffer.

The buffer of a transaction's handle: events in memory, then chunks that await a manifest. Events
are Python objects first, and Arrow columns by segment once they are many; rows of tables are
columns at once. Columns wait until they fill a chunk, so that a large transaction makes few large
files.

Each change is one step: an interrupt finds an event in memory, in columns or in a chunk, and never
in two of them or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.chunk_paths import chunk_folder
from pravega_spark.engine.chunks.arrow_arrays import own_memory
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.encoder import checked_ends, cuts
from pravega_spark.engine.chunks.format import EventFormat, SmallEvent, TypedEvent
from pravega_spark.engine.chunks.routing import Router, group
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.runtime.tracing import span
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.encode import (
    EventEncoder,
    EventTable,
    EventTimes,
    LatestTime,
    Serializer,
)
from pravega_spark.engine.writing.stage import RoutedEvents, stage_large_event, stage_routed
from pravega_spark.errors import InvalidInput, TxnFailed
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.txn import commit as txn_commit
from pravega_spark.txn import lifecycle, settlement
from pravega_spark.txn.commit import known_decisions
from pravega_spark.txn.decision_log import DecisionLog, JointRecord
from pravega_spark.txn.leases import Lease, extend_lease
from pravega_spark.txn.lifecycle import AddedWrite
from pravega_spark.txn.manifests import PLAIN_WRITE, Manifest, ManifestKind, Manifests
from pravega_spark.txn.owed import owed_commits, told_as_decided
from pravega_spark.values.checks import check_flag, check_timestamp_us
from pravega_spark.values.handles import CommittedByBlock, NotPicklable
from pravega_spark.values.limits import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    TRANSACTION_BATCH_BYTES,
    TRANSACTION_BATCH_EVENTS,
    TRANSACTION_BUFFER_BYTES,
)
from pravega_spark.values.names import check_transaction
from pravega_spark.values.segments import Segment, segment_text


class _HeldEvents(NamedTuple):
    """What a buffer holds; replaced as a whole, except that an event is appended in one step."""

    staged: Sequence[StagedChunk]
    """Chunks in the transaction's folder, in the order of the events."""
    columns: Mapping[int, pa.Table]
    """Newer events of each segment, which do not fill a chunk yet."""
    events: list[tuple[SmallEvent, str | None, int]]
    """The newest events, with their keys and times."""


class TransactionBuffer:
    """Events that one handle accepted and that no manifest is known to name; not thread-safe.

    Errors lose nothing: staged chunks stay until the handle knows that a manifest names them, and
    events that could not be staged stay in memory, so every call can be repeated.
    """

    def __init__(
        self,
        stream: StreamLog,
        transaction_id: str,
        epoch: int,
        segments: Sequence[Segment],
        event_format: EventFormat,
    ) -> None:
        """Begin empty; the events are routed to ``segments``, those of the epoch."""
        self._stream = stream
        self._id = transaction_id
        self._epoch = epoch
        self._segments = segments
        self.event_format = event_format
        """The columns of the events; those of a later schema once an event needs it."""
        self.drop()

    def drop(self) -> None:
        """Drop everything."""
        self._held = _HeldEvents((), {}, [])
        self._size_bytes = 0
        """About the bytes of the newest events: one that is interrupted may not be counted."""

    def forget(self, chunks: Collection[StagedChunk]) -> None:
        """Drop chunks that a manifest names."""
        named = {chunk.path for chunk in chunks}
        left = [chunk for chunk in self.staged if chunk.path not in named]
        self._held = self._held._replace(staged=left)

    @property
    def staged(self) -> Sequence[StagedChunk]:
        """Chunks in the transaction's folder, in the order of the events."""
        return self._held.staged

    @property
    def unstaged(self) -> int:
        """The number of events that are in memory only."""
        held = self._held
        return len(held.events) + sum(int(rows.num_rows) for rows in held.columns.values())

    @property
    def is_empty(self) -> bool:
        """Whether it holds neither events nor chunks."""
        return not self.unstaged and not self.staged

    @property
    def is_full(self) -> bool:
        """Whether it must be :meth:`spilled <spill>` before it accepts more events."""
        full = len(self._held.events) >= TRANSACTION_BATCH_EVENTS
        return full or self._size_bytes >= TRANSACTION_BATCH_BYTES

    def add(self, events: Sequence[SmallEvent], routing_key: str | None, time_us: int) -> None:
        """Add events with one routing key and time, in order."""
        self._held.events.extend([(event, routing_key, time_us) for event in events])
        self._size_bytes += sum(map(len, events))

    def collect(
        self,
        events: Iterable[SmallEvent],
        routing_key: str | None,
        check: Callable[[], None],
    ) -> TransactionBuffer:
        """Return a new buffer of the same transaction with these events, for :meth:`join`.

        So a write of any size holds no more memory than a buffer, and this buffer has none of its
        events if that raises. ``check`` is called each time that chunks were staged.
        """
        batch = self._new()
        time_us = self._stream.runtime.now_us()
        piece: list[SmallEvent] = []
        size = 0
        for event in events:
            piece.append(event)
            size += len(event)
            if size >= TRANSACTION_BATCH_BYTES or len(piece) >= TRANSACTION_BATCH_EVENTS:
                batch.event_format = self.event_format
                batch.add(piece, routing_key, time_us)
                piece, size = [], 0
                if batch.spill():
                    check()
        batch.event_format = self.event_format
        batch.add(piece, routing_key, time_us)
        return batch

    def collect_table(self, rows: EventTable, check: Callable[[], None]) -> TransactionBuffer:
        """Return a new buffer with the rows of a table, as :meth:`collect` does with events."""
        batch = self._new()
        for events in rows.tables(TRANSACTION_BATCH_BYTES, self._stream.runtime.now_ns()):
            batch._hold(group(*batch._routed(events)))
            if batch.spill():
                check()
        return batch

    def newest_format(self, life: int) -> EventFormat:
        """Return the stream's format as it is now, in which events are encoded from now on."""
        self.event_format = self._stream.view(life=life).event_format
        return self.event_format

    def _new(self) -> TransactionBuffer:
        return TransactionBuffer(
            self._stream, self._id, self._epoch, self._segments, self.event_format
        )

    def collect_large(
        self, pieces: Iterator[memoryview], routing_key: str | None
    ) -> TransactionBuffer:
        """Store a large event, and return a new buffer with its chunk, for :meth:`join`."""
        stream, folder = self._stream, chunk_folder(self._id)
        batch = self._new()
        segment_id = Router(self._segments).segment_of(
            self._id if routing_key is None else routing_key
        )
        chunk = stage_large_event(stream, folder, pieces, segment_id=segment_id, key=routing_key)
        batch._held = _HeldEvents(_known([chunk]), {}, [])
        return batch

    def join(self, batch: TransactionBuffer) -> None:
        """Add the events of a buffer that :meth:`collect` returned; none of them if it raises."""
        new = batch._held
        if new.staged or new.columns:
            self.spill()
            # A segment's older events must precede the staged chunks of the batch.
            segment_ids = {chunk.segment_id for chunk in new.staged} & self._held.columns.keys()
            self._stage_columns({s: self._held.columns[s].num_rows for s in sorted(segment_ids)})
            self._stage_columns(self._surplus(sum(t.nbytes for t in new.columns.values())))
        held = self._held
        columns = self._joined(new.columns.items())
        self._held = _HeldEvents([*held.staged, *new.staged], columns, [*held.events, *new.events])
        self._size_bytes += batch._size_bytes

    def check(self, chunks: Sequence[StagedChunk]) -> None:
        """Raise InvalidInput for chunks that a commit of this transaction could not append.

        One commit ends all decided transactions: such a chunk would block every one of them.
        """
        folder = f"data/{chunk_folder(self._id)}/"
        segment_ids = {segment.segment_id for segment in self._segments}
        for chunk in chunks:
            inside = chunk.path.startswith(folder) and chunk.rows > 0
            if not inside or (segment_ids and chunk.segment_id not in segment_ids):
                raise InvalidInput(
                    f"{chunk.path} ({chunk.rows} events of segment "
                    f"{segment_text(chunk.segment_id)}) does not belong to transaction {self._id}, "
                    f"whose chunks are staged in {folder}, for the segments of epoch {self._epoch}."
                )

    def spill(self) -> bool:
        """Make room for more events; return whether that staged chunks.

        A chunk is staged once it is full. If all columns together exceed their limit, the largest
        ones are staged: so chunks are large however the events spread over the segments.
        """
        before = len(self.staged)
        if self._held.events:
            self._hold(group(*self._routed(self._encoded())), keeps_events=False)
        self._stage_columns(self._full_chunks())
        self._stage_columns(self._surplus())
        return len(self.staged) > before

    def _hold(self, parts: Iterable[tuple[int, pa.Table]], *, keeps_events: bool = True) -> None:
        """Add events to the columns of their segments, in place of the newest ones or after all."""
        columns = self._joined((segment_id, own_memory(rows)) for segment_id, rows in parts)
        self._held = _HeldEvents(self.staged, columns, self._held.events if keeps_events else [])
        if not keeps_events:
            self._size_bytes = 0

    def _joined(self, parts: Iterable[tuple[int, pa.Table]]) -> dict[int, pa.Table]:
        """Return the columns with more events behind them."""
        columns = dict(self._held.columns)
        for segment_id, rows in parts:
            columns[segment_id] = self._after(columns.get(segment_id), rows)
        return columns

    def _after(self, held: pa.Table | None, rows: pa.Table) -> pa.Table:
        """Return events after those that are held, which may be of an older schema."""
        if held is None:
            return rows
        return pa.concat_tables([self.event_format.widened(part) for part in (held, rows)])

    def stage(self) -> None:
        """Stage all events in memory as chunks."""
        if self._held.columns:
            self.spill()
            self._stage_columns({s: rows.num_rows for s, rows in self._held.columns.items()})
        elif self._held.events:
            events, indexes, segment_ids = self._routed(self._encoded())
            routed = RoutedEvents(segment_ids, indexes)
            chunks = stage_routed(self._stream, chunk_folder(self._id), events, routed)
            self._held = _HeldEvents([*self.staged, *_known(chunks)], {}, [])
            self._size_bytes = 0

    def _encoded(self) -> pa.Table:
        events, keys, times_us = map(list, zip(*self._held.events, strict=True))
        return self.event_format.encode(keys, times_us, events)

    def _routed(self, events: pa.Table) -> tuple[pa.Table, np.ndarray[Any, Any], tuple[int, ...]]:
        """Return events, and the segment of each, as an index into segment ids."""
        router = Router(self._segments)
        # Events without a key share one segment: the transaction's id routes them.
        keys = events.column("routing_key").fill_null(self._id)
        return events, router.segment_indexes(keys, start=0), router.segment_ids

    def _full_chunks(self) -> dict[int, int]:
        """Return for each segment how many of its oldest events fill chunks."""
        full: dict[int, int] = {}
        for segment_id, held in self._held.columns.items():
            if held.nbytes > CHUNK_BYTES or held.num_rows > CHUNK_EVENTS:
                *complete, _ = cuts(checked_ends(held), CHUNK_EVENTS, CHUNK_BYTES)
                if complete:
                    full[segment_id] = complete[-1][1]
        return full

    def _surplus(self, more_bytes: int = 0) -> dict[int, int]:
        """Return the largest segments, as above.

        Without them the columns keep their limit, together with this number of bytes more.
        """
        columns = self._held.columns
        sizes = {segment_id: held.nbytes for segment_id, held in columns.items()}
        found: dict[int, int] = {}
        while sizes and sum(sizes.values()) + more_bytes > TRANSACTION_BUFFER_BYTES:
            largest = max(sizes, key=sizes.__getitem__)
            found[largest] = columns[largest].num_rows
            del sizes[largest]
        return found

    def _stage_columns(self, rows: Mapping[int, int]) -> None:
        """Stage that many of the oldest events of some segments, each in separate chunks."""
        stream, folder, name = self._stream, chunk_folder(self._id), self._stream.runtime.token()

        columns = dict(self._held.columns)

        def stage_oldest(segment_id: int) -> list[StagedChunk]:
            oldest = columns[segment_id].slice(0, rows[segment_id])
            chunk_name = f"{name}-{segment_id}"
            target = stream.store, stream.path, folder, segment_id
            recent = stream.recent_of_writes
            return stage(*target, oldest, name=chunk_name, key=stream.chunk_key, recent=recent)

        staged = list(self.staged)
        found = stream.runtime.each(stage_oldest, list(rows))
        for (segment_id, count), chunks in zip(rows.items(), found, strict=True):
            staged += _known(chunks)
            left = columns.pop(segment_id).slice(count)
            if left.num_rows:
                columns[segment_id] = own_memory(left)
        self._held = self._held._replace(staged=staged, columns=columns)


def _known(chunks: Sequence[StagedChunk]) -> Sequence[StagedChunk]:
    """Return chunks whose statistics are made, so that their manifest cannot fail."""
    for chunk in chunks:
        chunk.stats_json()
    return chunks


_Found = tuple[StreamView, OpenTransaction | TransactionOutcome]


class Transaction(CommittedByBlock, NotPicklable):
    """Events that become visible together, in every segment, or never; thread-safe.

    A ``with`` block commits at its end and aborts if it raises, unless the block itself has
    committed, prepared or aborted. Any number of processes may write into one transaction by its
    ``id``; each of them flushes before the commit. As in Pravega, the epoch in which the
    transaction began routes its events, also after scales, and events without a key share one
    segment.

    After any error except TxnFailed no event is lost: repeat the call.
    """

    _NOT_PICKLABLE = "a Transaction cannot be pickled; pass its id, and open it by that."

    def __init__(
        self,
        stream: StreamLog,
        transaction_id: str,
        *,
        serializer: Serializer | None = None,
        large_events: bool = False,
        on_end: Callable[[Transaction], object] = lambda transaction: None,
        on_id: Callable[[Transaction], object] = lambda transaction: None,
        life: int | None = None,
        times: EventTimes | None = None,
    ) -> None:
        """Open a transaction by its id; raise NoSuchTransaction if the stream has none.

        ``on_end`` is called once (again after an interrupt) when the handle learns of the end;
        ``on_id`` whenever the user reads the id. ``life`` is the stream's life that it must belong
        to, by default the present one; ``times`` what the commit notes unless it has a timestamp.
        """
        check_transaction(transaction_id)
        view = stream.view(refresh=stream.log.snapshot is None, life=life)
        if transaction_id not in view.transactions:
            view = stream.view(life=life)
        found = lifecycle.find(view, transaction_id)
        self._stream = stream
        self._id, self._life = transaction_id, view.life
        self._manifests = Manifests(stream, transaction_id)
        self._opened = found if isinstance(found, OpenTransaction) else None
        self._outcome = found if isinstance(found, TransactionOutcome) else None
        self._lease = Lease(stream, self._opened) if self._opened else None
        segments = view.epoch(self._opened.epoch).segments if self._opened else ()
        columns = view.event_format
        self._buffer = TransactionBuffer(stream, transaction_id, self.epoch, segments, columns)
        self._encoder = EventEncoder(
            stream.name, serializer, large_events=large_events, times=times, event_format=columns
        )
        self._encoder.newest = partial(self._buffer.newest_format, view.life)
        self._on_end = on_end
        self._on_id = on_id
        self._end_reported = self._opened is None
        self._done = False  # whether a call of this handle committed, prepared or aborted it
        self._lock = new_rlock()
        self._guard = ProcessGuard(f"transaction {transaction_id}")

    @property
    def id(self) -> str:
        """The id, with which another process opens the transaction; 32 hexadecimal digits."""
        self._manifests.is_shared = True
        self._on_id(self)
        return self._id

    @property
    def epoch(self) -> int:
        """The epoch that routes the events: the active one when the transaction began."""
        return lifecycle.epoch_of(self._id)

    @property
    def _final(self) -> TransactionStatus | None:
        """The final status, once this handle knows it."""
        return None if self._outcome is None else lifecycle.status_of(self._outcome)

    @property
    def is_open(self) -> bool:
        """Whether it had no outcome when last read; makes no storage call."""
        return self._outcome is None

    @property
    def lease_ms(self) -> int:
        """How long it lives without a ping, in milliseconds; 0 if it had ended when opened."""
        return 0 if self._opened is None else self._opened.lease_ms

    @property
    def status(self) -> TransactionStatus:
        """The present status, read from the storage until it is final."""
        self._guard.check()
        if self._final is not None:
            return self._final
        with self._lock:
            # Read the log last: manifests are deleted only after it holds the outcome.
            self._manifests.read()
            _, found = self._find()
            return lifecycle.status_of(found, self._manifests)

    def write_event(self, event: Any, routing_key: str | None = None) -> None:
        """Write one event; it is durable after ``flush`` or ``commit``, and visible after commit.

        Raises TxnFailed if this handle knows that the transaction accepts no more events.
        """
        data = self._encoder.payload(event)
        time_us = self._encoder.time_us(event)
        self._encoder.check_key(routing_key)
        self._guard.check()
        if not isinstance(data, (bytes, TypedEvent)):
            self._check_still_open()
            self._join(self._buffer.collect_large(data, routing_key), time_us)
            return
        with self._lock:
            self._make_room()
            self._buffer.add([data], routing_key, self._stream.runtime.now_us())
            self._encoder.accept(time_us)

    def write_events(self, events: Iterable[Any], routing_key: str | None = None) -> None:
        """Write any number of events with one routing key, in order; none of them if it raises."""
        latest = LatestTime()
        data = self._encoder.each(events, latest)
        self._encoder.check_key(routing_key)
        self._guard.check()
        # Stages piece by piece, and takes no lock: the events may be those of a waiting generator.
        batch = self._buffer.collect(data, routing_key, self._check_still_open)
        self._join(batch, latest.us)

    def write_table(
        self, table: Any, *, routing_key: str | None = None, event_time: str | None = None
    ) -> None:
        """Write the rows of a table, as a writer's ``write_table`` does; none of them if it raises.

        The table may have any size, and may change once the call returns.
        """
        rows = self._encoder.table(table, routing_key, event_time)
        self._guard.check()
        self._join(self._buffer.collect_table(rows, self._check_still_open), rows.latest_us)

    def _join(self, batch: TransactionBuffer, latest_us: int | None) -> None:
        with self._lock:
            self._make_room()
            self._buffer.join(batch)
            self._encoder.accept(latest_us)

    def _make_room(self) -> None:
        self._require_writable()
        if self._buffer.is_full and self._buffer.spill():
            self._check_still_open()

    def _check_still_open(self) -> None:
        """Read whether it accepts events, so that not much is staged for one that has ended."""
        with self._lock:
            self._manifests.read()
            self._find()
            self._require_writable()

    def flush(self) -> None:
        """Make the written events durable in the transaction.

        Raises TxnFailed if the transaction accepts no more events.
        """
        self._guard.check()
        with self._lock:
            self._require_writable()
            self._buffer.stage()
            chunks = self._buffer.staged
            if chunks:
                add_staged(self, chunks)
                self._buffer.forget(chunks)

    def _check_committed(
        self, outcome: TransactionOutcome, chunks: Sequence[StagedChunk], unstaged: int = 0
    ) -> None:
        """Raise TxnFailed unless a commit ended the transaction, with these events."""
        lifecycle.check_committed(self._stream, self._manifests, outcome, chunks, unstaged)

    def ping(self) -> None:
        """Restart the lease; raise PingFailed if it cannot be extended.

        A writer does this in the background, up to the maximum execution time.
        """
        self._guard.check()
        with self._lock:
            extend_lease(self._lease, self._manifests, self.status)

    def prepare(self) -> None:
        """First phase of a two-phase commit: flush, and accept no more events.

        It then outlives its writer: any process may commit or abort it by its id, and it has no
        lease. A second call does nothing. Raises TxnFailed if it has ended.
        """
        self._guard.check()
        with self._lock:
            self._require_open()
            if self._manifests.last is not ManifestKind.PREPARED or not self._buffer.is_empty:
                self.flush()
            with self._reporting_end():
                lifecycle.prepare(self._manifests)
            self._find()
            self._require_open()
            self._done = True

    def commit(
        self, note: str | None = None, timestamp: int | datetime | None = None, *, wait: bool = True
    ) -> None:
        """Make all events visible in one commit of every segment; they are when this returns.

        ``note`` (such as a source position) is stored in that commit; the next writer of this
        writer's id reads it as ``last_note``. If several processes commit the transaction, the
        first note counts. ``timestamp`` (in ms since 1970, or a datetime with a
        time zone) is stored in the same commit, for watermarks.
        ``wait=False`` returns once the commit is decided, as Pravega's commit does; the events are
        visible within 5 s, at the latest when a writer of the stream is closed in this process, or
        when the process ends. Commits become visible in the order
        of their decisions. A second commit does nothing. Raises TxnFailed if it was aborted, or if
        another process committed it without this one's last events; CommitUnknown.
        """
        if note is not None:
            self._encoder.check_note(note)
            lifecycle.check_note_writer(self._stream.name, self._opened)
        check_flag("wait", wait)
        timestamp_us = check_timestamp_us("a commit's timestamp", timestamp)
        self._guard.check()
        with self._lock, span("commit transaction", self._stream.name, transaction=self._id):
            if self._final is TransactionStatus.COMMITTED and self._buffer.is_empty:
                self._mark_done()
                return
            view, found = self._find()
            if isinstance(found, OpenTransaction):
                lifecycle.check_not_joint(self._stream.name, found)
                view, found = self._decide_commit(view, note, timestamp_us, wait=wait)
            if isinstance(found, TransactionOutcome):
                self._check_committed(found, self._buffer.staged, self._buffer.unstaged)
            self._mark_done()

    def _decide_commit(
        self, view: StreamView, note: str | None, timestamp_us: int | None, *, wait: bool
    ) -> _Found:
        """Put the closing manifest with the unflushed events; return the log's new record."""
        self._buffer.stage()
        closing = Manifest(
            ManifestKind.COMMITTING,
            tuple(self._buffer.staged),
            order=txn_commit.next_commit_order(self._stream, view, self._id),
            note=note,
            timestamp_us=self._encoder.noted_us(timestamp_us),
        )
        with self._owed_if_it_fails():
            is_new = lifecycle.put_closing_manifest(self._manifests, closing)
            if wait:
                with told_as_decided(self._manifests.name):
                    return self._commit_decided()
        if is_new:  # the earlier decisions are known: they were read for its commit order
            known_decisions(self._stream).add(self._manifests)
        owed_commits(self._stream).add(self._manifests, self._life)
        return self._find()

    @contextmanager
    def _owed_if_it_fails(self) -> Iterator[None]:
        """Leave to the background what a call has decided, or may have, and has not carried out."""
        try:
            yield
        except BaseException as error:
            if self._manifests.is_closed or not isinstance(error, TxnFailed):
                owed_commits(self._stream).add(self._manifests, self._life)
            raise

    def _commit_decided(self) -> _Found:
        txn_commit.commit_decided(self._stream, self._manifests, life=self._life)
        view, found = self._find(refresh=False)
        assert isinstance(found, TransactionOutcome), (
            f"{self._manifests.name} is decided, but the log holds it as open after the commit"
        )
        return view, found

    def abort(self) -> None:
        """Discard all events. A second call does nothing. Raises TxnFailed if it was committed."""
        self._guard.check()
        with self._lock, span("abort transaction", self._stream.name, transaction=self._id):
            if self._final is not TransactionStatus.ABORTED:
                _, found = self._find()
                if isinstance(found, OpenTransaction):
                    lifecycle.check_not_joint(self._stream.name, found)
                    closing = Manifest(ManifestKind.ABORTING, reason=lifecycle.ASKED_BY_APPLICATION)
                    with self._owed_if_it_fails():
                        lifecycle.put_closing_manifest(self._manifests, closing)
                        _, found = self._commit_decided()
                assert isinstance(found, TransactionOutcome)
                if found.committed:
                    raise lifecycle.ended_error(self._stream.name, found)
            self._mark_done()

    def _find(self, *, refresh: bool = True) -> _Found:
        """Return the transaction's record in the newest view, or in the last known one."""
        view = self._stream.view(refresh)
        view.check_life(self._life)
        found = lifecycle.find(view, self._id)
        if isinstance(found, TransactionOutcome):
            self._outcome = found
            self._report_end()
        return view, found

    def _mark_done(self) -> None:
        """Record that this handle's call has ended the transaction."""
        self._buffer.drop()
        self._done = True
        self._report_end()

    def _report_end(self) -> None:
        if not self._end_reported:
            self._on_end(self)
            self._end_reported = True

    def _require_open(self) -> None:
        """Raise TxnFailed if the transaction is known to have ended."""
        if self._outcome is not None:
            self._raise_ended(self._outcome, self._buffer.staged)

    def _require_writable(self) -> None:
        self._require_open()
        if self._manifests.last is not ManifestKind.WRITE:
            with self._reporting_end(self._buffer.staged):
                lifecycle.check_accepts_writes(self._manifests)

    @contextmanager
    def _reporting_end(self, chunks: Sequence[StagedChunk] = ()) -> Iterator[None]:
        """If the manifests refuse a call, raise what the log says if it holds the outcome."""
        try:
            yield
        except TxnFailed:
            _, found = self._find()
            if isinstance(found, TransactionOutcome):
                self._raise_ended(found, chunks)
            raise

    def _raise_ended(self, outcome: TransactionOutcome, chunks: Sequence[StagedChunk]) -> NoReturn:
        """Raise TxnFailed; it counts the events of this handle that a commit left out."""
        self._check_committed(outcome, chunks, self._buffer.unstaged)
        raise lifecycle.ended_error(self._stream.name, outcome)

    def __repr__(self) -> str:
        """Show the id and the last known status; makes no storage call."""
        state = self._final.value if self._final else "not known to have ended"
        return f"<Transaction {self._id} of {self._stream.name}: {state}>"


# For the modules that hold a transaction; users have the methods above.


def id_of(transaction: Transaction) -> str:
    """Return the id; only who reads ``Transaction.id`` may pass it to another process."""
    return transaction._id


def mark_unshared(transaction: Transaction) -> None:
    """Note that no other process writes into a transaction until somebody reads its id."""
    transaction._manifests.is_shared = False


def keep_alive(transaction: Transaction) -> bool:
    """Restart the lease in the background; return False if it need not be extended again.

    Takes no lock, so that a long write cannot let the lease run out.
    """
    lease = transaction._lease
    if lease is None or transaction._end_reported or transaction._guard.is_forked:
        return False
    known = transaction._stream.log.snapshot
    has_ended = known is not None and transaction._id not in known.open
    return not transaction._manifests.is_prepared and not has_ended and lease.extended()


def add_staged(
    transaction: Transaction, chunks: Sequence[StagedChunk], write: Manifest = PLAIN_WRITE
) -> bool:
    """Add staged chunks of the transaction's folder as one write, all or none.

    Returns False for a repetition: the transaction already holds them, from a call without an
    answer, or the number of ``write`` is not above its writer's last. Raises TxnFailed if it
    accepts no more and does not hold them, InvalidInput for chunks that do not belong to it.
    """
    chunks = tuple(chunks)
    transaction._buffer.check(chunks)
    transaction._guard.check()
    with transaction._lock:
        failpoint("txn.staged")
        added = AddedWrite(False, chunks)
        if transaction._outcome is None:
            with transaction._reporting_end(chunks):
                added = lifecycle.add_write(transaction._manifests, chunks, write)
        _, found = transaction._find()
        if isinstance(found, TransactionOutcome):
            transaction._check_committed(found, added.chunks)
        return added.is_new


# Parts of a joint transaction


def find_record(part: Transaction) -> OpenTransaction | TransactionOutcome:
    """Return the newest record of a part, whose handle knows from then on if it has ended."""
    return part._find()[1]


def carry_out_part(part: Transaction, decisions: DecisionLog, record: JointRecord) -> None:
    """Commit or abort a part as the joint transaction was decided."""
    settlement.carry_out(part._stream, decisions, record)


def abort_part(part: Transaction, reason: str) -> None:
    """Abort a part of a joint transaction that is aborted."""
    settlement.abort_part(part._stream, part._id, reason)


def end_part(part: Transaction, outcome: TransactionOutcome) -> None:
    """End the handle of a committed part; raise TxnFailed if events of it were left out."""
    part._check_committed(outcome, part._buffer.staged, part._buffer.unstaged)
    part._mark_done()
