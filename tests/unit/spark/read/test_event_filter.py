"""Filters of a read: which chunks it skips, and that it returns the same events as a condition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import datasource as sources
from pyspark.sql.datasource import InputPartition

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.errors import InvalidOption
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read.partitions import EventPartition, PlannedRange
from pravega_spark.spark.read.pushdown import PravegaFilteredReader
from pravega_spark.spark.source_offsets import decode
from pravega_spark.spark.versions import ReadAllAvailable
from pravega_spark.values.segments import make_segment_id
from tests.harness.small_streams import created, scale, staged
from tests.harness.spark_reading import batch_reader, events, rows, stream_reader

Row = dict[str, Any]
START = datetime(2026, 3, 1, tzinfo=timezone.utc)
KEYS = ["UA", "DL", "B6", "é-1", "Z\N{GRINNING FACE}", None]


def minutes(count: float) -> datetime:
    return START + timedelta(minutes=count)


def microseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A stream over a split and a merge, whose clock steps back twice; a chunk for each minute."""
    root: Path = tmp_path_factory.mktemp("filters")
    StreamManager(root).create_scope("s")
    stream = created(str(root), segments=2)
    dice = Random(3)
    for minute in range(24):
        if minute == 8:
            scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
        if minute == 16:
            scale(stream, [make_segment_id(3, 1), 1], [(0.25, 1.0)])
        at = minute - 6 if minute in (10, 11, 18) else minute
        _write(stream, dice, 20 * minute, at)
    return str(root)


def _write(stream: StreamLog, dice: Random, first: int, minute: int) -> None:
    numbers = range(first, first + 20)
    written = [(dice.choice(KEYS), b"%d" % number) for number in numbers]
    times = [microseconds(minutes(minute + dice.random())) for _ in numbers]
    view = stream.view()
    append(stream, view.life, view.version, staged(stream, written, times_us=times))


def filtered(root: str, *filters: sources.Filter, **options: str) -> PravegaFilteredReader:
    """Return a reader that has taken all of these filters."""
    reader = batch_reader(root, pushfilters="true", **options)
    assert isinstance(reader, PravegaFilteredReader)
    assert list(reader.pushFilters([*filters])) == []
    return reader


def planned_ranges(partitions: Iterable[InputPartition]) -> list[PlannedRange]:
    return [one for each in partitions if isinstance(each, EventPartition) for one in each.ranges]


def chunks(partitions: Iterable[InputPartition]) -> int:
    """Return how many chunks the tasks of a plan open."""
    return sum(len(one.refs) for one in planned_ranges(partitions))


def place(row: Row) -> tuple[int, int]:
    return row["segment_id"], row["offset"]


def check(root: str, condition: Callable[[Row], Any], *filters: sources.Filter) -> float:
    """Check that a filtered read returns what a condition on all rows does.

    Returns the part of the chunks that it opens.
    """
    whole = batch_reader(root)
    everything = whole.partitions()
    reader = filtered(root, *filters)
    planned = reader.partitions()
    wanted = [row for row in rows(whole, everything) if condition(row)]
    found = rows(reader, planned)
    assert sorted(events(found)) == sorted(events(wanted))
    assert sorted(found, key=place) == sorted(wanted, key=place)
    return chunks(planned) / chunks(everything)


def test_a_filter_on_time_opens_the_chunks_of_that_time_although_clocks_stepped(root: str) -> None:
    low, high = minutes(4), minutes(5.5)
    opened = check(
        root,
        lambda row: low <= row["timestamp"] < high,
        sources.GreaterThanOrEqual(("timestamp",), low),
        sources.LessThan(("timestamp",), high),
    )
    assert opened < 0.2, "minutes 4 and 5, and the two chunks after the clock stepped back"


def test_a_filter_on_a_key_opens_the_segments_of_the_key_in_every_epoch(root: str) -> None:
    opened = check(
        root,
        lambda row: row["routing_key"] == "UA",
        sources.IsNotNull(("routing_key",)),
        sources.EqualTo(("routing_key",), "UA"),
    )
    assert opened < 0.7
    reader = batch_reader(root)
    found = rows(reader, reader.partitions())
    holding = {row["segment_id"] for row in found if row["routing_key"] == "UA"}
    partitions = filtered(root, sources.EqualTo(("routing_key",), "UA")).partitions()
    assert {one.rng.segment_id for one in planned_ranges(partitions)} == holding
    assert len(holding) < len({row["segment_id"] for row in found})


def test_filters_on_segment_and_offset_open_no_other_chunk(root: str) -> None:
    segment = make_segment_id(2, 1)
    opened = check(
        root,
        lambda row: row["segment_id"] == segment and 5 <= row["offset"] <= 6,
        sources.EqualTo(("segment_id",), segment),
        sources.GreaterThan(("offset",), 4),
        sources.LessThanOrEqual(("offset",), 6),
    )
    assert 0 < opened < 0.06


