"""The streaming reader as Spark 4.0 and 4.1 call it, which tell neither trigger nor limits."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from pravega_spark.errors import IllegalState, TruncatedData
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.spark.frames.reading import read_schema
from pravega_spark.spark.key_value.change_feed import TableChangeStream
from pravega_spark.spark.key_value.source import KeyValueDataSource
from pravega_spark.spark.read import micro_batch
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.versions import ReadMaxRows
from tests.harness.small_streams import created, scale
from tests.harness.spark_reading import events, fill, rows, stream_reader
from tests.harness.truncating import truncate

Offset = dict[str, Any]


class Query:
    """A query with a checkpoint, which calls its source in the order in which old Sparks do."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.batches: list[Offset] = []
        self.done = 0

    def start(self, **options: str) -> Run:
        """Start a run, in a new process of the source."""
        return Run(self, stream_reader(self.root, **options))


class Run:
    """One run of a query."""

    def __init__(self, query: Query, reader: PravegaStreamReader) -> None:
        self.query, self.reader = query, reader
        self._is_repeated = query.done < len(query.batches)
        if query.batches:
            at = text(query.batches[-1])
            assert reader.partitions(json.loads(at), json.loads(at)) == []

    def batch(self, *, fails: bool = False) -> list[int] | None:
        """Return what the next micro-batch reads; None if there is none."""
        if not self._is_repeated:
            end = json.loads(text(self.reader.latestOffset()))
            if self.query.batches and text(end) == text(self.query.batches[-1]):
                return None
            self.query.batches.append(end)
        self._is_repeated = False
        before = self.query.batches[-2:-1]
        start = before[0] if before else json.loads(text(self.reader.initialOffset()))
        parts = self.reader.partitions(start, self.query.batches[-1])
        found = events(rows(self.reader, parts))
        self.query.done += not fails
        return found


def text(offset: Offset) -> str:
    return json.dumps(offset)


@pytest.fixture
def query(root: str) -> Query:
    return Query(root)


LIMIT = {"maxoffsetspertrigger": "10"}


def test_first_batch_of_a_run_reads_all_and_later_ones_obey_the_limits(
    root: str, query: Query
) -> None:
    stream = created(root)
    fill(stream, 0, 25)
    run = query.start(**LIMIT)
    assert run.batch() == list(range(25))
    fill(stream, 25, 50)
    assert [run.batch(), run.batch()] == [list(range(25, 35)), list(range(35, 45))]
    again = query.start(**LIMIT)
    fill(stream, 50, 70)
    assert again.batch() == list(range(45, 70))
    assert again.batch() is None


def test_only_the_first_answer_of_a_run_is_without_limits(root: str, query: Query) -> None:
    stream = created(root)
    run = query.start(**LIMIT)
    assert run.batch() == []  # a new query always runs one
    assert run.batch() is None
    fill(stream, 0, 25)
    assert run.batch() == list(range(10))


def test_an_option_limits_the_first_batch(root: str, query: Query) -> None:
    fill(created(root), 0, 25)
    run = query.start(**LIMIT, limitfirstbatch="true")
    assert run.batch() == list(range(10))
    again = query.start(**LIMIT, limitfirstbatch="true")
    assert [again.batch(), again.batch(), again.batch()] == [
        list(range(10, 20)),
        list(range(20, 25)),
        None,
    ]


def test_first_batch_reads_over_scales_each_key_in_one_task_and_in_order(
    root: str, query: Query
) -> None:
    stream = created(root, segments=2)
    for first, segments, ranges in (
        (0, [0, 1], [(0.0, 1.0)]),
        (200, None, [(0.0, 0.3), (0.3, 1.0)]),
        (400, None, [(0.0, 1.0)]),
    ):
        fill(stream, first, first + 200, keys=11)
        scale(stream, segments or stream.view().active.segment_ids, ranges)
    fill(stream, 600, 800, keys=11)
    reader = stream_reader(root, minpartitions="4", **LIMIT)
    end = reader.latestOffset()
    parts = [rows(reader, [part]) for part in reader.partitions(reader.initialOffset(), end)]
    assert sorted(event for part in parts for event in events(part)) == list(range(800))
    for key in (f"k{i}" for i in range(11)):
        held = [events([row for row in part if row["routing_key"] == key]) for part in parts]
        (alone,) = filter(None, held)
        assert alone == sorted(alone)
    assert text(reader.latestOffset()) == text(end)


@pytest.mark.parametrize("fails", [False, True])
def test_restart_from_latest_goes_on_at_the_checkpoint(
    root: str, query: Query, fails: bool
) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    options = {"startingoffsets": "latest", **LIMIT}
    assert query.start(**options).batch() == []
    fill(stream, 10, 30)
    assert query.start(**options).batch(fails=fails) == list(range(10, 30))
    fill(stream, 30, 50)
    run = query.start(**options)
    if fails:
        assert run.batch() == list(range(10, 30))
    assert run.batch() == list(range(30, 50))


