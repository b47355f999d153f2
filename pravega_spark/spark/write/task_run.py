"""What a task of a write sees of the query that it belongs to: Spark's local properties."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

QUERY_ID = "sql.streaming.queryId"
"""The query's id, which a restart keeps."""
_BATCH_ID = "streaming.sql.batchId"
_JOB_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The query's id, which a restart keeps; its run or another job group; its batch.

    ``checkpoint`` is the query's folder in the session's folder of checkpoints, for a query with a
    name; without a name no later run finds it.
    """

    query_id: str | None = None
    run: str | None = None
    batch: int | None = None
    checkpoint: str | None = None

    @classmethod
    def current(cls) -> TaskRun:
        """Return what this task sees; nothing on the driver, and in a plain script's task."""
        context = TaskContext.get()
        if context is None:
            return cls()
        query_id, batch, run, description, folder = map(
            context.getLocalProperty,
            (QUERY_ID, _BATCH_ID, _JOB_GROUP, _DESCRIPTION, _CHECKPOINTS),
        )
        if query_id is None:
            return cls(run=run)
        name = (description or "").partition("\nid = ")[0]
        is_named = bool(folder and name) and not name.startswith("id = ")
        number = int(batch) if batch is not None else None
        return cls(query_id, run, number, f"{folder}/{name}" if is_named else None)


@dataclass(kw_only=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the driver, and the run that it belongs to."""

    task: TaskRun = field(default_factory=TaskRun.current)


def run_of(messages: Iterable[SinkMessage]) -> TaskRun:
    """Return the run of the tasks of one write."""
    return next((m.task for m in messages if m.task != TaskRun()), TaskRun())
