"""A driver on a cluster, whose tasks fail or run twice while they write into a transaction.

Arguments: the master's URL and the root folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness import jvm

ROWS, BYTES = 2_000, 40_000
"""Enough that each task stages some of its rows before it has read all of them."""


def troubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In the first attempt, fail partition 0 after its rows and delay partition 1."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0 and context.partitionId() < 2:
        time.sleep(2)  # gives the sink time to stage rows
        if context.partitionId() == 0:
            raise RuntimeError("the first attempt fails")
        time.sleep(8)


def main(master: str, root: str) -> dict[str, object]:
    """Write a frame into a transaction and commit it; return the events before and after."""
    spark = (
        SparkSession.builder.master(master)
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.extraJavaOptions", jvm.OPTIONS)
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        .config("spark.speculation", "true")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.2")
        .config("spark.speculation.minTaskRuntime", "500ms")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.range(0, ROWS, 1, 4).selectExpr(
        "concat('k', id % 7) AS routing_key", f"rpad(id, {BYTES}, ' ') AS event"
    )
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(scaling=ScalingPolicy.fixed(3)))
    with manager.create_transactional_writer("s/a") as writer:
        transaction = writer.begin_transaction()
        options = {"root": root, "transaction": transaction.id, "maxRecordsPerFile": "100"}
        sink = frame.mapInArrow(troubled, frame.schema).write.format("pravega").mode("append")
        sink.options(**options).save("s/a")
        before = [int(event.data) for event in manager.read("s/a")]
        transaction.commit()
    spark.stop()
    events = [int(event.data) for event in manager.read("s/a")]
    return {"id": transaction.id, "before": before, "events": events}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
