"""Frames by ``mapInArrow`` beside ``format("pravega")``: the same rows, numbers and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import StreamManager, read_frame, write_frame
from pravega_spark.engine.stream.stream_log import StreamLog
from tests.harness.copying_loops import Copies, fill
from tests.spark.conftest import Load, finish

pytestmark = pytest.mark.versions

Make = Callable[..., StreamLog]


def test_rows_and_columns_are_those_of_the_source(
    spark: SparkSession, root: str, make: Make, load: Load
) -> None:
    fill(make(segments=3), 0, 200)
    found = read_frame(spark, "s/a", root=root, minPartitions=4, includeHeaders=True)
    source = load(minPartitions="4", includeHeaders="true")
    assert found.schema == source.schema
    assert found.collect() == source.collect()


def test_number_of_the_source_is_known(spark: SparkSession, root: str) -> None:
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS event")
    writer = rows.write.format("pravega").mode("append")
    writer.options(root=root, txnAppId="app", txnVersion=1).save("s/a")
    write_frame(rows, "s/a", root=root, txn_app_id="app", txn_version=1)
    assert len(list(StreamManager(root).read("s/a"))) == 10


def test_query_of_the_source_goes_on_in_a_checkpoint_and_back(
    spark: SparkSession, root: str, tmp_path: Path, make: Make, follow: Load
) -> None:
    stream, copies = make(), Copies(spark, root, tmp_path)
    fill(stream, 0, 10)
    copies.run()
    fill(stream, 10, 20)
    writer = follow().writeStream.foreachBatch(copies.write)
    at = str(copies.checkpoint)
    finish(writer.option("checkpointLocation", at).trigger(availableNow=True).start())
    fill(stream, 20, 30)
    copies.run()
    assert (copies.numbers, copies.events()) == ([0, 1, 2], list(range(30)))


def test_query_that_is_killed_is_finished_by_the_loop(
    spark: SparkSession, root: str, tmp_path: Path, make: Make, follow: Load
) -> None:
    stream, copies = make(), Copies(spark, root, tmp_path)
    fill(stream, 0, 10)

    def fail(frame: DataFrame, number: int) -> None:
        copies.write(frame, number)
        raise RuntimeError("before Spark notes it")

    writer = follow().writeStream.foreachBatch(fail)
    at = str(copies.checkpoint)
    with pytest.raises(Exception, match="before Spark notes it"):
        finish(writer.option("checkpointLocation", at).trigger(availableNow=True).start())
    fill(stream, 10, 15)
    copies.run()
    assert (copies.numbers, copies.events()) == ([0, 0, 1], list(range(15)))
