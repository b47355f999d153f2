"""What transactions a stream has, for people."""

from __future__ import annotations

from pravega_spark.engine.records import OUTCOME_PREFIX
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.model import TransactionInfo, TransactionStatus
from pravega_spark.txn.controller import status_of
from pravega_spark.txn.manifests import Manifests


def open_ones(stream: Stream, view: StreamView) -> list[TransactionInfo]:
    """Return the transactions without an outcome, the oldest first; reads their manifests."""
    found = []
    for name, opened in view.transactions.items():
        manifests = Manifests(stream, name)
        manifests.read()
        chunks = manifests.chunks
        found.append(
            TransactionInfo(
                name,
                status_of(manifests),
                opened.created_ms,
                events=sum(chunk.rows for chunk in chunks),
                size_bytes=sum(chunk.event_bytes for chunk in chunks),
                writer_id=opened.writer_id,
            )
        )
    return sorted(found, key=lambda info: (info.created_ms, info.transaction_id))


def completed(view: StreamView) -> list[TransactionInfo]:
    """Return the transactions with an outcome that is kept, the newest first."""
    found = []
    for domain in view.snapshot.names(OUTCOME_PREFIX):
        name = domain.removeprefix(OUTCOME_PREFIX)
        outcome = view.outcome(name)
        assert outcome is not None
        status = TransactionStatus.COMMITTED if outcome.committed else TransactionStatus.ABORTED
        found.append(
            TransactionInfo(
                name,
                status,
                outcome.created_ms,
                outcome.ended_ms,
                outcome.version,
                outcome.events,
                outcome.size_bytes,
                outcome.writer_id,
                outcome.reason,
            )
        )
    return sorted(found, key=lambda info: (-info.version, info.transaction_id))
