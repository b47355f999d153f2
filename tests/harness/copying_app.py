"""A query that copies ``s/a`` into ``s/b`` in small batches. Arguments: root, checkpoint."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def copy(spark: SparkSession, root: str, checkpoint: str) -> list[int]:
    """Copy all events; return the number of rows in each batch."""
    reader = spark.readStream.format("pravega").options(root=root, startingOffsets="earliest")
    source = reader.option("maxOffsetsPerTrigger", "20").load("s/a")
    writer = source.select("routing_key", "event").writeStream.format("pravega")
    writer = writer.options(root=root, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start("s/b")
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]


def main(root: str, checkpoint: str) -> None:
    """Copy in a session of this process alone."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    copy(spark, root, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
