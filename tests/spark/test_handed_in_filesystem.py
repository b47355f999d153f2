"""Frames and jobs on a root in an s3fs.S3FileSystem, whose keys nothing else has."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import StreamManager, frame, key_value_frame, read_frame, write_frame
from pravega_spark.errors import InvalidInput, InvalidOption, StoreReadOnly
from pravega_spark.jobs import export_stream, maintenance
from pravega_spark.jobs.signals import StopSignal
from tests.harness.s3_server import S3Server

s3fs = pytest.importorskip("s3fs", reason="pip install '.[test]': no s3fs")
pytestmark = pytest.mark.s3
WAY_ON = "read_frame and write_frame"


@pytest.fixture(scope="module")
def manager(s3: S3Server) -> StreamManager:
    made = StreamManager(f"s3://{s3.bucket}/handed-in", filesystem=s3fs.S3FileSystem(**s3.options))
    made.create_scope("s")
    return made


def rows(spark: SparkSession, count: int) -> DataFrame:
    columns = "concat('k', id % 7) AS routing_key", "CAST(id AS STRING) AS event"
    return spark.range(0, count, 1, 2).selectExpr(*columns)


def shown(found: DataFrame) -> Iterator[str]:
    """All that Spark shows of a frame, and of the session."""
    query = found._jdf.queryExecution()
    yield from (query.toString(), query.logical().toJSON(), query.executedPlan().toString())
    yield found._jdf.schema().json()
    for name, value in found.sparkSession.sparkContext.getConf().getAll():
        yield f"{name}={value}"


def test_executors_write_and_read_and_a_job_maintains_with_its_keys(
    spark: SparkSession, s3: S3Server, manager: StreamManager
) -> None:
    stream = manager.stream("s/a")
    for _ in range(2):
        write_frame(rows(spark, 100), stream, txn_app_id="app", txn_version=1, numSegments=2)
    found = read_frame(spark, stream, minPartitions=3)
    assert sorted(int(row.event) for row in found.collect()) == list(range(100))
    assert read_frame(spark, "s/a", root=manager.root).count() == 100
    for text in shown(found):
        assert s3.secret not in text
        assert "S3FileSystem" not in text
    arguments = maintenance.parse(["--root", manager.root, "--kinds", "compaction,sweeping"])
    assert maintenance.maintain(arguments, spark, StopSignal()) == 0
    assert [run.failed for run in manager.maintenance() if run.finished_ms] == [0, 0]
    assert len(list(manager.read("s/a"))) == 100
    with pytest.raises(StoreReadOnly, match="needs credentials"):
        StreamManager(str(manager.root)).list_scopes()


def test_session_that_cannot_be_pickled_is_refused_and_serves_the_driver(
    spark: SparkSession, s3: S3Server
) -> None:
    from aiobotocore.session import get_session

    session = get_session()
    session.set_credentials(s3.key, s3.secret)
    given = s3fs.S3FileSystem(session=session, endpoint_url=s3.endpoint_url)
    own = StreamManager(f"s3://{s3.bucket}/with-a-session", filesystem=given)
    own.create_scope("s")
    own.create_stream("s/a")
    with own.create_writer("s/a") as writer:
        writer.write_event(b"1").result()
    for use in (
        partial(write_frame, rows(spark, 3), own.stream("s/a")),
        lambda: read_frame(spark, own.stream("s/a")).collect(),
    ):
        with pytest.raises(
            Exception, match=r"S3FileSystem .* cannot go to another process"
        ) as told:
            use()
        assert s3.secret not in str(told.value)


def test_what_knows_a_root_by_its_text_refuses_it_with_the_way_on(
    spark: SparkSession, manager: StreamManager
) -> None:
    export = ["--root", manager.root, "--stream", "s/a", "--to", "json"]
    export += ["--path", "/tmp/x", "--checkpoint", "/tmp/y"]
    for use in (
        partial(frame, spark, manager.stream("s/a")),
        partial(key_value_frame, spark, "s/table", root=manager.root),
        partial(export_stream._info, export_stream.parse(export)),
    ):
        with pytest.raises(InvalidInput, match=WAY_ON):
            use()
    reader = spark.read.format("pravega").option("root", manager.root)
    with pytest.raises(Exception, match=WAY_ON):
        reader.option("filesystem", "any").load("s/a")
    with pytest.raises(InvalidOption, match=WAY_ON):
        read_frame(spark, manager.stream("s/a"), filesystem="any")
