"""A frame into an open transaction: routed by the transaction's epoch, entered as one write of it.

Nothing of it is visible before the transaction commits, and a scale meanwhile changes nothing: the
transaction keeps its epoch until its own commit places it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TxnFailed
from pravega_spark.model import TransactionStatus
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.task_staging import TaskStaging
from pravega_spark.transactions import transaction_lifecycle
from pravega_spark.transactions.manifests import Kind, Manifest, Manifests, chunk_folder
from pravega_spark.transactions.transaction import Transaction


def plan(settings: WriteSettings, transaction_id: str) -> tuple[TaskStaging, bool]:
    """Fix the routing of a write into a transaction; True if that numbered write is in it already.

    Raises NoSuchStream, NoSuchTransaction, and TxnFailed unless it is open, before any task has
    run.
    """
    stream = open_stream(settings.root, settings.stream)
    view = existing_view(stream)
    opened = _opened(view, transaction_id)
    entries = _entries(stream, transaction_id)
    segments = view.epoch(opened.epoch).segments
    folder = chunk_folder(transaction_id)
    staging = TaskStaging(stream.root_url, stream.name, view.life, view.version, segments, folder)
    return staging, _has(entries, settings)


def enter(settings: WriteSettings, transaction_id: str, chunks: Sequence[StagedChunk]) -> bool:
    """Enter what the tasks staged, all or none; False if that numbered write is in it already.

    Raises TxnFailed if the transaction takes no more, and CommitUnknown if nobody can tell.
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


def _opened(view: StreamView, transaction_id: str) -> OpenTransaction:
    """Return the transaction, which the log must hold as open."""
    found = transaction_lifecycle.find(view, transaction_id)
    if isinstance(found, TransactionOutcome):
        raise transaction_lifecycle.ended_error(view, found)
    return found


def _entries(stream: StreamLog, transaction_id: str) -> Sequence[Manifest]:
    """Return the manifests of a transaction that takes events still."""
    manifests = Manifests(stream, transaction_id)
    entries = manifests.read()
    if entries and entries[-1].kind is not Kind.WRITE:
        raise TxnFailed(
            f"transaction {transaction_id} of stream {stream.name} is {entries[-1].kind.name}: no "
            "event can be written into it any more. Begin another.",
            transaction_id=transaction_id,
            status=TransactionStatus[entries[-1].kind.name],
        )
    return entries


def _has(entries: Sequence[Manifest], settings: WriteSettings) -> bool:
    if settings.application is None:
        return False
    name, number = settings.application
    writer = application_writer(name)
    return any(entry.writer == writer and entry.number >= number for entry in entries)
