"""KnownDecisions: the manifests of a stream's open transactions, as this process has read them."""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.stream.records import OpenTransaction
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.process_locks import new_lock
from pravega_spark.transactions.manifest_codec import Manifest
from pravega_spark.transactions.manifests import Manifests, read_new
from pravega_spark.transactions.transaction_paths import announced_transactions

ALWAYS_READ = 16
"""Every commit reads this many of the oldest open transactions; younger ones are announced."""


@dataclass(frozen=True, slots=True)
class DecidedTransaction:
    """An open transaction with its closing manifest."""

    opened: OpenTransaction
    closing: Manifest
    chunks: list[StagedChunk]

    @property
    def order(self) -> tuple[int, str]:
        """The position in the commit order; concurrent decisions are ordered by id."""
        return self.closing.order, self.opened.transaction_id


class KnownDecisions:
    """The manifests of one stream's open transactions; thread-safe."""

    def __init__(self) -> None:
        """Begin without manifests."""
        self._lock = new_lock()
        self._version = -1
        self._manifests: dict[str, Manifests] = {}
        self._closed: dict[str, Manifests] = {}
        """The decided ones; with each, it holds all that were decided before."""

    def read(
        self,
        stream: StreamLog,
        view: StreamView,
        *,
        names: Collection[str] = (),
        apart_from: str | None = None,
    ) -> None:
        """Read new manifests of transactions that may be decided, until no decision is new.

        These are the oldest open ones, the announced ones, and ``names``. The writer of a
        closing manifest had read all earlier decisions, some of which may be newer than our last
        read; so after each new closing manifest all of them are read again.
        """
        always = {*oldest_open(view), *names} - {apart_from}
        with self._lock:
            decided = set(self._closed)
        # Announcements are listed only if one of them could tell this process something new.
        others = set(view.snapshot.open) - always - decided - {apart_from}
        several: dict[str, Manifests] = {}
        is_new = True
        while is_new:
            wanted = always | (announced_transactions(stream) & others) if others else always
            several |= self._undecided(stream, view, wanted - several.keys())
            behind = [manifests for manifests in several.values() if not manifests.is_closed]
            read_new(behind)
            is_new = any(manifests.is_closed for manifests in behind)
        with self._lock:
            self._manifests |= several
            self._closed |= {name: m for name, m in several.items() if m.is_closed}

    def _undecided(
        self, stream: StreamLog, view: StreamView, names: Iterable[str]
    ) -> dict[str, Manifests]:
        """Return copies of the manifests of those not known as decided, to read on from."""
        with self._lock:
            self._forget_ended(view)
            return {
                name: self._manifests[name].copy()
                if name in self._manifests
                else Manifests(stream, name)
                for name in sorted(names)
                if name not in self._closed
            }

    def _forget_ended(self, view: StreamView) -> None:
        if view.version >= self._version:
            self._version = view.version
            for known in (self._manifests, self._closed):
                for name in [name for name in known if name not in view.snapshot.open]:
                    del known[name]

    def add(self, manifests: Manifests) -> None:
        """Add a decision of this process, so that its other threads need not read it."""
        with self._lock:
            self._manifests[manifests.transaction_id] = manifests
            self._closed[manifests.transaction_id] = manifests

    def last_order(self) -> int:
        """Return the commit order of the last known decision."""
        with self._lock:
            return max((m.entries[-1].order for m in self._closed.values()), default=0)

    def decided(self, view: StreamView, own: Iterable[Manifests]) -> list[DecidedTransaction]:
        """Return the decided transactions that the log holds as open, in commit order."""
        with self._lock:
            closed = dict(self._closed)
        for manifests in own:  # a thread with an older view may have forgotten them
            closed[manifests.transaction_id] = manifests
        found = [
            DecidedTransaction(opened, manifests.entries[-1], manifests.chunks)
            for name, manifests in closed.items()
            if (opened := view.transaction(name)) is not None
        ]
        return sorted(found, key=lambda decided: decided.order)


_known: weakref.WeakKeyDictionary[StreamLog, KnownDecisions] = weakref.WeakKeyDictionary()


def known_decisions(stream: StreamLog) -> KnownDecisions:
    """Return what this process knows of a stream's decisions."""
    return _known.setdefault(stream, KnownDecisions())


def oldest_open(view: StreamView) -> set[str]:
    """Return the open transactions whose manifests every commit reads.

    A transaction stays among them until it ends, so every commit finds a decision that was made
    while it was one of them. Transactions of the first versions of this package have no version
    and are not announced, so all of them are read.
    """
    opened = view.transactions.values()
    dated = (one for one in opened if one.version)
    oldest = heapq.nsmallest(ALWAYS_READ, dated, key=lambda one: one.version)
    return {one.transaction_id for one in oldest} | {
        one.transaction_id for one in opened if not one.version
    }
