"""Begin, look, decide: a transaction's life without a server.

Beginning is a commit of the stream's log; deciding is a closing mark in the transaction's own
folder; ``carrying`` brings what is decided to its end. What is told of a transaction is what the
log holds, looked up after the manifests.
"""

from __future__ import annotations

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.stream.records import (
    OpenTransaction,
    StreamState,
    TransactionOutcome,
    WriterRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.errors import (
    NoSuchTransaction,
    TxnFailed,
    WriterFenced,
)
from pravega_spark.model import TransactionStatus
from pravega_spark.names import check_transaction
from pravega_spark.transactions.manifests import Kind, Manifests


def epoch_of(transaction_id: str) -> int:
    """Return the epoch that an id names: the one by which its events are routed."""
    return int(transaction_id[:8], 16)


def begin(
    stream: StreamLog,
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

    def decide(view: StreamView) -> Proposal[OpenTransaction]:
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        if writer is not None:
            _check_session(view, writer)
        now_ms = stream.now_ms()
        opened = OpenTransaction(
            f"{view.active.number:08x}{token}",
            view.active.number,
            now_ms,
            lease_ms,
            now_ms + execution_ms,
            writer.writer_id if writer else None,
            writer.session if writer else 0,
            view.version + 1,
        )
        body = Body(
            "BEGIN TRANSACTION",
            {"transaction": opened.transaction_id, "epoch": opened.epoch, "lease": lease_ms},
            domains={f"{OPEN_PREFIX}{opened.transaction_id}": opened.encode()},
        )
        return body, opened

    return stream.commit(decide, life=life).value


def _check_session(view: StreamView, writer: WriterRecord) -> None:
    known = view.writer(writer.writer_id)
    if known is None or known.session != writer.session:
        raise WriterFenced(
            f"writer {writer.writer_id!r} of stream {view.stream}: session {writer.session} was "
            f"fenced by session {known.session if known else 'none'}; this writer must stop.",
            writer_id=writer.writer_id,
            session=writer.session,
            newer_session=known.session if known else None,
        )


def find(view: StreamView, transaction_id: str) -> OpenTransaction | TransactionOutcome:
    """Return what the log holds of a transaction; raise NoSuchTransaction for an unknown id."""
    check_transaction(transaction_id)
    found = view.transaction(transaction_id) or view.outcome(transaction_id)
    if found is None:
        raise NoSuchTransaction(
            f"stream {view.stream} (life {view.life}) knows no transaction {transaction_id}: it "
            "was begun on another stream, or ended so long ago that its outcome is not kept.",
            stream=view.stream,
            transaction_id=transaction_id,
        )
    return found


def status_of(
    found: OpenTransaction | TransactionOutcome, manifests: Manifests | None = None
) -> TransactionStatus:
    """Return where a transaction is, by the log and by manifests that were read before it."""
    if isinstance(found, TransactionOutcome):
        return TransactionStatus.COMMITTED if found.committed else TransactionStatus.ABORTED
    last = Kind.WRITE if manifests is None else manifests.last
    return TransactionStatus.OPEN if last is Kind.WRITE else TransactionStatus[last.name]


def ended_error(view: StreamView, outcome: TransactionOutcome) -> TxnFailed:
    """Return the error of a call that comes after the end of a transaction."""
    what = "committed" if outcome.committed else f"aborted ({outcome.reason})"
    return TxnFailed(
        f"transaction {outcome.transaction_id} of stream {view.stream} was {what} at version "
        f"{outcome.version}; that is final. Begin another.",
        transaction_id=outcome.transaction_id,
        status=status_of(outcome),
    )


def check_outcome(view: StreamView, outcome: TransactionOutcome, wanted: Kind) -> None:
    """Raise TxnFailed unless the transaction ended as wanted: COMMITTING or ABORTING."""
    assert wanted.is_closing, f"a transaction never ends as {wanted.name}"
    if outcome.committed is not (wanted is Kind.COMMITTING):
        raise ended_error(view, outcome)
