from __future__ import annotations

import pytest

from pravega_spark.engine.stream import lifecycle
from pravega_spark.errors import InvalidConfiguration, NoSuchReaderGroup
from pravega_spark.reader_groups.description import EndOfDataNotification, SegmentNotification
from tests.harness.group_world import World, drain
from tests.harness.small_streams import scale


def test_numbers_of_segments_and_readers_come_first_and_when_they_change() -> None:
    world = World(segments=2)
    group = world.created()
    found = group.notifications(interval="10 s")
    assert next(found) == SegmentNotification(2, 0)
    reader = group.create_reader("a")
    began = world.runtime.monotonic()
    assert next(found) == SegmentNotification(2, 1)
    assert world.runtime.monotonic() - began == 10
    scale(world.stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    drain(reader, timeout=0.1)
    assert next(found) == SegmentNotification(3, 1)
    reader.close()
    assert next(found) == SegmentNotification(3, 0)


def test_end_of_data_comes_once_and_last() -> None:
    world = World()
    world.write(3)
    group = world.created()
    found = group.notifications()
    assert next(found) == SegmentNotification(1, 0)
    lifecycle.seal(world.stream)
    with group.create_reader("a") as reader:
        drain(reader)
        assert list(found) == [SegmentNotification(0, 1), EndOfDataNotification()]
    assert list(group.notifications()) == [SegmentNotification(0, 0), EndOfDataNotification()]


def test_notifications_of_an_idle_group_end_after_the_timeout() -> None:
    world = World()
    group = world.created()
    began = world.runtime.monotonic()
    assert list(group.notifications(interval="7 s", timeout=20)) == [SegmentNotification(1, 0)]
    assert world.runtime.monotonic() - began == 20


def test_invalid_intervals_and_missing_groups_are_refused() -> None:
    world = World()
    with pytest.raises(InvalidConfiguration, match="the interval"):
        world.created().notifications(interval="often")
    with pytest.raises(NoSuchReaderGroup):
        next(world.group("s/none").notifications())
