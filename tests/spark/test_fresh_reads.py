"""What an action on a kept frame, a view, or the static side of a join sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.spark.native.jvm_bridge import plan_each_action
from tests.harness.small_streams import write
from tests.harness.truncating import truncate

Make = Callable[..., StreamLog]


@pytest.fixture(scope="module")
def fresh(spark: SparkSession) -> SparkSession:
    made = spark.newSession()
    for key in ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone"):
        made.conf.set(key, str(spark.conf.get(key)))
    plan_each_action(made)
    plan_each_action(made)
    return made


def fill(stream: StreamLog, first: int, last: int) -> None:
    write(stream, [(f"k{n % 3}", b"%d" % n) for n in range(first, last)])


@pytest.mark.versions
def test_kept_frame_and_view_read_the_newest_version_with_each_action(
    fresh: SparkSession, root: str, make: Make
) -> None:
    stream = make()
    fill(stream, 0, 5)
    frame = fresh.read.format("pravega").option("root", root).load("s/a")
    fresh.sql(
        f"CREATE TEMPORARY VIEW kept USING pravega OPTIONS "
        f"(root '{root}', stream 's/a', columns 'routing_key,event')"
    )

    def counts() -> list[int]:
        found = fresh.sql("SELECT count(*) AS n FROM kept").first()
        pairs = frame.alias("a").join(frame.alias("b"), "offset")
        return [frame.count(), found.n if found else -1, pairs.count()]

    assert counts() == [5, 5, 5]
    fill(stream, 5, 9)
    assert counts() == [9, 9, 9]
    fresh.sql("INSERT INTO kept VALUES ('k', CAST('9' AS BINARY))")
    assert counts() == [10, 10, 10]
    truncate(stream, {0: 7})
    assert counts() == [3, 3, 3]


def test_counter_is_incremented_through_one_frame_of_a_table(
    fresh: SparkSession, root: str
) -> None:
    manager = StreamManager(root)
    manager.create_key_value_table("s/t", KeyValueTableConfiguration(key_type="string"))
    table = manager.key_value_table("s/t")
    table.put("n", b"0").result()
    frame = fresh.read.format("pravega_kvt").option("root", root).load("s/t")
    for _ in range(3):
        more = frame.selectExpr(
            "key", "CAST(CAST(CAST(value AS STRING) AS INT) + 1 AS STRING) value"
        )
        more.write.format("pravega_kvt").mode("append").option("root", root).save("s/t")
    assert bytes(frame.first().value) == b"3"  # type: ignore[union-attr]
    table.close()


def test_static_side_of_a_streaming_join_grows(
    fresh: SparkSession, root: str, make: Make, tmp_path: Path
) -> None:
    static, stream = make("s/static"), make("s/a")
    fill(static, 0, 2)
    fill(stream, 0, 1)
    side = fresh.read.format("pravega").option("root", root).load("s/static").select("event")
    events = (
        fresh.readStream.format("pravega")
        .options(root=root, startingOffsets="earliest")
        .load("s/a")
        .select("offset")
    )
    query = (
        events.crossJoin(side)
        .writeStream.format("memory")
        .queryName("joined")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        query.processAllAvailable()
        fill(static, 2, 7)
        fill(stream, 1, 2)
        query.processAllAvailable()
    finally:
        query.stop()
    found = fresh.sql("SELECT offset, count(*) n FROM joined GROUP BY offset ORDER BY 1").collect()
    assert [(row["offset"], row["n"]) for row in found] == [(0, 2), (1, 7)]


def test_pinned_version_and_bounds_stay(fresh: SparkSession, root: str, make: Make) -> None:
    stream = make()
    fill(stream, 0, 5)
    end = f"{StreamManager(root).tail('s/a')}"
    pinned = fresh.read.format("pravega").options(root=root, endingStreamCut=end).load("s/a")
    for _ in range(2):
        assert pinned.count() == 5
        fill(stream, 5, 9)