OPERATORS: list[tuple[sources.Filter, Callable[[Row], Any]]] = [
    (sources.IsNull(("routing_key",)), lambda r: r["routing_key"] is None),
    (sources.IsNotNull(("routing_key",)), lambda r: r["routing_key"] is not None),
    (sources.EqualNullSafe(("routing_key",), "DL"), lambda r: r["routing_key"] == "DL"),
    (sources.In(("routing_key",), ("DL", "no")), lambda r: r["routing_key"] == "DL"),
    (sources.EqualTo(("routing_key",), "no such key"), lambda r: False),
    (
        sources.Not(sources.EqualTo(("routing_key",), "DL")),
        lambda r: r["routing_key"] not in ("DL", None),
    ),
    (
        sources.Not(sources.In(("routing_key",), ("DL", "UA"))),
        lambda r: r["routing_key"] not in ("DL", "UA", None),
    ),
    (sources.GreaterThan(("routing_key",), "UA"), lambda r: (r["routing_key"] or "") > "UA"),
    (sources.StringStartsWith(("routing_key",), "é"), lambda r: r["routing_key"] == "é-1"),
    (
        sources.Not(sources.StringContains(("routing_key",), "-")),
        lambda r: "-" not in (r["routing_key"] or "-"),
    ),
    (sources.StringEndsWith(("routing_key",), "A"), lambda r: r["routing_key"] == "UA"),
    (sources.EqualTo(("OFFSET",), 3), lambda r: r["offset"] == 3),
    (sources.Not(sources.EqualTo(("offset",), 3)), lambda r: r["offset"] != 3),
    (sources.In(("offset",), (3, 70)), lambda r: r["offset"] in (3, 70)),
    (sources.Not(sources.In(("offset",), (3, 70))), lambda r: r["offset"] not in (3, 70)),
    (sources.Not(sources.LessThan(("offset",), 100)), lambda r: r["offset"] >= 100),
    (sources.Not(sources.GreaterThanOrEqual(("offset",), 9)), lambda r: r["offset"] < 9),
    (sources.In(("segment_id",), (0, 1)), lambda r: r["segment_id"] in (0, 1)),
    (sources.Not(sources.EqualTo(("segment_id",), 1)), lambda r: r["segment_id"] != 1),
    (sources.EqualTo(("scope",), "s"), lambda r: True),
    (sources.StringStartsWith(("stream",), "b"), lambda r: False),
    (sources.GreaterThan(("timestamp",), minutes(20.5)), lambda r: r["timestamp"] > minutes(20.5)),
    (sources.EqualTo(("timestamp",), minutes(3)), lambda r: r["timestamp"] == minutes(3)),
]


@pytest.mark.parametrize(("one", "condition"), OPERATORS, ids=[str(one) for one, _ in OPERATORS])
def test_every_operator_selects_the_rows_that_a_condition_does(
    root: str, one: sources.Filter, condition: Callable[[Row], Any]
) -> None:
    check(root, condition, one)


def test_what_the_reader_does_not_apply_exactly_is_left_to_spark(root: str) -> None:
    left = [
        sources.IsNotNull(("event",)),
        sources.EqualTo(("event",), b"1"),
        sources.EqualTo(("offset",), None),
        sources.In(("routing_key",), ("UA", None)),
        sources.Not(sources.EqualNullSafe(("routing_key",), "UA")),
        sources.EqualTo(("timestamp",), datetime(2026, 3, 1)),
        sources.EqualTo(("event", "field"), 1),
    ]
    reader = batch_reader(root, pushfilters="true")
    assert isinstance(reader, PravegaFilteredReader)
    taken = sources.EqualTo(("offset",), 3)
    assert list(reader.pushFilters([*left, taken])) == left
    assert {row["offset"] for row in rows(reader, reader.partitions())} == {3}


def test_kafkas_names_filter_by_segment_number_and_by_bytes(root: str) -> None:
    reader = filtered(
        root,
        sources.EqualTo(("key",), b"UA"),
        sources.In(("partition",), (0, 1)),
        columnnames="kafka",
    )
    found = rows(reader, reader.partitions())
    assert found
    assert {row["key"] for row in found} == {b"UA"}
    assert {row["partition"] for row in found} <= {0, 1}


def test_the_option_routing_keys_selects_in_batch_and_in_micro_batches(root: str) -> None:
    whole = batch_reader(root)
    wanted = [row for row in rows(whole, whole.partitions()) if row["routing_key"] in ("UA", "é-1")]
    batch = batch_reader(root, routingkeys='["UA", "é-1"]', columns="event")
    partitions = batch.partitions()
    assert sorted(events(rows(batch, partitions))) == sorted(events(wanted))
    assert chunks(partitions) < chunks(whole.partitions())

    stream = stream_reader(root, routingkeys="UA,é-1", minpartitions="3")
    found: list[Row] = []
    at = stream.initialOffset()
    while (end := stream.latestOffset(at, ReadAllAvailable())) != at:
        found += rows(stream, stream.partitions(at, end))
        at = end
    unfiltered = stream_reader(root)
    assert sorted(events(found)) == sorted(events(wanted))
    other = unfiltered.initialOffset()
    while (end := unfiltered.latestOffset(other, ReadAllAvailable())) != other:
        other = end
    assert decode(at)["s/a"].cut == decode(other)["s/a"].cut, "a filter moves no position"


def test_min_partitions_divide_what_the_filter_leaves(root: str) -> None:
    reader = filtered(root, sources.LessThan(("timestamp",), minutes(3)), minpartitions="4")
    partitions = reader.partitions()
    assert 2 <= len(partitions) <= 4
    assert {row["timestamp"] < minutes(3) for row in rows(reader, partitions)} == {True}


def test_a_streaming_read_refuses_to_push_filters_with_the_way_on(root: str) -> None:
    with pytest.raises(InvalidOption, match=r"pushFilters is for spark\.read.*by routingKeys"):
        stream_reader(root, pushfilters="true")
    assert stream_reader(root, pushfilters="false").settings.routing_keys == ()


@pytest.mark.parametrize("text", ["[UA", "[]", "[1]", "UA,UA"])
def test_bad_routing_keys_are_a_clear_error(root: str, text: str) -> None:
    with pytest.raises(InvalidOption, match="option routingKeys"):
        batch_reader(root, routingkeys=text)
