"""Which streams a job works on, and how Spark's executors share that work.

``mapInArrow`` spreads the streams' names over tasks, so that Spark Connect and serverless compute
work, too. A task's work on a stream is plain Python on the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root_marker import MARKER_KEY, missing_marker
from pravega_spark.engine.stream.repair import looked
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidInput, NoSuchStream, PravegaSparkError
from pravega_spark.jobs.report import Done, RoundProgress
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.limits import STREAMS_PER_TASK
from pravega_spark.values.names import split_stream

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
Work = Callable[[str, str], Iterable[Mapping[str, Any]]]
"""The same for a whole stream by its name."""


def find_streams(
    root: str,
    scopes: Collection[str] = (),
    streams: Collection[str] = (),
    *,
    must_exist: bool = True,
) -> tuple[str, list[str]]:
    """Return the root as a URL for executors, and the named streams, or else all, sorted.

    Named objects that do not exist are left out unless they ``must_exist``. Raises InvalidInput for
    a root in memory or without a marker, InvalidName, NoSuchScope, and NoSuchStream for a named
    stream.
    """
    url = find_root(root)
    for name in streams:
        split_stream(name)
    manager = StreamManager(root)
    if not (scopes or streams):
        return url, sorted(root_of(manager).in_scopes(manager.list_streams))
    missing = [name for name in streams if _is_missing(manager, name)]
    if missing and must_exist:
        name = missing[0]
        raise NoSuchStream(
            f"stream {name} does not exist under {root}; use another name.", stream=name
        )
    listed = root_of(manager).in_scopes(manager.list_streams, sorted(scopes), must_exist=must_exist)
    found = {*streams, *listed}
    return url, sorted(found.difference(missing))


def find_root(root: str) -> str:
    """Return a root as a URL for executors. Raises InvalidInput as :func:`find_streams` does."""
    store = open_store(root)
    if store.url.startswith("memory:"):
        raise InvalidInput(
            f"root {root} is in the memory of this process, which Spark's tasks cannot reach; use "
            "a folder or an object store."
        )
    if not store.exists(MARKER_KEY):
        raise missing_marker(store)
    return store.url


def _is_missing(manager: StreamManager, stream: str) -> bool:
    """Whether no such stream exists. A stream that cannot be opened exists."""
    with contextlib.suppress(PravegaSparkError):
        return not manager.stream_exists(stream)
    return False


def map_streams(
    spark: SparkSession,
    root: str,
    streams: Sequence[str],
    work: Work,
    schema: pa.Schema,
    told: RoundProgress | None = None,
) -> list[dict[str, Any]]:
    """Return the rows that ``work`` returns for each stream, with columns ``stream`` and ``error``.

    If a stream fails, it has a single row with its error, and the other streams are not affected.
    A stream that was deleted since it was listed has no row.
    """
    whole = pa.schema([*schema, ("error", pa.string())])
    tasks = [Task(name) for name in streams]
    return map_tasks(
        spark, root, tasks=tasks, work=partial(_rows, work=work), schema=whole, told=told
    )


def map_tasks(
    spark: SparkSession,
    root: str,
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
    from pyspark.sql.pandas.types import from_arrow_schema

    if not tasks:
        return []
    told = told or RoundProgress()
    whole = pa.schema([("stream", pa.string()), *schema, (_ATTEMPT, pa.int32())])
    done = _counter(spark)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = {_ATTEMPT: attempt_number()}
        for batch in batches:
            for given in batch.to_pylist():
                task = Task(**given)
                rows = [{"stream": task.stream, **row, **attempt} for row in work(root, task)]
                if done is not None:
                    done.add((1, task.stream))
                yield pa.RecordBatch.from_pylist(rows, schema=whole)

    count = max(_TASKS_PER_CORE * _cores(spark), -(-len(tasks) // STREAMS_PER_TASK))
    frame = spark.createDataFrame(list(tasks), "stream string, text string")
    spread = frame.repartition(max(1, min(count, len(tasks))))
    with told.over(what, len(tasks), lambda: None if done is None else done.value):
        found = spread.mapInArrow(run, from_arrow_schema(whole)).toArrow().to_pylist()
    again = {row["stream"] for row in found if row.pop(_ATTEMPT)}
    told.repeated += len(again)
    return list(found)


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


def _rows(root: str, task: Task, work: Work) -> list[Mapping[str, Any]]:
    """Return a stream's rows, or a single row with its error."""
    stream = task.stream
    try:
        return list(looked(open_stream(root, stream), partial(work, root, stream)))
    except NoSuchStream:
        return []
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        logger.warning(
            "work on stream %s failed: %s",
            stream,
            " ".join(reason.split()),
            extra=log_fields("job", stream),
        )
        logger.debug(
            "work on stream %s failed", stream, exc_info=True, extra=log_fields("job", stream)
        )
        return [{"error": reason}]
