"""Carry out what is decided: one commit that ends transactions in the order of their decisions.

Any process may do it, with its own decision or with those of others, so what a dead one left is
finished by whoever comes next. Nothing is decided here.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pravega_spark.engine.actions import Body
from pravega_spark.engine.chunk import StagedChunk
from pravega_spark.engine.crashpoints import crash_point
from pravega_spark.engine.draft import Draft
from pravega_spark.engine.records import (
    OUTCOME_PREFIX,
    WRITER_PREFIX,
    OpenTransaction,
    Outcome,
    WriterRecord,
)
from pravega_spark.engine.snapshot import OPEN_PREFIX, Snapshot
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.model import segment_text
from pravega_spark.txn.manifests import Kind, Manifest, Manifests, read_new, rows_of
from pravega_spark.txn.placing import Placing


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


class _Known:
    """The manifests of a stream's open transactions, as far as this process has read them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = -1
        self._manifests: dict[str, Manifests] = {}
        self._closed: dict[str, Manifests] = {}
        """Those that are decided; for each of them also all that were decided before it."""

    def read(self, stream: Stream, view: StreamView, *, apart_from: str | None = None) -> None:
        """Read what is new of all that are open in the view, but one, until no closing mark is.

        Who put a mark had read those before it, and they may have been put since we passed them:
        so after every mark all are read once more.
        """
        with self._lock:
            self._forget_ended(view)
            several = [
                self._manifests[name].copy() if name in self._manifests else Manifests(stream, name)
                for name in sorted(view.transactions)
                if name != apart_from
            ]
        before, closed = -1, 0
        while before != closed:
            read_new(several)
            before, closed = closed, sum(manifests.is_closed for manifests in several)
        with self._lock:
            self._manifests |= {m.transaction_id: m for m in several}
            self._closed |= {m.transaction_id: m for m in several if m.is_closed}

    def _forget_ended(self, view: StreamView) -> None:
        if view.version >= self._version:
            self._version = view.version
            for known in (self._manifests, self._closed):
                for name in known.keys() - view.transactions.keys():
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
        opened = view.transactions
        with self._lock:
            closed = dict(self._closed)
        if own is not None:
            closed[own.transaction_id] = own  # whatever an older view of another thread forgot
        found = [
            Decided(opened[name], manifests.entries[-1], manifests.chunks)
            for name, manifests in closed.items()
            if name in opened
        ]
        return sorted(found, key=lambda decided: decided.order)


_known: weakref.WeakKeyDictionary[Stream, _Known] = weakref.WeakKeyDictionary()


def _known_of(stream: Stream) -> _Known:
    return _known.setdefault(stream, _Known())


def turn(stream: Stream, view: StreamView, transaction_id: str) -> int:
    """Return the place among the decisions of one that is decided now: after all there are.

    ``view`` is no older than the caller's call. What was decided before it is in the log then, or
    open in the view with its mark to be read; so no clock is asked for the order of two commits.
    """
    known = _known_of(stream)
    known.read(stream, view, apart_from=transaction_id)
    return known.last_order() + 1


def carry_out(stream: Stream, own: Manifests | None = None) -> StreamView:
    """Bring every decided transaction to its end, in one commit; return the view afterwards.

    ``own`` is one that this process has just decided: those before it were read when it took its
    turn, so the others are read only if the first try is lost.
    """
    known = _known_of(stream)
    if own is not None:
        known.learn(own)  # before the log is ours: whoever has it now takes this one along
    tries = 0

    def decide(snapshot: Snapshot | None) -> Body | None:
        nonlocal tries
        tries += 1
        if snapshot is None:
            raise stream.absent()
        view = StreamView(snapshot)
        if own is None or tries > 1:
            known.read(stream, view)
        decided = known.decided(view, own)
        return _outcomes(stream, view, decided) if decided else None

    view = StreamView(stream.log.commit(decide))
    crash_point("txn.carried-out")
    return view


def _outcomes(stream: Stream, view: StreamView, decided: Sequence[Decided]) -> Body:
    """Return the commit that ends the transactions, in their order."""
    now_ms, version = stream.runtime.now_ms(), view.version + 1
    draft = Draft(view, now_ms)
    placing = Placing(draft, now_ms)
    domains: dict[str, str | None] = {}
    story: list[dict[str, object]] = []
    aborted: list[str] = []
    for item in decided:
        opened, mark, name = item.opened, item.mark, item.opened.transaction_id
        committed = mark.kind is Kind.COMMITTING
        placed = placing.put(opened.epoch, item.chunks) if committed else []
        outcome = Outcome(
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
    return {f"{WRITER_PREFIX}{writer_id}": record.encode()}
