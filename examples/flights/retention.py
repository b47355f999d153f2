"""The demo's last act: events that nobody has read yet, and the job of retention.

The query that reads the stream is a subscriber of it, so the stream lets go what the query has
consumed, and keeps what came after the query was stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from flights.dataset import Dataset, write_rows
from flights.ingest import events_of
from flights.replay import ReplayFailed
from flights.workspace import Place
from pravega_spark import StreamManager
from pravega_spark.jobs import retention
from pravega_spark.retention.explanation import Explanation

TOLD_SECONDS = 60.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Retained:
    """What the job let go of the stream, and who holds what is left."""

    truncated_events: int
    left: Explanation


def wait_until_told(place: Place) -> None:
    """Return when the stream knows that the query has consumed all of it.

    Spark reports the last batch when the query has ended, so that this comes a moment later.
    Raises ReplayFailed if it does not come.
    """
    manager = StreamManager(place.root)
    deadline = time.monotonic() + TOLD_SECONDS
    while _unread(manager, place):
        if time.monotonic() >= deadline:
            raise ReplayFailed(
                f"{place.group} has not told {place.stream} what it has consumed for "
                f"{TOLD_SECONDS:.0f} s."
            )
        time.sleep(LOOK_SECONDS)


def _unread(manager: StreamManager, place: Place) -> int:
    """Return how many events the query has not consumed, as the stream knows it."""
    cuts = {s.group: s.cut for s in manager.list_subscribers(place.stream)}
    start = cuts.get(place.group) or manager.head(place.stream)
    return manager.distance(place.stream, start, manager.tail(place.stream))[0]


def append_late(spark: SparkSession, late: Dataset, place: Place, file: Path) -> None:
    """Write the late events into the stream, by a plain writer: no query is needed for that."""
    write_rows(late.rows, file)
    frame = events_of(spark.read.parquet(str(file)))
    keys, events = frame.select("routing_key", "event").toArrow().columns
    with StreamManager(place.root).create_writer(place.stream) as writer:
        for key, event in zip(keys.to_pylist(), events.to_pylist(), strict=True):
            writer.write_event(event, routing_key=key)


def retain(spark: SparkSession, place: Place) -> Retained:
    """Run ``jobs/retention.py`` for the stream. Raises ReplayFailed if it failed."""
    arguments = retention.parse(["--root", place.root, "--stream", place.stream])
    report = retention.retain_streams(arguments, spark, place.root, [place.stream], False)
    for what, why in report.failures.items():
        raise ReplayFailed(f"retention of {what} failed: {why}")
    left = StreamManager(place.root).retention(place.stream).explain()
    return Retained(report.counts["events"], left)
