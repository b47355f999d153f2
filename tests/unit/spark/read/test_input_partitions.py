"""Input partitions as tasks read them, without Spark: plan, pickle, read."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql.datasource import InputPartition

from pravega_spark.engine.log.actions import Body, Remove
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    DataLoss,
    StaleIdentity,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read.filters import EventFilter
from pravega_spark.spark.read.partitions import (
    EventPartition,
    PlannedChunks,
    PlannedRange,
    by_offset,
    partition_counts,
)
from pravega_spark.spark.versions import (
    ReadAllAvailable,
)
from pravega_spark.values.segments import SegmentRange
from tests.harness.small_streams import created
from tests.harness.small_tables import commit
from tests.harness.spark_reading import batch_reader, events, fill, rows, stream_reader


def test_large_segments_are_split_at_chunk_borders(root: str) -> None:
    stream = created(root)
    for i in range(4):
        fill(stream, 10 * i, 10 * i + 10)
    rng = SegmentRange("s/a", 1, 0, 3, 38)
    refs = PlannedChunks(stream.chunks(rng))
    pieces = by_offset(
        PlannedRange(rng, refs, EventFilter()), 1, max_bytes=2 * max(ref.size for ref in refs)
    )
    assert [(p.rng.start, p.rng.end, len(p.refs)) for p in pieces] == [(3, 20, 2), (20, 38, 2)]


def test_wanted_partitions_are_shared_by_length() -> None:
    ranges = [SegmentRange("s/a", 1, s, 0, n) for s, n in ((0, 100), (1, 300), (2, 1))]
    assert partition_counts(ranges, 0) == [1, 1, 1]
    assert partition_counts(ranges, 9) == [2, 6, 1]


def test_sparks_partition_of_an_empty_plan_reads_nothing(root: str) -> None:
    created(root)
    assert batch_reader(root).partitions() == []
    assert list(batch_reader(root).read(InputPartition(None))) == []
    assert list(stream_reader(root).read(InputPartition(None))) == []


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


def test_compaction_between_planning_and_reading_changes_nothing(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    fill(stream, 10, 20)
    reader = stream_reader(root)
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
    reader = batch_reader(root)
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
    reader = batch_reader(root)
    planned = reader.partitions()
    assert isinstance(planned[0], EventPartition)
    stream.store.delete([f"{stream.path}/{planned[0].ranges[0].refs[1].path}"])
    with pytest.raises(DataLoss, match=r"s/a segment 0#0 \[10, 20\) is lost"):
        rows(reader, planned)
    lax = batch_reader(root, failondataloss="false")
    with caplog.at_level(logging.WARNING):
        assert events(rows(lax, lax.partitions())) == [*range(10), *range(20, 30)]
    assert "skipped 10 events of s/a segment 0#0 [10, 20)" in caplog.text


def test_partition_of_an_earlier_life_is_refused(root: str) -> None:
    fill(created(root), 0, 5)
    reader = batch_reader(root)
    planned = reader.partitions()
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    fill(created(root), 5, 10)
    with pytest.raises(StaleIdentity):
        rows(reader, planned)
