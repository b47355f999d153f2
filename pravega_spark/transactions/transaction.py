"""Transaction: the handle of one transaction, in any process that has its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

from pravega_spark.arguments import check_flag, check_timestamp_us
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.event_format import TypedEvent
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.runtime import ProcessGuard
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tracing import span
from pravega_spark.engine.writing.event_encoder import EventEncoder, Serializer
from pravega_spark.engine.writing.event_times import EventTimes, LatestTime
from pravega_spark.errors import TxnFailed
from pravega_spark.handles import CommittedByBlock, NotPicklable
from pravega_spark.model import TransactionStatus
from pravega_spark.names import check_transaction
from pravega_spark.process_locks import new_rlock
from pravega_spark.transactions import committer, transaction_decisions, transaction_lifecycle
from pravega_spark.transactions.decision_cache import known_decisions
from pravega_spark.transactions.manifest_codec import PLAIN_WRITE, Manifest, ManifestKind
from pravega_spark.transactions.manifests import Manifests
from pravega_spark.transactions.transaction_buffer import TransactionBuffer
from pravega_spark.transactions.transaction_decisions import AddedWrite
from pravega_spark.transactions.transaction_leases import Lease, extend_lease

_Found = tuple[StreamView, OpenTransaction | TransactionOutcome]


class Transaction(CommittedByBlock, NotPicklable):
    """Events that become visible together, in every segment, or never; thread-safe.

    A ``with`` block commits at its end and aborts if it raises, unless the block itself has
    committed, prepared or aborted. Any number of processes may write into one transaction by its
    ``id``; each of them flushes before the commit. As in Pravega, the epoch in which the
    transaction began routes its events, whatever scales follow, and events without a key share one
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
        found = transaction_lifecycle.find(view, transaction_id)
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
        return transaction_lifecycle.epoch_of(self._id)

    @property
    def _final(self) -> TransactionStatus | None:
        """The final status, once this handle knows it."""
        return None if self._outcome is None else transaction_lifecycle.status_of(self._outcome)

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
            return transaction_lifecycle.status_of(found, self._manifests)

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
                self._add_chunks(chunks)
                self._buffer.forget(chunks)

    def _add_chunks(self, chunks: Sequence[StagedChunk], write: Manifest = PLAIN_WRITE) -> bool:
        """Add staged chunks of this transaction's folder as one write, all or none.

        Returns False for a repetition: the transaction already holds them, from a call without an
        answer, or the number of ``write`` is not above its writer's last. Raises TxnFailed if it
        accepts no more and does not hold them, InvalidInput for chunks that do not belong to it.
        """
        chunks = tuple(chunks)
        self._buffer.check(chunks)
        self._guard.check()
        with self._lock:
            failpoint("txn.staged")
            added = AddedWrite(False, chunks)
            if self._outcome is None:
                with self._reporting_end(chunks):
                    added = transaction_decisions.add_write(self._manifests, chunks, write)
            _, found = self._find()
            if isinstance(found, TransactionOutcome):
                self._check_committed(found, added.chunks)
            return added.is_new

    def _check_committed(
        self, outcome: TransactionOutcome, chunks: Sequence[StagedChunk], unstaged: int = 0
    ) -> None:
        """Raise TxnFailed unless a commit ended the transaction, with these events."""
        transaction_decisions.check_committed(
            self._stream, self._manifests, outcome, chunks, unstaged
        )

    def ping(self) -> None:
        """Restart the lease; raise PingFailed if it cannot be extended.

        A writer does this in the background, up to the maximum execution time.
        """
        self._guard.check()
        with self._lock:
            extend_lease(self._lease, self._manifests, self.status)

    def _keep_alive(self) -> bool:
        """Restart the lease in the background; return False if it need not be extended again.

        Takes no lock, so that a long write cannot let the lease run out.
        """
        if self._lease is None or self._end_reported or self._guard.is_forked:
            return False
        known = self._stream.log.snapshot
        ended = self._manifests.is_prepared or (known is not None and self._id not in known.open)
        return not ended and self._lease.extended()

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
                transaction_decisions.prepare(self._manifests)
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
        ``wait=False`` returns once the commit is decided, as Pravega's commit does; the next commit
        of a transaction, or a sweep, makes the events visible. Commits become visible in the order
        of their decisions. A second commit does nothing. Raises TxnFailed if it was aborted, or if
        another process committed it without this one's last events; CommitUnknown.
        """
        if note is not None:
            self._encoder.check_note(note)
            transaction_lifecycle.check_note_writer(self._stream.name, self._opened)
        check_flag("wait", wait)
        timestamp_us = check_timestamp_us("a commit's timestamp", timestamp)
        self._guard.check()
        with self._lock, span("commit transaction", self._stream.name, transaction=self._id):
            if self._final is TransactionStatus.COMMITTED and self._buffer.is_empty:
                self._mark_done()
                return
            view, found = self._find()
            if isinstance(found, OpenTransaction):
                transaction_lifecycle.check_not_joint(self._stream.name, found)
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
            order=committer.next_commit_order(self._stream, view, self._id),
            note=note,
            timestamp_us=self._encoder.noted_us(timestamp_us),
        )
        is_new = transaction_decisions.put_closing_manifest(self._manifests, closing)
        if not wait:
            if is_new:  # the earlier decisions are known: they were read for its commit order
                known_decisions(self._stream).add(self._manifests)
            return self._find()
        return self._commit_decided()

    def _commit_decided(self) -> _Found:
        committer.commit_decided(self._stream, self._manifests, life=self._life)
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
                    transaction_lifecycle.check_not_joint(self._stream.name, found)
                    closing = Manifest(
                        ManifestKind.ABORTING, reason=transaction_lifecycle.ASKED_BY_APPLICATION
                    )
                    transaction_decisions.put_closing_manifest(self._manifests, closing)
                    _, found = self._commit_decided()
                assert isinstance(found, TransactionOutcome)
                if found.committed:
                    raise transaction_lifecycle.ended_error(self._stream.name, found)
            self._mark_done()

    def _find(self, *, refresh: bool = True) -> _Found:
        """Return the transaction's record in the newest view, or in the last known one."""
        view = self._stream.view(refresh)
        view.check_life(self._life)
        found = transaction_lifecycle.find(view, self._id)
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
                transaction_decisions.check_accepts_writes(self._manifests)

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
        raise transaction_lifecycle.ended_error(self._stream.name, outcome)

    def __repr__(self) -> str:
        """Show the id and the last known status; makes no storage call."""
        state = self._final.value if self._final else "not known to have ended"
        return f"<Transaction {self._id} of {self._stream.name}: {state}>"
