"""What is left of transactions: the abandoned are aborted, the decided carried out, traces go."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import IllegalState, TxnFailed
from pravega_spark.limits import PREPARED_LIMIT
from pravega_spark.names import is_transaction
from pravega_spark.transactions import committer, transaction_decisions, transaction_leases
from pravega_spark.transactions.manifests import (
    Kind,
    Manifest,
    Manifests,
    chunk_folder,
    commit_intent_key,
    commit_intents,
    folder,
)
from pravega_spark.units import parse_duration_ms

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionSweepResult:
    """What tending a stream did: transaction ids, and how many are open still."""

    committed: list[str] = field(default_factory=list)
    aborted: dict[str, str] = field(default_factory=dict)
    """With the reason of each."""
    open: int = 0
    cleared: int = 0
    """Folders of ended transactions that were removed."""


def sweep_transactions(
    stream: StreamLog, *, prepared_limit_ms: int | None = None, life: int | None = None
) -> TransactionSweepResult:
    """Abort whom nobody keeps alive, carry out what is decided, remove what ended ones left.

    Safe to repeat, to kill and to run twice at once: closing marks decide, and the log. ``life`` is
    the one that the call was made for, by default the present one.
    """
    if prepared_limit_ms is None:
        prepared_limit_ms = parse_duration_ms("the limit", PREPARED_LIMIT)
    before = stream.view(life=life)
    for name, why in transaction_leases.expired_transactions(
        stream, before, prepared_limit_ms
    ).items():
        abort(stream, before.transactions[name], why.reason, if_open=not why.prepared)
    after = committer.find_and_commit_decided(stream, before, before.transactions.keys())
    found = TransactionSweepResult(open=len(after.transactions), cleared=delete_remains(stream))
    for name in sorted(before.transactions):
        outcome = after.outcome(name)
        if outcome is not None and outcome.committed:
            found.committed.append(name)
        elif outcome is not None:
            found.aborted[name] = str(outcome.reason)
    return found


def abort(
    stream: StreamLog, opened: OpenTransaction, reason: str, *, if_open: bool = False
) -> bool:
    """Decide that an open transaction is aborted; False if it is decided already.

    ``if_open`` spares a prepared one, also one that was prepared just now.
    """
    manifests = Manifests(stream, opened.transaction_id)
    manifests.read()
    mark = Manifest(Kind.ABORTING, reason=reason)
    with suppress(TxnFailed):
        if transaction_decisions.put_closing_manifest(manifests, mark, if_open=if_open):
            name = opened.transaction_id
            logger.info("transaction %s of stream %s is aborted: %s", name, stream.name, reason)
            return True
    return False


def end_all_transactions(stream: StreamLog, life: int) -> None:
    """Bring every open transaction to its end, for a life of a stream that is being sealed.

    The decided are carried out, the open aborted. Raises IllegalState if one is prepared: that
    promise is not this stream's to break.
    """
    view = stream.view(life=life)
    for _, opened in sorted(view.transactions.items()):
        abort(stream, opened, "the stream was sealed", if_open=True)
    prepared = sorted(
        committer.find_and_commit_decided(stream, view, view.transactions.keys()).transactions
    )
    delete_remains(stream)
    if prepared:
        raise IllegalState(
            f"stream {stream.name} is being sealed, and {len(prepared)} transactions are prepared: "
            f"{', '.join(prepared[:8])}. Commit or abort them, then seal again."
        )


def delete_remains(stream: StreamLog) -> int:
    """Remove what ended transactions left; return how many there were.

    Chunks that a committed one did not name are left to the sweep of the stream's files.
    """
    names = {*stream.store.folders(f"{stream.name}/transactions"), *commit_intents(stream)}
    stream.log.proved_newest()  # after the listings: whatever they hold was begun before
    view = stream.view(refresh=False)
    ended = [n for n in sorted(names) if is_transaction(n) and n not in view.transactions]
    for name in ended:
        delete_remains_of(stream, name, view.outcome(name))
    return len(ended)


def delete_remains_of(
    stream: StreamLog, transaction_id: str, outcome: TransactionOutcome | None
) -> None:
    """Remove what an ended transaction left; its outcome is in the log, or was long ago."""
    failpoint("txn.deleting-remains")
    keys = [entry.key for entry in stream.store.list(folder(stream, transaction_id))]
    if outcome is not None and not outcome.committed:
        chunks = stream.store.list(f"{stream.path}/data/{chunk_folder(transaction_id)}")
        keys += [entry.key for entry in chunks]
    stream.store.delete([*keys, commit_intent_key(stream, transaction_id)])
