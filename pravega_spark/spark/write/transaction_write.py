"""A batch write into an open transaction, as one of its manifests.

The tasks route by the transaction's epoch, so a scale during the write changes nothing: the commit
of the transaction brings its events into the active epoch. Until then no reader sees the write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql.types import StructType

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.engine.writing.batch_origin import BatchOrigin, decode_origin
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.frame_target import FramePlan, columns_of
from pravega_spark.spark.write.numbered_write import application_writer
from pravega_spark.spark.write.repeated_write import check_equal
from pravega_spark.spark.write.same_rows import staged_digest
from pravega_spark.spark.write.staging_plan import StagingPlan
from pravega_spark.transactions import transaction_lifecycle
from pravega_spark.transactions.manifest_codec import PLAIN_WRITE, Manifest
from pravega_spark.transactions.manifests import Manifests
from pravega_spark.transactions.transaction import Transaction
from pravega_spark.transactions.transaction_decisions import check_accepts_writes, last_write
from pravega_spark.transactions.transaction_paths import chunk_folder


def plan(
    settings: WriteSettings, transaction_id: str, frame: StructType
) -> tuple[FramePlan, Sequence[BatchOrigin | None] | None]:
    """Return the plan of a write, and where the write came from that has its number already.

    The second is None if the transaction does not have the number.

    Raises NoSuchStream, NoSuchTransaction, or TxnFailed if the transaction is not open, before any
    task has run.
    """
    stream = open_stream(settings.root, settings.stream)
    view = existing_view(stream)
    opened = _open_transaction(view, transaction_id)
    entries = _writable_entries(stream, transaction_id)
    segments = view.epoch(opened.epoch).segments
    folder = chunk_folder(transaction_id)
    staging = StagingPlan(
        stream.root_url,
        stream.name,
        view.life,
        view.version,
        segments,
        folder,
        stream.chunk_key,
        view.event_format.schema,
    )
    found = FramePlan(staging, columns_of(frame, settings, staging.schema))
    if settings.application is None:
        return found, None
    name, number = settings.application
    last = last_write(entries, replace(PLAIN_WRITE, writer=application_writer(name), number=number))
    return found, None if last is None else (decode_origin(last.origin),)


def add_chunks(
    settings: WriteSettings,
    transaction_id: str,
    chunks: Sequence[StagedChunk],
    identity: NumberedBatch | None,
) -> bool:
    """Add the tasks' chunks, all or none; False if the transaction already has this numbered write.

    Raises BatchConflict if that is another write, TxnFailed if the transaction is no longer open,
    and CommitUnknown if the outcome is unknown.
    """
    stream = open_stream(settings.root, settings.stream)
    transaction = Transaction(stream, transaction_id)
    if identity is None:
        if chunks:
            transaction._add_chunks(chunks)
        return True
    write = replace(PLAIN_WRITE, writer=identity.writer_id, number=identity.number)
    last = last_write(Manifests(stream, transaction_id).read(), write)
    if last is not None:
        _check_same(stream, transaction_id, identity, last, chunks)
        return False
    if not chunks:
        return True
    write = replace(write, origin=identity.source.origin(None).encode())
    return transaction._add_chunks(chunks, write)


def _check_same(
    stream: StreamLog,
    transaction_id: str,
    identity: NumberedBatch,
    last: Manifest,
    chunks: Sequence[StagedChunk],
) -> None:
    """Raise BatchConflict if the known number is that of another write."""
    where = f"transaction {transaction_id} of stream {stream.name}"
    before = decode_origin(last.origin)
    origin = identity.source.origin(before)
    origin.check(where, identity.writer_id, identity.number, last.number, before)
    if chunks and origin.needs_rows_of(before) and last.number == identity.number:
        here, given = staged_digest(stream, last.chunks), staged_digest(stream, chunks)
        check_equal(where, identity, here, given)


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
