"""Batch, streaming, frames and SQL with Spark Connect, in its own process.

Arguments: root, checkpoint.
The third argument is a root on a local disk with a stream s/t, which Delta reads.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pravega_spark import (
    StreamLagListener,
    errors,
    for_each_range,
    frame,
    query_lag,
    read_frame,
    register,
    session,
    write_frame,
)


def main(root: str, checkpoint: str, local: str) -> dict[str, object]:
    """Write, copy by a streaming query and read; return what the test checks."""
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.databricks.delta.snapshotPartitions", "2")
    spark = session(builder.config("spark.sql.warehouse.dir", f"{checkpoint}-warehouse"))
    written = spark.range(100).selectExpr(
        "concat('k', id % 7) routing_key", "cast(id AS string) event"
    )
    written.write.format("pravega").mode("append").option("root", root).save("s/a")
    listener = StreamLagListener()
    spark.streams.addListener(listener)
    reader = spark.readStream.format("pravega").options(root=root, startingOffsets="earliest")
    query = (
        reader.option("maxOffsetsPerTrigger", "60")
        .load("s/a")
        .writeStream.format("pravega")
        .options(root=root, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start("s/b")
    )
    query.awaitTermination(120)
    failure = query.exception()
    last_lag = query_lag(query)
    until = time.monotonic() + 60
    while len(listener.history) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    rows = spark.read.format("pravega").option("root", root).load("s/b").collect()
    streams = spark.read.format("pravega").options(root=root, metadata="Streams").load().collect()
    error = ""
    try:
        spark.read.format("pravega").options(root=root, startingOfset="x").load("s/a").collect()
    except Exception as caught:
        error = str(caught)
    native = ""
    try:
        frame(spark, "s/a", root=root)
    except errors.IllegalState as caught:
        native = str(caught)
    ranges: list[tuple[int, list[int]]] = []

    def note(batch: DataFrame, number: int) -> None:
        ranges.append((number, sorted(int(row.event) for row in batch.collect())))

    for last in (5, 7):
        given = written.where(f"CAST(event AS INT) < {last}")
        write_frame(given, "s/c", root=root, txn_app_id="app", txn_version=1)
    options: Any = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
    folder = f"{checkpoint}-ranges"
    for_each_range(spark, "s/c", note, root=root, checkpoint=folder, available_now=True, **options)
    names = register(spark, "s/t", root=local)
    segments = "(SELECT count(*) FROM pravega_segments)"
    view = spark.sql(f"SELECT count(*), max(`offset`), {segments} FROM s.t_events").collect()
    found: dict[str, object] = {
        "native": native,
        "registered": names[:2],
        "frame": read_frame(spark, "s/c", root=root).count(),
        "ranges": ranges,
        "view": [list(row) for row in view],
        "session": type(spark).__module__,
        "failure": None if failure is None else str(failure),
        "events": [int(row.event) for row in sorted(rows, key=lambda row: row.offset)],
        "streams": [row.stream for row in streams],
        "error": error,
        "lag": None if last_lag is None else last_lag.backlog_records,
        "listener": [lag.backlog_records for lag in listener.history],
    }
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
