"""The demo's first query, in its own process: each batch puts one file into the stream.

The demo starts this process, kills it with SIGKILL, and starts it again with the same arguments. It
needs no jar: Spark finds the data source in the Python environment.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import pravega_spark

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""In a JVM that runs for a minute, the optimizing compiler costs more than it saves."""
POLL_SECONDS = 0.05
PROGRAM = __file__
"""The script that the process runs."""


def event_of(feed: DataFrame) -> Column:
    """Return the event of a row of the feed: the row as JSON in bytes."""
    names = (name for name in feed.columns if name != "_key")
    return F.expr(pravega_spark.row_json(feed, *names)).cast("binary")


def events_of(feed: DataFrame) -> DataFrame:
    """Return the rows of the feed in the columns of the stream, with their times."""
    return feed.select(
        F.col("_key").alias("routing_key"),
        F.col("_time").alias("time"),
        event_of(feed).alias("event"),
    )


def ingest(
    spark: SparkSession, *, feed: str, root: str, stream: str, checkpoint: str
) -> StreamingQuery:
    """Start the query, which ends when every file of the feed is in the stream."""
    schema = spark.read.parquet(feed).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(feed)
    return (
        events_of(files)
        .writeStream.format("pravega")
        .queryName("ingest")
        .option("root", root)
        .option("eventTime", "time")
        .option("createIfMissing", "false")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(stream)
    )


def wait_for(go: Path) -> None:
    """Wait until the demo has created this file, after its reading query has started.

    Spark starts before that. So the demo observes every event, however slow the machine is.
    """
    parent = os.getppid()
    while not go.exists():
        if os.getppid() != parent:
            raise SystemExit("the demo ended before the ingest began")
        time.sleep(POLL_SECONDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the query to its end; raise if it fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for option in ("--feed", "--root", "--stream", "--checkpoint", "--go"):
        parser.add_argument(option, required=True)
    arguments = parser.parse_args(argv)
    go = vars(arguments).pop("go")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]")
        .appName("pravega-demo-ingest")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    wait_for(Path(go))
    query = ingest(spark, **vars(arguments))
    query.awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
