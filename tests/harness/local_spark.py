"""The Spark session of tests: two threads, in the JVM that already runs, if any."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import SparkSession

from pravega_spark.spark.session import session
from pravega_spark.spark.versions import HAS_FILTERS, HAS_TRIGGERS
from tests.harness import warm_workers
from tests.harness.tiers import IS_LONG

_LAUNCH = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_SMALL = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
}
"""Delta reads the state of a table in 50 tasks, and Spark shuffles to 200, however few rows."""
_STREAMING = f"org.apache.spark.sql.execution.streaming{'.checkpointing' if HAS_FILTERS else ''}"
_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
    )
}
"""Spark's default one starts a process for each link that it looks for: a quarter of a small query.

Queries of ``make long``, and of processes that tests start, have the default.
"""


def local_session(settings: Mapping[str, str]) -> SparkSession:
    """Return a session of its own with these settings."""
    with warm_workers.given():
        made = session(**_LAUNCH).newSession()
    for key, value in {**_SMALL, **({} if IS_LONG else _CHECKPOINTS), **settings}.items():
        made.conf.set(key, value)
    return made


_OPEN_SOCKETS = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)


def ignore_open_sockets(item: pytest.Item) -> None:
    """Let a test pass with what PySpark 4.0 and 4.1 leave to the garbage collection to close.

    That is what ``collect`` has read from.
    """
    for warning in () if HAS_TRIGGERS else _OPEN_SOCKETS:
        item.add_marker(pytest.mark.filterwarnings(warning))
