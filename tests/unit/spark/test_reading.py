"""The readers as Spark's processes use them, without Spark: plan, pickle, read."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pravega_spark.engine.log.actions import Body, Remove
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    DataLoss,
    InvalidInput,
    InvalidOption,
    NoSuchStream,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.model import SegmentRange, make_segment_id
from pravega_spark.spark.read.batch_reader import PravegaBatchReader
from pravega_spark.spark.read.input_partitions import EventPartition, by_offset, partition_counts
from pravega_spark.spark.read.micro_batch_reader import PravegaStreamReader
from pravega_spark.spark.source import PravegaDataSource
from tests.harness.engine import commit, created, scale, write
from tests.harness.truncating import truncate


def fill(stream: StreamLog, first: int, last: int, keys: int = 5) -> None:
    write(stream, [(f"k{i % keys}", b"%d" % i) for i in range(first, last)])


def batch(root: str, **options: str) -> PravegaBatchReader:
    source = PravegaDataSource({"root": root, "path": "s/a", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, PravegaBatchReader)
    return reader


def streaming(root: str, **options: str) -> PravegaStreamReader:
    given = {"root": root, "path": "s/a", "startingoffsets": "earliest", **options}
    source = PravegaDataSource(given)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, PravegaStreamReader)
    return reader


def first_batch(reader: PravegaStreamReader) -> dict[str, Any]:
    """Return the end of a new query's first micro-batch."""
    return reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


def rows(reader: Any, partitions: Iterable[InputPartition]) -> list[dict[str, Any]]:
    """Read as tasks do, with copies of the reader and the partitions made by pickle."""
    found = []
    for partition in partitions:
        copy, part = pickle.loads(pickle.dumps((reader, partition)))
        for read in copy.read(part):
            assert isinstance(read, pa.RecordBatch)
            found += read.to_pylist()
    return found


def events(found: list[dict[str, Any]]) -> list[int]:
    return [int(row["event"]) for row in found]


def test_batches_have_exactly_the_arrow_schema_that_spark_checks(root: str) -> None:
    fill(created(root), 0, 5)
    for options in ({}, {"columnnames": "kafka"}, {"columns": "event,offset"}):
        source = PravegaDataSource({"root": root, "path": "s/a", **options})
        reader = source.reader(source.schema())
        (partition,) = reader.partitions()
        (found,) = reader.read(partition)
        assert isinstance(found, pa.RecordBatch)
        assert found.schema.equals(to_arrow_schema(source.schema(), timezone="UTC"))
        found.validate(full=True)


def test_kafka_names_have_the_same_values(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20)
    ours, kafka = batch(root), batch(root, columnnames="kafka")
    found = rows(kafka, kafka.partitions())
    for one, other in zip(rows(ours, ours.partitions()), found, strict=True):
        assert other["topic"] == f"{one['scope']}/{one['stream']}"
        assert other["key"] == one["routing_key"].encode()
        assert (other["value"], other["offset"]) == (one["event"], one["offset"])
        assert other["partition"] == one["segment_id"]


def test_sparks_partition_of_an_empty_plan_reads_nothing(root: str) -> None:
    created(root)
    assert batch(root).partitions() == []
    assert list(batch(root).read(InputPartition(None))) == []
    assert list(streaming(root).read(InputPartition(None))) == []


def test_unknown_columns_are_refused(root: str) -> None:
    with pytest.raises(
        InvalidOption, match="option columns names color, but the columns are scope"
    ):
        batch(root, columns="color")


def test_users_schema_may_select_columns_but_not_change_types(root: str) -> None:
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    fill(created(root), 0, 3)
    source = PravegaDataSource({"root": root, "path": "s/a"})
    reader = source.reader(StructType([StructField("offset", LongType())]))
    assert rows(reader, reader.partitions()) == [{"offset": i} for i in range(3)]
    with pytest.raises(InvalidOption, match=r"no column offset string.*offset bigint"):
        source.reader(StructType([StructField("offset", StringType())]))


def test_batch_read_is_split_by_offset_in_order(root: str) -> None:
    stream = created(root)
    for i in range(4):
        fill(stream, 10 * i, 10 * i + 10)
    reader = batch(root, minpartitions="3")
    partitions = reader.partitions()
    assert len(partitions) == 3
    assert events(rows(reader, partitions)) == list(range(40))


