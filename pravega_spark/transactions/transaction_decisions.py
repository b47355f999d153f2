"""The decisions of a transaction: what may follow its manifests, and what a commit left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.stream.records import TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CommitUnknown, TxnFailed
from pravega_spark.model import TransactionStatus
from pravega_spark.transactions.manifests import Kind, Manifest, Manifests, not_in, rows_of


def put_closing_manifest(manifests: Manifests, mark: Manifest, *, if_open: bool = False) -> bool:
    """Put the closing mark: the decision, from then on final. False if it was so decided before.

    The mark's chunks are a last write that goes with it; those that were entered before, with an
    answer that was lost, are left out. ``if_open`` leaves a prepared transaction alone (False).
    Raises TxnFailed if it was decided the other way, or so without those chunks.

    The log may hold an outcome all the same: whose folder was cleared has no marks in it. Who
    puts one looks there afterwards.
    """

    def decide(entries: Sequence[Manifest]) -> Manifest | None:
        last, left = manifests.last, not_in(entries, mark.chunks)
        if last is mark.kind:
            if left:
                raise left_out_error(manifests, rows_of(left))
            return None
        if last.is_closing:
            raise TxnFailed(
                f"{manifests.name} is {last.name} already; that is final. Begin another.",
                transaction_id=manifests.transaction_id,
                status=TransactionStatus[last.name],
            )
        if last is Kind.PREPARED and if_open:
            return None
        if last is Kind.PREPARED and left:
            raise TxnFailed(
                f"{manifests.name} was prepared; no event can be written into it any more.",
                transaction_id=manifests.transaction_id,
                status=TransactionStatus.PREPARED,
            )
        return replace(mark, chunks=tuple(left))

    failpoint("txn.deciding")
    marked = manifests.append(decide) is not None
    failpoint("txn.decided")
    return marked


def left_out_error(manifests: Manifests, events: int) -> TxnFailed:
    """Return the error of a process that another one was quicker than with the commit."""
    return TxnFailed(
        f"{manifests.name} was committed by another process, and that is final: {events} events of "
        "this one were not flushed before and are not in it. Write them in another transaction.",
        transaction_id=manifests.transaction_id,
        status=TransactionStatus.COMMITTED,
    )


def chunks_left_out(
    stream: StreamLog,
    manifests: Manifests,
    outcome: TransactionOutcome,
    chunks: Sequence[StagedChunk],
) -> Sequence[StagedChunk]:
    """Return those of the chunks that the commit of a transaction left out.

    The manifests tell if their mark is the one that was carried out. Else they may have been
    cleared away, and a late one put in their place: then the commit itself is read. Raises
    CommitUnknown if it was cleaned away.
    """
    if not chunks:
        return ()
    if manifests.is_closed and manifests.entries[-1].token == outcome.decision:
        return not_in(manifests.entries, chunks)
    commit = stream.log.reader.commit(outcome.version, light=False)
    if commit is None:
        raise CommitUnknown(
            f"{manifests.name} was committed at version {outcome.version}, which is not kept any "
            f"more: nobody can tell whether {rows_of(chunks)} events of this process are in it.",
            version=outcome.version,
        )
    named = {add.path for add in commit.adds}
    return [chunk for chunk in chunks if chunk.path not in named]
