"""A batch write into an open transaction, as one of its manifests.

The tasks route by the transaction's epoch, so a scale during the write changes nothing: the commit
of the transaction brings its events into the active epoch. Until then no reader sees the write.
"""

from __future__ import annotations

from collections.abc import Sequence

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.staging_plan import StagingPlan
from pravega_spark.transactions import transaction_lifecycle
from pravega_spark.transactions.manifest_codec import Manifest
from pravega_spark.transactions.manifests import Manifests
from pravega_spark.transactions.transaction import Transaction
from pravega_spark.transactions.transaction_decisions import check_accepts_writes, holds_write
from pravega_spark.transactions.transaction_paths import chunk_folder


def plan(settings: WriteSettings, transaction_id: str) -> tuple[StagingPlan, bool]:
    """Return the plan of a write, and whether the transaction already has this numbered write.

    Raises NoSuchStream, NoSuchTransaction, or TxnFailed if the transaction is not open, before any
    task has run.
    """
    stream = open_stream(settings.root, settings.stream)
    view = existing_view(stream)
    opened = _open_transaction(view, transaction_id)
    entries = _writable_entries(stream, transaction_id)
    segments = view.epoch(opened.epoch).segments
    folder = chunk_folder(transaction_id)
    found = StagingPlan(
        stream.root_url,
        stream.name,
        view.life,
        view.version,
        segments,
        folder,
        stream.chunk_key,
        view.event_format.schema,
    )
    return found, _has(entries, settings)


def add_chunks(settings: WriteSettings, transaction_id: str, chunks: Sequence[StagedChunk]) -> bool:
    """Add the tasks' chunks, all or none; False if the transaction already has this numbered write.

    Raises TxnFailed if the transaction is no longer open, and CommitUnknown if the outcome is
    unknown.
    """
    transaction = Transaction(open_stream(settings.root, settings.stream), transaction_id)
    if settings.application is None:
        transaction._add_chunks(chunks)
        return True
    name, number = settings.application
    return transaction._add_chunks(chunks, writer=application_writer(name), number=number)


def application_writer(name: str) -> str:
    """Return the writer id of a txnAppId, in a stream's log and in a transaction."""
    return f"txn:{name}"


def _open_transaction(view: StreamView, transaction_id: str) -> OpenTransaction:
    """Return an open transaction of the stream; raise TxnFailed if it has ended."""
    found = transaction_lifecycle.find(view, transaction_id)
    if isinstance(found, TransactionOutcome):
        raise transaction_lifecycle.ended_error(view.stream, found)
    return found


def _writable_entries(stream: StreamLog, transaction_id: str) -> Sequence[Manifest]:
    """Return the manifests of a transaction; raise TxnFailed if it accepts no more events."""
    manifests = Manifests(stream, transaction_id)
    entries = manifests.read()
    check_accepts_writes(manifests)
    return entries


def _has(entries: Sequence[Manifest], settings: WriteSettings) -> bool:
    if settings.application is None:
        return False
    name, number = settings.application
    writer = application_writer(name)
    return holds_write(entries, writer, number)
