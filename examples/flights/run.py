"""A run of the demo: the feed, two queries and a kill, retention, the checks."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

import pravega_spark
from flights.checks import (
    every_event_once,
    every_key_in_order,
    exactly_unread_kept,
    same_table,
)
from flights.compaction import compact
from flights.console import stderr_into
from flights.dataset import Dataset, write_feed
from flights.delays import closing_event, expected_delays, start_delays
from flights.ingest import PROGRAM, SHORT_LIVED, event_of
from flights.replay import IngestProcess, OnSample, Replay, ReplayFailed
from flights.report import INGEST_LOG, SPARK_LOG, TABLE, Run
from flights.retention import append_late, retain, wait_until_published
from flights.scaling import Scaler
from flights.typed import compare_typed
from flights.workspace import Workspace
from pravega_spark import StreamManager

CLOSING_EVENTS = 1
GO = "go"
"""File in the demo's folder that starts the ingest."""
SHUFFLE_PARTITIONS = 2


class ReadProgress(StreamingQueryListener):
    """Progress of the reading query, which Spark reports batch by batch."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self.query: StreamingQuery | None = None
        self.batches: list[tuple[float, float, int]] = []
        """(start, end, events), by the monotonic clock."""
        self.events = 0
        self.watermark = ""

    def onQueryProgress(self, event: Any) -> None:
        """Count a finished batch."""
        progress = event.progress
        if self.query is None or str(progress.id) != self.query.id:
            return
        if progress.numInputRows:
            now, took = time.monotonic(), progress.durationMs["triggerExecution"] / 1_000
            self.batches.append((now - took, now, progress.numInputRows))
        self.events += progress.numInputRows
        self.watermark = progress.eventTime.get("watermark", "")

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Do nothing: `count` notices it."""

    def count(self) -> int:
        """Return how many events were read; raise ReplayFailed if the query has ended."""
        if self.query is not None and not self.query.isActive:
            raise ReplayFailed(f"the reading query ended: {self.query.exception()}")
        return self.events

    def has_passed(self, hour: datetime) -> bool:
        """Whether a batch with a watermark at or after the hour is finished."""
        return self.watermark >= f"{hour:%Y-%m-%dT%H:%M:%S.000Z}"


def run(dataset: Dataset, workspace: Workspace, on_sample: OnSample, *, started: float) -> Run:
    """Run the demo from the feed to the last check. Raises ReplayFailed."""
    early, late = dataset.split()
    feed, late_file = workspace.path("feed"), workspace.path("late.parquet")
    batch_rows = write_feed(early, Path(feed))
    manager, reading = StreamManager(workspace.root), ReadProgress()
    scaler = Scaler(workspace.root, workspace.stream, early.events)
    ingest = make_ingest(workspace, feed)
    replay = Replay(
        ingest,
        batch_rows,
        written=lambda: manager.stream_info(workspace.stream).events,
        read=reading.count,
        on_sample=on_sample,
    )
    try:
        replay.start()
        with stderr_into(workspace.path(SPARK_LOG)):
            spark = make_session()
        spark.streams.addListener(reading)
        reading.query = start_delays(
            spark,
            root=workspace.root,
            stream=workspace.stream,
            group=workspace.group,
            weather=dataset.weather,
            table=workspace.path(TABLE),
            checkpoint=workspace.path("checkpoints/delays"),
        )
        scaler.start()
        Path(workspace.path(GO)).touch()
        replay.run()
        scaler.finish()
        with manager.create_writer(workspace.stream) as writer:
            writer.write_event(closing_event(early))
        replay.wait(lambda: reading.has_passed(early.last_hour))
        replay.add_reads(reading.batches)
        replay.add_splits(scaler.splits)
    finally:
        scaler.stop()
        ingest.stop()
        if reading.query is not None:
            reading.query.stop()
    table = read_table(spark, workspace.path(TABLE))
    wait_until_published(workspace)
    append_late(spark, late, workspace, Path(late_file))
    source, stream = read_source(spark, [feed, late_file]), read_stream(spark, workspace)
    typed = None if dataset.weather is None else compare_typed(spark, dataset, workspace)
    compacted = compact(workspace)
    retained = retain(workspace)
    reported = retained.truncated_events, retained.left.stays.events
    findings = (
        every_event_once(source, stream, closing=CLOSING_EVENTS),
        every_key_in_order(stream),
        same_table("aggregate_matches", table, expected_delays(early)),
        exactly_unread_kept(stream, read_stream(spark, workspace), late.rows["_row"], reported),
        *(() if typed is None else (typed.finding,)),
    )
    spark.stop()
    seconds = time.monotonic() - started
    return Run(
        dataset,
        workspace,
        batch_rows,
        replay.timeline,
        findings,
        table,
        compacted,
        retained,
        seconds,
        typed,
    )


def make_ingest(workspace: Workspace, feed: str) -> IngestProcess:
    """Return the ingest without starting it."""
    checkpoint = workspace.path("checkpoints/ingest")
    options = {
        "--feed": feed,
        "--root": workspace.root,
        "--stream": workspace.stream,
        "--checkpoint": checkpoint,
        "--go": workspace.path(GO),
    }
    command = [sys.executable, PROGRAM]
    for name, text in options.items():
        command += [name, text]
    return IngestProcess(command, checkpoint=Path(checkpoint), log=Path(workspace.path(INGEST_LOG)))


def make_session() -> SparkSession:
    """Return a quiet session in UTC with Delta and the data source ``pravega``."""
    spark = pravega_spark.session(
        SparkSession.builder.appName("pravega-demo"),
        **{
            "spark.log.level": "ERROR",
            "spark.driver.extraJavaOptions": SHORT_LIVED,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS,
            "spark.databricks.delta.snapshotPartitions": 1,
        },
    )
    assert isinstance(spark, SparkSession)
    return spark


def read_source(spark: SparkSession, files: Sequence[str]) -> pa.Table:
    """Return what the stream must contain: row, key, and digest of the event's bytes."""
    rows = spark.read.parquet(*files)
    digest = F.xxhash64(event_of(rows)).alias("digest")
    return rows.select(F.col("_row").alias("row"), F.col("_key").alias("key"), digest).toArrow()


def read_stream(spark: SparkSession, workspace: Workspace) -> pa.Table:
    """Return what the stream contains now, with the segment and offset of each event."""
    numbers = F.json_tuple(F.col("event").cast("string"), "_row", "_sequence")
    return (
        spark.read.format("pravega")
        .option("root", workspace.root)
        .load(workspace.stream)
        .select(
            "segment_id",
            "offset",
            F.col("routing_key").alias("key"),
            numbers.alias("row", "sequence"),
            F.xxhash64("event").alias("digest"),
        )
        .withColumns({name: F.col(name).cast("bigint") for name in ("row", "sequence")})
        .toArrow()
    )


def read_table(spark: SparkSession, path: str) -> pa.Table:
    """Return the Delta table that the reading query wrote."""
    return spark.read.format("delta").load(path).toArrow()
