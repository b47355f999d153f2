"""Begin a transaction, and report its status.

A commit of the stream's log begins a transaction, a closing manifest in its own folder decides
it, and ``committer`` commits the decision to the log. Status is what the log holds, read after
the manifests.
"""

from __future__ import annotations

from typing import Final

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.mark_changes import noted_changes
from pravega_spark.engine.stream.records import (
    OpenTransaction,
    StreamState,
    TransactionOutcome,
    WriterRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_marks import TimeNote, mark_of
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_draft import sealed_error
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    NoSuchTransaction,
    TxnFailed,
    WriterFenced,
)
from pravega_spark.model import TransactionStatus
from pravega_spark.names import check_transaction
from pravega_spark.transactions.manifest_codec import ManifestKind
from pravega_spark.transactions.manifests import Manifests

ASKED_BY_APPLICATION: Final = "the application asked for it"
"""The reason of an abort that the transaction's own application wanted."""


def epoch_of(transaction_id: str) -> int:
    """Return the epoch in a transaction's id, which routes its events."""
    return int(transaction_id[:8], 16)


def begin(
    stream: StreamLog,
    life: int,
    *,
    lease_ms: int,
    execution_ms: int,
    writer: WriterRecord | None = None,
    joint_token: str | None = None,
) -> OpenTransaction:
    """Commit the begin of a transaction, bound to the active epoch.

    The first 8 digits of its id are that epoch, as in Pravega. With ``joint_token`` it is the part
    of that joint transaction, and the token ends its id. Raises StreamSealed, NoSuchStream,
    StaleIdentity, and WriterFenced if a newer session of the writer is open.
    """
    token = joint_token or stream.runtime.token()

    def decide(view: StreamView) -> Proposal[OpenTransaction]:
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        if writer is not None:
            check_session(view, writer)
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
            joint_token is not None,
        )
        body = Body(
            "BEGIN TRANSACTION",
            {"transaction": opened.transaction_id, "epoch": opened.epoch, "lease": lease_ms},
            domains={f"{OPEN_PREFIX}{opened.transaction_id}": opened.encode()},
        )
        return body, opened

    opened = stream.commit(decide, life=life).value
    watch_of(stream.store).answered(stream.runtime)
    return opened


def leave(stream: StreamLog, life: int, writer: WriterRecord) -> None:
    """Commit that a writer leaves, unless it has no mark, or a newer session of it is open.

    Its mark counts on while a transaction that it began is open.
    """

    def decide(view: StreamView) -> Proposal[None]:
        mark, known = mark_of(view, writer.writer_id), view.writer(writer.writer_id)
        is_there = mark is not None and mark.is_alive
        is_ours = known is not None and known.session == writer.session
        if not (is_there and is_ours) or view.record.state is not StreamState.ACTIVE:
            return None, None
        note = TimeNote(writer.writer_id, None, leaves=True)
        domains = noted_changes(view, [note], dict(view.tail))
        return Body(
            "NOTE TIME", {"writer": writer.writer_id, "leaves": True}, domains=domains
        ), None

    stream.commit(decide, life=life)


def check_session(view: StreamView, writer: WriterRecord) -> None:
    """Raise WriterFenced if a newer session of a writer is open."""
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
    """Return a transaction's record in the log; raise NoSuchTransaction for an unknown id."""
    check_transaction(transaction_id)
    found = view.transaction(transaction_id) or view.outcome(transaction_id)
    if found is None:
        raise NoSuchTransaction(
            f"stream {view.stream} (life {view.life}) has no transaction {transaction_id}: it "
            "began on another stream, or ended so long ago that the log has dropped its outcome.",
            stream=view.stream,
            transaction_id=transaction_id,
        )
    return found


def status_of(
    found: OpenTransaction | TransactionOutcome, manifests: Manifests | None = None
) -> TransactionStatus:
    """Return the status of a transaction, by the log and by manifests read before the log."""
    if isinstance(found, TransactionOutcome):
        return TransactionStatus.COMMITTED if found.committed else TransactionStatus.ABORTED
    last = ManifestKind.WRITE if manifests is None else manifests.last
    return TransactionStatus.OPEN if last is ManifestKind.WRITE else TransactionStatus[last.name]


def ended_error(stream: str, outcome: TransactionOutcome) -> TxnFailed:
    """Return the error of a call on a transaction that has ended."""
    what = "committed" if outcome.committed else f"aborted ({outcome.reason})"
    return TxnFailed(
        f"transaction {outcome.transaction_id} of stream {stream} was {what} at version "
        f"{outcome.version}; that is final. Begin another.",
        transaction_id=outcome.transaction_id,
        status=status_of(outcome),
    )


def check_not_joint(stream: str, opened: OpenTransaction | None) -> None:
    """Raise IllegalState for the part of a joint transaction, which its stream may not decide."""
    if opened is not None and opened.is_joint:
        raise IllegalState(
            f"transaction {opened.transaction_id} of stream {stream} is part of the joint "
            f"transaction {opened.token} over several streams: commit or abort that one, with "
            f"StreamManager.joint_transaction({opened.token!r})."
        )


def check_note_writer(stream: str, opened: OpenTransaction | None) -> None:
    """Raise InvalidInput if an open transaction has no writer id that a note is stored under."""
    if opened is not None and opened.writer_id is None:
        raise InvalidInput(
            f"commit(note=...) on stream {stream} needs a writer with an id of your own, because "
            "the note is stored under that id: create_transactional_writer(stream, writer_id=...)."
        )
