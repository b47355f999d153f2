"""Begin, decide, carry out: a transaction's life as commits of the stream's log, without a server.

Beginning is a commit; deciding is a closing mark in the transaction's own folder; carrying out is
one commit that brings every decided transaction to its end, in the order of the decisions. Any
process may do the last, so what a dead one left is finished by whoever comes next.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pravega_spark.engine.actions import Body
from pravega_spark.engine.append import sealed_error
from pravega_spark.engine.chunk import StagedChunk
from pravega_spark.engine.crashpoints import crash_point
from pravega_spark.engine.draft import Draft
from pravega_spark.engine.records import (
    OUTCOME_PREFIX,
    WRITER_PREFIX,
    OpenTransaction,
    Outcome,
    StreamState,
    WriterRecord,
)
from pravega_spark.engine.snapshot import OPEN_PREFIX, Snapshot
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.errors import InvalidInput, NoSuchTransaction, TxnFailed, WriterFenced
from pravega_spark.model import TransactionStatus, segment_text
from pravega_spark.txn.manifests import Kind, Manifest, Manifests
from pravega_spark.txn.placing import Placing

_ID = re.compile(r"[0-9a-f]{8}[0-9a-z]{8,56}")


def check_id(transaction_id: object) -> str:
    """Return the id if it is one; raise InvalidInput otherwise."""
    if not isinstance(transaction_id, str) or not _ID.fullmatch(transaction_id):
        raise InvalidInput(
            f"a transaction's id is 32 hexadecimal digits, as Transaction.id gives them; got "
            f"{transaction_id!r}."
        )
    return transaction_id


def begin(
    stream: Stream,
    life: int,
    *,
    lease_ms: int,
    execution_ms: int,
    writer: WriterRecord | None = None,
) -> OpenTransaction:
    """Commit the beginning of a transaction, bound to the epoch that is active then.

    The first 8 digits of its id are that epoch, as in Pravega. Raises StreamSealed, NoSuchStream,
    StaleIdentity, and WriterFenced if a newer session of the writer was opened.
    """
    token = stream.runtime.token()
    begun: list[OpenTransaction] = []

    def decide(snapshot: Snapshot | None) -> Body:
        if snapshot is None:
            raise stream.absent()
        view = StreamView(snapshot)
        view.check_life(life)
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        if writer is not None:
            _check_session(view, writer)
        now_ms = stream.runtime.now_ms()
        opened = OpenTransaction(
            f"{view.active.number:08x}{token}",
            view.active.number,
            now_ms,
            lease_ms,
            now_ms + execution_ms,
            writer.writer_id if writer else None,
            writer.session if writer else 0,
        )
        begun[:] = [opened]
        return Body(
            "BEGIN TRANSACTION",
            {"transaction": opened.transaction_id, "epoch": opened.epoch, "lease": lease_ms},
            domains={f"{OPEN_PREFIX}{opened.transaction_id}": opened.encode()},
        )

    stream.log.commit(decide)
    return begun[0]


def _check_session(view: StreamView, writer: WriterRecord) -> None:
    known = view.writer(writer.writer_id)
    if known is None or known.session != writer.session:
        raise WriterFenced(
            f"writer {writer.writer_id!r} of stream {view.stream}: session {writer.session} was "
            f"fenced by session {known.session if known else 'none'}; this writer must stop."
        )


def find(view: StreamView, transaction_id: str) -> OpenTransaction | Outcome:
    """Return what the log holds of a transaction; raise NoSuchTransaction for an unknown id."""
    check_id(transaction_id)
    found = view.transactions.get(transaction_id) or view.outcome(transaction_id)
    if found is None:
        raise NoSuchTransaction(
            f"stream {view.stream} (life {view.life}) knows no transaction {transaction_id}: it "
            "was begun on another stream, or ended so long ago that its outcome is not kept."
        )
    return found


def status(stream: Stream, manifests: Manifests, transaction_id: str) -> TransactionStatus:
    """Return where a transaction is, as of now."""
    found = find(stream.view(), transaction_id)
    if isinstance(found, Outcome):
        return TransactionStatus.COMMITTED if found.committed else TransactionStatus.ABORTED
    manifests.read()
    return status_of(manifests)


def status_of(manifests: Manifests) -> TransactionStatus:
    """Return where a transaction without an outcome is, by its manifests."""
    if manifests.is_closed:
        committing = manifests.entries[-1].kind is Kind.COMMITTING
        return TransactionStatus.COMMITTING if committing else TransactionStatus.ABORTING
    return TransactionStatus.PREPARED if manifests.is_prepared else TransactionStatus.OPEN


def ended(view: StreamView, outcome: Outcome, wanted: Kind) -> None:
    """Raise TxnFailed unless the transaction ended as wanted."""
    if outcome.committed is not (wanted is Kind.COMMITTING):
        what = "committed" if outcome.committed else f"aborted ({outcome.reason})"
        raise TxnFailed(
            f"transaction {outcome.transaction_id} of stream {view.stream} was {what} at version "
            f"{outcome.version}; that is final. Begin another."
        )


def close(
    stream: Stream,
    manifests: Manifests,
    opened: OpenTransaction,
    kind: Kind,
    *,
    chunks: Sequence[StagedChunk] = (),
    note: str | None = None,
    timestamp_us: int | None = None,
    reason: str | None = None,
    if_open: bool = False,
) -> bool:
    """Put the closing mark: the decision, from then on final. False if it was so decided before.

    ``chunks`` are a last write that goes with it. ``if_open`` leaves a prepared transaction alone
    (False). Raises TxnFailed if it was decided the other way.
    """
    name = f"transaction {opened.transaction_id} of stream {stream.name}"

    def decide(entries: Sequence[Manifest]) -> Manifest | None:
        last = entries[-1].kind if entries else Kind.WRITE
        if last is kind and not chunks:
            return None
        if last is kind:
            raise without(name, chunks)
        if last.is_closing:
            raise TxnFailed(f"{name} is {last.name} already; that is final. Begin another.")
        if last is Kind.PREPARED and if_open:
            return None
        if last is Kind.PREPARED and chunks:
            raise TxnFailed(f"{name} was prepared; no event can be written into it any more.")
        snapshot = stream.log.snapshot
        return Manifest(
            kind,
            tuple(chunks),
            version=0 if snapshot is None else snapshot.version,
            time_ms=stream.runtime.now_ms(),
            note=note,
            timestamp_us=timestamp_us,
            reason=reason,
        )

    crash_point("txn.deciding")
    marked = manifests.append(decide) is not None
    crash_point("txn.decided")
    return marked


def without(name: str, chunks: Sequence[StagedChunk]) -> TxnFailed:
    """Return the error of a commit that another process was quicker with."""
    events = sum(chunk.rows for chunk in chunks)
    return TxnFailed(
        f"{name} was committed by another process before the last {events} events of this one were "
        "flushed; they are not in it. Write them in another transaction."
    )


@dataclass(frozen=True, slots=True)
class Decided:
    """An open transaction with its closing mark."""

    opened: OpenTransaction
    mark: Manifest
    chunks: list[StagedChunk]

    @property
    def order(self) -> tuple[int, int, str]:
        """The order of the decisions: by the version that the decider knew, then by its clock."""
        return self.mark.version, self.mark.time_ms, self.opened.transaction_id


class _Known:
    """The manifests of a stream's open transactions, as far as this process has read them."""

    def __init__(self) -> None:
        self._manifests: dict[str, Manifests] = {}

    def learn(self, transaction_id: str, manifests: Manifests) -> None:
        """Take over what a handle of this process has read or written."""
        self._manifests[transaction_id] = manifests

    def decided(self, stream: Stream, view: StreamView) -> list[Decided]:
        """Return the decided ones in order. Reads what is new, until nothing is.

        So whatever was decided before any mark that is returned here is returned too.
        """
        opened = view.transactions
        known = {name: self._manifests.get(name) or Manifests(stream, name) for name in opened}
        self._manifests = known
        news = True
        while news:
            pending = [manifests for manifests in known.values() if not manifests.is_closed]
            news = False
            found = stream.store.get_many([m.next_key for m in pending]) if pending else []
            for manifests, data in zip(pending, found, strict=True):
                if data is not None:
                    manifests.add(data)
                    news = True
        closed = [
            Decided(opened[name], manifests.entries[-1], manifests.chunks)
            for name, manifests in known.items()
            if manifests.is_closed
        ]
        return sorted(closed, key=lambda decided: decided.order)


