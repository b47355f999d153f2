"""What Delta's own streaming source gives over a stream's table, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from tests.harness.delta_engines import DeltaQuery
from tests.harness.folder_state import remove

pytestmark = pytest.mark.spark

NAME = "s/a"


def created(root: Path) -> StreamManager:
    """Return the manager of a root with a stream of two segments."""
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(NAME, StreamConfiguration(ScalingPolicy.fixed(2)))
    return manager


def write(manager: StreamManager, first: int, last: int) -> None:
    """Write numbered events in one commit, with a file for each of the two segments."""
    with manager.create_writer(NAME) as writer:
        writer.write_table(
            pa.table(
                {
                    "event": [str(n) for n in range(first, last)],
                    "routing_key": ["abcd"[n % 4] for n in range(first, last)],
                }
            )
        ).result()


def numbers(manager: StreamManager, start: str) -> set[int]:
    return {int(event.data) for event in manager.read(NAME, start)}


def test_a_batch_may_end_inside_a_version_and_a_finished_version_is_a_cut(
    tmp_path: Path, spark: SparkSession
) -> None:
    manager = created(tmp_path / "root")
    for n in range(3):
        write(manager, 10 * n, 10 * n + 10)
    batches: list[set[int]] = []

    def collect(batch: DataFrame, _: int) -> None:
        batches.append({int(row.event) for row in batch.select("event").collect()})

    options = {"startingVersion": 0, "maxFilesPerTrigger": 1}
    source = spark.readStream.format("delta").options(**options)
    writer = source.load(f"{tmp_path}/root/{NAME}/events").writeStream.foreachBatch(collect)
    writer = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    seen, everything, whole = set[int](), set(range(30)), 0
    assert [len(batch) for batch in batches] != [10, 10, 10]
    for batch, progress in zip(batches, query.recentProgress, strict=True):
        seen |= batch
        end = json.loads(progress["sources"][0]["endOffset"])
        rest = numbers(manager, str(manager.cut_at(NAME, end["reservoirVersion"] - 1)))
        if end["index"] == -1:  # all of the versions before it, and nothing of it
            assert rest == everything - seen
            whole += 1
        else:
            assert rest > everything - seen
    assert seen == everything
    assert (whole, len(batches)) == (3, 6)


def test_a_new_life_stops_a_query_unless_it_ignores_deletes_and_another_root_always_does(
    tmp_path: Path, spark: SparkSession
) -> None:
    root = tmp_path / "root"
    manager = created(root)
    write(manager, 0, 10)
    query = DeltaQuery(spark, f"{root}/{NAME}/events", tmp_path / "c")
    assert query.run().total() == 10
    manager.seal_stream(NAME)
    manager.delete_stream(NAME)
    manager.create_stream(NAME, StreamConfiguration(ScalingPolicy.fixed(2)))
    write(manager, 10, 30)
    with pytest.raises(StreamingQueryException, match="DELTA_SOURCE_IGNORE_DELETE"):
        query.run()
    assert query.run(ignoreDeletes=True).total() == 20, "it reads on, into another life"
    remove(root)
    write(created(root), 30, 40)
    with pytest.raises(StreamingQueryException, match="DIFFERENT_DELTA_TABLE"):
        query.run(ignoreDeletes=True)
