"""Transaction: the handle of one transaction, in the process that began it or in another."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from types import TracebackType
from typing import Any

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.runtime import ProcessGuard
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.event_encoder import EventEncoder, Serializer
from pravega_spark.errors import InvalidInput, PingFailed, PravegaSparkError, TxnFailed
from pravega_spark.model import TransactionStatus
from pravega_spark.names import check_transaction
from pravega_spark.transactions import committer, transaction_decisions, transaction_lifecycle
from pravega_spark.transactions.manifests import Kind, Manifest, Manifests, not_in, rows_of
from pravega_spark.transactions.transaction_buffer import TransactionBuffer
from pravega_spark.transactions.transaction_leases import Lease

_Found = tuple[StreamView, OpenTransaction | TransactionOutcome]


class Transaction:
    """Events that become visible together, in every segment, or never; thread-safe.

    ``with`` commits at the end, and aborts if the block raises; what the block itself committed,
    prepared or aborted is left so. Any number of processes may write into one transaction by its
    ``id``; each flushes what it wrote before the commit. Events are routed by the epoch in which
    the transaction began, whatever scales come in between, and those without a key stay together
    in one segment (both as in Pravega).

    After an error that is not TxnFailed nothing is lost and nothing is in doubt for long: make
    the call again.
    """

    def __init__(
        self,
        stream: StreamLog,
        transaction_id: str,
        *,
        serializer: Serializer | None = None,
        on_end: Callable[[Transaction], object] = lambda transaction: None,
        on_id: Callable[[Transaction], object] = lambda transaction: None,
        life: int | None = None,
    ) -> None:
        """Take up a transaction by its id; raise NoSuchTransaction if the stream knows none.

        ``on_end`` is called once, when the handle learns that the transaction was decided;
        ``on_id`` whenever its id is given out. ``life`` is the one of the stream that it must be
        of, by default the present one.
        """
        check_transaction(transaction_id)
        view = stream.view(refresh=stream.log.snapshot is None, life=life)
        if transaction_id not in view.transactions:
            view = stream.view(life=life)
        found = transaction_lifecycle.find(view, transaction_id)
        self._stream = stream
        self._id = transaction_id
        self._life = view.life
        self._manifests = Manifests(stream, transaction_id)
        self._opened = found if isinstance(found, OpenTransaction) else None
        self._final = None if self._opened else transaction_lifecycle.status_of(found)
        self._lease = Lease(stream, self._opened) if self._opened else None
        segments = view.epoch(self._opened.epoch).segments if self._opened else ()
        self._buffer = TransactionBuffer(stream, transaction_id, self.epoch, segments)
        self._encoder = EventEncoder(stream.name, serializer)
        self._on_end = on_end
        self._on_id = on_id
        self._told = self._opened is None
        self._done = False
        """Whether a call of this handle committed, prepared or aborted it."""
        self._lock = threading.RLock()
        self._guard = ProcessGuard(f"transaction {transaction_id}")

    @property
    def id(self) -> str:
        """The id, by which another process takes the transaction up; 32 hexadecimal digits."""
        self._on_id(self)
        return self._id

    @property
    def epoch(self) -> int:
        """The epoch that routes its events: the active one when it began."""
        return transaction_lifecycle.epoch_of(self._id)

    @property
    def is_open(self) -> bool:
        """Whether it had no outcome when last seen; no storage is asked."""
        return self._opened is not None and self._final is None

    @property
    def lease_ms(self) -> int:
        """How long it lives without a ping, in milliseconds; 0 if it had ended when taken up."""
        return 0 if self._opened is None else self._opened.lease_ms

    @property
    def status(self) -> TransactionStatus:
        """Where the transaction is now: asked of the storage, until it is final."""
        self._guard.check()
        if self._final is not None:
            return self._final
        with self._lock:
            # The log after the manifests: they are not cleared away before it has the outcome.
            self._manifests.read()
            _, found = self._look()
            return transaction_lifecycle.status_of(found, self._manifests)

    def write_event(self, event: Any, routing_key: str | None = None) -> None:
        """Write one event; it is durable after ``flush`` or ``commit``, and visible after commit.

        Raises TxnFailed if this handle knows that the transaction takes no more.
        """
        self._write([self._encoder.event(event)], routing_key)

    def write_events(self, events: Iterable[Any], routing_key: str | None = None) -> None:
        """Write events with one routing key, in order; none of them if it raises.

        Without an event nothing is written.
        """
        self._write(self._encoder.events(events), routing_key)

    def _write(self, data: list[bytes], routing_key: str | None) -> None:
        self._encoder.check_key(routing_key)
        self._guard.check()
        with self._lock:
            self._require_writable()
            if self._buffer.is_full:
                self.flush()
            self._buffer.add(data, routing_key, self._stream.runtime.now_us())

    def flush(self) -> None:
        """Make what was written durable in the transaction; TxnFailed if it takes no more."""
        self._guard.check()
        with self._lock:
            self._require_writable()
            self._buffer.stage()
            if self._buffer.staged:
                self._add_chunks(self._buffer.staged)
                self._buffer.staged = []

    def _add_chunks(
        self, chunks: Sequence[StagedChunk], *, writer: str | None = None, number: int = 0
    ) -> bool:
        """Enter staged chunks of this transaction's folder, all or none; they are one write.

        False if they are in it already, by a call that got no answer. With a ``writer`` also if
        the number is not above that writer's last: it is a repetition, and its chunks are not
        needed. Raises TxnFailed if the transaction takes no more, and only if they are not in it;
        InvalidInput for chunks that are not of this transaction.
        """
        asked = chunks = tuple(chunks)
        self._buffer.check(chunks)

        def decide(entries: Sequence[Manifest]) -> Manifest | None:
            nonlocal asked
            mine = [e for e in entries if writer is not None and e.writer == writer]
            repeated = any(number <= entry.number for entry in mine)
            if repeated:
                asked = tuple(chunk for entry in mine for chunk in entry.chunks)
            left = not_in(entries, chunks)
            there = repeated or (len(chunks) > 0 and not left)
            if there and self._manifests.last is not Kind.ABORTING:
                return None
            self._check_takes_more()
            return Manifest(Kind.WRITE, tuple(left), writer, number)

        self._guard.check()
        with self._lock:
            failpoint("txn.staged")
            entered = self._final is None and self._manifests.append(decide) is not None
            view, found = self._look()
            if isinstance(found, TransactionOutcome):
                transaction_lifecycle.check_outcome(view, found, Kind.COMMITTING)
                self._check_in(found, asked)
            return entered

    def _check_takes_more(self) -> None:
        """Raise TxnFailed if the manifests that are known end the writing."""
        last = self._manifests.last
        if last is not Kind.WRITE:
            raise TxnFailed(
                f"{self._manifests.name} is {last.name}: no event can be written into it any "
                "more. Begin another.",
                transaction_id=self.id,
                status=TransactionStatus[last.name],
            )

    def _check_in(
        self, outcome: TransactionOutcome, chunks: Sequence[StagedChunk], unstaged: int = 0
    ) -> None:
        """Raise TxnFailed if events were left out of the commit."""
        left = transaction_decisions.chunks_left_out(self._stream, self._manifests, outcome, chunks)
        if left or unstaged:
            raise transaction_decisions.left_out_error(self._manifests, rows_of(left) + unstaged)

    def ping(self) -> None:
        """Begin the lease anew. Raises PingFailed when that cannot be.

        A writer does so by itself, in the background, for the transactions it began; the call is
        for handles taken up by id. Beyond the maximum execution time the lease is not extended.
        """
        self._guard.check()
        with self._lock:
            lease, status = self._lease, self.status
            if lease is None or status is not TransactionStatus.OPEN:
                raise PingFailed(
                    f"{self._manifests.name} is {status.value}: it has no lease.",
                    transaction_id=self.id,
                    status=status,
                )
            if not lease.has_time():
                raise PingFailed(
                    f"{self._manifests.name} reaches its maximum execution time before another "
                    f"lease of {self.lease_ms // 1000} s ends: commit it, or begin another with "
                    "a longer max_execution.",
                    transaction_id=self.id,
                    status=status,
                )
            lease.extend()

    def _keep_alive(self) -> bool:
        """Begin the lease anew without asking whether there is one; False if that is of no use.

        For the background: takes no lock, so a long write cannot let the lease run out.
        """
        lease, known = self._lease, self._stream.log.snapshot
        if lease is None or self._told or self._guard.pid != os.getpid():
            return False
        ended = known is not None and self._id not in known.open
        if ended or self._manifests.is_prepared or not lease.has_time():
            return False
        lease.extend()
        return True

    def prepare(self) -> None:
        """First phase of two: flush, take no more events, and wait for the decision.

        A prepared transaction has no lease and outlives its writer: any process may commit or
        abort it by its id. Again: nothing. Raises TxnFailed if it has ended.
        """

        def decide(entries: Sequence[Manifest]) -> Manifest | None:
            if self._manifests.last is Kind.PREPARED:
                return None
            self._check_takes_more()
            return Manifest(Kind.PREPARED)

        self._guard.check()
        with self._lock:
            self._require_open()
            if self._manifests.last is not Kind.PREPARED or not self._buffer.is_empty:
                self.flush()
            self._manifests.append(decide)
            view, found = self._look()
            if isinstance(found, TransactionOutcome):
                raise transaction_lifecycle.ended_error(view, found)
            self._done = True

    def commit(
        self,
        note: str | None = None,
        timestamp: datetime | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Make all events visible, at once, in every segment; they are when this returns.

        ``note`` (such as a source position) is what ``last_note`` gives to the next writer of
        this writer's id, kept in the same commit; of several commits of one transaction the
        first one's counts. ``timestamp`` is kept in the same commit, for watermarks.
        ``wait=False`` returns once it is decided, as Pravega's commit does; the events become
        visible with the next commit of a transaction, or when the stream is tended. Commits
        become visible in the order in which they were decided. Again after a commit: nothing.
        Raises TxnFailed if it was aborted, or committed by another process without the last
        events of this one; CommitUnknown when nobody can tell yet.
        """
        if note is not None:
            self._check_note(note)
        timestamp_us = None if timestamp is None else _microseconds(timestamp)
        self._guard.check()
        with self._lock:
            if self._final is TransactionStatus.COMMITTED and self._buffer.is_empty:
                self._finish()
                return
            view, found = self._look()
            if isinstance(found, OpenTransaction):
                view, found = self._decide_commit(view, note, timestamp_us, wait=wait)
            if isinstance(found, TransactionOutcome):
                transaction_lifecycle.check_outcome(view, found, Kind.COMMITTING)
                self._check_in(found, self._buffer.staged, self._buffer.unstaged)
            self._finish()

    def _decide_commit(
        self, view: StreamView, note: str | None, timestamp_us: int | None, *, wait: bool
    ) -> _Found:
        """Put the mark, with what was not flushed; return what the log holds then."""
        self._buffer.stage()
        mark = Manifest(
            Kind.COMMITTING,
            tuple(self._buffer.staged),
            order=committer.next_commit_order(self._stream, view, self._id),
            note=note,
            timestamp_us=timestamp_us,
        )
        transaction_decisions.put_closing_manifest(self._manifests, mark)
        if not wait:
            return self._look()
        return self._carry_out()

    def _carry_out(self) -> _Found:
        committer.commit_decided(self._stream, self._manifests, life=self._life)
        view, found = self._look(refresh=False)
        assert isinstance(found, TransactionOutcome), (
            f"{self._manifests.name} was decided and is still open"
        )
        return view, found

    def abort(self) -> None:
        """Drop all events, for good. Again: nothing. Raises TxnFailed if it was committed."""
        self._guard.check()
        with self._lock:
            if self._final is not TransactionStatus.ABORTED:
                view, found = self._look()
                if isinstance(found, OpenTransaction):
                    mark = Manifest(Kind.ABORTING, reason="the application asked for it")
                    transaction_decisions.put_closing_manifest(self._manifests, mark)
                    view, found = self._carry_out()
                assert isinstance(found, TransactionOutcome)
                transaction_lifecycle.check_outcome(view, found, Kind.ABORTING)
            self._finish()

    def _look(self, *, refresh: bool = True) -> _Found:
        """Return what the log holds of the transaction, now or as far as is known."""
        view = self._stream.view(refresh)
        view.check_life(self._life)
        found = transaction_lifecycle.find(view, self._id)
        if isinstance(found, TransactionOutcome):
            self._final = transaction_lifecycle.status_of(found)
            self._tell()
        return view, found

    def _finish(self) -> None:
        """Note that what this handle was asked for is done."""
        self._buffer.drop()
        self._done = True
        self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._on_end(self)

    def _require_open(self) -> None:
        """Raise TxnFailed if the transaction is known to have ended."""
        if self._final is not None:
            raise TxnFailed(
                f"{self._manifests.name} is {self._final.value}. Begin another.",
                transaction_id=self.id,
                status=self._final,
            )

    def _require_writable(self) -> None:
        self._require_open()
        self._check_takes_more()

    def _check_note(self, note: str) -> None:
        self._encoder.check_note(note)
        if self._opened is not None and self._opened.writer_id is None:
            raise InvalidInput(
                f"commit(note=...) on stream {self._stream.name} needs a writer with an id of your "
                "own: create_transactional_writer(stream, writer_id=...), since the note is kept "
                "by that id."
            )

    def __enter__(self) -> Transaction:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, or abort if the block raised, unless the block has decided or prepared."""
        if self._done:
            return
        if kind is None:
            self.commit()
        else:
            with suppress(PravegaSparkError):
                self.abort()

    def __repr__(self) -> str:
        """Name the transaction; no storage is asked."""
        state = self._final.value if self._final else "not known to have ended"
        return f"<Transaction {self._id} of {self._stream.name}: {state}>"

    def __reduce__(self) -> Any:
        """Refuse pickling: another process takes the transaction up by its id."""
        raise TypeError("a Transaction cannot be pickled; pass its id, and take it up by that.")


def _microseconds(time: object) -> int:
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise InvalidInput(
            f"a commit's timestamp is a datetime with a time zone, such as UTC; got {time!r}."
        )
    since = time - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