def test_large_segments_are_split_at_chunk_borders(root: str) -> None:
    stream = created(root)
    for i in range(4):
        fill(stream, 10 * i, 10 * i + 10)
    rng = SegmentRange("s/a", 1, 0, 3, 38)
    refs = stream.chunks(rng)
    pieces = by_offset(rng, refs, 1, max_bytes=2 * max(ref.size for ref in refs))
    assert [(p.rng.start, p.rng.end, len(p.refs)) for p in pieces] == [(3, 20, 2), (20, 38, 2)]


def test_wanted_partitions_are_shared_by_length() -> None:
    ranges = [SegmentRange("s/a", 1, s, 0, n) for s, n in ((0, 100), (1, 300), (2, 1))]
    assert partition_counts(ranges, 0) == [1, 1, 1]
    assert partition_counts(ranges, 9) == [2, 6, 1]


def test_micro_batch_is_split_by_key_and_keeps_order(root: str) -> None:
    stream = created(root, segments=2)
    write(stream, [(f"k{i % 13}" if i % 7 else None, b"%d" % i) for i in range(400)])
    reader = streaming(root, minpartitions="6")
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert len(partitions) == 6
    parts = [rows(reader, [partition]) for partition in partitions]
    assert sorted(e for part in parts for e in events(part)) == list(range(400))
    assert sum(bool(part) for part in parts) >= 4
    for key in (f"k{i}" for i in range(13)):
        holders = [events([r for r in part if r["routing_key"] == key]) for part in parts]
        (held,) = [h for h in holders if h]
        assert held == sorted(held)


def test_replay_after_a_crash_in_the_first_batch_starts_at_its_origin(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 5)
    first = streaming(root, startingoffsets="latest")
    start = first.initialOffset()
    fill(stream, 5, 10)
    end = first.latestOffset(start, ReadAllAvailable())
    fill(stream, 10, 20)
    again = streaming(root, startingoffsets="latest")
    late = again.initialOffset()
    assert late != start
    assert events(rows(again, again.partitions(late, end))) == list(range(5, 10))
    rest = again.latestOffset(end, ReadAllAvailable())
    assert events(rows(again, again.partitions(end, rest))) == list(range(10, 20))
    assert again.latestOffset(rest, ReadAllAvailable()) == rest


def test_equal_or_reversed_offsets_plan_nothing(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 5)
    reader = streaming(root)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(3))
    later = reader.latestOffset(end, ReadMaxRows(3))
    assert reader.partitions(end, end) == []
    assert reader.partitions(later, end) == []


def test_batch_planned_by_an_older_run_is_read_the_same(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 50)
    old = streaming(root, maxoffsetspertrigger="20")
    start = old.initialOffset()
    end = old.latestOffset(start, old.getDefaultReadLimit())
    scale(stream, [0, 1], [(0.0, 1.0)])
    fill(stream, 50, 100)
    new = streaming(root)
    found = rows(new, new.partitions(start, end))
    assert found == rows(old, old.partitions(start, end))
    assert len(found) == 20


