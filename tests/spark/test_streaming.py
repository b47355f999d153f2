from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.manager import StreamManager
from pravega_spark.spark.versions import HAS_TRIGGERS
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import scale, write
from tests.harness.truncating import truncate
from tests.spark.conftest import Load, finish

Make = Callable[..., StreamLog]


def fill(stream: StreamLog, first: int, last: int, keys: int = 7) -> None:
    write(stream, [(f"k{i % keys}", b"%d" % i) for i in range(first, last)])


def numbers(root: str, name: str) -> list[int]:
    return [int(event.data) for event in StreamManager(root).read(name)]


class Copy:
    """A query that copies a stream into another one; each run continues the one before."""

    def __init__(self, frame: DataFrame, root: str, checkpoint: Path, name: str = "s/b") -> None:
        self.root, self.name, self.checkpoint = root, name, checkpoint
        self.writer: DataStreamWriter = (
            frame.writeStream.format("pravega")
            .option("root", root)
            .option("numSegments", "2")
            .option("checkpointLocation", str(checkpoint))
        )

    def run(self) -> StreamingQuery:
        query = self.writer.trigger(availableNow=True).start(self.name)
        finish(query)
        return query

    def result(self) -> list[int]:
        return numbers(self.root, self.name)

    def offsets(self) -> list[str]:
        """Return the text of the source's offset for every batch."""
        files = sorted(
            (f for f in (self.checkpoint / "offsets").iterdir() if f.name.isdecimal()),
            key=lambda f: int(f.name),
        )
        return [f.read_text().splitlines()[-1] for f in files]

    def forget_last_commit(self) -> None:
        """Set the checkpoint back to after the sink's commit and before Spark recorded it."""
        commits = self.checkpoint / "commits"
        last = max(int(f.name) for f in commits.iterdir() if f.name.isdecimal())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)


