"""TransactionalWriter: begins transactions, extends their leases, and resumes."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from concurrent.futures import Future, wait
from math import inf

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import StreamState, WriterRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.watermarks import mark_of
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.engine.writing.encode import EventTimes, Serializer
from pravega_spark.engine.writing.identity import open_session
from pravega_spark.errors import InvalidConfiguration, ObjectClosed, PravegaSparkError
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.txn import commit, leases, lifecycle, settlement, sweeper
from pravega_spark.txn.decision_log import JointRecord
from pravega_spark.txn.open_look import look_at
from pravega_spark.txn.owed import owed_commits
from pravega_spark.txn.transaction import Transaction, id_of, keep_alive, mark_unshared
from pravega_spark.values.checks import check_flag, check_function, shown
from pravega_spark.values.handles import ClosedByBlock, NotPicklable
from pravega_spark.values.limits import (
    DEFAULT_LEASE,
    FIRST_PING_SECONDS,
    MAX_EXECUTION_LEASES,
    MAX_EXECUTION_MS,
    TRANSACTION_SWEEP_SECONDS,
)
from pravega_spark.values.names import check_name
from pravega_spark.values.units import parse_duration_ms

logger = own_logger(__name__)

_RETRY_SECONDS = 1.0
"""Pause after a ping that failed."""
_IDLE_SECONDS = 10.0
"""How long the thread waits for another transaction before it ends."""


class LeaseKeeper:
    """Pings each transaction while its handle, or the id that the user took from it, is in use."""

    def __init__(self, stream: StreamLog) -> None:
        """Begin without transactions: one starts the thread, which ends soon after the last."""
        self._stream = stream
        self._open: weakref.WeakValueDictionary[str, Transaction] = weakref.WeakValueDictionary()
        """A handle that never reached the user, since the call was interrupted, keeps no lease."""
        self._identified: dict[str, Transaction] = {}
        """Handles whose id the user has read: other processes may use the id without a handle."""
        self._due: dict[str, float] = {}
        """When to extend each lease, by the monotonic clock."""
        self._failing: set[str] = set()
        """Transactions whose last ping failed."""
        self._wakes_at = inf
        """When the thread looks again, unless it is notified; a wake-up costs a begin time."""
        self._changed = threading.Condition(new_rlock())
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def open_ids(self) -> set[str]:
        """The ids of the transactions that it keeps alive."""
        with self._changed:
            return set(self._open)

    def add(self, transaction: Transaction) -> None:
        """Keep an open transaction alive."""
        first = self._stream.runtime.monotonic() + FIRST_PING_SECONDS
        with self._changed:
            self._open[id_of(transaction)] = transaction
            self._due[id_of(transaction)] = first
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"pravega-pings-{self._stream.name}", daemon=True
                )
                self._thread.start()
            if first < self._wakes_at:
                self._changed.notify()

    def keep_handle(self, transaction: Transaction) -> None:
        """Keep the handle of a transaction whose id the user has read. Takes no lock."""
        name = id_of(transaction)
        if name in self._due:
            self._identified[name] = transaction
            if name not in self._due:  # it ended during the call
                self._identified.pop(name, None)

    def remove(self, transaction: Transaction) -> None:
        """Stop extending the lease of a transaction that has ended."""
        with self._changed:
            self._drop(id_of(transaction))

    def _drop(self, name: str) -> None:
        self._open.pop(name, None)
        self._identified.pop(name, None)
        self._due.pop(name, None)
        self._failing.discard(name)

    def _run(self) -> None:
        """Extend each lease when it is due, until the writer is closed or none is left for long."""
        monotonic = self._stream.runtime.monotonic
        while True:
            with self._changed:
                if self._closed:
                    return
                self._wakes_at = min(self._due.values(), default=inf)
                pause = self._wakes_at - monotonic()
                if pause > 0:
                    is_called = self._changed.wait(_IDLE_SECONDS if pause == inf else pause)
                    if not is_called and min(self._due.values(), default=inf) == inf:
                        self._thread = None  # a writer that is open and has nothing to do has none
                        return
                    continue
                now = monotonic()
                ready = [name for name, due in self._due.items() if due <= now]
            for name in ready:
                self._extend(name)

    def _extend(self, name: str) -> None:
        """Extend the lease of a transaction, or drop it if its handle was collected."""
        transaction = self._open.get(name)
        pause = inf if transaction is None else self._ping(transaction)
        with self._changed:
            if transaction is None:
                self._drop(name)
            elif name in self._due:
                self._due[name] = self._stream.runtime.monotonic() + pause

    def _ping(self, transaction: Transaction) -> float:
        """Extend a lease; return the seconds until the next ping. Never raises.

        After a failure the next ping comes soon, because leases run again after an outage. Only the
        first of several failures is a warning.
        """
        pause = leases.ping_interval_seconds(transaction.lease_ms)
        try:
            if not keep_alive(transaction):
                return inf
        except Exception as error:  # one failure must not stop the pings of other transactions
            level = logging.DEBUG if id_of(transaction) in self._failing else logging.WARNING
            logger.log(
                level,
                "could not extend the lease of %r: %s",
                transaction,
                error,
                extra=log_fields("ping", self._stream.name, transaction=id_of(transaction)),
            )
            self._failing.add(id_of(transaction))
            return min(pause, _RETRY_SECONDS)
        self._failing.discard(id_of(transaction))
        return pause

    def close(self) -> None:
        """Stop the thread and wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()


