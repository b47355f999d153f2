"""LeaseKeeper: extends the leases of a writer's open transactions in the background."""

from __future__ import annotations

import logging
import threading
import weakref
from math import inf

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.limits import FIRST_PING_SECONDS
from pravega_spark.process_locks import new_rlock
from pravega_spark.transactions import transaction_leases
from pravega_spark.transactions.transaction import Transaction

logger = own_logger(__name__)

_RETRY_SECONDS = 1.0
"""Pause after a ping that failed."""


class LeaseKeeper:
    """Pings each transaction while its handle, or the id that the user took from it, is in use."""

    def __init__(self, stream: StreamLog) -> None:
        """Begin without transactions; the first one starts the thread."""
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
            self._open[transaction._id] = transaction
            self._due[transaction._id] = first
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"pravega-pings-{self._stream.name}", daemon=True
                )
                self._thread.start()
            if first < self._wakes_at:
                self._changed.notify()

    def keep_handle(self, transaction: Transaction) -> None:
        """Keep the handle of a transaction whose id the user has read. Takes no lock."""
        name = transaction._id
        if name in self._due:
            self._identified[name] = transaction
            if name not in self._due:  # it ended during the call
                self._identified.pop(name, None)

    def remove(self, transaction: Transaction) -> None:
        """Stop extending the lease of a transaction that has ended."""
        with self._changed:
            self._drop(transaction._id)

    def _drop(self, name: str) -> None:
        self._open.pop(name, None)
        self._identified.pop(name, None)
        self._due.pop(name, None)
        self._failing.discard(name)

    def _run(self) -> None:
        """Extend each lease when it is due, until the writer is closed."""
        monotonic = self._stream.runtime.monotonic
        while True:
            with self._changed:
                if self._closed:
                    return
                self._wakes_at = min(self._due.values(), default=inf)
                pause = self._wakes_at - monotonic()
                if pause > 0:
                    self._changed.wait(None if pause == inf else pause)
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
        pause = transaction_leases.ping_interval_seconds(transaction.lease_ms)
        try:
            if not transaction._keep_alive():
                return inf
        except Exception as error:  # one failure must not stop the pings of other transactions
            level = logging.DEBUG if transaction._id in self._failing else logging.WARNING
            logger.log(
                level,
                "could not extend the lease of %r: %s",
                transaction,
                error,
                extra=log_fields("ping", self._stream.name, transaction=transaction._id),
            )
            self._failing.add(transaction._id)
            return min(pause, _RETRY_SECONDS)
        self._failing.discard(transaction._id)
        return pause

    def close(self) -> None:
        """Stop the thread and wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
