"""Carry out what is decided: one commit that ends transactions in the order of their decisions.

Any process may do it, with its own decision or with those of others, so what a dead one left is
finished by whoever comes next. Nothing is decided here.
"""

from __future__ import annotations

import heapq
import threading
import weakref
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.records import (
    OUTCOME_PREFIX,
    OpenTransaction,
    TransactionOutcome,
    WriterRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import segment_text
from pravega_spark.transactions.manifests import (
    Kind,
    Manifest,
    Manifests,
    commit_intent_key,
    commit_intents,
    read_new,
    rows_of,
)
from pravega_spark.transactions.rolling import RollingCommit

_ALWAYS_READ = 16
"""Every commit looks at so many of the oldest open transactions; a younger one announces itself."""


@dataclass(frozen=True, slots=True)
class Decided:
    """An open transaction with its closing mark."""

    opened: OpenTransaction
    mark: Manifest
    chunks: list[StagedChunk]

    @property
    def order(self) -> tuple[int, str]:
        """Its place among the decisions; those of one place were decided at the same time."""
        return self.mark.order, self.opened.transaction_id


class _KnownDecisions:
    """The manifests of a stream's open transactions, as far as this process has read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = -1
        self._manifests: dict[str, Manifests] = {}
        self._closed: dict[str, Manifests] = {}
        """Those that are decided; for each of them also all that were decided before it."""

    def read(
        self,
        stream: StreamLog,
        view: StreamView,
        *,
        names: Collection[str] = (),
        apart_from: str | None = None,
    ) -> None:
        """Read new manifests of those that may be decided, until no further mark appears.

        These are the oldest open ones, the announced ones, and ``names``. A mark's writer had read
        the earlier marks, and some of these may be newer than our last read: so after every new
        mark all are read once more.
        """
        always = {*_oldest(view), *names} - {apart_from}
        others = set(view.snapshot.open) - always - {apart_from}
        several: dict[str, Manifests] = {}
        before, closed = -1, 0
        while before != closed:
            wanted = always | (commit_intents(stream) & others) if others else always
            several |= self._begin(stream, view, wanted - several.keys())
            read_new(several.values())
            before, closed = closed, sum(m.is_closed for m in several.values())
        with self._lock:
            self._manifests |= several
            self._closed |= {name: m for name, m in several.items() if m.is_closed}

    def _begin(
        self, stream: StreamLog, view: StreamView, names: Iterable[str]
    ) -> dict[str, Manifests]:
        """Return what is known of transactions, as copies to go on from."""
        with self._lock:
            self._forget_ended(view)
            return {
                name: self._manifests[name].copy()
                if name in self._manifests
                else Manifests(stream, name)
                for name in sorted(names)
            }

    def _forget_ended(self, view: StreamView) -> None:
        if view.version >= self._version:
            self._version = view.version
            for known in (self._manifests, self._closed):
                for name in [name for name in known if name not in view.snapshot.open]:
                    del known[name]

    def learn(self, manifests: Manifests) -> None:
        """Take over what a handle of this process has decided, so that nobody here reads it."""
        with self._lock:
            self._manifests[manifests.transaction_id] = manifests
            self._closed[manifests.transaction_id] = manifests

    def last_order(self) -> int:
        """Return the place of the last decision that is known."""
        with self._lock:
            return max((m.entries[-1].order for m in self._closed.values()), default=0)

    def decided(self, view: StreamView, own: Manifests | None) -> list[Decided]:
        """Return the decided ones that the log holds as open, in the order of the decisions."""
        with self._lock:
            closed = dict(self._closed)
        if own is not None:
            closed[own.transaction_id] = own  # whatever an older view of another thread forgot
        found = [
            Decided(opened, manifests.entries[-1], manifests.chunks)
            for name, manifests in closed.items()
            if (opened := view.transaction(name)) is not None
        ]
        return sorted(found, key=lambda decided: decided.order)


_known: weakref.WeakKeyDictionary[StreamLog, _KnownDecisions] = weakref.WeakKeyDictionary()


def _known_decisions(stream: StreamLog) -> _KnownDecisions:
    return _known.setdefault(stream, _KnownDecisions())


def _oldest(view: StreamView) -> set[str]:
    """Return the open transactions that every commit looks at.

    A transaction never leaves them before it ends, so one that is decided as one of them is found
    by all. Those of the first versions of this package do not say when they began, and announce
    nothing: all of them are looked at.
    """
    opened = view.transactions.values()
    dated = (one for one in opened if one.version)
    oldest = heapq.nsmallest(_ALWAYS_READ, dated, key=lambda one: one.version)
    return {one.transaction_id for one in oldest} | {
        one.transaction_id for one in opened if not one.version
    }


def next_commit_order(stream: StreamLog, view: StreamView, transaction_id: str) -> int:
    """Return the place among the decisions of one that is decided now: after all there are.

    ``view`` is no older than the caller's call. What was decided before it is in the log then, or
    open in the view with its mark to be read; so no clock is asked for the order of two commits.
    Whoever comes later finds this one among the oldest, or by an announcement that precedes the
    mark, so the number of open transactions does not count.
    """
    known = _known_decisions(stream)
    known.read(stream, view, apart_from=transaction_id)
    if transaction_id not in _oldest(view):
        stream.store.put(commit_intent_key(stream, transaction_id), b"{}\n")
    return known.last_order() + 1


def find_and_commit_decided(
    stream: StreamLog, view: StreamView, names: Collection[str]
) -> StreamView:
    """Carry out what is decided of these open transactions; return the view afterwards."""
    _known_decisions(stream).read(stream, view, names=names)
    return commit_decided(stream, life=view.life)


def commit_decided(
    stream: StreamLog, own: Manifests | None = None, *, life: int | None = None
) -> StreamView:
    """Bring every transaction that is known to be decided to its end, in one commit.

    ``own`` is one that this process has just decided: those before it were read when it took its
    turn. After a lost race nothing is read: while it is, a busy log would go on. ``life`` is the
    one that the call was made for, by default the present one. Returns the view afterwards.
    """
    known = _known_decisions(stream)
    if own is not None:
        known.learn(own)  # before the log is ours: whoever has it now takes this one along

    def decide(view: StreamView) -> Proposal[None]:
        decided = known.decided(view, own)
        return (_outcomes(stream, view, decided) if decided else None), None

    view = StreamView(stream.commit(decide, life=stream.life_of(life)).snapshot)
    failpoint("txn.committed")
    return view


def _outcomes(stream: StreamLog, view: StreamView, decided: Sequence[Decided]) -> Body:
    """Return the commit that ends the transactions, in their order."""
    now_ms, version = stream.now_ms(), view.version + 1
    draft = CommitBuilder(view, now_ms)
    placing = RollingCommit(draft, now_ms)
    domains: dict[str, str | None] = {}
    story: list[dict[str, object]] = []
    aborted: list[str] = []
    for item in decided:
        opened, mark, name = item.opened, item.mark, item.opened.transaction_id
        committed = mark.kind is Kind.COMMITTING
        placed = placing.put(opened.epoch, item.chunks) if committed else []
        outcome = TransactionOutcome(
            name,
            committed,
            opened.created_ms,
            now_ms,
            version,
            mark.token,
            rows_of(placed),
            sum(chunk.event_bytes for chunk in placed),
            opened.writer_id,
            mark.reason,
        )
        domains[f"{OPEN_PREFIX}{name}"] = None
        domains[f"{OUTCOME_PREFIX}{name}"] = outcome.encode()
        if not committed:
            aborted.append(name)
            continue
        story.append(_told(opened, mark, placed))
        if mark.note is not None and opened.writer_id is not None:
            domains |= _noted(view, opened, mark.note, version)
    placing.finish()
    operation = "COMMIT TRANSACTION" if story else "ABORT TRANSACTION"
    parameters = {"transactions": story, "aborted": aborted, "rolled": placing.rolled}
    body = draft.body(operation, parameters)
    body.domains = {**body.domains, **domains}
    return body


def _told(
    opened: OpenTransaction, mark: Manifest, placed: Sequence[StagedChunk]
) -> dict[str, object]:
    """Return what history says of a committed transaction."""
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for chunk in placed:
        segment = segment_text(chunk.segment_id)
        rows[segment] = rows.get(segment, 0) + chunk.rows
        sizes[segment] = sizes.get(segment, 0) + chunk.event_bytes
    told: dict[str, object] = {"id": opened.transaction_id, "created": opened.created_ms}
    if mark.timestamp_us is not None:
        told["timestamp"] = mark.timestamp_us
    return {**told, "rowsBySegment": rows, "bytesBySegment": sizes}


def _noted(view: StreamView, opened: OpenTransaction, note: str, version: int) -> dict[str, str]:
    writer_id = str(opened.writer_id)
    known = view.writer(writer_id) or WriterRecord(writer_id, opened.session, 0, version)
    record = replace(known, note=note, note_number=known.last, version=version)
    return view.writer_changes(record)
