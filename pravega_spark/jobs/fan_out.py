"""Work over many streams: their names as a DataFrame, mapped on the executors.

The names are spread over tasks by ``mapInArrow``, so that Spark Connect and serverless compute
can run it too; what a task does with a stream is plain Python on the engine.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pravega_spark.config import STREAMS_OF_TASK
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.root import MARKER_KEY
from pravega_spark.errors import InvalidInput, NoSuchScope, NoSuchStream, PravegaSparkError
from pravega_spark.manager import StreamManager
from pravega_spark.names import split_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

Work = Callable[[str, str], Iterable[Mapping[str, Any]]]
"""Given root and stream, the rows of that stream. Picklable; Spark may run it twice, or at once."""


def find_streams(
    root: str, scopes: Collection[str] = (), streams: Collection[str] = ()
) -> tuple[str, list[str]]:
    """Return the root as executors need it, and the streams: the named ones, else all; sorted.

    Raises InvalidInput for a root that only this process sees or that holds nothing of ours,
    InvalidName, NoSuchScope, and NoSuchStream for a named one.
    """
    store = open_store(root)
    if store.url.startswith("memory:"):
        raise InvalidInput(
            f"root {root}: memory is one process's own, and Spark's tasks run in others; use a "
            "folder or an object store."
        )
    for name in streams:
        split_stream(name)
    if not store.exists(MARKER_KEY):
        raise InvalidInput(
            f"root {root} has no marker, so it holds no scope: create one first, bring the root "
            "back if it was moved or unmounted, or name another one."
        )
    manager = StreamManager(root)
    for name in streams:
        if _is_missing(manager, name):
            raise NoSuchStream(f"stream {name} does not exist under {root}; name another.")
    found = {*streams, *(name for scope in scopes for name in manager.list_streams(scope))}
    return store.url, sorted(found if scopes or streams else _all(manager))


def _is_missing(manager: StreamManager, stream: str) -> bool:
    """Tell whether there is no such stream; one that cannot be opened is there all the same."""
    with contextlib.suppress(PravegaSparkError):
        return not manager.stream_exists(stream)
    return False


def _all(manager: StreamManager) -> Iterator[str]:
    for scope in manager.list_scopes():
        with contextlib.suppress(NoSuchScope):  # deleted meanwhile
            yield from manager.list_streams(scope)


def map_streams(
    spark: SparkSession,
    root: str,
    streams: Sequence[str],
    work: Work,
    schema: pa.Schema,
    *,
    parallelism: int | None = None,
) -> DataFrame:
    """Return what ``work`` gives for each stream, with the columns ``stream`` before and ``error``.

    A stream that fails has one row with its error instead of its rows, and does not stop the
    others; one that was deleted meanwhile has none. ``parallelism`` is the number of tasks, by
    default one for each STREAMS_OF_TASK streams. The work is done each time that the frame is
    computed: collect it once.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    whole = pa.schema([("stream", pa.string()), *schema, ("error", pa.string())])
    tasks = parallelism or -(-len(streams) // STREAMS_OF_TASK) or 1
    names = spark.createDataFrame([(name,) for name in streams], "stream string")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [row for name in batch.column(0).to_pylist() for row in _rows(root, name, work)]
            yield pa.RecordBatch.from_pylist(rows, schema=whole)

    return names.repartition(tasks).mapInArrow(run, from_arrow_schema(whole))


def _rows(root: str, stream: str, work: Work) -> list[dict[str, Any]]:
    """Return a stream's rows, or one that tells its error."""
    try:
        return [{"stream": stream, **row} for row in work(root, stream)]
    except NoSuchStream:
        return []
    except Exception as error:
        logger.warning("work on stream %s failed", stream, exc_info=True)
        return [{"stream": stream, "error": f"{type(error).__name__}: {error}"}]