_DELETE_REMAINS_EVERY = 64
"""The remains of ended transactions are deleted for this many at a time."""


class TransactionalWriter(ClosedByBlock, NotPicklable):
    """Begins transactions on one stream; thread-safe. Made by ``create_transactional_writer``.

    With a ``writer_id``, a newer writer of the same id fences this one and
    aborts the transactions that it left open; ``last_note``, the note of the last commit, is where
    the newer writer resumes. Prepared transactions outlive their writer; parts of joint ones do
    not: the newer writer carries out what was decided, and aborts the rest.
    """

    _NOT_PICKLABLE = "a TransactionalWriter cannot be pickled; create it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        writer_id: str | None = None,
        *,
        serializer: Serializer | None = None,
        large_events: bool = False,
        life: int | None = None,
        times: EventTimes | None = None,
    ) -> None:
        """Open the writer; an id of the user's own costs a commit, which opens a session.

        ``life`` is the life of the stream that the writer is for, by default the present one;
        ``times`` says what commits note without a timestamp.
        """
        check_function("a serializer", serializer)
        view = stream.view(life=life)
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        self._stream = stream
        look_at(stream)
        self._life = view.life
        self._times = times
        self._serializer = serializer
        self._large_events = check_flag("large_events", large_events)
        self._guard = ProcessGuard(f"the transactional writer of {stream.name}")
        self._inherited: list[JointRecord] = []
        """Decided joint transactions of older sessions, whose parts the opening carried out."""
        self._record: WriterRecord | None = None
        if writer_id is not None:
            self._record = self._open(check_name("writer", writer_id))
        self._leases = LeaseKeeper(stream)
        self._ended: list[str] = []
        """Decided transactions whose remains are still in the storage."""
        self._delete_at = _DELETE_REMAINS_EVERY
        """The number of them at which a deletion begins."""
        self._deletion: Future[None] | None = None
        self._lock = new_rlock()
        self._swept_at = stream.runtime.monotonic()
        self.is_closed = False
        """Whether it was closed; open transactions then keep no lease."""

    def _open(self, writer_id: str) -> WriterRecord:
        """Open a session, and end the transactions that older sessions of the id left open."""
        record = open_session(self._stream, self._life, writer_id)
        reason = f"a newer session of writer {writer_id} was opened"
        view = self._stream.view(refresh=False, life=self._life)
        orphaned = [
            opened
            for opened in view.transactions.values()
            if opened.writer_id == writer_id and opened.session < record.session
        ]
        parts = [opened for opened in orphaned if opened.is_part]
        for opened in orphaned:
            if not opened.is_part:
                sweeper.abort(self._stream, opened, reason, if_open=True)
        self._inherited = settlement.end_parts(self._stream, parts, reason)
        if orphaned:
            view = commit.find_and_commit_decided(
                self._stream, view, {one.transaction_id for one in orphaned}
            )
        return view.writer(writer_id) or record

    @property
    def writer_id(self) -> str | None:
        """The id that the user gave, or None."""
        return None if self._record is None else self._record.writer_id

    @property
    def last_note(self) -> str | None:
        """The note of this writer id's last commit, read from the log (one storage call).

        Raises StaleIdentity and NoSuchStream if the stream's life has ended.
        """
        if self._record is None:
            return None
        view = self._stream.view(life=self._life)
        known = archived_records.find_writer(self._stream, view, self._record.writer_id)
        return None if known is None else known.note

    def begin_transaction(
        self, lease: str | float = DEFAULT_LEASE, *, max_execution: str | float | None = None
    ) -> Transaction:
        """Begin a transaction: one commit.

        ``lease`` (10 s to 600 s) is how long the transaction outlives this process. A background
        thread extends it while the handle exists, and always once its ``id`` was read, up to
        ``max_execution`` (default: a thousand leases, at most a day, as in Pravega).
        Raises InvalidConfiguration, StreamSealed, WriterFenced.
        """
        self._check_usable()
        return self._begin(*parse_limits(lease, max_execution))

    def _begin(
        self, lease_ms: int, execution_ms: int, joint_token: str | None = None
    ) -> Transaction:
        self._sweep_if_due()
        opened = lifecycle.begin(
            self._stream,
            self._life,
            lease_ms=lease_ms,
            execution_ms=execution_ms,
            writer=self._record,
            joint_token=joint_token,
        )
        transaction = self._open_handle(opened.transaction_id)
        mark_unshared(transaction)
        return transaction

    def get_transaction(self, transaction_id: str) -> Transaction:
        """Open a transaction by its id, begun by this or another process.

        From then on this writer extends its lease. Raises NoSuchTransaction, and StaleIdentity if
        the stream was deleted and created again since the writer was made.
        """
        self._check_usable()
        transaction = self._open_handle(transaction_id)
        self._leases.keep_handle(transaction)
        return transaction

    def _open_handle(self, transaction_id: str) -> Transaction:
        transaction = Transaction(
            self._stream,
            transaction_id,
            serializer=self._serializer,
            large_events=self._large_events,
            on_end=self._add_ended,
            on_id=self._leases.keep_handle,
            life=self._life,
            times=None if self._times is None else self._times.again(),
        )
        if transaction.is_open:
            self._leases.add(transaction)
        return transaction

    def _add_ended(self, transaction: Transaction) -> None:
        """Stop the lease of an ended transaction; at times, delete remains in the background."""
        self._leases.remove(transaction)
        with self._lock:
            self._ended.append(id_of(transaction))
            is_due = len(self._ended) >= self._delete_at
            if is_due and (self._deletion is None or self._deletion.done()):
                self._deletion = self._stream.runtime.start(self._delete_remains)

    def _delete_remains(self) -> None:
        """Delete the remains of ended transactions; after a failure, a later sweep does it."""
        with self._lock:
            ended, self._ended = self._ended, []
        try:
            view = self._stream.view(refresh=False)
            waiting = [name for name in ended if name in view.transactions]
            for name in ended:
                outcome = view.outcome(name)
                if outcome is not None:
                    sweeper.delete_remains_of(self._stream, name, outcome)
        except PravegaSparkError as error:
            logger.info(
                "could not delete the remains of transactions of %s: %s",
                self._stream.name,
                error,
                extra=log_fields("sweep transactions", self._stream.name),
            )
        else:
            with self._lock:
                self._ended += waiting
                self._delete_at = len(waiting) + _DELETE_REMAINS_EVERY

    def _sweep_if_due(self) -> None:
        """Sweep the stream from time to time if it has transactions of other writers."""
        now = self._stream.runtime.monotonic()
        if now - self._swept_at < TRANSACTION_SWEEP_SECONDS:
            return
        self._swept_at = now
        try:
            ours = self._leases.open_ids
            if self._stream.view(life=self._life).transactions.keys() - ours:
                sweeper.sweep_transactions(self._stream, life=self._life)
        except PravegaSparkError as error:
            logger.warning(
                "could not sweep transactions of %s: %s",
                self._stream.name,
                error,
                extra=log_fields("sweep transactions", self._stream.name),
            )

    def close(self) -> None:
        """Stop extending leases; open transactions expire unless another handle extends them.

        What this process has decided of the stream's transactions becomes visible; if the storage
        fails, the process tries again until it ends. A writer that has noted times says that it
        leaves: once the last transaction of its id has ended, it no longer holds the watermark.
        """
        if self._guard.pid != os.getpid():
            return  # in a forked child: a thread of the parent may hold the locks
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self._leases.close()
        owed_commits(self._stream).carry_out()
        if self._deletion is not None:
            wait([self._deletion])
        self._delete_remains()
        if self._record is not None:
            self._leave(self._record)

    def _leave(self, record: WriterRecord) -> None:
        """Say that the writer leaves, if it has noted a time; if that fails, its silence tells."""
        name, stream = record.writer_id, self._stream
        try:
            view = stream.view(refresh=False, life=self._life)
            if any(one.writer_id == name for one in view.transactions.values()):
                view = stream.view(life=self._life)  # another process may have noted for it
            if mark_of(view, name) is not None:
                lifecycle.leave(stream, self._life, record)
        except PravegaSparkError as error:
            logger.debug(
                "writer of %s could not record that it leaves: %s",
                stream.name,
                error,
                extra=log_fields("close writer", stream.name),
            )

    def _check_usable(self) -> None:
        self._guard.check()
        if self.is_closed:
            raise ObjectClosed(
                f"the transactional writer of stream {self._stream.name} was closed; create a new "
                "one."
            )


