"""The sink: tasks stage chunks, the driver commits them once, and a repeated batch is skipped.

With the option ``transaction`` the driver adds the chunks to the transaction instead.

``abort`` never deletes anything: Spark calls it also after a commit whose outcome it did not see.

A batch write into an open transaction, as one of its manifests. The tasks route by the
transaction's epoch, so a scale during the write changes nothing: the commit of the transaction
brings its events into the active epoch. Until then no reader sees the write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from pravega_spark.engine.chunk_paths import chunk_folder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.records import OpenTransaction, TransactionOutcome
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.identity import BatchOrigin, NumberedBatch, decode_origin
from pravega_spark.errors import InvalidOption, PravegaSparkError
from pravega_spark.spark.options import warn_of_leftovers
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.versions import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pravega_spark.spark.write.messages import TaskCommitMessage, chunks_of, commit_chunks, complete
from pravega_spark.spark.write.numbered import (
    application_batch,
    application_writer,
    attempt_of,
    check_equal,
    check_left,
    check_repeated,
    check_same_rows,
    known_origins,
    query_batch,
    staged_digest,
)
from pravega_spark.spark.write.plan import StagingPlan
from pravega_spark.spark.write.staging import stage
from pravega_spark.spark.write.target import FramePlan, columns_of, plan_in_task, plan_on_driver
from pravega_spark.spark.write.task_run import TaskRun, application
from pravega_spark.txn import lifecycle
from pravega_spark.txn.lifecycle import check_accepts_writes, last_write
from pravega_spark.txn.manifests import PLAIN_WRITE, Manifest, Manifests
from pravega_spark.txn.transaction import Transaction, add_staged


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
        root=stream.root_url,
        stream=stream.name,
        life=view.life,
        version=view.version,
        segments=segments,
        folder=folder,
        key=stream.chunk_key,
        schema=view.event_format.schema,
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
            add_staged(transaction, chunks)
        return True
    write = replace(PLAIN_WRITE, writer=identity.writer_id, number=identity.number)
    last = last_write(Manifests(stream, transaction_id).read(), write)
    if last is not None:
        _check_same(stream, transaction_id, identity, last, chunks)
        return False
    if not chunks:
        return True
    write = replace(write, origin=identity.source.origin(None).encode())
    return add_staged(transaction, chunks, write)


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
    found = lifecycle.find(view, transaction_id)
    if isinstance(found, TransactionOutcome):
        raise lifecycle.ended_error(view.stream, found)
    return found


def _writable_entries(stream: StreamLog, transaction_id: str) -> Sequence[Manifest]:
    """Return the manifests of a transaction; raise TxnFailed if it accepts no more events."""
    manifests = Manifests(stream, transaction_id)
    entries = manifests.read()
    check_accepts_writes(manifests)
    return entries


logger = own_logger(__name__)


def check_mode(overwrite: bool) -> None:
    """Raise InvalidOption for every mode except append."""
    if overwrite:
        raise InvalidOption(
            "a stream is append-only: write with .mode('append'), a streaming query with "
            ".outputMode('append'). To remove old events, truncate or delete the stream."
        )


class PravegaBatchWriter(DataSourceArrowWriter):
    """Writes a frame in one commit, or as one write of an open transaction.

    With txnAppId and txnVersion the write takes effect at most once in the stream, or in the
    transaction.
    """

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns and make the plan, on the driver."""
        self.settings = settings
        self._frame = schema
        self._application = application()
        self._plan: FramePlan | None
        self._known: Sequence[BatchOrigin | None] | None
        warn_of_leftovers(settings.leftovers, f"a write to {settings.stream}")
        if settings.event_time_delay_ms is not None and settings.application is None:
            raise InvalidOption(
                "option eventTimeDelay notes the time of a writer, which a batch write has only "
                "with txnAppId and txnVersion; set these, or remove it."
            )
        if settings.transaction is not None:
            transaction_id = settings.transaction
            self._plan, self._known = plan(settings, transaction_id, schema)
            return
        self._plan = plan_on_driver(settings, schema)
        self._known = known_origins(settings, self._written())

    def _written(self) -> tuple[str, ...]:
        """Return the streams that must have the write's number, or it is staged."""
        return (self.settings.stream,)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Stage one partition; runs in a task."""
        plan = self._in_task()
        if self._is_skipped:
            return TaskCommitMessage(plan.staging.life, plan.staging.version)
        return _stage_one(iterator, plan, self.settings)

    def _in_task(self) -> FramePlan:
        """Return the driver's plan, or this task's own."""
        return self._plan or plan_in_task(self.settings, self._frame)

    @property
    def _is_skipped(self) -> bool:
        """Whether a task stages nothing: the number is known, and its rows do not matter.

        Where they must be the same, the driver compares them.
        """
        if self._known is None:
            return False
        task = attempt_of(self.settings, TaskRun.current(), self._application)
        mine = BatchOrigin(run=task.run, batch=task.batch, attempt=task.attempt)
        return not any(map(mine.needs_rows_of, self._known))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the chunks of all partitions, in the order of the partitions."""
        if not self._commit(complete(messages)):
            self._log_skipped()

    def _commit(self, messages: Sequence[TaskCommitMessage]) -> bool:
        """Return False if the stream or the transaction already has this write."""
        identity = application_batch(self.settings, messages, self._application)
        chunks = chunks_of(messages)
        transaction_id = self.settings.transaction
        if transaction_id is not None:
            return add_chunks(self.settings, transaction_id, chunks, identity)
        if not chunks and self._known is not None:
            check_repeated(self.settings, self._written(), identity)
            return False
        appended = commit_chunks(self.settings, messages, identity)
        if appended is None or not appended.duplicate:
            return True
        assert identity is not None, "a write without a number is never a repetition"
        check_left(identity)
        check_same_rows(open_stream(self.settings.root, self.settings.stream), identity, chunks)
        return False

    def _log_skipped(self) -> None:
        name, number = self.settings.application or ("", 0)
        transaction = self.settings.transaction
        logger.warning(
            "skipped a duplicate write: %sstream %s has version %d of txnAppId %s, or a later one",
            f"transaction {transaction} of " if transaction else "",
            self.settings.stream,
            number,
            name,
            extra=log_fields(
                "append", self.settings.stream, transaction=transaction or "", txnVersion=number
            ),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: chunks without a commit are not in the stream, and a sweep deletes them."""


class PravegaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query, each in one commit and exactly once.

    Spark makes one writer to send to the tasks, and others to commit or abort. Only the first
    needs a plan, so the plan is made when a writer is pickled. Spark hides an error of that in a
    PicklingError, so the tasks raise it.
    """

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Take the columns of the frame, which are checked when the plan is made."""
        if settings.transaction is not None:
            raise InvalidOption(
                f"option transaction={settings.transaction} is for a batch write: a streaming "
                "query commits each micro-batch on its own. To write micro-batches into "
                "transactions, use foreachBatch, and in it .option('transaction', id) on the "
                "batch's own write."
            )
        self.settings = settings
        self._frame = schema
        self._plan: FramePlan | None = None
        self._refusal: PravegaSparkError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Make the plan for the tasks, on the driver."""
        if self._plan is None and self._refusal is None:
            try:
                self._plan = self._on_driver()
            except PravegaSparkError as error:
                self._refusal = error
        return dict(self.__dict__)

    def _on_driver(self) -> FramePlan | None:
        return plan_on_driver(self.settings, self._frame)

    def _in_task(self) -> FramePlan:
        """Return the driver's plan, or this task's own; raise what the driver found."""
        if self._refusal is not None:
            raise self._refusal
        return self._plan or plan_in_task(self.settings, self._frame)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        """Stage one partition of a micro-batch; runs in a task."""
        return _stage_one(iterator, self._in_task(), self.settings)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch; skip one that the stream already has."""
        found = complete(messages)
        if batchId == 0:  # of all commits of a query, this one alone warns
            warn_of_leftovers(self.settings.leftovers, f"a query's write to {self.settings.stream}")
        if not any(message.chunks for message in found):
            return
        identity = query_batch(self.settings, found, batchId)
        appended = commit_chunks(self.settings, found, identity, batchId=batchId)
        if appended is not None and appended.duplicate:
            logger.warning(
                "skipped a duplicate write: stream %s has batch %d of query %s, or a later one",
                self.settings.stream,
                batchId,
                identity.writer_id,
                extra=log_fields("append", self.settings.stream, batch=batchId),
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the stream may have the micro-batch, and Spark commits it again."""


def _stage_one(
    rows: Iterator[pa.RecordBatch], plan: FramePlan, settings: WriteSettings
) -> TaskCommitMessage:
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    chunks = stage(rows, plan.staging, plan.columns, settings, number)
    return TaskCommitMessage(plan.staging.life, plan.staging.version, chunks)
