"""A sweep of one stream's transactions as rows, which the transactions job maps over streams."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from pravega_spark.config.descriptions import TransactionInfo, TransactionStatus
from pravega_spark.config.root_settings import SettingSources
from pravega_spark.engine.stream.records import TransactionOutcome
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.txn import leases, lifecycle, sweeper
from pravega_spark.values.names import is_transaction

ROW_SCHEMA: Final = pa.schema(
    [
        ("transaction", pa.string()),
        ("status", pa.string()),
        ("writer", pa.string()),
        ("age_seconds", pa.float64()),
        ("events", pa.int64()),
        ("size_bytes", pa.int64()),
        ("decision", pa.string()),
        ("reason", pa.string()),
        ("cleared", pa.int64()),
    ]
)
"""A row for each transaction, and one without a transaction that counts ``cleared`` ones.

``status`` is the status after the sweep; ``decision`` is what the sweep does, or would do: commit,
abort or keep. ``events`` counts flushed events, or committed ones. Finished transactions whose
files the sweep deleted are ``cleared``."""

COMMIT, ABORT, KEEP = "commit", "abort", "keep"

Row = dict[str, Any]


def sweep(root: str, stream: str, *, sources: SettingSources, dry_run: bool) -> list[Row]:
    """Sweep a stream's transactions, or with ``dry_run`` only return what a sweep would do."""
    opened = open_stream(root, stream)
    view = opened.view()
    limit_ms = sources.of_stream(view.record.configuration.settings).prepared_limit_ms
    return _planned(opened, view, limit_ms) if dry_run else _swept(opened, view.life, limit_ms)


def _swept(stream: StreamLog, life: int, limit_ms: int) -> list[Row]:
    """Sweep; return the transactions that this ended, and those that are still open."""
    swept = sweeper.sweep_transactions(stream, prepared_limit_ms=limit_ms, life=life)
    now_ms, view = stream.now_ms(), stream.view(refresh=False)
    outcomes = [view.outcome(name) for name in (*swept.committed, *swept.aborted)]
    rows = [_ended(outcome) for outcome in outcomes if outcome is not None]
    kept = lifecycle.open_transactions(stream, view)
    return [*rows, *(_row(info, now_ms, KEEP) for info in kept), {"cleared": swept.cleared}]


def _planned(stream: StreamLog, view: StreamView, limit_ms: int) -> list[Row]:
    """Return the transactions without an outcome and what a sweep would do; write nothing."""
    expired = leases.expiry_reasons(stream, view, limit_ms, write=False)
    now_ms = stream.now_ms()
    rows = []
    for info in lifecycle.open_transactions(stream, view):
        decision = _decision(info, info.transaction_id in expired)
        rows.append(_row(info, now_ms, decision, expired.get(info.transaction_id)))
    folders = stream.store.folders(f"{stream.name}/transactions")
    kept = {row["transaction"] for row in rows if row["decision"] == KEEP}
    leaving = [name for name in folders if is_transaction(name) and name not in kept]
    return [*rows, {"cleared": len(leaving)}]


def _decision(info: TransactionInfo, is_expired: bool) -> str:
    if info.status is TransactionStatus.COMMITTING:
        return COMMIT
    return ABORT if is_expired or info.status is TransactionStatus.ABORTING else KEEP


def _row(info: TransactionInfo, now_ms: int, decision: str, reason: str | None = None) -> Row:
    return {
        "transaction": info.transaction_id,
        "status": info.status.value,
        "writer": info.writer_id,
        "age_seconds": (now_ms - info.created_ms) / 1_000,
        "events": info.events,
        "size_bytes": info.size_bytes,
        "decision": decision,
        "reason": reason or info.reason,
    }


def _ended(outcome: TransactionOutcome) -> Row:
    status = TransactionStatus.COMMITTED if outcome.committed else TransactionStatus.ABORTED
    return {
        "transaction": outcome.transaction_id,
        "status": status.value,
        "writer": outcome.writer_id,
        "age_seconds": (outcome.ended_ms - outcome.created_ms) / 1_000,
        "events": outcome.events,
        "size_bytes": outcome.size_bytes,
        "decision": COMMIT if outcome.committed else ABORT,
        "reason": outcome.reason,
    }