def test_crash_in_the_first_batch_from_latest_loses_nothing(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    options = {"startingoffsets": "latest", **LIMIT}
    assert query.start(**options).batch(fails=True) == []
    fill(stream, 10, 30)
    run = query.start(**options)
    assert [run.batch(), run.batch()] == [[], list(range(10, 30))]


def test_another_spark_goes_on_and_back(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    latest = {"startingoffsets": "latest"}
    query.start(**latest).batch()
    fill(stream, 10, 20)
    told = stream_reader(root, **latest)
    end = told.latestOffset(query.batches[-1], ReadMaxRows(1))
    assert events(rows(told, told.partitions(query.batches[-1], end))) == list(range(10, 20))
    query.batches.append(end)
    fill(stream, 20, 30)
    run = query.start(**latest)
    assert [run.batch(), run.batch()] == [list(range(10, 20)), list(range(20, 30))], "repeated"


def test_guards_against_loss_hold_before_a_batch_is_recorded(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    query.start().batch()
    fill(stream, 10, 30)
    truncate(stream, {0: 20})
    with pytest.raises(TruncatedData):
        query.start().batch()
    assert len(query.batches) == 1
    assert query.start(failondataloss="false").batch() == list(range(20, 30))


def test_asking_for_the_end_before_the_start_is_named_is_refused(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    query.start().batch()
    fill(stream, 10, 20)
    reader = stream_reader(root)
    reader.latestOffset()
    with pytest.raises(IllegalState, match=r"NowWrapper\.enabled.*Set it to false"):
        reader.partitions(query.batches[-1], query.batches[-1])


def test_a_run_without_news_gives_the_text_of_the_checkpoint(root: str, query: Query) -> None:
    fill(created(root, segments=3), 0, 30)
    query.start().batch()
    assert query.start().batch() is None
    assert query.start(**LIMIT).batch() is None


def test_group_is_told_of_the_batches_before_the_last_one(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 20)
    options = {"readergroup": "s/g", "readergroupinterval": "1ms"}
    run = query.start(**options)
    run.batch()
    fill(stream, 20, 30)
    group = StreamManager(root).reader_group("s/g")
    assert group.stream_cuts()["s/a"].positions == {0: 0}
    run.batch()
    assert group.stream_cuts()["s/a"].positions == {0: 20}
    run.reader.stop()


def test_minimum_of_a_batch_holds_from_the_second_one_on(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 5)
    run = query.start(minoffsetspertrigger="10")
    assert run.batch() == list(range(5))
    fill(stream, 5, 10)
    assert run.batch() is None
    fill(stream, 10, 15)
    assert run.batch() == list(range(5, 15))


def test_each_run_says_once_what_it_does_otherwise(
    root: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    fill(created(root), 0, 5)
    with caplog.at_level(logging.WARNING):
        run = query.start()
        run.batch()
        run.batch()
        told = stream_reader(root)
        told.latestOffset(told.initialOffset(), ReadMaxRows(1))
    (record,) = [one for one in caplog.records if "tells a source neither" in one.message]
    assert "a query of s/a" in record.message


def repeats(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.message for one in caplog.records if "this run repeats" in one.message]


def test_run_that_repeats_a_planned_batch_says_so_once(
    root: str, query: Query, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(micro_batch, "HAS_TRIGGERS", False)
    stream = created(root)
    fill(stream, 0, 5)
    with caplog.at_level(logging.WARNING):
        query.start().batch()
        fill(stream, 5, 10)
        query.start().batch(fails=True)
        assert repeats(caplog) == []
        fill(stream, 10, 15)
        run = query.start()
        assert run.batch() == list(range(5, 10))
        run.reader.partitions(*query.batches)  # as for each use of the frame in a self-join
        (message,) = repeats(caplog)
        assert "a query of s/a: this run repeats" in message
        assert "start it once more for the rest" in message
        assert run.batch() == list(range(10, 15))
        assert query.start().batch() is None
        assert len(repeats(caplog)) == 1


@pytest.mark.parametrize("has_triggers", [False, True])
def test_told_run_that_repeats_a_batch_goes_on_and_says_nothing(
    root: str,
    query: Query,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    has_triggers: bool,
) -> None:
    monkeypatch.setattr(micro_batch, "HAS_TRIGGERS", has_triggers)
    fill(created(root), 0, 5)
    query.start().batch(fails=True)
    reader = stream_reader(root)
    if not has_triggers:  # one of our own planners, which tell all
        reader = PravegaStreamReader(reader.settings, read_schema(reader.settings), is_told=True)
    with caplog.at_level(logging.WARNING):
        assert reader.partitions(reader.initialOffset(), query.batches[0])
    assert repeats(caplog) == []


def test_change_feed_is_called_likewise(root: str) -> None:
    manager = StreamManager(root)
    manager.create_key_value_table("s/t", KeyValueTableConfiguration(key_type="string"))
    table = manager.key_value_table("s/t")
    for number in range(3):
        table.put(f"k{number}", b"%d" % number).result()
    options = {"root": root, "path": "s/t", "readchangefeed": "true", "startingversion": "1"}
    source = KeyValueDataSource({**options, **LIMIT})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, TableChangeStream)
    end = reader.latestOffset()
    assert len(rows(reader, reader.partitions(reader.initialOffset(), end))) == 3
