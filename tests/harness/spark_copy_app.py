"""Runs copies of a stream, which other runs of the queries continue, with this process's Spark."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.harness.local_spark import local_session

SETTINGS = {"spark.sql.shuffle.partitions": "2"}


def start_copy(
    spark: SparkSession, root: str, checkpoint: str, target: str, **options: str
) -> StreamingQuery:
    """Start a query that copies ``s/a`` into another stream, up to the present tail."""
    frame = spark.readStream.format("pravega").options(root=root, **options).load("s/a")
    writer = frame.select("routing_key", "event").writeStream.format("pravega")
    writer = writer.options(root=root, numSegments="2", checkpointLocation=checkpoint)
    return writer.trigger(availableNow=True).start(target)


if __name__ == "__main__":
    root, *copies = sys.argv[1:]
    spark = local_session(SETTINGS)
    for copy in copies:
        target, checkpoint, *options = copy.split(",")
        given = dict(option.split("=") for option in options)
        query = start_copy(spark, root, checkpoint, target, **given)
        assert query.awaitTermination(100)
    spark.stop()
