"""Begin a transaction, decide it, report its status, and list those of a stream.

Begin a transaction, and report its status. A commit of the stream's log begins a transaction, a
closing manifest in its own folder decides it, and ``committer`` commits the decision to the log.
Status is what the log holds, read after the manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from pravega_spark.config.descriptions import TransactionInfo, TransactionStatus
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.records import (
    OUTCOME_PREFIX,
    OpenTransaction,
    StreamState,
    TransactionOutcome,
    WriterRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import TimeNote, mark_of, noted_changes, pace_of
from pravega_spark.engine.writing.append import sealed_error
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    InvalidInput,
    NoSuchTransaction,
    TxnFailed,
    WriterFenced,
)
from pravega_spark.txn.manifests import Manifest, ManifestKind, Manifests, not_in, read_new, rows_of
from pravega_spark.values.names import check_transaction

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
            transaction_id=f"{view.active.number:08x}{token}",
            epoch=view.active.number,
            created_ms=now_ms,
            lease_ms=lease_ms,
            limit_ms=now_ms + execution_ms,
            writer_id=writer.writer_id if writer else None,
            session=writer.session if writer else 0,
            version=view.version + 1,
            is_part=joint_token is not None,
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
        domains = noted_changes(view, [note], dict(view.tail), pace_of(stream))
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
    if opened is not None and opened.is_part:
        raise IllegalState(
            f"transaction {opened.transaction_id} of stream {stream} is part of the joint "
            f"transaction {opened.token} over several streams: commit or abort that one, with "
            f"StreamManager.joint_transaction({opened.token!r})."
        )


def check_note_writer(stream: str, opened: OpenTransaction | None) -> None:
    """Raise InvalidInput if an open transaction has no writer id that a note is stored under."""
    if opened is not None and opened.writer_id is None:
        raise InvalidInput(
            f"commit(note=...) on stream {stream} needs a writer with a writer_id, because "
            "the note is stored under that id: create_transactional_writer(stream, writer_id=...)."
        )


class AddedWrite(NamedTuple):
    """A write that the manifests hold."""

    is_new: bool
    """False for a repetition of an earlier write."""
    chunks: tuple[StagedChunk, ...]
    """The chunks that the transaction holds for it: those of the earlier write if repeated."""


def add_write(manifests: Manifests, chunks: tuple[StagedChunk, ...], write: Manifest) -> AddedWrite:
    """Add a write to the transaction unless it holds the write already.

    It does if it holds all chunks, or a number of the write's writer that is not below its own.
    Raises TxnFailed if the transaction accepts no writes.
    """

    def propose(entries: Sequence[Manifest]) -> Manifest | None:
        left = not_in(entries, chunks)
        is_held = holds_write(entries, write) or (len(chunks) > 0 and not left)
        if is_held and manifests.last is not ManifestKind.ABORTING:
            return None
        check_accepts_writes(manifests)
        return replace(write, chunks=tuple(left))

    if manifests.append(propose) is not None:
        return AddedWrite(True, chunks)
    if not holds_write(manifests.entries, write):
        return AddedWrite(False, chunks)
    earlier = [entry for entry in manifests.entries if entry.writer == write.writer]
    return AddedWrite(False, tuple(chunk for entry in earlier for chunk in entry.chunks))


def holds_write(entries: Sequence[Manifest], write: Manifest) -> bool:
    """Return whether the manifests hold a write of its writer with that number or a later one."""
    return last_write(entries, write) is not None


def last_write(entries: Sequence[Manifest], write: Manifest) -> Manifest | None:
    """Return the last write of its writer if its number is that of ``write`` or a later one."""
    found = [e for e in entries if write.writer is not None and e.writer == write.writer]
    last = max(found, key=lambda entry: entry.number, default=None)
    return last if last is not None and write.number <= last.number else None


def check_accepts_writes(manifests: Manifests) -> None:
    """Raise TxnFailed if the known manifests exclude further writes."""
    last = manifests.last
    if last is not ManifestKind.WRITE:
        raise TxnFailed(
            f"{manifests.name} is {last.name} and accepts no more events. Begin another "
            "transaction.",
            transaction_id=manifests.transaction_id,
            status=TransactionStatus[last.name],
        )


def prepare(manifests: Manifests) -> None:
    """Put the manifest that prepares the transaction, unless it is there.

    Raises TxnFailed if the transaction is decided.
    """

    def propose(entries: Sequence[Manifest]) -> Manifest | None:
        if manifests.last is ManifestKind.PREPARED:
            return None
        check_accepts_writes(manifests)
        return Manifest(ManifestKind.PREPARED)

    manifests.append(propose)


def put_closing_manifest(manifests: Manifests, closing: Manifest, *, if_open: bool = False) -> bool:
    """Put the closing manifest: the final decision.

    Returns False if the same decision was already recorded, or if ``if_open`` is set and the
    transaction is prepared. The manifest's chunks are a last write; chunks that an earlier call
    without an answer entered are left out of it. Raises TxnFailed for the other decision, or for
    the same one without these chunks.

    Read the log afterwards: if the transaction's folder was already deleted, the log holds an
    outcome and this manifest decides nothing.
    """

    def propose(entries: Sequence[Manifest]) -> Manifest | None:
        last, left = manifests.last, not_in(entries, closing.chunks)
        if last is closing.kind:
            if left:
                raise left_out_error(manifests, rows_of(left))
            return None
        if last.is_closing:
            raise TxnFailed(
                f"{manifests.name} is already {last.name}; that is final. Begin another.",
                transaction_id=manifests.transaction_id,
                status=TransactionStatus[last.name],
            )
        if last is ManifestKind.PREPARED and if_open:
            return None
        if last is ManifestKind.PREPARED and left:
            raise TxnFailed(
                f"{manifests.name} was prepared and accepts no more events; commit or abort it.",
                transaction_id=manifests.transaction_id,
                status=TransactionStatus.PREPARED,
            )
        return replace(closing, chunks=tuple(left))

    failpoint("txn.deciding")
    is_new = manifests.append(propose) is not None
    failpoint("txn.decided")
    return is_new


def left_out_error(manifests: Manifests, events: int) -> TxnFailed:
    """Return the error of a process whose last events missed another process's commit."""
    return TxnFailed(
        f"{manifests.name} was committed by another process without {events} events of this one, "
        "which were not flushed before; that is final. Write them in another transaction.",
        transaction_id=manifests.transaction_id,
        status=TransactionStatus.COMMITTED,
    )


