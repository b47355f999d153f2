"""The lag of a real query: by its handle, by a listener, and by its group after a sync."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pravega_spark import QueryLag, StreamLagListener, query_lag
from pravega_spark.cli import main
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.checkpoint_folder import last_committed_batch
from tests.harness.small_streams import write
from tests.spark.conftest import Load, finish


def test_handle_listener_and_after_a_sync_the_group_have_the_lag_of_a_query(
    spark: SparkSession,
    root: str,
    make: Callable[..., StreamLog],
    follow: Load,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = make(segments=2)
    write(stream, [(f"k{i}", b"12345") for i in range(60)])
    listener = StreamLagListener()
    spark.streams.addListener(listener)
    try:
        query = (
            follow(maxOffsetsPerTrigger="40")
            .writeStream.format("noop")
            .queryName("lagging")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)
        until = time.monotonic() + 60
        while (lag := listener.find("lagging")) is None or lag.batch_id < 1:
            assert time.monotonic() < until, "the listener did not get the second batch"
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
    assert [lag.backlog_records for lag in listener.history] == [20, 0], "in the order of batches"
    assert listener.history[0].max_offsets_behind_latest >= 10
    assert (lag.query_id, lag.run_id) == (str(query.id), str(query.runId))
    frame = spark.createDataFrame(listener.to_arrow())
    assert [row.backlogBytes for row in frame.sort("batchId").collect()] == [100, 0]
    write(stream, [(f"k{i}", b"12345") for i in range(8)])
    now = query_lag(query)
    assert isinstance(now, QueryLag)
    assert now.backlog_records == 8, "a query that has ended falls behind as well"
    assert now.metrics["backlogFiles"] == 2
    batch = last_committed_batch(str(tmp_path / "c"))
    assert batch is not None, "the checkpoint is readable without Spark"
    progress = query.lastProgress
    assert progress is not None
    assert batch.number == progress["batchId"] == 1
    assert list(batch.offsets) == [json.loads(progress["sources"][0]["endOffset"])]
    group = StreamManager(root).create_reader_group("s/g", ["s/a"])
    assert group.lag().events == 68
    capsys.readouterr()
    line = ["reader-group", "sync", "--checkpoint", str(tmp_path / "c"), "--group", "s/g"]
    assert main(line) == 0
    assert capsys.readouterr().out.endswith("  acknowledged\n")
    assert group.lag().events == 8
