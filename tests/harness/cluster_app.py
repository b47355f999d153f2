"""A driver on a standalone cluster, whose tasks fail or run twice while they write.

They write frames and a query's batches, and then into a transaction. Arguments: the master's URL
and the root folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness import jvm

ROWS, BYTES = 2_000, 40_000
"""What goes into the transaction: each task stages some of its rows before it has read them all."""


def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail the first attempt of partition 0 after it has passed its rows on."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Delay the end of partition 0's first attempt, so that Spark starts a speculative one."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 0 and context.attemptNumber() == 0:
        time.sleep(4)


def troubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the first attempt, fail partition 0 after its rows and delay partition 1."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() < 2:
        time.sleep(2)  # gives the sink time to stage rows
        if context.partitionId() == 0:
            raise RuntimeError("the first attempt fails")
        time.sleep(4)


def numbers(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    """Return events with the numbers from 0."""
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('k', id % 7) AS routing_key", "CAST(id AS STRING) AS event"
    )


def save(frame: DataFrame, root: str, name: str) -> None:
    """Append a frame to a stream of three segments."""
    writer = frame.write.format("pravega").mode("append").options(root=root, numSegments="3")
    writer.save(name)


def in_transaction(spark: SparkSession, root: str) -> dict[str, object]:
    """Write a frame into a transaction and commit it; return its id, and the events it is among."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
    frame = spark.range(0, ROWS, 1, 4).selectExpr(
        "concat('k', id % 7) AS routing_key", f"rpad(id, {BYTES}, ' ') AS event"
    )
    manager = StreamManager(root)
    manager.create_stream("s/a", StreamConfiguration(scaling=ScalingPolicy.fixed(3)))
    with manager.create_transactional_writer("s/a") as writer:
        transaction = writer.begin_transaction()
        options = {"root": root, "transaction": transaction.id, "maxRecordsPerFile": "100"}
        sink = frame.mapInArrow(troubled, frame.schema).write.format("pravega").mode("append")
        sink.options(**options).save("s/a")
        before = [int(event.data) for event in manager.read("s/a")]
        transaction.commit()
    events = [int(event.data) for event in manager.read("s/a")]
    return {"id": transaction.id, "before": before, "events": events}


def main(master: str, root: str) -> dict[str, object]:
    """Run the jobs; return the events of each stream."""
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.extraJavaOptions", jvm.VARIABLES["SPARK_SUBMIT_OPTS"])
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.executor.cores", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.speculation", "true")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.2")
        .config("spark.speculation.minTaskRuntime", "500ms")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = numbers(spark, 2_000, 4)
    save(frame.mapInArrow(failing, frame.schema), root, "s/retried")
    save(frame.mapInArrow(slow, frame.schema), root, "s/speculated")
    reader = spark.readStream.format("pravega").options(root=root, startingOffsets="earliest")
    source = reader.option("maxOffsetsPerTrigger", "1500").load("s/retried")
    query = (
        source.selectExpr("routing_key", "CAST(event AS STRING) AS event")
        .mapInArrow(failing, frame.schema)
        .writeStream.format("pravega")
        .options(root=root, checkpointLocation=f"{root}/checkpoint")
        .trigger(availableNow=True)
        .start("s/copied")
    )
    query.awaitTermination(120)
    failure = query.exception()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    batch = spark.read.format("pravega").option("root", root).load("s/copied").count()
    transaction = in_transaction(spark, root)
    spark.stop()
    manager = StreamManager(root)
    return {
        "executors": executors,
        "failure": None if failure is None else str(failure),
        "batch": batch,
        "transaction": transaction,
        **{
            name: [int(event.data) for event in manager.read(f"s/{name}")]
            for name in ("retried", "speculated", "copied")
        },
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
