"""Which streams a job works on, and how Spark's executors share that work.

``mapped_tasks`` spreads the streams' names over tasks, so that Spark 3.5, Spark Connect and
serverless compute work, too. A task's work on a stream is plain Python on the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from pravega_spark.engine.runtime.log_fields import own_logger
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import MARKER_KEY, missing_marker
from pravega_spark.errors import InvalidInput
from pravega_spark.jobs.report import Done, RoundProgress
from pravega_spark.spark.mapped_tasks import in_tasks
from pravega_spark.values.limits import STREAMS_PER_TASK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = own_logger(__name__)

_TASKS_PER_CORE = 16
"""More tasks than cores, so that one task with slow work does not decide how long a round is, and
since a task tells at its end how far the round is."""
_ATTEMPT = "attempt"


class Task(NamedTuple):
    """A part of the work on a stream, or on the tables of a scope."""

    stream: str
    """The stream; or the scope, or "" for the root."""
    text: str = ""
    """What is to be done, as the work reads it."""


TaskWork = Callable[[str, Task], Iterable[Mapping[str, Any]]]
"""Takes root and task, returns rows. Must be picklable; Spark may run it twice, even at once."""


def find_root(root: str) -> str:
    """Return a root as a URL for executors.

    Raises InvalidInput for a root in memory or without a marker.
    """
    store = open_store(root)
    if store.url.startswith("memory:"):
        raise InvalidInput(
            f"root {root} is in the memory of this process, which Spark's tasks cannot reach; use "
            "a folder or an object store."
        )
    if not store.exists(MARKER_KEY):
        raise missing_marker(store)
    return store.url


def map_tasks(
    spark: SparkSession,
    root: str,
    *,
    tasks: Sequence[Task],
    work: TaskWork,
    schema: pa.Schema,
    told: RoundProgress | None = None,
    what: str = "streams",
) -> list[dict[str, Any]]:
    """Return the rows that ``work`` returns for each task, with the column ``stream`` of the task.

    ``told`` tells meanwhile how far the tasks are, and counts those whose task of Spark was
    repeated. An error of the work fails the job.
    """
    from pravega_spark.spark.versions import spark_schema

    if not tasks:
        return []
    told = told or RoundProgress()
    whole = pa.schema([("stream", pa.string()), *schema, (_ATTEMPT, pa.int32())])
    done = _counter(spark)

    def run(share: Sequence[Task]) -> Iterator[pa.RecordBatch]:
        attempt = {_ATTEMPT: attempt_number()}
        for task in share:
            rows = [{"stream": task.stream, **row, **attempt} for row in work(root, task)]
            if done is not None:
                done.add((1, task.stream))
            yield pa.RecordBatch.from_pylist(rows, schema=whole)

    count = max(_TASKS_PER_CORE * _cores(spark), -(-len(tasks) // STREAMS_PER_TASK))
    count = min(count, len(tasks))
    shares = [tuple(tasks[first::count]) for first in range(count)]
    frame = in_tasks(spark, shares, run, spark_schema(whole))
    with told.over(what, len(tasks), lambda: None if done is None else done.value):
        found = [row.asDict() for row in frame.collect()]
    again = {row["stream"] for row in found if row.pop(_ATTEMPT)}
    told.repeated += len(again)
    return found


def attempt_number() -> int:
    """Return how often Spark has begun the present task before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


def _counter(spark: SparkSession) -> Any:
    """Return an accumulator of what is done, to which tasks add at their end; None with Connect."""
    from pyspark.accumulators import AccumulatorParam

    class Latest(AccumulatorParam[Done]):
        """Counts, and keeps the last name."""

        def zero(self, value: Done) -> Done:
            return 0, ""

        def addInPlace(self, value1: Done, value2: Done) -> Done:
            return value1[0] + value2[0], value2[1] or value1[1]

    try:
        return spark.sparkContext.accumulator((0, ""), Latest())
    except Exception:  # Spark Connect has no context
        return None


def _cores(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at the same time, as far as the session knows it."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context
        return int(spark.conf.get("spark.sql.shuffle.partitions", "8") or 8)
