"""Native frames have the events of ``format("pravega")``, whatever happens to the files."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pravega_spark import (
    EncryptionPolicy,
    StreamConfiguration,
    StreamManager,
    errors,
    frame,
    register,
    stream_frame,
)
from pravega_spark.compaction import plan as compaction_plan
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.layout.read_plan import next_cut
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.spark.source_offsets import find_record
from tests.harness.folder_state import remove
from tests.harness.small_streams import scale, staged, write
from tests.harness.truncating import truncate
from tests.spark.conftest import Load, finish

Make = Callable[..., StreamLog]
Native = Callable[..., DataFrame]


@pytest.fixture
def native(spark: SparkSession, root: str) -> Native:
    """Read a stream as a native batch frame."""

    def native(name: str | None = "s/a", **options: object) -> DataFrame:
        return frame(spark, name, root=root, **options)

    return native


@pytest.fixture
def follow_natively(spark: SparkSession, root: str) -> Native:
    """Read a stream as a native streaming frame, by default from its head."""

    def follow(name: str | None = "s/a", **options: object) -> DataFrame:
        return stream_frame(spark, name, root=root, **{"startingOffsets": "earliest", **options})

    return follow


def fill(stream: StreamLog, start: int, end: int, commits: int = 1) -> None:
    events = [(None if n % 10 == 0 else f"k{n % 7}", b"%d" % n) for n in range(start, end)]
    step = len(events) // commits
    for first in range(0, len(events), step):
        write(stream, events[first : first + step])


def compact(root: str, name: str = "s/a") -> None:
    with mock.patch.object(compaction_plan, "COMPACT_SETTLE_MS", -1):
        assert StreamManager(root).compact_stream(name).files_removed > 0


def rows(found: DataFrame) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in found.collect()), key=repr)


def values(found: DataFrame) -> list[int]:
    return sorted(int(row.event) for row in found.select("event").collect())


def full_of_history(root: str, make: Make) -> StreamLog:
    """Return a stream with chunks of all origins, whose head lies inside a chunk."""
    stream = make(segments=2)
    fill(stream, 0, 80, commits=8)
    scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    with StreamManager(root).create_transactional_writer("s/a") as writer:
        transaction = writer.begin_transaction()
        for n in range(80, 120):
            transaction.write_event(b"%d" % n, routing_key=f"k{n % 7}")
        transaction.commit()
    compact(root)
    fill(stream, 120, 150)
    tail = stream.view().segment(1).next_offset
    truncate(stream, {0: 3, 1: tail // 3})
    fill(stream, 150, 170)
    return stream


def test_frames_of_random_cuts_have_the_rows_of_the_source(
    root: str, make: Make, load: Load, native: Native
) -> None:
    stream = full_of_history(root, make)
    view = stream.view()
    chance = random.Random(16)
    cuts = [locate(view, view.head)]
    while not cuts[-1].is_at_or_after(view.located_tail):
        cuts.append(next_cut(cuts[-1], chance.randint(1, 40)))
    assert len(cuts) > 4, "there is something to choose from"
    pairs = [(0, len(cuts) - 1)]
    for _ in range(3):
        first, last = sorted(chance.sample(range(len(cuts)), 2))
        pairs.append((first, last))
    for start, end in ((cuts[first], cuts[last]) for first, last in pairs):
        bounds = {"startingStreamCut": str(start.cut), "endingStreamCut": str(end.cut)}
        ours, theirs = native(**bounds), load(**bounds)
        assert ours.schema == theirs.schema
        assert rows(ours) == rows(theirs)


@pytest.mark.versions
def test_frame_stays_at_its_version_and_outlives_a_compaction(
    root: str, make: Make, native: Native
) -> None:
    stream = make()
    fill(stream, 0, 64, commits=32)
    pinned = native(startingOffsets='{"s/a": {"0#0": 3}}', endingOffsets='{"s/a": {"0#0": 63}}')
    fill(stream, 64, 96, commits=16)
    compact(root)
    assert values(pinned) == list(range(3, 63))
    assert values(native()) == list(range(96))


def test_columns_have_the_names_and_the_order_that_options_give(
    make: Make, load: Load, native: Native
) -> None:
    write(make(), [("k", b"1"), (None, b"2")])
    for options in (
        {"columnNames": "kafka"},
        {"columns": "EVENT,offset"},
        {"columns": "scope", "includeHeaders": "true"},
    ):
        ours, theirs = native(**options), load(**options)
        assert ours.schema == theirs.schema
        assert rows(ours) == rows(theirs)
    assert native().select("timestamp_type").distinct().collect() == [(0,)]


@pytest.mark.versions(needs="delta")
def test_typed_stream_has_its_columns_over_a_change_of_its_schema(
    spark: SparkSession,
    root: str,
    load: Load,
    native: Native,
    follow_natively: Native,
    tmp_path: Path,
) -> None:
    manager = StreamManager(root)
    first = pa.schema([pa.field("carrier", pa.string()), pa.field("delay", pa.int32())])
    manager.create_stream("s/a", StreamConfiguration(schema=first))
    with manager.create_writer("s/a") as writer:
        writer.write_event({"carrier": "UA", "delay": 4}, routing_key="UA").result()
    described = pa.field("gate", pa.string(), metadata={"comment": "where it left"})
    quote = pa.field("with`quote.and-dot", pa.int32())  # SQL takes it in backquotes
    manager.update_stream("s/a", schema=first.append(described).append(quote))
    with manager.create_writer("s/a") as writer:
        writer.write_event({"carrier": "DL", "delay": None, "gate": "B"}, routing_key="DL").result()
    theirs = load()
    assert native().schema == theirs.schema
    assert rows(native()) == rows(theirs)
    columns = ["offset", "routing_key", "carrier", "delay", "gate"]
    expected = [(0, "UA", "UA", 4, None), (1, "DL", "DL", None, "B")]
    assert rows(native().select(columns)) == expected
    assert rows(native(columns="GATE,offset")) == [("B", 1), (None, 0)]
    batches: list[tuple[object, ...]] = []
    sink = follow_natively().select(columns).writeStream.trigger(availableNow=True)
    sink = sink.option("checkpointLocation", str(tmp_path / "c"))
    finish(sink.foreachBatch(lambda batch, _: batches.extend(rows(batch))).start())
    assert sorted(batches) == expected
    try:
        register(spark, "s/a", root=root, metadata=False)
        assert rows(spark.table("s.a_events").select(columns)) == expected
        comments = {r.col_name: r.comment for r in spark.sql("DESCRIBE s.a_events").collect()}
        assert (comments["gate"], comments["carrier"]) == ("where it left", None)
    finally:
        spark.sql("DROP SCHEMA IF EXISTS s CASCADE")


def scanned(found: DataFrame) -> int:
    """Return how many files a frame's plan reads."""
    plan = found._jdf.queryExecution().executedPlan()
    scans = plan.collectLeaves().iterator()
    count = 0
    while scans.hasNext():
        files = scans.next().selectedPartitions().toPartitionArray()
        count += len(files)
    return count


