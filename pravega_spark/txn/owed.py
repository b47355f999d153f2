"""What a decision leaves to the process that made it, which carries it out in the background.

A decision is final before its events are visible. The call that decides carries it out at once,
unless its caller does not wait for that, or the call fails on the way. Then the decision is *owed*:
the process carries it out about a second later, with those that came meanwhile, and tries again
until it is done; at the latest when a writer of the stream is closed, or when the process ends.
Other processes find what a process that was killed has left (``open_look``).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.retries import is_silent
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.writing import process_exit
from pravega_spark.errors import (
    NoSuchStream,
    StaleIdentity,
    StoreError,
    StoreFull,
    StoreReadOnly,
)
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.txn import commit, joint_sweep
from pravega_spark.txn.decision_log import DecisionLog
from pravega_spark.txn.manifests import Manifests
from pravega_spark.txn.settlement import PositionParticipants
from pravega_spark.values.limits import (
    BACKGROUND_EXIT_SECONDS,
    DECIDED_RETRY_SECONDS,
    DECIDED_SECONDS,
)

logger = own_logger(__name__)


@contextmanager
def told_as_decided(name: str) -> Iterator[None]:
    """Raise StoreError where storage takes no more writes, of a transaction that is decided.

    Of StoreFull a caller would believe that nothing is committed.
    """
    try:
        yield
    except (StoreFull, StoreReadOnly) as error:
        raise StoreError(
            f"{name} is committed, and not visible yet, since the storage takes no writes: {error} "
            "Its events become visible once it does; call commit again to wait for that.",
            url=error.url,
        ) from error


class Owed(ABC):
    """The decisions that one log still has to carry out; thread-safe."""

    def __init__(self, where: str, root: str, runtime: Runtime) -> None:
        """Begin with none; ``where`` names the log in messages, ``root`` is the URL of its root."""
        self._where = where
        self._root = root
        self._runtime = runtime
        self._items: dict[str, Any] = {}
        self._lock = new_lock()
        """Held while they are carried out."""
        self._is_scheduled = False
        self._has_failed = False
        """Whether the last attempt failed, which is a warning once."""
        self._exit: threading.Event | None = None
        self._silent_seconds = BACKGROUND_EXIT_SECONDS
        """For how long the end of the process still waits for a storage that does not answer."""

    @abstractmethod
    def _carry_out(self, items: Mapping[str, Any]) -> None:
        """Carry out these decisions, or find that somebody has done so."""

    def _add(self, transaction: str, item: Any) -> None:
        self._items[transaction] = item
        if self._runtime is SYSTEM:
            process_exit.register_owed(self)
        self._schedule(DECIDED_SECONDS)

    def _schedule(self, seconds: float) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._runtime.later(seconds, self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        if not self.carry_out():
            self._schedule(DECIDED_RETRY_SECONDS)

    def carry_out(self) -> bool:
        """Carry out what is owed; return whether nothing is left. Never raises an error."""
        with self._lock:
            items = dict(self._items)
            if items:
                try:
                    self._carry_out(items)
                except Exception as error:
                    self._report(error, len(items))
                    return False
            self._has_failed = False
            for transaction, item in items.items():
                if self._items.get(transaction) is item:
                    del self._items[transaction]
        process_exit.unregister_owed(self)
        if self._items:  # added meanwhile
            if self._runtime is SYSTEM:
                process_exit.register_owed(self)
            self._schedule(DECIDED_SECONDS)
        return True

    def _report(self, error: Exception, decisions: int) -> None:
        log = logger.debug if self._has_failed else logger.warning
        self._has_failed = True
        log(
            "%s: %d decided transactions are not visible yet; this process tries again: %s",
            self._where,
            decisions,
            error,
            extra=log_fields("commit transaction", self._where),
        )

    # The end of the process

    def begin_exit(self, *, close: bool) -> None:
        """Carry out in the background what is owed: its thread waits for that, so it is there."""
        if self._exit is not None and not self._exit.is_set():
            return  # an attempt of this end is under way
        done = self._exit = threading.Event()

        def run() -> None:
            self.carry_out()
            done.set()

        self._runtime.later(0.0, run)

    def wait_exit(self, deadline: float) -> bool:
        """Wait for that until a time of the monotonic clock; return whether it ended.

        A storage that does not answer is waited for only briefly, and once: the decisions are
        final, and others carry them out.
        """
        done, left = self._exit, deadline - time.monotonic()
        if done is None or done.wait(max(0.0, min(left, self._silent_seconds))):
            return True
        if is_silent(self._root):
            self._silent_seconds = 0.0
            return False
        return done.wait(max(0.0, deadline - time.monotonic()))

    def report_exit(self, waited_seconds: float) -> None:
        """Log the decisions that are not carried out although the process ends."""
        if self._items:
            logger.warning(
                "%s: the process ends with %d decided transactions that are not visible after "
                "%g s. They are final: the next transaction, a process that appends, or a round of "
                "maintenance makes them visible.",
                self._where,
                len(self._items),
                waited_seconds if self._silent_seconds else BACKGROUND_EXIT_SECONDS,
                extra=log_fields("commit transaction", self._where),
            )

    def reset_after_fork(self) -> None:
        """In a forked child: owe nothing, since the parent carries it out."""
        self._items.clear()
        self._is_scheduled = False


class OwedCommits(Owed):
    """The decisions of this process on transactions of one stream that its log does not hold."""

    def __init__(self, stream: StreamLog) -> None:
        """Begin with none."""
        super().__init__(stream.name, stream.store.url, stream.runtime)
        self._stream = stream

    def add(self, manifests: Manifests, life: int) -> None:
        """Owe a transaction of a life of the stream, which these manifests decide, or may do."""
        closed = manifests.copy() if manifests.is_closed else None
        self._add(manifests.transaction_id, (closed, life))

    def _carry_out(self, items: Mapping[str, tuple[Manifests | None, int]]) -> None:
        known = self._stream.log.snapshot
        left = {name: item for name, item in items.items() if known is None or name in known.open}
        for life in sorted({life for _, life in left.values()}):
            own = [self._read(name, item[0]) for name, item in left.items() if item[1] == life]
            with suppress(NoSuchStream, StaleIdentity):  # the life ended with the transaction
                commit.commit_decided(self._stream, *(m for m in own if m.is_closed), life=life)

    def _read(self, transaction_id: str, closed: Manifests | None) -> Manifests:
        """Return the manifests of a decision; read again if it was unknown whether it is stored."""
        if closed is not None:
            return closed
        manifests = Manifests(self._stream, transaction_id)
        manifests.read()
        return manifests


def owed_commits(stream: StreamLog) -> OwedCommits:
    """Return what this process owes to a stream."""
    return stream.kept(OwedCommits, partial(OwedCommits, stream))


class OwedDecisions(Owed):
    """Joint transactions of one root that this process decided, and that some stream lacks."""

    def __init__(self, decisions: DecisionLog) -> None:
        """Begin with none."""
        super().__init__(decisions.log.path, decisions.store.url, decisions.log.runtime)
        self._decisions = decisions

    def add(self, token: str, positions: PositionParticipants) -> None:
        """Owe a transaction that is decided to commit, or may be."""
        self._add(token, positions)

    def _carry_out(self, items: Mapping[str, PositionParticipants]) -> None:
        decisions = self._decisions
        streams = partial(open_stream, decisions.store, runtime=decisions.log.runtime)
        decisions.read()
        for record in decisions.decided():
            positions = items.get(record.token)
            if positions is not None:
                joint_sweep.carry_out_everywhere(decisions, record, streams, positions)


def owed_decisions(decisions: DecisionLog) -> OwedDecisions:
    """Return the joint transactions that this process owes to the streams of a root."""
    if decisions.owed is None:
        decisions.owed = OwedDecisions(decisions)
    assert isinstance(decisions.owed, OwedDecisions)
    return decisions.owed
