"""TransactionalWriter: begins transactions, keeps their leases, and knows where to resume."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from math import inf
from types import TracebackType
from typing import Any

from pravega_spark.engine.runtime import ProcessGuard
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import StreamState, WriterRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.engine.writing.event_encoder import Serializer
from pravega_spark.engine.writing.writer_sessions import open_session
from pravega_spark.errors import InvalidConfiguration, ObjectClosed, PravegaSparkError
from pravega_spark.limits import (
    DEFAULT_LEASE,
    FIRST_PING_SECONDS,
    MAX_EXECUTION_LEASES,
    MAX_EXECUTION_MS,
    TRANSACTION_SWEEP_SECONDS,
)
from pravega_spark.names import check_name
from pravega_spark.transactions import committer, sweeper, transaction_leases, transaction_lifecycle
from pravega_spark.transactions.transaction import Transaction
from pravega_spark.units import parse_duration_ms

logger = logging.getLogger(__name__)

_CLEAR_EVERY = 64
"""So many ended transactions are cleared away together."""


class TransactionalWriter:
    """Begins transactions on one stream; thread-safe. Made by ``create_transactional_writer``.

    With a ``writer_id`` of the user's own, a newer writer of the same id fences this one: what it
    left open is aborted, and ``last_note`` is the note of the last commit, so the newer one knows
    where to go on. Prepared transactions outlive it.
    """

    def __init__(
        self,
        stream: StreamLog,
        writer_id: str | None = None,
        *,
        serializer: Serializer | None = None,
        life: int | None = None,
    ) -> None:
        """Open the writer: a commit if it has an id of the user's own.

        ``life`` is the one of the stream that it is made for, by default the present one.
        """
        view = stream.view(life=life)
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        self._stream = stream
        self._life = view.life
        self._serializer = serializer
        self._guard = ProcessGuard(f"the transactional writer of {stream.name}")
        self._record: WriterRecord | None = None
        if writer_id is not None:
            self._record = self._open(check_name("writer", writer_id))
        self._open_ones: weakref.WeakValueDictionary[str, Transaction] = (
            weakref.WeakValueDictionary()
        )
        """A handle that nobody has, since a call was interrupted, keeps no lease."""
        self._known: dict[str, Transaction] = {}
        """Those whose ids were given out: others may use them when the handle is gone."""
        self._due: dict[str, float] = {}
        """When the lease of each is to be extended, by the monotonic clock."""
        self._ended: list[str] = []
        """Decided ones whose traces are to be cleared away."""
        self._changed = threading.Condition()
        self._pinger: threading.Thread | None = None
        self._tended = stream.runtime.monotonic()
        self._closed = False

    def _open(self, writer_id: str) -> WriterRecord:
        """Open a session, and settle what older sessions of the id left open."""
        record = open_session(self._stream, self._life, writer_id)
        reason = f"writer {writer_id} was opened anew"
        view = self._stream.view(refresh=False, life=self._life)
        theirs = [
            opened
            for opened in view.transactions.values()
            if opened.writer_id == writer_id and opened.session < record.session
        ]
        for opened in theirs:
            sweeper.abort(self._stream, opened, reason, if_open=True)
        if theirs:
            view = committer.find_and_commit_decided(
                self._stream, view, {one.transaction_id for one in theirs}
            )
        return view.writer(writer_id) or record

    @property
    def writer_id(self) -> str | None:
        """The id of the user's own, if any."""
        return None if self._record is None else self._record.writer_id

    @property
    def last_note(self) -> str | None:
        """The note of the last commit of this writer id, as of now (one storage call).

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

        ``lease`` (10 s to 600 s) is how long it outlives this process; it is extended in the
        background while the process lives and the handle, or the id that was asked of it, may be
        in use, up to ``max_execution`` (default: a thousand leases, at most a day, as in Pravega).
        Raises InvalidConfiguration, StreamSealed, WriterFenced.
        """
        self._check_usable()
        lease_ms = transaction_leases.parse_lease_ms(lease)
        execution_ms = _execution_ms(lease_ms, max_execution)
        self._tend()
        opened = transaction_lifecycle.begin(
            self._stream,
            self._life,
            lease_ms=lease_ms,
            execution_ms=execution_ms,
            writer=self._record,
        )
        return self._take(opened.transaction_id)

    def get_transaction(self, transaction_id: str) -> Transaction:
        """Take up a transaction by its id, begun here or in another process.

        An open one is kept alive by this writer from then on. Raises NoSuchTransaction, and
        StaleIdentity if the stream was deleted and created again since the writer was made.
        """
        self._check_usable()
        transaction = self._take(transaction_id)
        self._note_known(transaction)
        return transaction

    def _take(self, transaction_id: str) -> Transaction:
        transaction = Transaction(
            self._stream,
            transaction_id,
            serializer=self._serializer,
            on_end=self._forget,
            on_id=self._note_known,
            life=self._life,
        )
        if not transaction.is_open:
            return transaction
        with self._changed:
            self._open_ones[transaction_id] = transaction
            first = self._stream.runtime.monotonic() + FIRST_PING_SECONDS
            self._due[transaction_id] = first
            if self._pinger is None:
                self._pinger = threading.Thread(
                    target=self._keep_alive, name=f"pravega-pings-{self._stream.name}", daemon=True
                )
                self._pinger.start()
            self._changed.notify()
        return transaction

    def _note_known(self, transaction: Transaction) -> None:
        """Keep the handle; without the lock, which a thread that a fork left behind may hold."""
        name = transaction._id
        if name in self._due:
            self._known[name] = transaction
            if name not in self._due:  # it ended meanwhile
                self._known.pop(name, None)

    def _forget(self, transaction: Transaction) -> None:
        name = transaction._id
        with self._changed:
            self._drop(name)
            self._ended.append(name)
            full = len(self._ended) >= _CLEAR_EVERY
        if full:
            self._clear()

    def _drop(self, name: str) -> None:
        """Keep a transaction alive no more."""
        self._open_ones.pop(name, None)
        self._known.pop(name, None)
        self._due.pop(name, None)

    def _clear(self) -> None:
        """Remove the traces of what has ended; a failure is left to the next who tends."""
        with self._changed:
            ended, self._ended = self._ended, []
        try:
            view = self._stream.view(refresh=False)
            waiting = [name for name in ended if name in view.transactions]
            for name in ended:
                outcome = view.outcome(name)
                if outcome is not None:
                    sweeper.delete_remains_of(self._stream, name, outcome)
        except PravegaSparkError as error:
            logger.info("transactions of %s are not cleared yet: %s", self._stream.name, error)
        else:
            with self._changed:
                self._ended += waiting

    def _tend(self) -> None:
        """Finish what others left, now and then, if there is anything."""
        now = self._stream.runtime.monotonic()
        if now - self._tended < TRANSACTION_SWEEP_SECONDS:
            return
        self._tended = now
        try:
            with self._changed:
                ours = set(self._open_ones)
            if self._stream.view(life=self._life).transactions.keys() - ours:
                sweeper.sweep_transactions(self._stream, life=self._life)
        except PravegaSparkError as error:
            logger.warning("transactions of %s were not tended: %s", self._stream.name, error)

    def _keep_alive(self) -> None:
        """Extend the leases of what is open, until the writer is closed."""
        monotonic = self._stream.runtime.monotonic
        while True:
            with self._changed:
                if self._closed:
                    return
                pause = min(self._due.values(), default=inf) - monotonic()
                if pause > 0:
                    self._changed.wait(None if pause == inf else pause)
                    continue
                now = monotonic()
                ready = [name for name, due in self._due.items() if due <= now]
            for name in ready:
                self._extend(name)

    def _extend(self, name: str) -> None:
        """Extend the lease of a transaction, unless nobody can use it any more."""
        transaction = self._open_ones.get(name)
        again = inf if transaction is None else self._ping(transaction)
        with self._changed:
            if transaction is None:
                self._drop(name)
            elif name in self._due:
                self._due[name] = self._stream.runtime.monotonic() + again

    def _ping(self, transaction: Transaction) -> float:
        """Extend a lease; return the seconds until the next time. Never raises."""
        try:
            if not transaction._keep_alive():
                return inf
        except Exception as error:  # whatever it is, the other leases go on
            logger.warning("the lease of %r was not extended: %s", transaction, error)
        return transaction_leases.ping_interval_seconds(transaction.lease_ms)

    def close(self) -> None:
        """Stop extending leases; what is still open ends with its lease, unless taken up by id."""
        if self._guard.pid != os.getpid():
            return  # the lock may be held by a thread that is not here
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        if self._pinger is not None:
            self._pinger.join()
        self._clear()

    def __enter__(self) -> TransactionalWriter:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> Any:
        """Refuse pickling: a writer has a thread and a session."""
        raise TypeError("a TransactionalWriter cannot be pickled; create it where it is used.")

    def _check_usable(self) -> None:
        self._guard.check()
        if self._closed:
            raise ObjectClosed(
                f"the transactional writer of stream {self._stream.name} was closed; create a new "
                "one."
            )


def _execution_ms(lease_ms: int, limit: str | float | None) -> int:
    if limit is None:
        return min(MAX_EXECUTION_LEASES * lease_ms, MAX_EXECUTION_MS)
    execution_ms = parse_duration_ms("max_execution", limit)
    if execution_ms < lease_ms:
        raise InvalidConfiguration(
            f"max_execution {limit!r} is shorter than the lease of {lease_ms // 1000} s."
        )
    return execution_ms
