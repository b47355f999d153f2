"""The streaming reader as Spark 4.0 and 4.1 call it, which tell neither trigger nor limits."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from pravega_spark.errors import InvalidOption, ReinitializationRequired, TruncatedData
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.spark.key_value.change_feed import TableChangeStream
from pravega_spark.spark.key_value.source import KeyValueDataSource
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.versions import ReadMaxRows
from tests.harness.releases import run_release
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

    def start_available_now(self, **options: str) -> Run:
        """Start a run with Trigger.AvailableNow."""
        return Run(self, stream_reader(self.root, **options), available_now=True)

    def run_available_now(self, **options: str) -> list[list[int]]:
        """Return the batches of a run with Trigger.AvailableNow."""
        run = self.start_available_now(**options)
        return list(iter(run.batch, None))


class Run:
    """One run of a query."""

    def __init__(
        self, query: Query, reader: PravegaStreamReader, *, available_now: bool = False
    ) -> None:
        self.query, self.reader = query, reader
        self._end = reader.latestOffset() if available_now else None
        self._is_repeated = query.done < len(query.batches)
        if query.batches:
            at = text(query.batches[-1])
            assert reader.partitions(json.loads(at), json.loads(at)) == []

    def batch(self, *, fails: bool = False) -> list[int] | None:
        """Return what the next micro-batch reads; None if there is none."""
        if not self._is_repeated:
            end = json.loads(text(self._next()))
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

    def _next(self) -> Offset:
        if self._end is None:
            return self.reader.latestOffset()
        self.reader.latestOffset()  # for the report of the run's progress
        return self._end


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


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_restart_from_latest_goes_on_at_the_checkpoint(
    root: str, query: Query, fails: bool, available_now: bool
) -> None:
    stream = created(root)
    fill(stream, 0, 10)

    def start() -> Run:
        begin = query.start_available_now if available_now else query.start
        return begin(startingoffsets="latest", **LIMIT)

    assert start().batch() == []
    fill(stream, 10, 30)
    assert start().batch(fails=fails) == list(range(10, 30))
    fill(stream, 30, 50)
    run = start()
    if fails:
        assert run.batch() == list(range(10, 30))
    assert run.batch() == list(range(30, 50))
    assert run.batch() is None
    told = stream_reader(root, startingoffsets="latest")
    fill(stream, 50, 60)
    end = told.latestOffset(query.batches[-1], ReadMaxRows(1))
    assert events(rows(told, told.partitions(query.batches[-1], end))) == list(range(50, 60))


@pytest.mark.parametrize("available_now", [False, True])
def test_crash_in_the_first_batch_from_latest_loses_nothing(
    root: str, query: Query, available_now: bool
) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    first = stream_reader(root, startingoffsets="latest")
    start = first.latestOffset()
    fill(stream, 10, 20)
    query.batches.append(start)
    fill(stream, 20, 30)
    begin = query.start_available_now if available_now else query.start
    run = begin(startingoffsets="latest")
    assert [run.batch(), run.batch(), run.batch()] == [[], list(range(10, 30)), None]


def test_available_now_reads_to_the_tails_of_its_start_in_one_batch(
    root: str, query: Query
) -> None:
    stream = created(root)
    fill(stream, 0, 20)
    run = query.start_available_now(**LIMIT)
    fill(stream, 20, 30)
    assert [run.batch(), run.batch()] == [list(range(20)), None]
    scale(stream, stream.view().active.segment_ids, [(0.0, 0.5), (0.5, 1.0)])
    fill(stream, 30, 40)
    (found,) = query.run_available_now(**LIMIT)
    assert sorted(found) == list(range(20, 40))
    assert query.run_available_now(**LIMIT) == []


def test_available_now_without_news_has_no_batch(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 20)
    latest = {"startingoffsets": "latest"}
    query.run_available_now(**latest)
    fill(stream, 20, 30)
    assert query.run_available_now(**latest) == [list(range(20, 30))]
    assert query.run_available_now(**latest) == []
    assert query.start(**latest).batch() is None


def test_available_now_goes_on_where_the_start_has_no_place_any_more(
    root: str, query: Query
) -> None:
    stream = created(root)
    fill(stream, 0, 20)
    start = {"startingoffsets": json.dumps({"s/a": {"0#0": 5}})}
    assert query.run_available_now(**start) == [list(range(5, 20))]
    fill(stream, 20, 30)
    truncate(stream, {0: 20})
    assert query.run_available_now(**start) == [list(range(20, 30))]
    with pytest.raises(TruncatedData):
        Query(root).run_available_now(**start)


def test_available_now_reads_a_new_stream_from_its_head(root: str, query: Query) -> None:
    options = {"path": "", "subscribepattern": "s/.*", "startingoffsets": "latest"}
    fill(created(root), 0, 10)
    query.run_available_now(**options)
    fill(created(root, "s/b"), 10, 20)
    run = query.start_available_now(**options)
    assert run.batch(fails=True) == list(range(10, 20))
    again = query.start_available_now(**options)
    assert again.batch() == list(range(10, 20)), "as another process plans it"


def test_available_now_has_the_guards_against_loss(root: str, query: Query) -> None:
    stream = created(root)
    fill(stream, 0, 10)
    query.run_available_now()
    fill(stream, 10, 30)
    truncate(stream, {0: 20})
    before = len(query.batches)
    with pytest.raises(TruncatedData):
        query.run_available_now()
    assert len(query.batches) == before, "before Spark records a batch"
    assert query.run_available_now(failondataloss="false") == [list(range(20, 30))]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"limitfirstbatch": "true"}, "limitFirstBatch is not for Trigger.AvailableNow"),
        ({"endingoffsets": json.dumps({"s/a": {"0#0": 1, "1#0": 1}})}, "where stream s/a ends"),
        ({"assign": json.dumps({"s/a": ["0#0"]}), "path": ""}, "did not read|no longer"),
        ({"path": "s/b", "failondataloss": "false"}, "the streams"),
    ],
)
def test_available_now_refuses_options_that_its_answer_cannot_know(
    root: str, query: Query, options: dict[str, str], error: str
) -> None:
    fill(created(root, segments=2), 0, 10)
    fill(created(root, "s/b"), 10, 20)
    query.run_available_now()
    before = len(query.batches)
    with pytest.raises(InvalidOption, match=error):
        query.run_available_now(**options)
    assert len(query.batches) == before


def test_available_now_refuses_to_limit_its_only_batch(root: str, query: Query) -> None:
    fill(created(root), 0, 20)
    with pytest.raises(InvalidOption, match=r"limitFirstBatch is not for Trigger\.AvailableNow"):
        query.run_available_now(limitfirstbatch="true")
    assert query.batches == []


def test_available_now_reports_its_batch_to_the_group_and_leaves_it(
    root: str, query: Query
) -> None:
    stream = created(root)
    fill(stream, 0, 20)
    options = {"readergroup": "s/g", "startingoffsets": "latest"}
    query.run_available_now(**options)
    for last in (30, 40):
        fill(stream, last - 10, last)
        assert query.run_available_now(**options) == [list(range(last - 10, last))]
        group = StreamManager(root).reader_group("s/g")
        assert group.stream_cuts()["s/a"].positions == {0: last}
        assert group.online_readers() == []


def test_group_that_was_deleted_or_reset_stops_the_query(root: str, query: Query) -> None:
    manager, stream = StreamManager(root), created(root)
    fill(stream, 0, 20)
    options = {"readergroup": "s/g"}
    query.run_available_now(**options)
    fill(stream, 20, 30)
    query.run_available_now(**options)
    manager.delete_reader_group("s/g")
    with pytest.raises(ReinitializationRequired, match="was deleted"):
        query.run_available_now(**options)


def test_a_run_without_news_gives_the_text_of_the_checkpoint(root: str, query: Query) -> None:
    fill(created(root, segments=3), 0, 30)
    query.start().batch()
    assert query.start().batch() is None
    assert query.start(**LIMIT).batch() is None
    assert query.run_available_now() == []


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


EARLIER = """
import json, sys
from pravega_spark.errors import InvalidInput
from pravega_spark.spark.source_offsets import decode
try:
    print(decode(json.loads(sys.argv[1])))
except InvalidInput as error:
    print(error)
"""


def test_release_010_refuses_an_answer_and_takes_what_follows_in_the_same_run(
    root: str, query: Query
) -> None:
    stream = created(root)
    fill(stream, 0, 20)
    run = query.start(startingoffsets="latest")
    run.batch()
    fill(stream, 20, 30)
    run.batch()
    untold, told = map(text, query.batches)
    assert "to a later version" in run_release("0.1.0", EARLIER, untold)
    assert "positions=mappingproxy({0: 30})" in run_release("0.1.0", EARLIER, told)
