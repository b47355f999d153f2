"""Lists of a stream's transactions, for users."""

from __future__ import annotations

from pravega_spark.engine.stream.records import OUTCOME_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import TransactionInfo
from pravega_spark.transactions import transaction_lifecycle
from pravega_spark.transactions.manifests import Manifests, read_new, rows_of


def open_transactions(stream: StreamLog, view: StreamView) -> list[TransactionInfo]:
    """Return the transactions without an outcome, oldest first; reads their manifests."""
    several = [Manifests(stream, name) for name in view.transactions]
    read_new(several)
    opened = stream.view().transactions  # read last: one whose manifests are deleted has ended
    found = [
        TransactionInfo(
            manifests.transaction_id,
            transaction_lifecycle.status_of(opened[manifests.transaction_id], manifests),
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
                name,
                transaction_lifecycle.status_of(outcome),
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