def test_read_limit_follows_the_options_and_all_available_overrides_it(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 50)
    assert streaming(root).getDefaultReadLimit() == ReadAllAvailable()
    assert streaming(root, minoffsetspertrigger="5").getDefaultReadLimit() == ReadMinRows(5)
    assert streaming(root, maxbytespertrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    reader = streaming(root, maxoffsetspertrigger="5", maxbytespertrigger="1k")
    assert reader.getDefaultReadLimit() == ReadMaxRows(5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(rows(reader, reader.partitions(start, end))) == 50


def test_newest_offset_is_reported(root: str) -> None:
    fill(created(root), 0, 5)
    reader = streaming(root, maxoffsetspertrigger="2")
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["streams"]["s/a"]["cut"] == {"0#0": 5}


def test_compaction_between_planning_and_reading_changes_nothing(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    fill(stream, 10, 20)
    reader = streaming(root)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    rewrite(stream)
    assert events(rows(reader, planned)) == list(range(20))


def test_tasks_read_no_log_while_the_planned_files_exist(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = created(root)
    for i in range(3):
        fill(stream, 10 * i, 10 * i + 10)
    reader = batch(root)
    planned = reader.partitions()
    for name in ("refresh", "files"):
        monkeypatch.setattr(Log, name, lambda *_, **__: pytest.fail("a task reads the log"))
    assert events(rows(reader, planned)) == list(range(30))


def test_lost_file_fails_the_task_with_the_lost_range_named(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    for i in range(3):
        fill(stream, 10 * i, 10 * i + 10)
    reader = batch(root)
    planned = reader.partitions()
    assert isinstance(planned[0], EventPartition)
    stream.store.delete([f"{stream.path}/{planned[0].refs[1].path}"])
    with pytest.raises(DataLoss, match=r"s/a segment 0#0 \[10, 20\) is lost"):
        rows(reader, planned)
    lax = batch(root, failondataloss="false")
    with caplog.at_level(logging.WARNING):
        assert events(rows(lax, lax.partitions())) == [*range(10), *range(20, 30)]
    assert "skipped 10 events of s/a segment 0#0 [10, 20)" in caplog.text


def test_truncation_between_planning_and_reading(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    for i in range(3):
        fill(stream, 10 * i, 10 * i + 10)
    strict, lax = streaming(root), streaming(root, failondataloss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    planned, tolerant = strict.partitions(start, end), lax.partitions(start, end)
    truncate(stream, {0: 14})
    with pytest.raises(TruncatedData):
        rows(strict, planned)
    with pytest.raises(TruncatedData, match="failOnDataLoss"):
        strict.partitions(start, end)
    with caplog.at_level(logging.WARNING):
        assert events(rows(lax, tolerant)) == list(range(14, 30))
        assert events(rows(lax, lax.partitions(start, end))) == list(range(14, 30))
    assert "14 events" in caplog.text


def test_truncation_of_a_whole_sealed_stream_skips_its_range_once(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    lax = streaming(root, failondataloss="false")
    start = lax.initialOffset()
    planned = lax.partitions(start, lax.latestOffset(start, ReadAllAvailable()))
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.truncate_stream("s/a", "latest")
    assert isinstance(planned[0], EventPartition)
    stream.store.delete([f"{stream.path}/{planned[0].refs[0].path}"])  # as a sweep does
    with caplog.at_level(logging.WARNING):
        assert events(rows(lax, planned)) == []
    assert [r.message.split(":")[1] for r in caplog.records] == [
        " skipped 10 events of s/a segment 0#0 [0, 10)"
    ]
    offsets = {"startingoffsets": '{"s/a": {"0#0": -2}}'}
    reader = batch(root, **offsets)
    assert events(rows(reader, reader.partitions())) == []


def test_partition_of_an_earlier_life_is_refused(root: str) -> None:
    fill(created(root), 0, 5)
    reader = batch(root)
    planned = reader.partitions()
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    fill(created(root), 5, 10)
    with pytest.raises(StaleIdentity):
        rows(reader, planned)


def test_end_before_start_is_refused(root: str) -> None:
    fill(created(root), 0, 5)
    offsets = {"startingoffsets": '{"s/a": {"0#0": 3}}', "endingoffsets": '{"s/a": {"0#0": 2}}'}
    with pytest.raises(InvalidOption, match=r"end s/a@1:0#0=2 is before the start s/a@1:0#0=3"):
        batch(root, **offsets).partitions()


@pytest.mark.parametrize("end", ["999", "-2h", "1970-01-01"])
def test_end_time_before_the_start_time_is_refused_even_without_events_between(
    root: str, end: str
) -> None:
    fill(created(root), 0, 5)
    times = {"startingtimestamp": "1000" if end != "-2h" else "-1h", "endingtimestamp": end}
    times["startingoffsetsbytimestampstrategy"] = "latest"
    reason = "the end is a time before the start; exchange startingTimestamp and endingTimestamp"
    with pytest.raises(InvalidOption, match=reason):
        batch(root, **times).partitions()
    with pytest.raises(InvalidOption, match=reason):
        first_batch(streaming(root, **times))
    batch(root, startingtimestamp="1000", endingtimestamp="1000").partitions()


def test_end_before_start_is_refused_for_a_streaming_query(root: str) -> None:
    fill(created(root), 0, 5)
    offsets = {"startingoffsets": '{"s/a": {"0#0": 3}}', "endingoffsets": '{"s/a": {"0#0": 2}}'}
    with pytest.raises(InvalidOption, match=r"end s/a@1:0#0=2 is before the start s/a@1:0#0=3"):
        first_batch(streaming(root, **offsets))


@pytest.mark.parametrize("start", [{"startingoffsets": "latest"}, {"startingoffsets": ""}])
@pytest.mark.parametrize(
    "end",
    [
        {"endingoffsets": "earliest"},
        {"endingoffsets": '{"s/a": {"0#0": 4}}'},
        {"endingstreamcut": "s/a@1:0#0=4"},
        {"endingtimestamp": "1000"},
    ],
)
def test_end_before_the_tail_is_refused_for_a_query_that_starts_at_the_tail(
    root: str, start: dict[str, str], end: dict[str, str]
) -> None:
    fill(created(root), 0, 5)
    options = {name: value for name, value in {**start, **end}.items() if value}
    source = PravegaDataSource({"root": root, "path": "s/a", **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, PravegaStreamReader)
    reason = r"end s/a@1:0#0=[04] is before the start s/a@1:0#0=5; exchange startingOffsets and "
    with pytest.raises(InvalidOption, match=reason):
        first_batch(reader)


def test_end_at_the_start_is_allowed(root: str) -> None:
    fill(created(root), 0, 5)
    for end in ("latest", '{"s/a": {"0#0": 5}}'):
        reader = streaming(root, startingoffsets="latest", endingoffsets=end)
        assert first_batch(reader) == reader.initialOffset()


def test_first_batch_is_replayed_after_the_tail_has_passed_the_end(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 5)
    before = streaming(root, startingoffsets="latest")
    start = before.initialOffset()
    fill(stream, 5, 8)
    end = before.latestOffset(start, ReadAllAvailable())
    fill(stream, 8, 9)
    ending = '{"s/a": {"0#0": 8}}'
    again = streaming(root, startingoffsets="latest", endingoffsets=ending)
    first = again.initialOffset()
    assert events(rows(again, again.partitions(first, end))) == [5, 6, 7]
    assert again.latestOffset(end, ReadAllAvailable()) == end


def test_cut_of_an_earlier_life_or_another_stream_is_refused(root: str) -> None:
    fill(created(root), 0, 5)
    with pytest.raises(InvalidInput, match="life"):
        batch(root, startingstreamcut="s/a@7:0#0=1").partitions()
    with pytest.raises(InvalidOption, match="also reads s/a"):
        batch(root, startingstreamcut="s/b@1:0#0=1").partitions()


def test_batch_read_continues_over_scale_events(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 30)
    scale(stream, [0, 1], [(0.0, 0.5), (0.5, 1.0)])
    fill(stream, 30, 60)
    reader = batch(root)
    found = rows(reader, reader.partitions())
    assert sorted(events(found)) == list(range(60))
    assert {row["segment_id"] for row in found} >= {make_segment_id(2, 1), make_segment_id(3, 1)}


def rewrite(stream: StreamLog) -> None:
    """Copy every chunk to a new file, as compaction does, in one commit; delete the old files."""
    old: list[str] = []

    def decide(snapshot: Snapshot | None) -> Body:
        from dataclasses import replace

        adds, removes = [], []
        with stream.log.files() as files:
            for add in files.all():
                old.append(f"{stream.path}/{add.path}")
                stream.store.put(f"{stream.path}/{add.path}.new", stream.store.get(old[-1]))
                adds.append(replace(add, path=f"{add.path}.new", data_change=False))
                removes.append(Remove.of(add, 1, data_change=False))
        return Body("COMPACT", adds=adds, removes=removes)

    stream.view()
    commit(stream.log, decide)
    stream.store.delete(old)


@pytest.mark.parametrize("again", [False, True])
def test_planned_batch_of_a_deleted_stream_fails_or_leaves_it_out(
    root: str, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    fill(created(root, "s/a"), 0, 3)
    fill(created(root, "s/b"), 3, 5)
    options = {"path": "", "subscribe": "s/a,s/b"}
    end = first_batch(streaming(root, **options))
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    if again:
        fill(created(root, "s/a"), 5, 9)
    strict = streaming(root, **options)
    lax = streaming(root, failondataloss="false", **options)
    with pytest.raises(StaleIdentity if again else NoSuchStream):
        strict.partitions(strict.initialOffset(), end)
    start = lax.initialOffset()
    assert events(rows(lax, lax.partitions(start, end))) == [3, 4]
    assert "left a stream out of a planned batch" in caplog.text
    following = lax.latestOffset(end, ReadAllAvailable())
    assert events(rows(lax, lax.partitions(end, following))) == ([5, 6, 7, 8] if again else [])
