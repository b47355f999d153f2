"""One Spark session for all jobs that run in the tests' process, and its signal handler."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness.copy_jobs import Copies
from tests.harness.local_spark import ignore_open_sockets, local_session


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the tests of this folder pass on older Sparks."""
    ignore_open_sockets(item)


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return local_session({})


@pytest.fixture
def copies(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Copies:
    """The jobs of import and export over a root of their own."""
    return Copies(spark, tmp_path, capsys)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Restore the signal handler: the rounds run in the tests' own process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
