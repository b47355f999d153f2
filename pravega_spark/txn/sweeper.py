"""The sweeper: abort expired transactions, commit decided ones, delete what ended ones left."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from pravega_spark.engine.chunk_paths import chunk_folder
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.configuration import stream_settings
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import IllegalState, TxnFailed
from pravega_spark.txn import commit, leases, lifecycle, settlement
from pravega_spark.txn.manifests import (
    Manifest,
    ManifestKind,
    Manifests,
    announced_transactions,
    announcement_key,
    transaction_folder,
)
from pravega_spark.values.names import is_transaction

logger = own_logger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionSweepResult:
    """What a sweep did: ids of transactions, and the number that remain open."""

    committed: list[str] = field(default_factory=list)
    aborted: dict[str, str] = field(default_factory=dict)
    """Ids with the reason of each abort."""
    open: int = 0
    cleared: int = 0
    """Number of ended transactions whose remains were deleted."""


def sweep_transactions(
    stream: StreamLog,
    *,
    prepared_limit_ms: int | None = None,
    life: int | None = None,
    view: StreamView | None = None,
) -> TransactionSweepResult:
    """Abort expired transactions, commit decided ones, and delete what ended ones left behind.

    Safe to repeat, to kill and to run concurrently: closing manifests and the log decide. ``life``
    is the life of the stream that the call is for, by default the present one, or that of a
    ``view`` of late: in which none is open, it is not asked for again. Without
    ``prepared_limit_ms`` the setting holds; it is read only if a transaction is open.
    """
    before = view
    if before is None or before.transactions:
        with watch_of(stream.store).call(stream.runtime):
            before = stream.view(life=life if before is None else before.life)
    if not before.transactions:
        return TransactionSweepResult(cleared=delete_remains(stream))
    if prepared_limit_ms is None:
        prepared_limit_ms = stream_settings(stream, before).prepared_limit_ms
    prepared_parts: dict[str, str] = {}
    for name, expiry in leases.expired_transactions(stream, before, prepared_limit_ms).items():
        opened = before.transactions[name]
        if expiry.is_prepared and opened.is_part:
            prepared_parts[name] = expiry.reason
        else:
            abort(stream, opened, expiry.reason, if_open=not expiry.is_prepared)
    settlement.settle(stream, before, reasons=prepared_parts)
    after = commit.find_and_commit_decided(stream, before, before.transactions.keys())
    result = TransactionSweepResult(open=len(after.transactions), cleared=delete_remains(stream))
    for name in sorted(before.transactions):
        outcome = after.outcome(name)
        if outcome is not None and outcome.committed:
            result.committed.append(name)
        elif outcome is not None:
            result.aborted[name] = str(outcome.reason)
    return result


def abort(
    stream: StreamLog, opened: OpenTransaction, reason: str, *, if_open: bool = False
) -> bool:
    """Decide to abort an open transaction; return False if it was already decided.

    ``if_open`` spares a prepared transaction, even one prepared during the call.
    """
    manifests = Manifests(stream, opened.transaction_id)
    manifests.read()
    closing = Manifest(ManifestKind.ABORTING, reason=reason)
    with suppress(TxnFailed):
        if lifecycle.put_closing_manifest(manifests, closing, if_open=if_open):
            name = opened.transaction_id
            logger.info(
                "aborted transaction %s of stream %s: %s",
                name,
                stream.name,
                reason,
                extra=log_fields("abort transaction", stream.name, transaction=name),
            )
            return True
    return False


def end_all_transactions(stream: StreamLog, life: int) -> None:
    """End every transaction of a stream that is being sealed: commit decided ones, abort the rest.

    Raises IllegalState if one is prepared: only its coordinator may decide that.
    """
    view = stream.view(life=life)
    for _, opened in sorted(view.transactions.items()):
        abort(stream, opened, "the stream was sealed", if_open=True)
    settlement.settle(stream, view, reasons=dict.fromkeys(view.transactions, "a stream was sealed"))
    prepared = sorted(
        commit.find_and_commit_decided(stream, view, view.transactions.keys()).transactions
    )
    delete_remains(stream)
    if prepared:
        raise IllegalState(
            f"stream {stream.name} is being sealed and has prepared transactions (count: "
            f"{len(prepared)}): {', '.join(prepared[:8])}. Commit or abort them, then seal again."
        )


def delete_remains(stream: StreamLog) -> int:
    """Delete what ended transactions left behind; return the number of those transactions.

    Chunks that a committed transaction did not name remain for the sweep of the stream's files.
    """
    names = {*stream.store.folders(f"{stream.name}/transactions"), *announced_transactions(stream)}
    if not names:
        return 0
    stream.log.proved_newest()  # after the listings: the log has the begin of all they hold
    view = stream.view(refresh=False)
    ended = [n for n in sorted(names) if is_transaction(n) and n not in view.transactions]
    for name in ended:
        delete_remains_of(stream, name, view.outcome(name))
    return len(ended)


def delete_remains_of(
    stream: StreamLog, transaction_id: str, outcome: TransactionOutcome | None
) -> None:
    """Delete what an ended transaction left behind.

    ``outcome`` is None if the log has already dropped it.
    """
    failpoint("txn.deleting-remains")
    keys = [entry.key for entry in stream.store.list(transaction_folder(stream, transaction_id))]
    if outcome is not None and not outcome.committed:
        chunks = stream.store.list(f"{stream.path}/data/{chunk_folder(transaction_id)}")
        keys += [entry.key for entry in chunks]
    stream.store.delete([*keys, announcement_key(stream, transaction_id)])
