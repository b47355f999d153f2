"""The last step of the demo: late events, and the retention job.

The query that reads the stream is its subscriber. So the job deletes what the query has consumed,
and keeps the events that arrived after the query had stopped.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from flights.dataset import Dataset, write_rows
from flights.ingest import events_of
from flights.replay import ReplayFailed
from flights.workspace import Workspace
from pravega_spark import StreamManager
from pravega_spark.retention.explanation import RetentionExplanation

PUBLISH_SECONDS = 60.0
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class RetentionResult:
    """How many events the job deleted, and why the stream keeps the others."""

    truncated_events: int
    left: RetentionExplanation


def wait_until_published(workspace: Workspace) -> None:
    """Wait until the stream records that the query has consumed everything.

    Spark reports the last batch only after the query has ended, so this takes a moment. Raises
    ReplayFailed if it takes too long.
    """
    manager = StreamManager(workspace.root)
    deadline = time.monotonic() + PUBLISH_SECONDS
    while _unread(manager, workspace):
        if time.monotonic() >= deadline:
            raise ReplayFailed(
                f"{workspace.group} has not published what it consumed of {workspace.stream} for "
                f"{PUBLISH_SECONDS:.0f} s."
            )
        time.sleep(POLL_SECONDS)


def _unread(manager: StreamManager, workspace: Workspace) -> int:
    """Return how many events the query has not consumed, as the stream records it."""
    cuts = {s.name: s.cut for s in manager.list_subscribers(workspace.stream)}
    start = cuts.get(workspace.group) or manager.head(workspace.stream)
    return manager.distance(workspace.stream, start, manager.tail(workspace.stream))[0]


def append_late(spark: SparkSession, late: Dataset, workspace: Workspace, file: Path) -> None:
    """Write the late events into the stream with a plain writer, without a query."""
    write_rows(late.rows, file)
    frame = events_of(spark.read.parquet(str(file)))
    keys, events = frame.select("routing_key", "event").toArrow().columns
    with StreamManager(workspace.root).create_writer(workspace.stream) as writer:
        for key, event in zip(keys.to_pylist(), events.to_pylist(), strict=True):
            writer.write_event(event, routing_key=key)


def retain(workspace: Workspace) -> RetentionResult:
    """Do the stream's maintenance, as a job does. Raises ReplayFailed if it fails."""
    manager, kinds = StreamManager(workspace.root), ["retention", "sweeping"]
    done = manager.maintain(kinds=kinds, streams=[workspace.stream])
    for what, why in done.failures.items():
        raise ReplayFailed(f"{what} failed: {why}")
    left = manager.retention(workspace.stream).explain()
    return RetentionResult(done.counts()["retention_events"], left)