_known: weakref.WeakKeyDictionary[Stream, _Known] = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


def _known_of(stream: Stream) -> _Known:
    with _known_lock:
        return _known.setdefault(stream, _Known())


def carry_out(stream: Stream, own: Manifests | None = None) -> StreamView:
    """Bring every decided transaction to its end, in one commit; return the view afterwards.

    ``own`` is a transaction that this process has just decided, which need not be read again.
    """
    known = _known_of(stream)

    def decide(snapshot: Snapshot | None) -> Body | None:
        if snapshot is None:
            raise stream.absent()
        view = StreamView(snapshot)
        if own is not None:
            known.learn(own.transaction_id, own)
        decided = known.decided(stream, view)
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
            sum(chunk.rows for chunk in placed),
            sum(chunk.event_bytes for chunk in placed),
            opened.writer_id,
            mark.reason,
        )
        domains[f"{OPEN_PREFIX}{name}"] = None
        domains[f"{OUTCOME_PREFIX}{name}"] = outcome.encode()
        if not committed:
            aborted.append(name)
            continue
        story.append({"id": name, "created": opened.created_ms, **_amounts(placed)})
        if mark.note is not None and opened.writer_id is not None:
            domains |= _noted(view, opened, mark.note, version)
    placing.finish()
    operation = "COMMIT TRANSACTION" if story else "ABORT TRANSACTION"
    parameters = {"transactions": story, "aborted": aborted, "rolled": placing.rolled}
    body = draft.body(operation, parameters)
    body.domains = {**body.domains, **domains}
    return body


def _amounts(placed: Sequence[StagedChunk]) -> dict[str, dict[str, int]]:
    rows: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for chunk in placed:
        segment = segment_text(chunk.segment_id)
        rows[segment] = rows.get(segment, 0) + chunk.rows
        sizes[segment] = sizes.get(segment, 0) + chunk.event_bytes
    return {"rowsBySegment": rows, "bytesBySegment": sizes}


def _noted(view: StreamView, opened: OpenTransaction, note: str, version: int) -> dict[str, str]:
    writer_id = str(opened.writer_id)
    known = view.writer(writer_id) or WriterRecord(writer_id, opened.session, 0, version)
    record = replace(known, note=note, note_number=known.last, version=version)
    return {f"{WRITER_PREFIX}{writer_id}": record.encode()}
