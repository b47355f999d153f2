"""Reads of many streams: what they ask a distant store, at the same time and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store import open_store, opening
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchStream, StoreError
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.metadata.reader import TABLES
from pravega_spark.spark.monitor.query_lag import lag_of
from pravega_spark.spark.native.relation import NativeColumns
from pravega_spark.spark.read.batch import PravegaBatchReader
from pravega_spark.spark.read.micro_batch import IdlePace
from pravega_spark.spark.read.offsets import OffsetPlanner
from pravega_spark.spark.settings import read_settings
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.versions import ReadAllAvailable
from pravega_spark.values.limits import (
    CHECK_THREADS,
    IDLE_LOOK_SECONDS,
    IDLE_LOOK_SHARE,
    STREAM_REFRESH_SECONDS,
)
from pravega_spark.values.segments import StreamCut
from tests.harness.distant_store import Distant

NAMES = [f"s/n{number:02}" for number in range(CHECK_THREADS + 8)]
TYPED = StreamConfiguration(ScalingPolicy.fixed(1), schema=pa.schema([("x", pa.int32())]))


@pytest.fixture
def process(root: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Distant]:
    """Return a function that forgets all, as a new process: it opens the root by a new store.

    The root has an event in each of many typed streams.
    """
    store = open_store(root)
    for name in NAMES:
        lifecycle.create(StreamLog(store, name), 1, TYPED)
        with EventStreamWriter(StreamLog(store, name)) as writer:
            writer.write_event({"x": 1}, "key").result()

    def begin() -> Distant:
        distant = Distant(root, "s/n")
        monkeypatch.setattr(opening, "_open", lambda address, options: distant)
        return distant

    return begin


def source(root: str, **options: str) -> PravegaDataSource:
    given = {"root": root, "subscribe": ",".join(NAMES), "startingoffsets": "earliest"}
    return PravegaDataSource({**given, **options})


def names_of(partitions: Iterable[Any]) -> list[str]:
    return [one.rng.stream for partition in partitions for one in partition.ranges]


OPENED = {name: {"get_many": 3, "list": 1} for name in NAMES}
"""Of each stream the hint, its two commits, and a listing of those after them."""
LOOKED_AT = {name: {"get": 1} for name in NAMES}
"""Of each stream the next commit, which is absent."""


@pytest.mark.medium
def test_load_and_the_plan_of_a_batch_ask_many_streams_at_once_and_each_once(
    root: str, process: Callable[[], Distant]
) -> None:
    distant = process()
    with distant.together(CHECK_THREADS):
        schema = source(root).schema()
    assert distant.asked() == OPENED
    distant = process()
    with distant.together(CHECK_THREADS):
        found = source(root).reader(schema).partitions()
    assert distant.asked() == OPENED
    assert names_of(found) == NAMES
    distant = process()
    with distant.together(CHECK_THREADS):
        columns = NativeColumns(read_settings({**source(root).options, "schema": "raw"}))
        reader = PravegaBatchReader(
            read_settings(dict(source(root).options)), schema, columns.since
        )
        assert names_of(reader.partitions()) == NAMES
    assert distant.asked() == OPENED


@pytest.mark.medium
def test_query_opens_each_stream_once_and_an_idle_look_asks_each_one_question(
    root: str, process: Callable[[], Distant]
) -> None:
    schema = source(root).schema()
    distant = process()
    with distant.together(CHECK_THREADS):
        reader: Any = source(root).streamReader(schema)
        start = reader.initialOffset()
        assert start == reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        found = reader.partitions(start, end)
    assert distant.asked() == OPENED
    assert names_of(found) == NAMES
    now = [0.0]
    run = OffsetPlanner(reader.settings, lambda: now[0], reader.since)
    at = run.next_offsets(run.initial_offsets(), limited=False)
    assert distant.asked() == {}
    for _ in range(2):
        now[0] += STREAM_REFRESH_SECONDS
        with distant.together(CHECK_THREADS):
            assert run.next_offsets(at, limited=False) == at
        assert run.next_offsets(at, limited=False) == at
        assert distant.asked() == LOOKED_AT
    assert list(at) == NAMES


@pytest.mark.medium
def test_watermark_asks_each_stream_that_holds_it_for_its_age_once_and_the_root_once(
    root: str, process: Callable[[], Distant]
) -> None:
    found = source(root, includewatermark="true")
    schema = found.schema()
    distant = process()
    reader: Any = found.streamReader(schema)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    distant.calls.clear()
    with distant.together(CHECK_THREADS):
        (partition, *_) = reader.partitions(start, end)
    assert partition.watermark_us is None  # nobody noted a time
    others = [operation for operation, key in distant.calls if not key.startswith("s/n")]
    assert others.count("time_ms") <= 1
    assert len(others) <= 8
    assert distant.asked() == {name: {"modified_ms": 1, "get": 1} for name in NAMES}
    reader.partitions(start, end)
    assert distant.asked() == {}


@pytest.mark.medium
def test_metadata_and_the_lag_of_a_query_or_a_group_are_of_many_streams_at_once(
    root: str, process: Callable[[], Distant]
) -> None:
    manager = StreamManager(root)
    manager.create_reader_group("s/group", dict.fromkeys(NAMES, StreamCut.EARLIEST))
    found = source(root)
    reader: Any = found.streamReader(found.schema())
    end = {"endOffset": reader.initialOffset()}
    times = {"id": "q", "runId": "r", "batchId": 0, "timestamp": "2024-01-01T00:00:00Z"}
    distant = process()
    with distant.together(CHECK_THREADS):
        lag = lag_of({**times, "sources": [end]})
    assert [segment.stream for segment in lag.segments] == NAMES
    assert lag.backlog_records == len(NAMES)
    distant = process()
    with distant.together(CHECK_THREADS):
        metadata: Any = source(root, metadata="StreamInfo", startingoffsets="").reader(
            TABLES["StreamInfo"].schema
        )
        (partition,) = metadata.partitions()
        (batch,) = metadata.read(partition)
    assert batch.column("stream").to_pylist() == [name.partition("/")[2] for name in NAMES]
    distant = process()
    group = StreamManager(root).reader_group("s/group")
    with distant.together(CHECK_THREADS):
        assert [segment.stream for segment in group.lag().segments] == NAMES


@pytest.mark.medium
def test_error_names_the_first_stream_that_fails_and_the_next_look_goes_on(
    root: str, process: Callable[[], Distant]
) -> None:
    schema = source(root).schema()
    distant = process()
    reader: Any = source(root).streamReader(schema)
    now = [0.0]
    run = OffsetPlanner(reader.settings, lambda: now[0], reader.since)
    at = run.next_offsets(run.initial_offsets(), limited=False)
    for number in (3, 9):
        with EventStreamWriter(StreamLog(open_store(root), NAMES[number])) as writer:
            writer.write_event({"x": 2}, "key").result()
    for _ in range(5):
        now[0] += STREAM_REFRESH_SECONDS
        distant.refused = NAMES[9], NAMES[5], NAMES[30]
        with pytest.raises(StoreError, match=f"{NAMES[5]}/.*: refused"):
            run.next_offsets(at, limited=False)
    distant.refused = ()
    end = run.next_offsets(at, limited=False)
    assert [name for name in NAMES if end[name] != at[name]] == [NAMES[3], NAMES[9]]
    process().refused = NAMES[9], NAMES[5], NAMES[30]
    for plan in (source(root).schema, lambda: source(root).reader(schema)):
        with pytest.raises(StoreError, match=f"{NAMES[5]}/.*: refused"):
            plan()


@pytest.mark.medium
def test_missing_streams_are_left_out_in_order_of_their_names(
    root: str, process: Callable[[], Distant]
) -> None:
    named = ",".join(["s/none", *NAMES, "s/nothing"])
    schema = source(root).schema()
    process()
    reader: Any = source(root, subscribe=named, failondataloss="false").streamReader(schema)
    assert list(reader.initialOffset()["streams"]) == NAMES
    process()
    reader = source(root, subscribe=named).streamReader(schema)
    with pytest.raises(NoSuchStream, match="stream s/none does not exist"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())


@pytest.mark.medium
def test_plan_sees_what_was_written_since_an_earlier_plan_of_the_process(
    root: str, process: Callable[[], Distant]
) -> None:
    process()
    reader = source(root).reader(source(root).schema())
    before = reader.partitions()
    with EventStreamWriter(StreamLog(open_store(root), NAMES[7])) as writer:
        writer.write_event({"x": 2}, "key").result()
    assert names_of(before) == NAMES
    for later in (reader, source(root).reader(source(root).schema())):
        found: Any = later.partitions()
        counts = [len(one.rng) for partition in found for one in partition.ranges]
        assert counts == [1 + (name == NAMES[7]) for name in NAMES]


@pytest.mark.parametrize(
    ("took", "pause"),
    [
        (0.0, IDLE_LOOK_SECONDS),
        (0.02, 0.02 * IDLE_LOOK_SHARE),
        (0.5, STREAM_REFRESH_SECONDS),
        (2.0, 2.0),
    ],
)
def test_looks_of_an_idle_query_take_a_small_part_of_its_time(took: float, pause: float) -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = IdlePace(lambda: now[0], sleep)
    for number in range(3):
        pace.begin()
        assert now[0] == pytest.approx(100 + number * pause)
        now[0] += took
        pace.found_nothing()
    pace.begin()
    begun = now[0]
    pace.begin()  # the look before has found events
    assert now[0] == begun


def test_only_a_look_after_one_that_found_nothing_rests(root: str) -> None:
    lifecycle.create(StreamLog(open_store(root), NAMES[0]), 1, TYPED)
    found = source(root, subscribe=NAMES[0])
    reader: Any = found.streamReader(found.schema())
    rests: list[float] = []
    reader._pace = IdlePace(lambda: 0.0, rests.append)
    at = reader.initialOffset()
    reader.latestOffset(at, ReadAllAvailable())
    assert rests == []
    with EventStreamWriter(StreamLog(open_store(root), NAMES[0])) as writer:
        writer.write_event({"x": 1}, "key").result()
    at = reader.latestOffset(at, ReadAllAvailable())
    assert len(rests) == 1
    reader.latestOffset(at, ReadAllAvailable())
    assert len(rests) == 1


@pytest.mark.medium
def test_query_reports_to_its_group_and_to_many_streams_at_once(
    root: str, process: Callable[[], Distant]
) -> None:
    found = source(root, readergroup="s/group", readergroupmode="subscriber")
    schema = found.schema()
    distant = process()
    with distant.together(CHECK_THREADS, "put_if_absent"):  # to subscribe
        reader: Any = found.streamReader(schema)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
    assert reader.partitions(start, end)
    reader.stop()
    distant = process()  # as a restart does, from the checkpoint
    reader = found.streamReader(schema)
    with distant.together(CHECK_THREADS, "put_if_absent"):  # to publish
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()
    group = StreamManager(root).reader_group("s/group")
    assert group.lag().events == 0
    assert [len(group.stream_cuts()), sum(group.stream_cuts()["s/n00"].positions.values())] == [
        len(NAMES),
        1,
    ]
