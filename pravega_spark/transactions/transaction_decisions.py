"""Decisions of a transaction: which manifest may follow the known ones, and what a commit lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.stream.records import TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CommitUnknown, TxnFailed
from pravega_spark.model import TransactionStatus
from pravega_spark.transactions.manifest_codec import Manifest, ManifestKind
from pravega_spark.transactions.manifests import Manifests, not_in, rows_of
from pravega_spark.transactions.transaction_lifecycle import ended_error


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
                f"{manifests.name} was prepared and accepts no more events.",
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