@pytest.mark.versions
def test_filters_skip_chunks_by_segment_time_and_key(make: Make, native: Native) -> None:
    stream = make(segments=4)
    events = [(f"k{n}", b"%d" % n) for n in range(40)]
    write_at = [1_000_000, 2_000_000, 3_000_000]
    for second, time_us in enumerate(write_at):
        given = [(key, b"%d" % (100 * second + n)) for n, (key, _) in enumerate(events)]
        chunks = staged(stream, given, times_us=[time_us] * 40)
        append(stream, stream.view().life, stream.view().version, chunks)
    assert scanned(native()) == 12
    assert scanned(native().where("segment_id IN (1, 2)")) == 6
    late = native().where("timestamp >= timestamp_seconds(3)")
    assert (scanned(late), late.count()) == (4, 40)
    early = native().where("timestamp_seconds(2) > timestamp OR segment_id > 9")
    assert early.count() == 40
    one = native().where("routing_key = 'k7'")
    assert (scanned(one), values(one)) == (3, [7, 107, 207])
    assert values(native(routingKeys="k7,k8")) == [7, 8, 107, 108, 207, 208]


@pytest.mark.versions
def test_rows_that_a_native_frame_cannot_have_are_refused(
    root: str, make: Make, native: Native, load: Load
) -> None:
    manager = StreamManager(root)
    make()
    with manager.create_writer("s/a", large_events=True) as writer:
        writer.write_event(b"x" * (9 << 20), routing_key="k").result()
        writer.write_event(b"small", routing_key="k").result()
    with pytest.raises(errors.InvalidOption, match=r"large event of 9437184 bytes.*maxEventBytes"):
        native()
    assert native(columns="offset").count() == 2
    assert rows(native(maxEventBytes="8m")) == rows(load(maxEventBytes="8m"))
    encryption = EncryptionPolicy("key")
    manager.create_stream("s/secret", StreamConfiguration(encryption=encryption))
    with pytest.raises(errors.IllegalState, match=r"s/secret is encrypted.*format\('pravega'\)"):
        native("s/secret")
    for options, message in (
        ({"readerGroup": "s/g"}, "for stream_frame"),
        ({"metadata": "Streams"}, "native frames read events"),
        ({"minPartitions": 4}, "maxPartitionBytes"),
        ({"includeWatermark": True}, "for stream_frame"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
    ):
        with pytest.raises(errors.InvalidOption, match=message):
            native(**options)
    with pytest.raises(errors.NoSuchStream, match="s/none"):
        native("s/none")


def test_bounds_below_the_head_or_of_another_life_are_errors(
    root: str, make: Make, native: Native
) -> None:
    stream = make()
    fill(stream, 0, 20)
    truncate(stream, {0: 5})
    with pytest.raises(errors.TruncatedData, match=r"0#0 \[2, 5\) was truncated"):
        native(startingOffsets='{"s/a": {"0#0": 2}}')
    lax = native(startingOffsets='{"s/a": {"0#0": 2}}', failOnDataLoss=False)
    assert values(lax) == list(range(5, 20))
    cut = str(stream.view().tail)
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    make()
    with pytest.raises(errors.InvalidStreamCut, match="life"):
        native(startingStreamCut=cut)


def test_session_without_a_client_of_the_storage_is_told_the_package(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.setenv(f"AWS_{name}", "none")
    advice = r"client for s3a://. Start Spark with --packages org.apache.hadoop:hadoop-aws:3\.\d"
    for url in ("s3://bucket/streams", "s3a://bucket/streams"):
        for read in (frame, stream_frame, register):
            with pytest.raises(errors.IllegalState, match=advice):
                read(spark, "s/a", root=url)


def test_root_with_any_characters_is_read_and_registered(
    spark: SparkSession, tmp_path: Path
) -> None:
    odd = "a b%20#1?x+y'z"
    folder, url = f"{tmp_path}/{odd}", f"file://{tmp_path}/url {odd}"
    try:
        for root in (folder, url):
            manager = StreamManager(root)
            manager.create_scope("odd")
            manager.create_stream("odd/a")
            with manager.create_writer("odd/a") as writer:
                writer.write_event(b"7").result()
            assert values(frame(spark, "odd/a", root=root)) == [7]
        register(spark, "odd/a", root=folder, metadata=False)
        assert values(spark.table("odd.a_events")) == [7]
    finally:
        spark.sql("DROP SCHEMA IF EXISTS odd CASCADE")


def test_locale_without_the_characters_of_a_folder_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    manager = StreamManager(tmp_path / "é")
    manager.create_scope("s")
    manager.create_stream("s/a")
    system = spark._jvm.System  # type: ignore[union-attr]
    encoding = system.setProperty("sun.jnu.encoding", "US-ASCII")
    try:
        for read in (frame, stream_frame, register):
            with pytest.raises(errors.IllegalState, match=r"é: .*US-ASCII alone.*LC_ALL=C\.UTF-8"):
                read(spark, "s/a", root=manager.root)
    finally:
        system.setProperty("sun.jnu.encoding", encoding)


def test_session_without_a_jvm_is_told_what_works(root: str, make: Make) -> None:
    make()
    with pytest.raises(errors.IllegalState, match=r"Spark Connect.*format\('pravega'\)"):
        frame(object(), "s/a", root=root)  # type: ignore[arg-type]


class Batches:
    """A query that collects its batches; each run continues the one before."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        self.found: list[list[tuple[int, int]]] = []

    def run(self, source: DataFrame) -> StreamingQuery:
        def collect(batch: DataFrame, _: int) -> None:
            found = batch.select("segment_id", "event").collect()
            self.found.append([(row.segment_id, int(row.event)) for row in found])

        writer = source.writeStream.foreachBatch(collect)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        finish(query)
        return query

    @property
    def values(self) -> list[int]:
        return sorted(event for batch in self.found for _, event in batch)

    def forget_last_commit(self) -> None:
        """Set the checkpoint back to after the batch and before Spark recorded its end."""
        commits = self.checkpoint / "commits"
        last = max(int(f.name) for f in commits.iterdir() if f.name.isdecimal())
        for file in (commits / str(last), commits / f".{last}.crc"):
            file.unlink(missing_ok=True)


@pytest.mark.versions
def test_batches_have_limits_and_successors_after_predecessors(
    root: str, make: Make, follow_natively: Native, tmp_path: Path
) -> None:
    stream = full_of_history(root, make)
    expected = sorted(int(event.data) for event in StreamManager(root).read("s/a"))
    batches = Batches(tmp_path / "c")
    query = batches.run(follow_natively(maxOffsetsPerTrigger=40))
    assert batches.values == expected
    assert max(map(len, batches.found)) <= 40
    order = [{segment for segment, _ in batch} for batch in batches.found]
    last_of_parent = max(i for i, segments in enumerate(order) if 0 in segments)
    successors = {s.segment_id for s in stream.view().active.segments} - {1}
    assert all(not (segments & successors) for segments in order[: last_of_parent + 1])
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert sum(p["numInputRows"] for p in progress) >= len(expected), "rows of cut chunks count"
    assert progress[-1]["sources"][0]["description"] == "pravega_spark[s/a]"


@pytest.mark.versions
def test_available_now_has_the_limit_in_every_batch_and_ends_at_the_tail_of_its_start(
    make: Make, follow_natively: Native, tmp_path: Path
) -> None:
    stream = make()
    fill(stream, 0, 100)
    batches = Batches(tmp_path / "c")
    sizes = batches.found
    source = follow_natively(maxOffsetsPerTrigger=30)
    progress = batches.run(source).recentProgress
    assert [len(batch) for batch in sizes] == [30, 30, 30, 10]
    assert batches.values == list(range(100))
    first, last = (find_record(progress[n]["sources"][0]["latestOffset"]) for n in (0, -1))
    assert first is not None
    assert last is not None
    assert first["streams"] == last["streams"], "it is the tail in each report"
    fill(stream, 100, 101)
    batches.run(source)
    assert (len(sizes[-1]), batches.values) == (1, list(range(101)))


@pytest.mark.versions
def test_checkpoint_continues_over_restarts_compaction_and_the_other_source(
    root: str, make: Make, follow: Load, follow_natively: Native, tmp_path: Path
) -> None:
    stream = make()
    fill(stream, 0, 10)
    batches = Batches(tmp_path / "c")
    batches.run(follow_natively())
    fill(stream, 10, 20)
    batches.run(follow())
    assert batches.values == list(range(20)), "format('pravega') continues"
    fill(stream, 20, 84, commits=32)
    batches.run(follow_natively())
    assert batches.values == list(range(84)), "and the native frame continues again"
    batches.forget_last_commit()
    compact(root)
    batches.found.clear()
    batches.run(follow_natively())
    assert batches.values == list(range(20, 84)), "the batch is repeated from other files"


@pytest.mark.versions
def test_truncated_and_created_again_streams_stop_the_query_with_advice(
    root: str, make: Make, follow_natively: Native, tmp_path: Path
) -> None:
    stream = make()
    fill(stream, 0, 10)
    batches = Batches(tmp_path / "c")
    batches.run(follow_natively())
    fill(stream, 10, 20)
    truncate(stream, {0: 10})
    batches.run(follow_natively())
    assert batches.values == list(range(20)), "a finished batch may be truncated"
    fill(stream, 20, 30)
    truncate(stream, {0: 25})
    advice = r"TruncatedData: .*0#0 \[20, 25\) .*failOnDataLoss"
    with pytest.raises(Exception, match=advice):
        batches.run(follow_natively())
    batches.run(follow_natively(failOnDataLoss=False))
    assert batches.values == [*range(20), *range(25, 30)]
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    make()
    with pytest.raises(Exception, match=r"StaleIdentity: .*was deleted and created again"):
        batches.run(follow_natively())


def test_kept_frame_does_not_read_other_types_of_a_stream_that_was_created_again(
    root: str, make: Make, follow_natively: Native, tmp_path: Path
) -> None:
    manager = StreamManager(root)
    manager.create_stream("s/t", StreamConfiguration(schema=pa.schema([("n", pa.int64())])))
    kept = follow_natively("s/t")
    manager.seal_stream("s/t")
    manager.delete_stream("s/t")
    manager.create_stream(
        "s/t", StreamConfiguration(schema=pa.schema([("n", pa.timestamp("us", "UTC"))]))
    )
    with manager.create_writer("s/t") as writer:
        writer.write_event({"n": datetime(2026, 1, 1, tzinfo=timezone.utc)})
    with pytest.raises(Exception, match="InvalidOption: stream s/t has no column n bigint"):
        Batches(tmp_path / "c").run(kept)


def test_two_queries_over_one_frame_have_positions_of_their_own(
    spark: SparkSession, make: Make, follow_natively: Native, tmp_path: Path
) -> None:
    stream = make()
    fill(stream, 0, 10)
    source = follow_natively()
    first, second = Batches(tmp_path / "1"), Batches(tmp_path / "2")
    first.run(source)
    fill(stream, 10, 20)
    second.run(source)
    first.run(source)
    assert first.values == second.values == list(range(20))


@pytest.mark.versions
def test_reader_group_and_watermark_work_as_in_the_source(
    root: str, make: Make, follow_natively: Native, tmp_path: Path
) -> None:
    stream = make()
    fill(stream, 0, 10)
    batches = Batches(tmp_path / "c")
    batches.run(follow_natively(readerGroup="s/g"))
    group = StreamManager(root).reader_group("s/g")
    assert group.stream_cuts()["s/a"] == stream.view().tail
    found = follow_natively(includeWatermark=True)
    assert found.schema["watermark"].dataType.simpleString() == "timestamp"
    Batches(tmp_path / "w").run(found)


@pytest.mark.versions(needs="delta")
def test_registered_streams_are_tables_views_and_a_function(
    spark: SparkSession, root: str, make: Make
) -> None:
    stream = full_of_history(root, make)
    other = make("s/b")
    write(other, [("k", b"1")])
    try:
        names = register(spark, "s/a", root=root)
        names += register(spark, "s/b", root=root, metadata=False)
        assert {"s.a", "s.a_events", "s.b", "s.b_events", "pravega_segments"} <= set(names)
        expected = sorted(int(event.data) for event in StreamManager(root).read("s/a"))
        assert values(spark.table("s.a_events")) == expected
        comments = {r.col_name: r.comment for r in spark.sql("DESCRIBE s.a_events").collect()}
        assert re.search("position", comments["offset"])
        found = spark.sql(
            "SELECT routing_key, segment_id, pravega_segment('s/a', routing_key) AS active "
            "FROM s.a_events WHERE segment_id IN (1, 4294967298, 4294967299)"
        ).collect()
        active = {segment.segment_id for segment in stream.view().active.segments}
        assert {row.segment_id for row in found} == active, "every active segment has events"
        assert all(r.active == (r.routing_key and r.segment_id) for r in found)
        assert spark.sql("SELECT pravega_segment('s/b', 'k')").collect() == [(0,)]
        named = register(spark, "s/b", root=root, metadata=False, catalog="spark_catalog")
        assert named == ["spark_catalog.s.b", "spark_catalog.s.b_events"]
        with pytest.raises(Exception, match="register the stream s/c first"):
            spark.sql("SELECT pravega_segment('s/c', 'k')").collect()
        segments = spark.table("pravega_segments").where("stream = 'a'")
        assert {row.segment_id for row in segments.collect()} >= active
    finally:
        spark.sql("DROP SCHEMA s CASCADE")
    with pytest.raises(errors.NoSuchStream):
        register(spark, "s/none*", root=root)
    for catalog, message in (("a.b", "give one part"), ("none", "no such catalog.*none")):
        with pytest.raises(errors.InvalidInput, match=message):
            register(spark, "s/b", root=root, catalog=catalog)
    with pytest.raises(AnalysisException):
        spark.table("s.a_events")


def test_name_that_shows_another_stream_is_taken(
    spark: SparkSession, root: str, make: Make, tmp_path: Path
) -> None:
    write(make(), [("k", b"1")])
    other = StreamManager(tmp_path / "other")
    other.create_scope("s")
    other.create_stream("s/a")
    other.create_stream("s/b")
    try:
        register(spark, "s/a", root=root, metadata=False)
        with pytest.raises(errors.IllegalState, match=r"s\.a is taken .*root/s/a/events, .*DROP"):
            register(spark, "s/*", root=other.root, metadata=False)
        assert not spark.catalog.tableExists("s.b"), "nothing is registered"
        assert values(spark.table("s.a_events")) == [1]
        remove(root)
        with pytest.raises(errors.IllegalState, match=r"s\.a is taken"):
            register(spark, "s/a", root=other.root, metadata=False)
        for kind in ("VIEW s.a_events", "TABLE s.a"):
            spark.sql(f"DROP {kind}")
        spark.sql("CREATE VIEW s.a AS SELECT 1 AS one")
        with pytest.raises(errors.IllegalState, match=r"s\.a is taken .* by a view"):
            register(spark, "s/a", root=other.root, metadata=False)
        spark.sql("DROP VIEW s.a")
        assert register(spark, "s/a", root=other.root, metadata=False) == ["s.a", "s.a_events"]
    finally:
        spark.sql("DROP SCHEMA IF EXISTS s CASCADE")