# For a joint writer, which holds a writer of each stream


def life_of(writer: TransactionalWriter) -> int:
    """Return the life of the stream that an open writer is for. Raises ObjectClosed."""
    writer._check_usable()
    return writer._life


def begin_part(writer: TransactionalWriter, limits: tuple[int, int], token: str) -> Transaction:
    """Begin a part of a joint transaction, with a lease and a maximum execution time in ms."""
    return writer._begin(*limits, token)


def check_session(writer: TransactionalWriter) -> None:
    """Raise WriterFenced if a newer session of the writer's id is open."""
    if writer._record is not None:
        lifecycle.check_session(writer._stream.view(life=writer._life), writer._record)


def inherited_of(writer: TransactionalWriter) -> list[JointRecord]:
    """Return decided transactions of older sessions, whose parts the writer carried out."""
    return writer._inherited


def parse_limits(lease: str | float, limit: str | float | None) -> tuple[int, int]:
    """Return a lease and a maximum execution time, in ms. Raises InvalidConfiguration."""
    lease_ms = leases.parse_lease_ms(lease)
    if limit is None:
        return lease_ms, min(MAX_EXECUTION_LEASES * lease_ms, MAX_EXECUTION_MS)
    execution_ms = parse_duration_ms("max_execution", limit)
    if execution_ms < lease_ms:
        raise InvalidConfiguration(
            f"max_execution {shown(limit)} is shorter than the lease of {lease_ms // 1000} s; give "
            "a longer one, or a shorter lease."
        )
    return lease_ms, execution_ms
