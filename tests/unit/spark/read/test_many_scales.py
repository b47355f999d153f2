"""A query behind many scales, at each of which few events were written: what is in one batch."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pytest

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.spark.read import offsets
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.read.partitions import EventPartition
from pravega_spark.values.segments import SegmentRange
from tests.harness.small_streams import created, scale, write
from tests.harness.spark_reading import events, rows, stream_reader

KEYS = 12
EVENTS, SCALES = 10, 25


def scaled(root: str, scales: int, size: int = 1) -> StreamLog:
    """Return a stream of so many splits and merges, with ten events before each and at the end."""
    stream, dice = created(root, segments=2), random.Random(scales)
    for number in range(scales + 1):
        first = EVENTS * number
        wanted = [
            (_key(n), b"%d" % n if size == 1 else b"%*d" % (size, n))
            for n in range(first, first + EVENTS)
        ]
        write(stream, wanted)
        if number == scales:
            break
        segments = list(stream.view().active.segments)
        at = dice.randrange(len(segments))
        low, high = segments[at].key_range.low, segments[at].key_range.high
        if len(segments) > 1 and at and dice.random() < 0.5:
            before = segments[at - 1]
            doomed = [before.segment_id, segments[at].segment_id]
            scale(stream, doomed, [(before.key_range.low, high)])
        else:
            middle = (low + high) / 2
            scale(stream, [segments[at].segment_id], [(low, middle), (middle, high)])
    return stream


def _key(number: int) -> str | None:
    return f"k{number % KEYS}" if number % 7 else None


def batches(reader: PravegaStreamReader) -> list[list[list[dict[str, Any]]]]:
    """Return the rows of each partition of each batch, up to the tail."""
    found, at = [], reader.initialOffset()
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        found.append([rows(reader, [one]) for one in reader.partitions(at, end)])
        at = end
    return found


def check(found: list[list[list[dict[str, Any]]]], scales: int) -> None:
    """Check that each event is there once, and a key of a batch in one partition, in order."""
    last: dict[str, int] = defaultdict(lambda: -1)
    numbers = []
    for batch in found:
        places: dict[str, int] = {}
        for place, partition in enumerate(batch):
            numbers += events(partition)
            for row in partition:
                key, number = row["routing_key"], int(row["event"])
                if key is not None:
                    assert places.setdefault(key, place) == place
                    assert last[key] < number
                    last[key] = number
    assert sorted(numbers) == list(range(EVENTS * (scales + 1)))


@pytest.mark.medium
@pytest.mark.parametrize("scales", [4, SCALES])
@pytest.mark.parametrize("parts", [1, 7])
def test_small_epochs_are_one_batch_in_the_order_of_each_key(
    root: str, scales: int, parts: int
) -> None:
    scaled(root, scales)
    found = batches(stream_reader(root, minpartitions=str(parts)))
    assert len(found) == 1
    assert len(found[0]) >= min(parts, 2)
    assert len(found[0]) == 1 or sum(map(bool, found[0])) > 2
    check(found, scales)


@pytest.mark.medium
def test_limits_of_a_batch_hold_across_epochs(root: str) -> None:
    scaled(root, SCALES)
    for options, most in (
        ({"maxoffsetspertrigger": "35"}, 35),
        ({"maxoffsetspertrigger": "35", "minpartitions": "5"}, 35),
        ({"maxoffsetspertrigger": "3"}, EVENTS),
        ({"maxbytespertrigger": "100"}, 60),
    ):
        found = batches(stream_reader(root, **options))
        check(found, SCALES)
        assert max(sum(map(len, batch)) for batch in found) <= most
        assert len(found) < SCALES or most == EVENTS


@pytest.mark.parametrize("bound", ["PACKED_ROWS", "PACKED_BYTES"])
def test_large_epochs_stay_batches_of_their_own(
    root: str, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    scaled(root, 9, size=1_000)
    unit = 1 if bound == "PACKED_ROWS" else 1_000
    counts = []
    for most in (1, 3 * EVENTS, 6 * EVENTS, 12 * EVENTS):
        monkeypatch.setattr(offsets, bound, most * unit)
        found = batches(stream_reader(root))
        check(found, 9)
        counts.append(len(found))
    assert counts[0] > 4
    assert counts == sorted({*counts}, reverse=True)
    assert counts[-1] == 1


def test_segments_without_common_keys_are_parts_of_their_own(root: str) -> None:
    stream = created(root, segments=8)
    write(stream, [(f"k{n}", b"%d" % n) for n in range(100)])
    scale(stream, [0], [(0.0, 0.0625), (0.0625, 0.125)])
    write(stream, [(f"k{n}", b"%d" % n) for n in range(100, 200)])
    reader = stream_reader(root, minpartitions="8")
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    planned = reader.partitions(reader.initialOffset(), end)
    assert len(planned) == 8
    read: list[list[SegmentRange]] = []
    for one in planned:
        assert isinstance(one, EventPartition)
        read.append([each.rng for each in one.ranges])
    assert sorted(map(len, read)) == [1] * 7 + [3]
    assert sorted(events(rows(reader, planned))) == list(range(200))
