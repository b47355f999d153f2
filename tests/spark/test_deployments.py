"""Spark Connect, a killed query, a metastore and S3, each with its own driver process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness import copying_app, failpoints, spark_jars
from tests.harness.s3_server import S3Server
from tests.harness.spark_cluster import attempt, run
from tests.harness.tiers import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.extended]


def test_query_whose_sink_is_killed_after_its_commit_copies_every_event_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, checkpoint = tmp_path / "root", tmp_path / "checkpoint"
    manager = StreamManager(root)
    manager.create_scope("s")
    for name in ("s/a", "s/b"):
        manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer("s/a") as writer:
        for n in range(50):
            writer.write_event(str(n), f"k{n % 7}")

    arguments = (str(root), str(checkpoint))
    killed = attempt("copying_app.py", *arguments, **failpoints.variables("commit.applied"))
    assert killed.returncode == 1
    assert "Python worker exited unexpectedly" in killed.stderr
    assert len(numbers(manager, "s/b")) == 20, "the stream has the batch"
    assert (checkpoint / "offsets" / "0").exists()
    assert not (checkpoint / "commits" / "0").exists(), "and Spark has not recorded its commit"

    assert copying_app.copy(spark, *arguments) == [20, 20, 10]
    found = numbers(manager, "s/b")
    assert sorted(found) == list(range(50))
    for key in range(7):
        assert [n for n in found if n % 7 == key] == list(range(key, 50, 7))
    assert manager.stream_info("s/b").version == 3, (
        "one commit per batch, and none for the replayed batch"
    )


def numbers(manager: StreamManager, stream: str) -> list[int]:
    return [int(event.data) for event in manager.read(stream)]


@pytest.mark.s3
def test_spark_connect_batch_and_streaming_on_s3(s3: S3Server, tmp_path: Path) -> None:
    root = f"s3://{s3.bucket}/spark-connect"
    checkpoint = str(tmp_path / "checkpoint")
    local = filled(tmp_path / "local", "s/t")
    found = run("connect_app.py", root, checkpoint, local.root, **s3.environment)
    assert found["session"] == "pyspark.sql.connect.session"
    assert found["failure"] is None
    assert found["events"] == list(range(100))
    assert found["streams"] == ["a", "b"]
    assert "did you mean startingOffsets" in found["error"]
    assert (found["lag"], found["listener"]) == (0, [40, 0])
    assert "Spark Connect: read the stream with format('pravega')" in found["native"]
    assert (found["frame"], found["ranges"]) == (5, [[0, [0, 1, 2]], [1, [3, 4]]])
    assert found["registered"] == ["s.t", "s.t_events"]
    assert found["view"] == [[20, 19, 1]]


def filled(root: Path | str, name: str, **options: Any) -> StreamManager:
    """Create a root with a stream of twenty events of seven keys."""
    manager = StreamManager(root, storage_options=options or None)
    manager.create_scope("s")
    manager.create_stream(name)
    with manager.create_writer(name) as writer:
        futures = [writer.write_event(b"%d" % n, routing_key=f"k{n % 7}") for n in range(20)]
        writer.flush()
    assert all(future.done() for future in futures)
    return manager


@pytest.mark.long
@only_long("tests/spark/test_native_frames.py registers the same views in the catalog of a session")
def test_hive_metastore_keeps_streams_for_other_sessions_and_drops_no_file(tmp_path: Path) -> None:
    filled(tmp_path / "root", "s/a")
    found = run("metastore_app.py", str(tmp_path / "root"), str(tmp_path / "hive"))
    assert found["names"] == ["s.a", "s.a_events"]
    assert [row[1] for row in found["tables"]] == ["a", "a_events"]
    assert found["events"] == [[20, 19]]
    assert found["deleted"] == [[0, None]]
    assert found["created again"] == [[0, "k", 7]]
    assert found["left"] == []
    assert found["files"] == [{"delay": 7}]


@pytest.mark.s3
def test_native_frames_and_tables_on_s3_are_read_by_hadoops_client(
    s3: S3Server, tmp_path: Path
) -> None:
    if not spark_jars.jars("s3a"):
        pytest.skip("Hadoop's client for S3 is missing: python -m tests.harness.spark_jars fetches")
    # A name, no address: only by path is the bucket found below it.
    server = s3.endpoint_url.replace("127.0.0.1", "localhost")
    root = f"s3://{s3.bucket}/native é 20%"
    filled(root, "s/a", **s3.options)
    environment = {**s3.environment, "AWS_ENDPOINT_URL": server}
    found = run("s3a_app.py", root, str(tmp_path), **environment)
    assert found["batch"] == [1, 8, 15]
    assert found["followed"] == found["delta"] == 20
    assert found["view"] == [[20, 19]]
    assert found["location"] == f"s3a://{s3.bucket}/native é 20%/s/a/events"
    assert found["has secret"] is False
