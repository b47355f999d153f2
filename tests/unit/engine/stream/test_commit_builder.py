from __future__ import annotations

import json

import pytest

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.layout import epoch_changes
from pravega_spark.engine.layout.epochs import Lineage
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.stream.commit_builder import CommitBuilder
from pravega_spark.engine.stream.records import SegmentRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import InvalidInput, NoSuchSegment
from pravega_spark.values.segments import Epoch, KeyRange, make_segment_id
from tests.harness.fake_runtime import NOW_MS
from tests.harness.small_streams import all_events, make_stream, reopen, staged, write
from tests.harness.small_tables import commit


def chunk(path: str, segment_id: int, rows: int = 2, size_bytes: int = 10) -> StagedChunk:
    return StagedChunk(path, segment_id, rows, 100, size_bytes, 5, 7, 0)


def builder_of(stream: StreamLog) -> CommitBuilder:
    return CommitBuilder(stream.view(), NOW_MS)


def added(builder: CommitBuilder) -> list[tuple[str, str, str]]:
    return [
        (add.path, add.partition["segment_id"], add.partition["base_offset"])
        for add in builder.adds
    ]


def split(builder: CommitBuilder, segment_id: int, *ranges: tuple[float, float]) -> Epoch:
    new = [KeyRange(*r) for r in ranges]
    number = builder.record.next_segment_number
    return epoch_changes.scale(builder, [segment_id], new, NOW_MS, number)


def test_chunks_follow_the_existing_events_in_the_order_of_the_calls() -> None:
    stream = make_stream(segments=2)
    write(stream, [("a", b"xy")])
    taken = next(s for s in (0, 1) if stream.view().segment(s).next_offset)
    builder = builder_of(stream)
    builder.append_chunks([chunk("c1", taken), chunk("c2", 1 - taken, rows=3)])
    builder.append_chunks([chunk("c3", taken, size_bytes=1)])
    assert added(builder) == [
        ("c1", str(taken), "1"),
        ("c2", str(1 - taken), "0"),
        ("c3", str(taken), "3"),
    ]
    assert (builder.rows, builder.size_bytes) == (
        {taken: 4, 1 - taken: 3},
        {taken: 11, 1 - taken: 10},
    )
    assert builder.segment(taken) == SegmentRecord(taken, 5, 13)
    tags = builder.adds[2].tags or {}
    assert (tags["rows"], tags["bytes"], tags["baseBytes"]) == ("2", "1", "12")
    assert stream.view().segment(taken).next_offset == 1, "the view itself does not change"


def test_switch_seals_the_segments_that_the_epoch_lacks_and_opens_new_ones() -> None:
    builder = builder_of(make_stream(segments=2))
    builder.switch(split(builder, 0, (0, 0.25), (0.25, 0.5)))
    two, three = make_segment_id(2, 1), make_segment_id(3, 1)
    assert builder.active.segment_ids == (two, three, 1)
    assert [builder.segment(s).sealed_epoch for s in (0, two, three, 1)] == [1, None, None, None]
    assert (builder.record.active_epoch, builder.record.next_segment_number) == (1, 4)
    with pytest.raises(AssertionError, match="sealed segment"):
        builder.append_chunks([chunk("late", 0)])
    builder.append_chunks([chunk("c", two), chunk("d", 1)])
    assert added(builder) == [("c", str(two), "0"), ("d", "1", "0")]


def test_one_commit_may_switch_several_times() -> None:
    builder = builder_of(make_stream(segments=2))
    first = builder.active
    builder.append_chunks([chunk("a", 0)])
    builder.switch(epoch_changes.duplicate(first, 1, NOW_MS + 1))
    builder.append_chunks([chunk("b", make_segment_id(0, 1))])
    builder.switch(epoch_changes.duplicate(first, 2, NOW_MS + 2))
    with pytest.raises(AssertionError):
        builder.switch(epoch_changes.duplicate(first, 2, NOW_MS + 2))
    assert builder.record.next_segment_number == 2
    assert builder.segment(make_segment_id(0, 1)) == SegmentRecord(make_segment_id(0, 1), 2, 10, 2)
    lineage = Lineage(builder)
    assert lineage.find(make_segment_id(1, 1)).key_range == KeyRange(0.5, 1.0)
    assert [s.epoch for s in lineage.successors(lineage.find(0))] == [1]


def test_builder_is_a_layout_as_the_view_is() -> None:
    stream = make_stream(segments=2)
    view, builder = stream.view(), builder_of(stream)
    assert (builder.stream, builder.life, builder.oldest_epoch) == ("s/t", 1, 0)
    assert (builder.head, builder.active, builder.epoch(0)) == (
        view.head,
        view.active,
        view.epoch(0),
    )
    assert builder.has_segment(1)
    assert not builder.has_segment(2)
    with pytest.raises(NoSuchSegment):
        builder.segment(2)
    with pytest.raises(InvalidInput):
        builder.epoch(1)


def test_body_without_changes_is_empty() -> None:
    body = builder_of(make_stream()).body("NOTHING", {"why": "a test"})
    assert (body.operation, body.parameters, body.metrics) == ("NOTHING", {"why": "a test"}, {})
    assert (list(body.adds), dict(body.domains)) == ([], {})


def test_body_holds_changed_records_only() -> None:
    builder = builder_of(make_stream(segments=2))
    builder.append_chunks([chunk("a", 1)])
    assert set(builder.body("APPEND").domains) == {"pravega.segment.1"}
    builder.switch(split(builder, 0, (0, 0.5)))
    assert set(builder.body("X").domains) == {
        "pravega.stream",
        "pravega.epoch.1",
        "pravega.segment.0",
        "pravega.segment.1",
        f"pravega.segment.{make_segment_id(2, 1)}",
    }


def test_body_counts_its_events_and_bytes() -> None:
    builder = builder_of(make_stream(segments=2))
    builder.append_chunks([chunk("a", 1), chunk("b", 0, rows=3), chunk("c", 1)])
    assert builder.body("APPEND").metrics == {
        "numOutputRows": 7,
        "numOutputBytes": 30,
        "numFiles": 3,
        "rowsBySegment": "0#0=3,1#0=4",
        "bytesBySegment": "0#0=10,1#0=20",
    }


def test_empty_chunk_is_refused() -> None:
    with pytest.raises(AssertionError, match="chunk a is empty"):
        builder_of(make_stream()).append_chunks([chunk("a", 0, rows=0)])


def test_committed_changes_read_back() -> None:
    stream = make_stream(segments=2)
    chunks = staged(stream, [(f"k{n}", b"%d" % n) for n in range(9)])

    def decide(snapshot: Snapshot | None) -> Body:
        assert snapshot is not None
        builder = CommitBuilder(StreamView(snapshot), NOW_MS)
        builder.append_chunks(chunks)
        builder.switch(split(builder, 0, (0, 0.5)))
        return builder.body("TEST")

    commit(stream.log, decide)
    fresh = reopen(stream)
    assert sorted(event for _, event in all_events(fresh)) == [b"%d" % n for n in range(9)]
    view = fresh.view()
    assert view.active.number == 1
    assert view.segment(0).sealed_epoch == 1
    (found,) = fresh.log.reader.span(0, 1)
    assert json.loads(found.info["operationMetrics"]["numOutputRows"]) == 9
