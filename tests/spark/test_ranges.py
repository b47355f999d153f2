"""The loop over ranges on each Spark; tests/unit/spark/frames has all that needs none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from pravega_spark import for_each_range
from pravega_spark.engine.stream.stream_log import StreamLog
from tests.harness.copying_loops import Copies, fill
from tests.harness.failpoints import at_failpoint
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import scale

Make = Callable[..., StreamLog]


@pytest.fixture
def copies(spark: SparkSession, root: str, tmp_path: Path) -> Copies:
    return Copies(spark, root, tmp_path)


@pytest.mark.versions(since="3.5")
def test_killed_loop_repeats_its_range_and_goes_on(make: Make, copies: Copies) -> None:
    stream = make()
    fill(stream, 0, 25)
    with at_failpoint("range.ran", kill), pytest.raises(Killed):
        copies.run(maxOffsetsPerTrigger=10)
    fill(stream, 25, 30)
    assert copies.run(maxOffsetsPerTrigger=10) == 3
    assert (copies.numbers, copies.events()) == ([0, 0, 1, 2], list(range(30)))


@pytest.mark.versions(since="3.5")
def test_scale_in_the_loop_keeps_the_order_of_each_key(make: Make, copies: Copies) -> None:
    stream, found = make(segments=2), dict[str, list[int]]()
    fill(stream, 0, 50)

    def collect(frame: DataFrame, number: int) -> None:
        for row in frame.collect():
            found.setdefault(row.routing_key, []).append(int(row.event))
        if number == 0:
            scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
            fill(stream, 50, 100)

    for _ in range(2):
        copies.run(collect, maxOffsetsPerTrigger=30, minPartitions=3)
    assert all(events == sorted(events) for events in found.values())
    assert sorted(event for events in found.values() for event in events) == list(range(100))


@pytest.mark.versions(since="3.5", needs="delta")
def test_delta_table_has_each_row_once(
    spark: SparkSession, root: str, tmp_path: Path, make: Make
) -> None:
    stream, table, checkpoint = make(), str(tmp_path / "table"), tmp_path / "checkpoint"

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.select("offset", "timestamp", "event").write.format("delta")
        rows.mode("append").options(txnAppId="app", txnVersion=number).save(table)

    def run() -> int:
        return for_each_range(
            spark,
            "s/a",
            write,
            root=root,
            checkpoint=checkpoint,
            startingOffsets="earliest",
            available_now=True,
        )

    fill(stream, 0, 10)
    with at_failpoint("range.ran", kill), pytest.raises(Killed):
        run()
    fill(stream, 10, 15)
    assert run() == 2
    rows = spark.read.format("delta").load(table).sort("offset").collect()
    assert [int(row.event) for row in rows] == list(range(15))
