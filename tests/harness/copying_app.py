"""A query that copies ``s/a`` into ``s/b`` in small batches. Arguments: root, checkpoint."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(root: str, checkpoint: str) -> list[int]:
    """Copy all events; return the number of rows in each batch."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    reader = spark.readStream.format("pravega").options(root=root, startingOffsets="earliest")
    source = reader.option("maxOffsetsPerTrigger", "20").load("s/a")
    writer = source.select("routing_key", "event").writeStream.format("pravega")
    writer = writer.options(root=root, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start("s/b")
    query.awaitTermination()
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    spark.stop()
    return sizes


if __name__ == "__main__":
    print(json.dumps({"sizes": main(*sys.argv[1:])}))
