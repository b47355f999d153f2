"""Large events through the data source: bytes up to ``maxEventBytes``, above that the reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pravega_spark import StreamManager

STREAM = "s/large"
LARGE = bytes(range(256)) * 40_000
"""10 MB."""


@pytest.fixture
def filled(root: str) -> str:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    with manager.create_writer(STREAM, large_events=True) as writer:
        for event in (b"before", LARGE, b"after"):
            writer.write_event(event, "k")
    return root


def test_batch_reads_have_the_bytes_or_the_reference(spark: SparkSession, filled: str) -> None:
    reader = spark.read.format("pravega").option("root", filled)
    rows = [bytes(row.event) for row in reader.load(STREAM).orderBy("offset").collect()]
    assert rows == [b"before", LARGE, b"after"]
    small = reader.option("maxEventBytes", "9m").load(STREAM).orderBy("offset").collect()
    reference = json.loads(bytes(small[1].event))
    assert reference["bytes"] == len(LARGE)
    assert Path(filled, STREAM, "events", reference["large_event"]).read_bytes() == LARGE
    assert [bytes(small[0].event), bytes(small[2].event)] == [b"before", b"after"]
    kafka = reader.option("maxEventBytes", "64m").option("columnNames", "kafka").load(STREAM)
    assert sorted(len(row.value) for row in kafka.collect()) == [5, 6, len(LARGE)]
    keys = spark.read.format("pravega").option("root", filled).option("columns", "routing_key")
    assert [row.routing_key for row in keys.load(STREAM).collect()] == ["k"] * 3


@pytest.mark.versions
def test_streams_carry_them_and_sinks_refuse_them(
    spark: SparkSession, filled: str, tmp_path: Path
) -> None:
    frame = (
        spark.readStream.format("pravega").option("root", filled)
        .option("startingOffsets", "earliest").load(STREAM)
    )  # fmt: skip
    lengths = frame.selectExpr("offset", "length(event) AS size")
    query = (
        lengths.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True).start(str(tmp_path / "out"))
    )  # fmt: skip
    query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    assert [row.size for row in found] == [6, len(LARGE), 5]
    events = spark.read.format("pravega").option("root", filled).load(STREAM)
    write = events.select("event").write.format("pravega").mode("append").option("root", filled)
    with pytest.raises(Exception, match="EventTooLarge"):
        write.save("s/copy")
    assert list(StreamManager(filled).read("s/copy")) == []
