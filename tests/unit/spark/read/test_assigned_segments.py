"""Reads of some segments, and reads that begin and end at a time of each segment."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from pravega_spark.errors import InvalidOption
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read.batch import PravegaBatchReader
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.versions import ReadAllAvailable
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import created, scale
from tests.harness.spark_reading import events, fill, first_batch, rows, stream_reader
from tests.harness.spark_writing import TEXT, batch_writer
from tests.harness.spark_writing import rows as numbered


def reader(root: str, **options: str) -> PravegaBatchReader:
    """Return a batch reader of the streams that the options name."""
    source = PravegaDataSource({"root": root, **options})
    found = source.reader(source.schema())
    assert isinstance(found, PravegaBatchReader)
    return found


def assigned(*segments: object) -> str:
    return json.dumps({"s/a": segments})


def by_segment(root: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in StreamManager(root).read("s/a"):
        found.setdefault(event.segment_id, []).append(int(event.data))
    return found


def test_batch_read_has_the_events_of_the_assigned_segments(root: str) -> None:
    fill(created(root, segments=3), 0, 60, keys=20)
    expected = by_segment(root)
    one = reader(root, assign=assigned("1#0"))
    assert events(rows(one, one.partitions())) == expected[1]
    two = reader(root, assign=assigned(0, 2))
    assert events(rows(two, two.partitions())) == expected[0] + expected[2]


def test_offsets_need_only_name_the_assigned_segments(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 40, keys=20)
    expected = by_segment(root)[1]
    given = {"assign": assigned(1), "startingOffsets": '{"s/a": {"1#0": 2}}'}
    one = reader(root, **given, endingOffsets='{"s/a": {"1": 5}}')
    assert events(rows(one, one.partitions())) == expected[2:5]
    with pytest.raises(InvalidOption, match=r"segment 1#0 of s/a ends at offset \d+, and 9999"):
        reader(root, assign=assigned(1), startingOffsets='{"s/a": {"1#0": 9999}}').partitions()
    StreamManager(root).truncate_stream("s/a", StreamCut("s/a", 1, {0: 0, 1: 3}))
    with pytest.raises(InvalidOption, match="no offset 2 in segment 1#0 any more"):
        reader(root, **given).partitions()
    with pytest.raises(InvalidOption, match="earliest"):
        reader(root, assign=assigned(1), startingOffsets='{"s/a": {"7#0": 1}}').partitions()


def test_segment_that_is_not_there_is_refused_with_those_that_are(root: str) -> None:
    fill(created(root, segments=2), 0, 10)
    with pytest.raises(InvalidOption, match=r"no segment 5#0; .* active segments are 0#0, 1#0"):
        reader(root, assign=assigned(5)).partitions()
    with pytest.raises(InvalidOption, match="no segment 5#0"):
        first_batch(stream_reader(root, path="", assign=assigned("5#0")))


def test_query_reads_the_assigned_segments_over_a_scale_and_a_restart(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 0, 20, keys=20)
    query = stream_reader(root, path="", assign=assigned(0))
    start = query.initialOffset()
    first = query.latestOffset(start, ReadAllAvailable())
    found = events(rows(query, query.partitions(start, first)))
    scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    fill(stream, 20, 40, keys=20)
    restarted = stream_reader(root, path="", assign=assigned(0))
    restarted.initialOffset()
    at = first
    while True:
        end = restarted.latestOffset(at, ReadAllAvailable())
        if end == at:
            break
        found += events(rows(restarted, restarted.partitions(at, end)))
        at = end
    assert found == by_segment(root)[0]


def timed(root: str, times_ms: list[int]) -> None:
    """Write numbered events with these times, spread over the segments by key."""
    columns = {"at": "timestamp", **TEXT}
    writer = batch_writer(Path(root), columns, eventtime="at")
    at = pa.array([1_000 * time for time in times_ms], pa.timestamp("us", "UTC"))
    found = numbered(0, len(times_ms), keys=20).add_column(0, "at", at)
    writer.commit([writer.write(iter([found]))])


@pytest.fixture
def timed_segments(root: str) -> dict[int, list[int]]:
    """Numbers of the events of two segments; event n has the time n seconds after 1970."""
    created(root, segments=2)
    timed(root, [1_000 * n for n in range(60)])
    return by_segment(root)


def between(root: str, **options: str) -> list[int]:
    one = reader(root, path="s/a", **options)
    return events(rows(one, one.partitions()))


def test_each_segment_starts_and_ends_at_its_time(
    root: str, timed_segments: dict[int, list[int]]
) -> None:
    starting, ending = '{"s/a": {"0": 10000, "1": 30000}}', '{"s/a": {"0": 20000, "1": 50000}}'
    found = between(root, startingoffsetsbytimestamp=starting, endingoffsetsbytimestamp=ending)
    first = [n for n in timed_segments[0] if 10 <= n < 20]
    assert found == first + [n for n in timed_segments[1] if 30 <= n < 50]


def test_marks_in_place_of_times_are_the_head_and_the_tail(
    root: str, timed_segments: dict[int, list[int]]
) -> None:
    found = between(root, startingoffsetsbytimestamp='{"s/a": {"0": -1, "1": -2}}')
    assert found == timed_segments[1]
    assert between(root, startingoffsetsbytimestamp='{"s/a": {"0": -1, "1": -1}}') == []
    ending = '{"s/a": {"0": -1, "1": -2}}'
    assert between(root, endingoffsetsbytimestamp=ending) == timed_segments[0]


def test_segment_without_a_time_takes_the_earliest(
    root: str, timed_segments: dict[int, list[int]]
) -> None:
    found = between(root, startingoffsetsbytimestamp='{"s/a": {"0": 30000}}')
    assert found == [n for n in timed_segments[0] + timed_segments[1] if n >= 30]


def test_time_after_all_events_fails_or_starts_at_the_tail(
    root: str, timed_segments: dict[int, list[int]]
) -> None:
    late = '{"s/a": {"0": 99000, "1": -2}}'
    with pytest.raises(InvalidOption, match="no event at or after startingOffsetsByTimestamp"):
        between(root, startingoffsetsbytimestamp=late)
    found = between(
        root, startingoffsetsbytimestamp=late, startingoffsetsbytimestampstrategy="latest"
    )
    assert found == timed_segments[1]


def test_times_must_name_every_stream_of_the_read(root: str) -> None:
    for name in ("s/a", "s/b"):
        fill(created(root, name), 0, 3)
    with pytest.raises(InvalidOption, match="names s/a, but the query also reads s/b"):
        reader(
            root, subscribe="s/a,s/b", startingOffsetsByTimestamp='{"s/a": {"0": -2}}'
        ).partitions()


def test_start_at_a_time_of_a_segment_that_is_not_there_is_refused(root: str) -> None:
    fill(created(root, segments=2), 0, 3)
    given = '{"s/a": {"0": -2, "7": 1000}}'
    with pytest.raises(InvalidOption, match=r"OffsetsByTimestamp: stream s/a has no segment 7#0"):
        reader(root, startingOffsetsByTimestamp=given, stream="s/a").partitions()
