"""One Spark session for all jobs that run in the tests' process, and its signal handler."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pravega_spark.spark.session import session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    made = session(
        **{
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
    ).newSession()
    made.conf.set("spark.sql.shuffle.partitions", "2")
    return made


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Restore the signal handler: the rounds run in the tests' own process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
