"""The sink: tasks stage chunks, the driver makes one commit, and a repeated batch is skipped.

With the option ``transaction`` the driver enters the chunks into the transaction instead.

``abort`` never deletes anything: Spark calls it also after a commit whose outcome it could not see.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import AppendResult, append, sealed_error
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    InvalidOption,
    NoSuchScope,
    NoSuchStream,
    StoreError,
)
from pravega_spark.manager import StreamManager
from pravega_spark.names import split_stream
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write import transaction_write
from pravega_spark.spark.write.task_staging import InputColumns, TaskStaging, stage

logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
"""Spark's name of the task property with the query's id, which a restart keeps."""


@dataclass
class Staged(WriterCommitMessage):
    """What one task staged, and in which life of the stream and at which version."""

    life: int
    version: int
    chunks: list[StagedChunk] = field(default_factory=list)
    query_id: str | None = None


def plan_staging(settings: WriteSettings) -> tuple[TaskStaging, StreamView]:
    """Fix stream, life, version and routing for the tasks; create what is missing if allowed.

    Raises NoSuchScope, NoSuchStream and StreamSealed before any task has run.
    """
    stream = open_stream(settings.root, settings.stream)
    try:
        view = existing_view(stream)
    except NoSuchStream:
        if not settings.create_if_missing:
            raise
        _create(settings)
        view = stream.view()
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)
    staging = TaskStaging(
        stream.root_url, settings.stream, view.life, view.version, view.active.segments
    )
    return staging, view


def _create(settings: WriteSettings) -> None:
    manager = StreamManager(settings.root)
    configuration = StreamConfiguration(scaling=ScalingPolicy.fixed(settings.segments))
    try:
        manager.create_stream(settings.stream, configuration)
    except NoSuchScope:
        manager.create_scope(split_stream(settings.stream)[0])
        manager.create_stream(settings.stream, configuration)


def check_mode(overwrite: bool) -> None:
    """Raise InvalidOption for any mode but append."""
    if overwrite:
        raise InvalidOption(
            "a stream only grows: write with .mode('append'), a streaming query with "
            ".outputMode('append'). To begin anew, truncate or delete the stream."
        )


class PravegaBatchWriter(DataSourceArrowWriter):
    """Writes a frame in one commit, or as one write of an open transaction.

    With txnAppId and txnVersion at most once: in the stream, or in the transaction.
    """

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns and fix the plan, on the driver."""
        self.settings = settings
        self._columns = InputColumns.of(schema, settings)
        if settings.transaction is not None:
            self._staging, self._done = transaction_write.plan(settings, settings.transaction)
            return
        self._staging, view = plan_staging(settings)
        identity = self._identity()
        known = view.writer(identity.writer_id) if identity else None
        self._done = identity is not None and known is not None and identity.number <= known.last

    def _identity(self) -> NumberedBatch | None:
        if self.settings.application is None:
            return None
        name, number = self.settings.application
        return NumberedBatch(transaction_write.application_writer(name), number)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition; runs in a task."""
        if self._done:
            return Staged(self._staging.life, self._staging.version)
        chunks = stage(iterator, self._staging, self._columns, self.settings, _partition())
        return Staged(self._staging.life, self._staging.version, chunks)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit or enter what all partitions staged, in their order."""
        if self._done or not self._finish(_staged(messages)):
            self._skipped()

    def _finish(self, staged: Sequence[Staged]) -> bool:
        """Return False if the write is there already."""
        if self.settings.transaction is None:
            appended = commit_staged(self.settings, staged, self._identity())
            return appended is None or not appended.duplicate
        chunks = _chunks(staged)
        return not chunks or transaction_write.enter(
            self.settings, self.settings.transaction, chunks
        )

    def _skipped(self) -> None:
        name, number = self.settings.application or ("", 0)
        transaction = self.settings.transaction
        logger.warning(
            "skipped as duplicate: %sstream %s has version %d of txnAppId %s, or a later one",
            f"transaction {transaction} of " if transaction else "",
            self.settings.stream,
            number,
            name,
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave everything as it is: what was not committed is not in the stream."""


class PravegaStreamWriter(DataSourceStreamArrowWriter):
    """Writes a streaming query's batches, each in one commit and exactly once.

    Spark makes one writer to hand to the tasks and others to commit or abort; only the first
    needs a plan, so it is made when the writer is pickled.
    """

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns."""
        if settings.transaction is not None:
            raise InvalidOption(
                "option transaction is for a batch write: a streaming query commits each batch by "
                "itself. To write its batches into transactions, use foreachBatch, and in it "
                ".option('transaction', id) on the batch's own write."
            )
        self.settings = settings
        self._columns = InputColumns.of(schema, settings)
        self._staging: TaskStaging | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Fix the plan for the tasks, on the driver."""
        if self._staging is None:
            self._staging, _ = plan_staging(self.settings)
        return dict(self.__dict__)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage one partition of a batch; runs in a task."""
        assert self._staging is not None, "the writer reached a task without a plan"
        chunks = stage(iterator, self._staging, self._columns, self.settings, _partition())
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(QUERY_ID)
        return Staged(self._staging.life, self._staging.version, chunks, query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the batch; one that is in the stream already is skipped."""
        staged = _staged(messages)
        if not any(message.chunks for message in staged):
            return
        identity = NumberedBatch(f"spark.{self._query_id(staged)}", batchId)
        appended = commit_staged(self.settings, staged, identity, batchId=batchId)
        if appended is not None and appended.duplicate:
            logger.warning(
                "skipped as duplicate: stream %s has batch %d of query %s, or a later one",
                self.settings.stream,
                batchId,
                identity.writer_id,
            )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave everything as it is: the batch may be in the stream, and is asked for again."""

    def _query_id(self, staged: Sequence[Staged]) -> str:
        found = {message.query_id for message in staged if message.query_id}
        if len(found) == 1:
            return found.pop()
        query_id = _checkpoint_id(self.settings.checkpoint)
        if query_id is None:
            raise InvalidOption(
                "the streaming query's id is neither in the tasks' properties nor in "
                f"{self.settings.checkpoint}/metadata, so a repeated batch could not be told; set "
                "the option checkpointLocation to a path this process can read."
            )
        return query_id


def commit_staged(
    settings: WriteSettings,
    staged: Sequence[Staged],
    identity: NumberedBatch | None,
    **parameters: object,
) -> AppendResult | None:
    """Commit what the tasks staged, in the order of the partitions; None if there is nothing."""
    chunks = _chunks(staged)
    if not chunks:
        return None
    plans = {(message.life, message.version) for message in staged}
    assert len(plans) == 1, f"the tasks of one write have several plans: {plans}"
    ((life, version),) = plans
    stream = open_stream(settings.root, settings.stream)
    return append(stream, life, version, chunks, identity, parameters=parameters)


def _chunks(staged: Sequence[Staged]) -> list[StagedChunk]:
    return [found for message in staged for found in message.chunks]


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the tasks' messages; Spark commits only when every task has one."""
    found = [message for message in messages if isinstance(message, Staged)]
    if len(found) < len(messages):
        raise IllegalState(
            f"{len(messages) - len(found)} of {len(messages)} tasks gave no result to commit; "
            "nothing was committed: write again."
        )
    return found


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _checkpoint_id(location: str | None) -> str | None:
    """Return the query's id as Spark keeps it in the checkpoint."""
    if location is None:
        return None
    try:
        text = open_store(location).get("metadata").decode()
    except (FileNotFoundError, StoreError, InvalidInput):
        return None
    match = re.search(r'"id"\s*:\s*"([^"]+)"', text)
    return match[1] if match else None
