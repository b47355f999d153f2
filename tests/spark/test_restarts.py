"""Queries that start again with other options, read by Python and by Spark's own reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pravega_spark import StreamManager, stream_frame
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.spark.versions import HAS_TRIGGERS
from tests.harness.folder_state import remove
from tests.harness.small_streams import write
from tests.spark.conftest import finish

Make = Callable[..., StreamLog]
Run = Callable[..., list[int]]


def fill(stream: StreamLog, first: int, last: int) -> None:
    write(stream, [(f"k{n}", b"%d" % n) for n in range(first, last)])


class Restarts:
    """A query whose runs have options, and one way of reading, of their own."""

    def __init__(self, spark: SparkSession, root: str, checkpoint: Path) -> None:
        self.spark, self.root, self.checkpoint = spark, root, checkpoint
        self.query: StreamingQuery | None = None

    def run(self, *, native: bool, **options: str) -> list[int]:
        found: list[int] = []

        def collect(batch: DataFrame, _: int) -> None:
            found.extend(int(row.event) for row in batch.select("event").collect())

        given = {"startingOffsets": "earliest", **options}
        if native:
            frame = stream_frame(self.spark, root=self.root, **given)
        else:
            frame = self.spark.readStream.format("pravega").options(root=self.root, **given).load()
        writer = frame.writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        self.query = writer.trigger(availableNow=True).start()
        finish(self.query)
        return sorted(found)

    def forget_last_commit(self) -> None:
        """Set the checkpoint back to before Spark recorded the end of the last batch."""
        commits = self.checkpoint / "commits"
        last = max(int(f.name) for f in commits.iterdir() if f.name.isdecimal())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)


@pytest.fixture
def restarts(spark: SparkSession, root: str, tmp_path: Path) -> Restarts:
    return Restarts(spark, root, tmp_path / "c")


@pytest.mark.versions
@pytest.mark.parametrize("native", [False, True])
def test_stream_that_is_left_out_of_a_run_is_read_on(
    restarts: Restarts, make: Make, native: bool
) -> None:
    a, b = make(), make("s/b")
    fill(a, 0, 3)
    fill(b, 10, 13)
    both = {"subscribe": "s/a,s/b"}
    assert restarts.run(native=native, **both) == [0, 1, 2, 10, 11, 12]
    assert restarts.query is not None
    (source,) = restarts.query.recentProgress[0]["sources"]
    assert source["latestOffset"] == source["endOffset"], "it has read everything"
    fill(a, 3, 4)
    fill(b, 13, 15)
    assert restarts.run(native=not native, subscribe="s/a", failOnDataLoss="false") == [3]
    assert restarts.run(native=native, **both) == [13, 14]


@pytest.mark.parametrize("native", [False, True])
def test_assign_that_would_pass_events_stops_the_query(
    restarts: Restarts, make: Make, native: bool
) -> None:
    stream = make(segments=2)
    fill(stream, 0, 10)
    assert restarts.run(native=native, stream="s/a") == list(range(10))
    fill(stream, 10, 20)
    narrower = json.dumps({"s/a": [0]})
    with pytest.raises(Exception, match="these events would never be read"):
        restarts.run(native=native, assign=narrower)
    assert restarts.run(native=not native, stream="s/a") == list(range(10, 20))


@pytest.mark.versions
@pytest.mark.parametrize("native", [False, True])
def test_crash_in_the_first_batch_needs_no_start_option(
    restarts: Restarts, make: Make, native: bool
) -> None:
    stream, manager = make(), StreamManager(restarts.root)
    fill(stream, 0, 5)
    manager.save_cut("s/a", "begin", manager.tail("s/a"))
    fill(stream, 5, 8)
    start = {"stream": "s/a", "startingStreamCut": "begin"}
    assert restarts.run(native=native, **start) == [5, 6, 7]
    restarts.forget_last_commit()
    manager.delete_cut("s/a", "begin")
    fill(stream, 8, 9)
    repeats_alone = not (native or HAS_TRIGGERS)
    assert restarts.run(native=native, **start) == [5, 6, 7] + ([] if repeats_alone else [8])
    if repeats_alone:
        assert restarts.run(native=native, **start) == [8]
    restarts.checkpoint = restarts.checkpoint.with_name("new")
    with pytest.raises(Exception, match="begin"):
        restarts.run(native=native, **start)


@pytest.mark.versions
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("failOnDataLoss", ["true", "false"])
def test_root_that_is_away_or_made_anew_for_one_run_stops_the_query(
    restarts: Restarts, make: Make, native: bool, failOnDataLoss: str
) -> None:
    stream, root = make(), Path(restarts.root)
    fill(stream, 0, 3)
    options = {"stream": "s/a", "failOnDataLoss": failOnDataLoss}
    assert restarts.run(native=native, **options) == [0, 1, 2]
    fill(stream, 3, 5)
    elsewhere = root.rename(root.with_name("elsewhere"))
    for is_mounted in (False, True):
        if is_mounted:
            root.mkdir()
        with pytest.raises(Exception, match=r"RootChanged|is no longer a root"):
            restarts.run(native=native, **options)
    StreamManager(root).create_scope("s")
    StreamManager(root).create_stream("s/a")
    with pytest.raises(Exception, match=r"RootChanged|is another root"):
        restarts.run(native=native, **options)
    remove(root)
    elsewhere.rename(root)
    assert restarts.run(native=native, **options) == [3, 4]
