"""Streaming frames whose batches our log plans and Spark's own reader reads.

The planner is that of ``readStream.format("pravega")``, so offsets, checkpoints, limits, reader
groups and errors are the same. It runs in the process of the driver: Spark's JVM calls it through
``ChunkSource`` in ``ChunkReads.java``. docs/adr/0051 has the reasons.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pravega_spark.errors import PravegaSparkError
from pravega_spark.spark.hadoop_url import hadoop_scheme
from pravega_spark.spark.native.jvm_bridge import (
    accept_callbacks,
    chunk_reads,
    java_schema,
)
from pravega_spark.spark.native.relation import ChunkRelation, NativeColumns
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.versions import ReadAllAvailable, ReadLimit, ReadMaxRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def streaming_frame(spark: SparkSession, settings: ReadSettings) -> DataFrame:
    """Return the streaming frame of a read; each query over it has a separate planner."""
    from pyspark.sql import DataFrame

    reads = chunk_reads(spark)  # before anything is read
    hadoop_scheme(spark, settings.root)
    columns = NativeColumns(settings)
    made = reads.stream(
        spark._jsparkSession,
        java_schema(spark, columns.schema),
        f"pravega_spark[{settings.pattern or ', '.join(settings.streams)}]",
        _limit(settings),
        _Planners(spark, settings, columns),
        accept_callbacks(spark),
    )
    return DataFrame(made, spark)


def _limit(settings: ReadSettings) -> int:
    """Return the limit that Spark is told, 0 for none; the planner applies all of them."""
    limits = settings.max_events, settings.max_bytes, settings.min_events
    return next((limit for limit in limits if limit is not None), 0)


class _JavaFunction:
    """A ``java.util.function.BiFunction`` that the JVM calls."""

    Java = type("Interfaces", (), {"implements": ["java.util.function.BiFunction"]})


class _Planners(_JavaFunction):
    """Makes the planner of each query over one streaming frame."""

    def __init__(self, spark: SparkSession, settings: ReadSettings, columns: NativeColumns) -> None:
        self._given = spark, settings, columns

    def apply(self, verb: str, metadata_path: str) -> MicroBatchPlanner:
        return MicroBatchPlanner(*self._given)


class MicroBatchPlanner(_JavaFunction):
    """The planner of one run of a query, in the words of ``ChunkSource``.

    An answer is a text: an offset, or nothing. One that begins with ``!`` is an error.
    """

    def __init__(self, spark: SparkSession, settings: ReadSettings, columns: NativeColumns) -> None:
        """Take the session, whose JVM calls, and what the frame reads."""
        self._reader = PravegaStreamReader(settings, columns.schema, is_told=True)
        self._relation = ChunkRelation(spark, settings, columns, streaming=True)

    def apply(self, verb: str, argument: str) -> Any:
        """Return the answer to a call: an offset as text, or the frame of a batch."""
        if verb == "batch":
            return self._batch(*argument.split("\n"))._jdf
        try:
            return self._answer(verb, argument)
        except PravegaSparkError as error:
            return f"!{type(error).__name__}: {error}"

    def _answer(self, verb: str, argument: str) -> str:
        reader = self._reader
        if verb == "available now":
            reader.prepareForTriggerAvailableNow()
        elif verb == "stop":
            reader.stop()
        elif verb == "tail":
            found = reader.reportLatestOffset()
            return "" if found is None else json.dumps(found)
        else:
            start = json.loads(argument) if argument else reader.initialOffset()
            limit: ReadLimit = ReadAllAvailable() if verb == "latest" else ReadMaxRows(1)
            return json.dumps(reader.latestOffset(start, limit))
        return ""

    def _batch(self, start: str, end: str) -> DataFrame:
        """Return the events of a batch; one that cannot be planned fails only if it is read.

        When a query starts again, Spark asks for its last batch, which may be finished and
        truncated since; that frame is not read.
        """
        try:
            begin = json.loads(start) if start else self._reader.initialOffset()
            return self._relation.frame(self._reader.partitions(begin, json.loads(end)))
        except PravegaSparkError as error:
            return self._relation.failed(error)
