"""The sink of a frame whose rows name their streams: one commit in each stream, each once.

The commits are independent. A driver that dies between two leaves a batch in some streams and not
yet in others; Spark then writes the same batch again, each stream that has it skips it, and the
others get it. So every stream has every row once, in order, and a reader of several streams may see
a batch in one of them before another. A batch write without txnAppId has no such number, so its
error says which streams have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_draft import sealed_error
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.errors import IllegalState, InvalidOption, PravegaSparkError
from pravega_spark.spark.kafka_values import warn_of_leftovers
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.commit_messages import (
    TaskCommitMessage,
    chunks_of,
    commit_chunks,
)
from pravega_spark.spark.write.input_columns import InputColumns, has_events
from pravega_spark.spark.write.many_streams_staging import stage_many
from pravega_spark.spark.write.numbered_write import (
    application_batch,
    query_batch,
    query_of,
)
from pravega_spark.spark.write.split_write import SplitWrite
from pravega_spark.spark.write.stream_column import StreamColumn
from pravega_spark.spark.write.task_run import SinkMessage, application

logger = own_logger(__name__)


@dataclass
class ManyStreamsMessage(SinkMessage):
    """What one task staged, by stream."""

    parts: dict[str, TaskCommitMessage] = field(default_factory=dict)


class _ManyStreamsWriter:
    """What the writers of batches and of micro-batches have in common."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns, on the driver."""
        if settings.transaction is not None:
            raise InvalidOption(
                f"option transaction={settings.transaction} is of one stream: name it by "
                ".save('scope/stream')."
            )
        if settings.bad_records == "dlq":
            raise InvalidOption(
                "option badRecords=dlq is for a write to one stream: name it by "
                ".save('scope/stream') or .start('scope/stream')."
            )
        self.settings = settings
        self._frame = schema
        self._columns = InputColumns.of(schema, settings) if has_events(schema, settings) else None
        self._names = StreamColumn.of(schema, settings)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ManyStreamsMessage:
        """Stage one partition; runs in a task."""
        context = TaskContext.get()
        partition_id = 0 if context is None else context.partitionId()
        parts = stage_many(
            iterator, self._names, self._frame, self._columns, self.settings, partition_id
        )
        return ManyStreamsMessage(parts)


class ManyStreamsBatchWriter(_ManyStreamsWriter, DataSourceArrowWriter):
    """Writes a frame in one commit for each stream that its rows name.

    With txnAppId and txnVersion the write takes effect at most once in each stream.
    """

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        """Check the frame's columns, on the driver."""
        super().__init__(settings, schema)
        if settings.event_time_delay_ms is not None and settings.application is None:
            raise InvalidOption(
                "option eventTimeDelay notes the time of a writer, which a batch write has only "
                "with txnAppId and txnVersion; set these, or remove it."
            )
        self._application = application()
        warn_of_leftovers(settings.leftovers, "a write of a frame")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit in each stream, in the order of the names; check all of them first."""
        found = complete_parts(messages)
        identity = application_batch(self.settings, found, self._application)
        commit_each(self.settings, found, identity)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: chunks without a commit are in no stream, and a sweep deletes them."""


class ManyStreamsStreamWriter(_ManyStreamsWriter, DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query, exactly once in each stream that their rows name."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit a micro-batch in each stream; skip it in those that already have it."""
        commit_batch(self.settings, complete_parts(messages), batchId, "a query's write")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: streams may have the micro-batch, and Spark commits it again."""


def commit_batch(
    settings: WriteSettings, messages: Sequence[ManyStreamsMessage], number: int, what: str
) -> None:
    """Commit a query's micro-batch; one without rows still must not be a replay of one with some.

    ``what`` names the write in the warning of options that mean nothing here.
    """
    if number == 0:
        warn_of_leftovers(settings.leftovers, what)
    has_rows = any(message.parts for message in messages)
    if has_rows or query_of(settings, messages) is not None:
        identity = query_batch(settings, messages, number)
        commit_each(settings, messages, identity, batchId=number)


def commit_each(
    settings: WriteSettings,
    messages: Sequence[ManyStreamsMessage],
    identity: NumberedBatch | None,
    **parameters: object,
) -> None:
    """Commit what the tasks staged, once in each stream.

    Raises before the first commit if one of the streams is sealed, was deleted or created again
    since the tasks ran, or has another batch of the number, and if the write was stopped between
    two commits and now has other rows. A later error names the streams that have the write.
    """
    parts: dict[str, list[TaskCommitMessage]] = {}
    for message in messages:
        for name, part in message.parts.items():
            parts.setdefault(name, []).append(part)
    views = _checked(settings, parts)
    split = None
    if identity is not None:
        staged = {name: chunks_of(found) for name, found in parts.items()}
        split = SplitWrite(settings, identity, staged)
        split.begin(views)
    done: list[str] = []
    for name in sorted(parts):
        try:
            appended = commit_chunks(
                replace(settings, stream=name), parts[name], identity, **parameters
            )
        except PravegaSparkError as error:
            if not done:
                raise
            again = (
                "Write the frame again, before any later number: they skip it"
                if identity is not None
                else "A write without txnAppId and txnVersion has no number to skip it by, so "
                "write only the rows of the other streams again"
            )
            raise IllegalState(
                f"{error} The write is already in {', '.join(done)}, and not in stream {name} and "
                f"those after it. {again}."
            ) from error
        if appended is not None and appended.duplicate and identity is not None:
            logger.warning(
                "skipped a duplicate write: stream %s has number %d of %s, or a later one",
                name,
                identity.number,
                identity.writer_id,
                extra=log_fields("append", name, number=identity.number),
            )
        done.append(name)
        failpoint("many_streams.committed")
    if split is not None:
        split.end()


def _checked(
    settings: WriteSettings, parts: Mapping[str, Sequence[TaskCommitMessage]]
) -> list[StreamView]:
    views = []
    for name, found in parts.items():
        view = _view(settings, name)
        for part in found:
            view.check_life(part.life)
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        views.append(view)
    return views


def _view(settings: WriteSettings, name: str) -> StreamView:
    return existing_view(open_stream(settings.root, name))


def complete_parts(messages: Sequence[WriterCommitMessage | None]) -> list[ManyStreamsMessage]:
    """Return the tasks' messages; raise IllegalState if a task has none."""
    found = [message for message in messages if isinstance(message, ManyStreamsMessage)]
    if len(found) < len(messages):
        raise IllegalState(
            f"{len(messages) - len(found)} of {len(messages)} tasks sent no commit message; "
            "nothing was committed. Write again."
        )
    return found
