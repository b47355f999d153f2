"""Runs copies of a stream, which other runs of the queries continue, with this process's Spark."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from pravega_spark.spark.versions import HAS_TRIGGERS
from tests.harness.local_spark import local_session

SETTINGS = {"spark.sql.shuffle.partitions": "2"}


def copy(spark: SparkSession, root: str, checkpoint: str, target: str, **options: str) -> None:
    """Copy ``s/a`` into another stream by a query, up to the present tail.

    Without triggers a run that repeats a batch has no other one, and the next run reads on.
    """
    for _ in range(1 if HAS_TRIGGERS else 2):
        frame = spark.readStream.format("pravega").options(root=root, **options).load("s/a")
        writer = frame.select("routing_key", "event").writeStream.format("pravega")
        writer = writer.options(root=root, numSegments="2", checkpointLocation=checkpoint)
        query = writer.trigger(availableNow=True).start(target)
        assert query.awaitTermination(100), "the query did not end"
        failure = query.exception()
        if failure is not None:
            raise failure


if __name__ == "__main__":
    root, *copies = sys.argv[1:]
    spark = local_session(SETTINGS)
    for word in copies:
        target, checkpoint, *options = word.split(",")
        copy(spark, root, checkpoint, target, **dict(option.split("=") for option in options))
    spark.stop()
