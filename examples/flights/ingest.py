"""The demo's first query, a process of its own: the feed's files into the stream, one a batch.

``demo.py`` starts it, kills it with SIGKILL and starts it again, with the same arguments. It
needs no jar: the data source is found in the Python that runs it.
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

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that ends within a minute, what the optimizing compiler costs is never earned."""
LOOK_SECONDS = 0.05
PROGRAM = __file__
"""What a process runs for this query."""


def event_of(feed: DataFrame) -> Column:
    """Return the event of a feed's row: the row as JSON, in bytes."""
    names = (name.replace("`", "``") for name in feed.columns if name != "_key")
    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in names))).cast("binary")


def events_of(feed: DataFrame) -> DataFrame:
    """Return a feed's rows as the stream takes them, with their times."""
    return feed.select(
        F.col("_key").alias("routing_key"),
        F.col("_time").alias("time"),
        event_of(feed).alias("event"),
    )


def ingest(
    spark: SparkSession, *, feed: str, root: str, stream: str, checkpoint: str
) -> StreamingQuery:
    """Start the query: it ends when every file of the feed is in the stream."""
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
    """Wait until the demo has made this file: its reading query runs, and it watches this one.

    Spark starts meanwhile. Whoever watches sees every event come, however slow the machine is.
    """
    parent = os.getppid()
    while not go.exists():
        if os.getppid() != parent:
            raise SystemExit("the demo ended before the ingest began")
        time.sleep(LOOK_SECONDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the query to its end; a query that fails raises."""
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