@pytest.mark.versions(short=True)
def test_copy_is_exact_over_rate_limits_restarts_and_replayed_batches(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make(segments=3)
    fill(source, 0, 100)
    copy = Copy(follow(maxOffsetsPerTrigger="40"), root, tmp_path / "c")
    query = copy.run()
    sizes = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
    assert sizes == ([40, 40, 20] if HAS_TRIGGERS else [100])
    if HAS_TRIGGERS:
        assert query.recentProgress[-1]["sources"][0]["latestOffset"] is not None
    fill(source, 100, 130)
    copy.run()
    copy.forget_last_commit()
    version = open_stream(root, "s/b").view().version
    fill(source, 130, 150)
    copy.run()
    if not HAS_TRIGGERS:  # that run has repeated a batch, and has no other
        copy.run()
    found = copy.result()
    assert sorted(found) == list(range(150))
    by_key = defaultdict(list)
    for number in found:
        by_key[number % 7].append(number)
    assert all(held == sorted(held) for held in by_key.values())
    after = open_stream(root, "s/b").view().version
    assert after == version + 1, "no commit for the replayed batch, one for the new batch"
    texts = copy.offsets()
    assert len(set(texts)) == len(texts) == (5 if HAS_TRIGGERS else 3)
    assert all(json.dumps(json.loads(text)) == text for text in texts)
    copy.run()
    assert copy.offsets() == texts, "no batch without new events"


@pytest.mark.versions(short=True)
def test_available_now_continues_over_scale_events_to_its_end(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make(segments=2)
    fill(source, 0, 60)
    scale(source, [0, 1], [(0.0, 1.0)])
    fill(source, 60, 90)
    (merged,) = source.view().active.segments
    scale(source, [merged.segment_id], [(0.0, 0.5), (0.5, 1.0)])
    fill(source, 90, 120)
    copy = Copy(follow(maxOffsetsPerTrigger="25"), root, tmp_path / "c")
    copy.run()
    found = copy.result()
    assert sorted(found) == list(range(120))
    for key in range(7):
        held = [n for n in found if n % 7 == key]
        assert held == sorted(held), "a key's order survives splits and merges"


@pytest.mark.versions
def test_scale_of_the_target_between_batches_does_not_disturb_the_query(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make()
    fill(source, 0, 20)
    copy = Copy(follow(), root, tmp_path / "c")
    copy.run()
    target = open_stream(root, "s/b")
    scale(target, target.view().active.segment_ids, [(0.0, 0.3), (0.3, 1.0)])
    fill(source, 20, 40)
    copy.run()
    assert sorted(copy.result()) == list(range(40))


@pytest.mark.versions
def test_crash_in_the_first_batch_of_a_query_from_latest_loses_nothing(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make()
    fill(source, 0, 10)
    seen: list[int] = []
    broken = [True]

    def process(frame: DataFrame, batch_id: int) -> None:
        if broken[0]:
            raise RuntimeError("crash in the first batch")
        seen.extend(int(row.event) for row in frame.collect())

    def run() -> None:
        frame = follow(startingOffsets="latest")
        query = (
            frame.writeStream.foreachBatch(process)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)

    with pytest.raises(PySparkException, match="crash in the first batch"):
        run()
    assert (tmp_path / "c/offsets/0").exists()
    fill(source, 10, 20)
    broken[0] = False
    for _ in range(3):
        run()
    assert seen == list(range(10, 20))


@pytest.mark.versions
def test_available_now_jobs_from_latest_continue_where_the_last_one_ended(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make()
    fill(source, 0, 10)
    copy = Copy(follow(startingOffsets="latest"), root, tmp_path / "c")
    copy.run()
    fill(source, 10, 20)
    copy.run()
    assert sorted(copy.result()) == list(range(10, 20))


@pytest.mark.versions
def test_processing_time_query_follows_the_tail_and_is_idle_without_new_events(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make()
    fill(source, 0, 10)
    copy = Copy(follow(), root, tmp_path / "c")
    query = copy.writer.trigger(processingTime="50 milliseconds").start("s/b")
    try:
        query.processAllAvailable()
        fill(source, 10, 20)
        query.processAllAvailable()
        assert sorted(copy.result()) == list(range(20))
        before = copy.offsets()
        query.processAllAvailable()
        assert copy.offsets() == before
    finally:
        query.stop()
    assert len(before) <= 3


@pytest.mark.versions
def test_foreach_batch_with_application_version_writes_once(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    fill(make(), 0, 30)
    fail = [True]

    def process(frame: DataFrame, batch_id: int) -> None:
        (
            frame.write.format("pravega")
            .mode("append")
            .options(root=root, txnAppId="copy", txnVersion=str(batch_id))
            .save("s/b")
        )
        if fail[0]:
            fail[0] = False
            raise RuntimeError("after the write")

    def run() -> None:
        query = (
            follow()
            .writeStream.foreachBatch(process)
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)

    with pytest.raises(PySparkException, match="after the write"):
        run()
    run()
    assert sorted(numbers(root, "s/b")) == list(range(30))


@pytest.mark.versions
def test_pattern_reads_several_streams_and_a_new_one_later(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    fill(make("s/x1"), 0, 10)
    fill(make("s/x2"), 10, 20)
    frame = follow(None, subscribePattern="s/x[0-9]")
    copy = Copy(frame, root, tmp_path / "c")
    copy.run()
    fill(make("s/x3"), 20, 30)
    copy.run()
    assert sorted(copy.result()) == list(range(30))


TRUNCATED = (
    r"TruncatedData.*0#0 \[10, 22\) was truncated by user at version \d+ \(.* UTC\) "
    r"up to the head .*0#0=22.*failOnDataLoss"
)


@pytest.mark.versions
def test_truncated_events_fail_the_query_unless_loss_is_allowed(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source = make()
    fill(source, 0, 10)
    Copy(follow(), root, tmp_path / "c").run()
    fill(source, 10, 20)
    fill(source, 20, 30)
    truncate(source, {0: 22})
    with pytest.raises(PySparkException, match=TRUNCATED):
        Copy(follow(), root, tmp_path / "c").run()
    lax = Copy(follow(failOnDataLoss="false"), root, tmp_path / "c")
    lax.run()
    assert sorted(lax.result()) == [*range(10), *range(22, 30)]


@pytest.mark.versions
def test_query_ends_at_a_cut(root: str, make: Make, follow: Load, tmp_path: Path) -> None:
    source = make()
    fill(source, 0, 10)
    end = str(StreamCut("s/a", 1, {0: 6}))
    copy = Copy(follow(endingStreamCut=end, startingTimestamp="-1h"), root, tmp_path / "c")
    copy.run()
    assert sorted(copy.result()) == list(range(6))


@pytest.mark.versions
def test_output_mode_complete_is_refused(
    follow: Load, make: Make, root: str, tmp_path: Path
) -> None:
    fill(make(), 0, 3)
    frame = follow().groupBy("event").count().selectExpr("event", "count")
    writer = frame.writeStream.format("pravega").option("root", root).outputMode("complete")
    with pytest.raises(PySparkException, match="a stream is append-only"):
        finish(
            writer.option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start("s/b")
        )


@pytest.mark.versions
def test_metadata_cannot_be_streamed(follow: Load, make: Make) -> None:
    make()
    with pytest.raises(PySparkException, match=r"is for spark\.read"):
        follow(metadata="Streams").writeStream.format("noop").start().awaitTermination(30)


@pytest.mark.versions
def test_data_source_is_found_without_registration(spark: SparkSession) -> None:
    import pyspark_pravega
    from pravega_spark.spark.source import PravegaDataSource

    assert vars(pyspark_pravega)["DefaultSource"] is PravegaDataSource
    with pytest.raises(PySparkException, match="option root is missing"):
        spark.read.format("pravega").load("s/a")
