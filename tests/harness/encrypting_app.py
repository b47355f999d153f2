"""Spark writes events into an encrypted stream and reads them back. Argument: the root."""

from __future__ import annotations

import json
import sys

from pravega_spark import session


def main(root: str) -> list[str]:
    """Return the events that Spark reads, those of a batch and of a micro-batch."""
    launch = {"spark.master": "local[2]", "spark.ui.enabled": "false"}
    spark = session(delta=False, **launch, **{"spark.ui.showConsoleProgress": "false"})
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.range(40).selectExpr(
        "concat('MARKER-', id % 3) AS routing_key", "cast(concat('MARKER', id) AS binary) AS event"
    )
    rows.write.format("pravega").option("root", root).mode("append").save("s/a")
    reader = spark.readStream.format("pravega").options(root=root, startingOffsets="earliest")
    writer = reader.load("s/a").select("routing_key", "event").writeStream.format("pravega")
    writer = writer.options(root=root, checkpointLocation=f"{root}-checkpoint")
    query = writer.trigger(availableNow=True).start("s/b")
    query.awaitTermination()
    frame = spark.read.format("pravega").option("root", root).load("s/b")
    found = [row[0] for row in frame.selectExpr("cast(event AS string)").collect()]
    spark.stop()
    return sorted(found)


if __name__ == "__main__":
    print(json.dumps({"events": main(*sys.argv[1:])}))
