"""What a task of a write sees of the query that it belongs to: Spark's local properties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pyspark import TaskContext

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.spark.versions import WriterCommitMessage

QUERY_ID = "sql.streaming.queryId"
"""The query's id, which a restart keeps."""
_BATCH_ID = "streaming.sql.batchId"
_JOB_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_EXECUTION = "spark.sql.execution.root.id"
"""The outermost execution: in ``foreachBatch`` one for each attempt of a batch."""


@dataclass(frozen=True, slots=True)
class TaskRun:
    """The query's id, which a restart keeps; its run's job group; its batch.

    A query has the id of its run as the job group, unless ``foreachBatch`` sets another one.

    ``checkpoint`` is the query's folder in the session's folder of checkpoints, for a query with a
    name; without a name no later run finds it.

    ``attempt`` tells the executions of one batch apart, which the job group does not, since
    ``foreachBatch`` may set it at any time: Spark's application and the execution in it.
    """

    query_id: str | None = None
    run: str | None = None
    batch: int | None = None
    checkpoint: str | None = None
    attempt: str | None = None

    @classmethod
    def current(cls) -> TaskRun:
        """Return what this task sees; nothing on the driver, and in a plain script's task."""
        given = given_run()
        if given is not None:
            return given
        context = TaskContext.get()
        if context is None:
            return cls()
        query_id, batch, run, description, folder, execution = map(
            context.getLocalProperty,
            (QUERY_ID, _BATCH_ID, _JOB_GROUP, _DESCRIPTION, _CHECKPOINTS, _EXECUTION),
        )
        if query_id is None:
            return cls(run=run)
        name = (description or "").partition("\nid = ")[0]
        is_named = bool(folder and name) and not name.startswith("id = ")
        number = int(batch) if batch is not None else None
        return cls(query_id, run, number, f"{folder}/{name}" if is_named else None, execution)

    def of(self, application: str, *, is_in_query: bool) -> TaskRun:
        """Return this with a run and an attempt that no other application has.

        People repeat job groups, and Spark counts executions from 0. The tasks of a thread that
        ``foreachBatch`` started see nothing of the query, so their attempt is the application;
        ``is_in_query`` says that the write names a query's checkpoint.
        """
        attempt = None
        if self.query_id is not None and self.attempt is not None:
            attempt = f"{application}/{self.attempt}"
        elif self.query_id is None and is_in_query:
            attempt = application
        run = f"application {application}" if attempt == application else None
        if self.run is not None:
            run = f"{self.run} of application {application}"
        return replace(self, run=run, attempt=attempt)


_given = ContextVar[TaskRun | None]("pravega_spark_run", default=None)


def given_run() -> TaskRun | None:
    """Return the run that a loop over batches has given to the code that it calls, if any."""
    return _given.get()


@contextmanager
def as_run(run: TaskRun | None) -> Iterator[None]:
    """Let writes belong to a run of a loop that is none of Spark's queries; None changes nothing.

    The driver takes it along to the tasks of each write.
    """
    token = _given.set(run)
    try:
        yield
    finally:
        _given.reset(token)


@dataclass(kw_only=True)
class SinkMessage(WriterCommitMessage):
    """What a task tells the driver, and the run that it belongs to."""

    task: TaskRun = field(default_factory=TaskRun.current)


def application() -> str:
    """Return what tells the driver's Spark application from others.

    A task does not see the application's id. The folder of its files is another one for each. The
    client of Spark Connect has no such folder, and is known by its process.
    """
    try:
        from pyspark import SparkContext, SparkFiles
    except ImportError:  # a client alone
        return _process()
    if not SparkFiles._is_running_on_worker and SparkContext._active_spark_context is None:
        return _process()
    folder = SparkFiles.getRootDirectory().rstrip("/").rpartition("/")[2]
    return folder.removeprefix("userFiles-")


@lru_cache(maxsize=1)
def _process() -> str:
    return SYSTEM.token()


def run_of(messages: Iterable[SinkMessage]) -> TaskRun:
    """Return the run of the tasks of one write."""
    return next((m.task for m in messages if m.task != TaskRun()), TaskRun())
