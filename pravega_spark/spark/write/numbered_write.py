"""The numbers of writes: of queries' batches, and of applications' versions.

The driver makes one for each write, from what its tasks saw, and commits with it in each stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pravega_spark.engine.stream.records import WriterRecord
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.batch_identity import NumberedBatch
from pravega_spark.errors import InvalidOption
from pravega_spark.spark.settings import WriteSettings
from pravega_spark.spark.write.first_batch import FirstBatch
from pravega_spark.spark.write.query_checkpoint import query_id_of
from pravega_spark.spark.write.task_run import SinkMessage, TaskRun, run_of
from pravega_spark.spark.write.write_source import WriteSource, query_writer


def query_batch(
    settings: WriteSettings, messages: Sequence[SinkMessage], number: int
) -> NumberedBatch:
    """Return the identity of a query's micro-batch; raise InvalidOption without the query's id."""
    task, query_id = run_of(messages), query_of(settings, messages)
    if query_id is None:
        raise InvalidOption(
            "the streaming query's id is neither in the tasks' properties nor in "
            f"{settings.checkpoint}/metadata, so a repeated micro-batch could not be "
            "recognized. Set the option checkpointLocation to a path that the driver can read."
        )
    run = TaskRun(query_id, task.run, number, task.checkpoint)
    return _CheckedSource(settings, run, query_writer(query_id)).numbered(number)


def query_of(settings: WriteSettings, messages: Iterable[SinkMessage]) -> str | None:
    """Return the id of the query that writes; None if nothing tells it."""
    return run_of(messages).query_id or query_id_of(settings.checkpoint)


def application_batch(
    settings: WriteSettings, messages: Iterable[SinkMessage], application: str | None
) -> NumberedBatch | None:
    """Return the identity that txnAppId and txnVersion give to a write, or None without them.

    ``application`` is that of Spark, as the driver knows it.
    """
    if settings.application is None:
        return None
    name, number = settings.application
    run = attempt_of(settings, run_of(messages), application)
    if run.query_id is None:
        run = replace(run, query_id=query_id_of(settings.checkpoint))
    return _CheckedSource(settings, run, application_writer(name)).numbered(number)


def attempt_of(settings: WriteSettings, task: TaskRun, application: str | None) -> TaskRun:
    """Return what a batch write's task saw, with a run and an attempt of this application."""
    return task.of(application, is_in_query=settings.checkpoint is not None)


def application_writer(name: str) -> str:
    """Return the writer id of a txnAppId, in a stream's log and in a transaction."""
    return f"txn:{name}"


class _CheckedSource(WriteSource):
    """A write whose batch is checked if it is the first one of a run."""

    def check_first(self, view: StreamView, known: WriterRecord | None, number: int) -> None:
        """Raise if the stream's last batch is not the checkpoint's, or its streams lack a batch."""
        FirstBatch(self, view, known, number).check()