def check_committed(
    stream: StreamLog,
    manifests: Manifests,
    outcome: TransactionOutcome,
    chunks: Sequence[StagedChunk],
    unstaged: int,
) -> None:
    """Raise TxnFailed unless a commit ended the transaction, with all these events of a handle.

    ``unstaged`` events are in its memory only.
    """
    if not outcome.committed:
        raise ended_error(stream.name, outcome)
    left = chunks_left_out(stream, manifests, outcome, chunks)
    if left or unstaged:
        raise left_out_error(manifests, rows_of(left) + unstaged)


def chunks_left_out(
    stream: StreamLog,
    manifests: Manifests,
    outcome: TransactionOutcome,
    chunks: Sequence[StagedChunk],
) -> Sequence[StagedChunk]:
    """Return those of the chunks that the commit of a transaction does not hold.

    The manifests answer that if their closing manifest is the one that the log committed. If not,
    they were deleted and a late closing manifest took their name; then the commit itself is read.
    Raises CommitUnknown if that commit was deleted.
    """
    if not chunks:
        return ()
    if manifests.is_closed and manifests.entries[-1].token == outcome.decision:
        return not_in(manifests.entries, chunks)
    commit = stream.log.reader.commit(outcome.version, light=False)
    if commit is None:
        raise CommitUnknown(
            f"{manifests.name} was committed at version {outcome.version}, which the log no longer "
            f"holds, so it is unknown whether {rows_of(chunks)} events of this process are in it.",
            version=outcome.version,
        )
    named = {add.path for add in commit.adds}
    return [chunk for chunk in chunks if chunk.path not in named]


def open_transactions(stream: StreamLog, view: StreamView) -> list[TransactionInfo]:
    """Return the transactions without an outcome, oldest first; reads their manifests."""
    several = [Manifests(stream, name) for name in view.transactions]
    read_new(several)
    opened = stream.view().transactions  # read last: one whose manifests are deleted has ended
    found = [
        TransactionInfo(
            manifests.transaction_id,
            status_of(opened[manifests.transaction_id], manifests),
            opened[manifests.transaction_id].created_ms,
            events=rows_of(manifests.chunks),
            size_bytes=sum(chunk.event_bytes for chunk in manifests.chunks),
            writer_id=opened[manifests.transaction_id].writer_id,
        )
        for manifests in several
        if manifests.transaction_id in opened
    ]
    return sorted(found, key=lambda info: (info.created_ms, info.transaction_id))


def completed_transactions(view: StreamView) -> list[TransactionInfo]:
    """Return the transactions whose outcome the log still holds, newest first."""
    found = []
    for domain in view.snapshot.names(OUTCOME_PREFIX):
        name = domain.removeprefix(OUTCOME_PREFIX)
        outcome = view.outcome(name)
        assert outcome is not None
        found.append(
            TransactionInfo(
                transaction_id=name,
                status=status_of(outcome),
                created_ms=outcome.created_ms,
                ended_ms=outcome.ended_ms,
                version=outcome.version,
                events=outcome.events,
                size_bytes=outcome.size_bytes,
                writer_id=outcome.writer_id,
                reason=outcome.reason,
            )
        )
    return sorted(found, key=lambda info: (-info.version, info.transaction_id))
