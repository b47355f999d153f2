"""The streaming reader as Spark's processes use it, without Spark: plan, pickle, read."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from pravega_spark.errors import (
    InvalidOption,
    NoSuchStream,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.maintenance.auto import VARIABLE
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read import micro_batch
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.read.partitions import EventPartition
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.versions import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from tests.harness.small_streams import created, scale, write
from tests.harness.spark_reading import batch_reader, events, fill, first_batch, rows, stream_reader
from tests.harness.truncating import truncate


def test_micro_batch_is_split_by_key_and_keeps_order(root: str) -> None:
    stream = created(root, segments=2)
    write(stream, [(f"k{i % 13}" if i % 7 else None, b"%d" % i) for i in range(400)])
    reader = stream_reader(root, minpartitions="6")
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
    first = stream_reader(root, startingoffsets="latest")
    start = first.initialOffset()
    fill(stream, 5, 10)
    end = first.latestOffset(start, ReadAllAvailable())
    fill(stream, 10, 20)
    again = stream_reader(root, startingoffsets="latest")
    late = again.initialOffset()
    assert late != start
    assert events(rows(again, again.partitions(late, end))) == list(range(5, 10))
    rest = again.latestOffset(end, ReadAllAvailable())
    assert events(rows(again, again.partitions(end, rest))) == list(range(10, 20))
    assert again.latestOffset(rest, ReadAllAvailable()) == rest


def test_group_of_a_query_is_at_the_last_batch_that_was_written(root: str) -> None:
    fill(created(root), 0, 10)
    reader = stream_reader(root, readergroup="s/g")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    lag = StreamManager(root).reader_group("s/g").lag
    assert lag().events == 10, "the batch is planned, and not written"
    reader.stop()
    again = stream_reader(root, readergroup="s/g")
    assert again.latestOffset(end, ReadAllAvailable()) == end
    assert lag().events == 0, "Spark asks for the next batch, so that one is written"
    again.stop()


def test_equal_or_reversed_offsets_plan_nothing(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 5)
    reader = stream_reader(root)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(3))
    later = reader.latestOffset(end, ReadMaxRows(3))
    assert reader.partitions(end, end) == []
    assert reader.partitions(later, end) == []


def test_batch_planned_by_an_older_run_is_read_the_same(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 50)
    old = stream_reader(root, maxoffsetspertrigger="20")
    start = old.initialOffset()
    end = old.latestOffset(start, old.getDefaultReadLimit())
    scale(stream, [0, 1], [(0.0, 1.0)])
    fill(stream, 50, 100)
    new = stream_reader(root)
    found = rows(new, new.partitions(start, end))
    assert found == rows(old, old.partitions(start, end))
    assert len(found) == 20


def test_read_limit_follows_the_options_and_all_available_overrides_it(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 50)
    assert stream_reader(root).getDefaultReadLimit() == ReadAllAvailable()
    assert stream_reader(root, minoffsetspertrigger="5").getDefaultReadLimit() == ReadMinRows(5)
    assert stream_reader(root, maxbytespertrigger="1k").getDefaultReadLimit() == ReadMaxBytes(1024)
    reader = stream_reader(root, maxoffsetspertrigger="5", maxbytespertrigger="1k")
    assert reader.getDefaultReadLimit() == ReadMaxRows(5)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(rows(reader, reader.partitions(start, end))) == 50


def test_newest_offset_is_reported(root: str) -> None:
    fill(created(root), 0, 5)
    reader = stream_reader(root, maxoffsetspertrigger="2")
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(2))
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["streams"]["s/a"]["cut"] == {"0#0": 5}


def test_truncation_between_planning_and_reading(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    for i in range(3):
        fill(stream, 10 * i, 10 * i + 10)
    strict, lax = stream_reader(root), stream_reader(root, failondataloss="false")
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
    lax = stream_reader(root, failondataloss="false")
    start = lax.initialOffset()
    planned = lax.partitions(start, lax.latestOffset(start, ReadAllAvailable()))
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.truncate_stream("s/a", "latest")
    assert isinstance(planned[0], EventPartition)
    stream.store.delete([f"{stream.path}/{planned[0].ranges[0].refs[0].path}"])  # as a sweep does
    with caplog.at_level(logging.WARNING):
        assert events(rows(lax, planned)) == []
    assert [r.message.split(":")[1] for r in caplog.records] == [
        " skipped 10 events of s/a segment 0#0 [0, 10)"
    ]
    offsets = {"startingoffsets": '{"s/a": {"0#0": -2}}'}
    reader = batch_reader(root, **offsets)
    assert events(rows(reader, reader.partitions())) == []


@pytest.mark.parametrize("end", ["999", "-2h", "1970-01-01"])
def test_end_time_before_the_start_time_is_refused_even_without_events_between(
    root: str, end: str
) -> None:
    fill(created(root), 0, 5)
    times = {"startingtimestamp": "1000" if end != "-2h" else "-1h", "endingtimestamp": end}
    times["startingoffsetsbytimestampstrategy"] = "latest"
    reason = "the end is a time before the start; exchange startingTimestamp and endingTimestamp"
    with pytest.raises(InvalidOption, match=reason):
        batch_reader(root, **times).partitions()
    with pytest.raises(InvalidOption, match=reason):
        first_batch(stream_reader(root, **times))
    batch_reader(root, startingtimestamp="1000", endingtimestamp="1000").partitions()


def test_end_before_start_is_refused_for_a_streaming_query(root: str) -> None:
    fill(created(root), 0, 5)
    offsets = {"startingoffsets": '{"s/a": {"0#0": 3}}', "endingoffsets": '{"s/a": {"0#0": 2}}'}
    with pytest.raises(InvalidOption, match=r"end s/a@1:0#0=2 is before the start s/a@1:0#0=3"):
        first_batch(stream_reader(root, **offsets))


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
        reader = stream_reader(root, startingoffsets="latest", endingoffsets=end)
        assert first_batch(reader) == reader.initialOffset()


def test_first_batch_is_replayed_after_the_tail_has_passed_the_end(root: str) -> None:
    stream = created(root)
    fill(stream, 0, 5)
    before = stream_reader(root, startingoffsets="latest")
    start = before.initialOffset()
    fill(stream, 5, 8)
    end = before.latestOffset(start, ReadAllAvailable())
    fill(stream, 8, 9)
    ending = '{"s/a": {"0#0": 8}}'
    again = stream_reader(root, startingoffsets="latest", endingoffsets=ending)
    first = again.initialOffset()
    assert events(rows(again, again.partitions(first, end))) == [5, 6, 7]
    assert again.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize("again", [False, True])
def test_planned_batch_of_a_deleted_stream_fails_or_leaves_it_out(
    root: str, caplog: pytest.LogCaptureFixture, again: bool
) -> None:
    fill(created(root, "s/a"), 0, 3)
    fill(created(root, "s/b"), 3, 5)
    options = {"path": "", "subscribe": "s/a,s/b"}
    end = first_batch(stream_reader(root, **options))
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    if again:
        fill(created(root, "s/a"), 5, 9)
    strict = stream_reader(root, **options)
    lax = stream_reader(root, failondataloss="false", **options)
    with pytest.raises(StaleIdentity if again else NoSuchStream):
        strict.partitions(strict.initialOffset(), end)
    start = lax.initialOffset()
    assert events(rows(lax, lax.partitions(start, end))) == [3, 4]
    assert "left stream s/a out of a batch" in caplog.text
    following = lax.latestOffset(end, ReadAllAvailable())
    assert events(rows(lax, lax.partitions(end, following))) == ([5, 6, 7, 8] if again else [])


def test_the_option_maintain_begins_on_the_driver_and_ends_with_the_query(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users: list[tuple[object, Callable[[object], bool], str | None]] = []

    def record(
        store: object, user: object, is_closed: Callable[[object], bool], *, maintain: str | None
    ) -> None:
        if maintain != "off":
            users.append((user, is_closed, maintain))

    monkeypatch.setattr(micro_batch, "maintain_while_open", record)
    fill(created(root), 0, 5)
    first_batch(stream_reader(root))
    first_batch(stream_reader(root, maintain="off"))
    assert users == []
    reader = stream_reader(root, maintain="auto")
    end = first_batch(reader)
    found = rows(reader, reader.partitions(reader.initialOffset(), end))
    assert events(found) == list(range(5)), "copies in tasks begin nothing"
    ((user, is_closed, maintain),) = users
    assert user is reader
    assert maintain == "auto"
    assert not is_closed(reader)
    reader.stop()
    assert is_closed(reader)
    with pytest.raises(InvalidOption, match="maintain"):
        stream_reader(root, maintain="yes")
    monkeypatch.delenv(VARIABLE)
    first_batch(stream_reader(root))
    assert [maintain for _, _, maintain in users] == ["auto", None], "the root decides"
