"""One Spark session for all tests of this folder, in the JVM that already runs, if any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from tests.harness.local_spark import ignore_open_sockets, local_session
from tests.harness.small_streams import created

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark every test of this folder as one that needs Spark."""
    item.add_marker(pytest.mark.spark)
    ignore_open_sockets(item)


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    made = local_session(_SETTINGS)
    made.sparkContext.setLogLevel("OFF")
    return made


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = tmp_path / "root"
    StreamManager(folder).create_scope("s")
    return str(folder)


@pytest.fixture
def make(root: str) -> Callable[..., StreamLog]:
    def make(name: str = "s/a", segments: int = 1) -> StreamLog:
        return created(root, name, segments)

    return make


Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, root: str) -> Load:
    """Read a stream as a batch frame: ``load("s/a", startingOffsets="latest")``."""

    def load(name: str = "s/a", **options: str) -> DataFrame:
        return spark.read.format("pravega").options(root=root, **options).load(name)

    return load


@pytest.fixture
def follow(spark: SparkSession, root: str) -> Load:
    """Read a stream as a streaming frame, by default from its head."""

    def follow(name: str | None = "s/a", **options: str) -> DataFrame:
        given = {"root": root, "startingOffsets": "earliest", **options}
        reader = spark.readStream.format("pravega").options(**given)
        return reader.load() if name is None else reader.load(name)

    return follow


def finish(query: StreamingQuery) -> None:
    """Wait until a query with an end has ended; raise the error that it failed with."""
    assert query.awaitTermination(100), "the query did not end"
    failure = query.exception()
    if failure is not None:
        raise failure
