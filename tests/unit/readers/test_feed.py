from __future__ import annotations

import pytest

from pravega_spark.engine import lifecycle
from pravega_spark.engine.truncation import truncate
from pravega_spark.errors import NoSuchStream, TruncatedData
from pravega_spark.model import StreamCut
from tests.support import scale
from tests.unit.readers.grouped import NAME, World, drain


def test_long_backlog_of_one_segment_does_not_keep_others_waiting() -> None:
    world = World(names=(NAME, "s/u"))
    world.write(20_000)
    reader = world.created().create_reader("a")
    for _ in range(10):
        reader.read_next_event(0)
    late = world.write(1, "s/u")
    world.runtime.sleep(4)
    found = [reader.read_next_event(0).event for _ in range(9_000)]
    assert late[0] in [event.data for event in found if event is not None]


def test_reader_told_of_a_truncation_by_another_one_tells_its_caller() -> None:
    world = World(segments=2)
    world.write(20)
    group = world.created()
    a, b = group.create_reader("a"), world.group().create_reader("b")
    for reader in (a, b, a, b):
        reader.read_next_event(0)
        world.runtime.sleep(4)
    assert group.distribution() == {"a": 1, "b": 1, None: 0}
    ends = {s: world.stream.view().segment(s).next_offset for s in (0, 1)}
    scale(world.stream, [0, 1], [(0.0, 1.0)])
    (merged,) = world.stream.view().active.segment_ids
    later = world.write(3)
    truncate(world.stream, StreamCut(NAME, 1, {merged: 0}))
    assert min(ends.values()) > 2
    told = 0
    found = []
    for reader in (a, b, a, b, a, b):
        world.runtime.sleep(4)
        try:
            found += drain(reader)
        except TruncatedData:
            told += 1
    assert told == 2, "each of the two lost events"
    assert found[-3:] == later


def test_truncation_of_what_was_read_is_no_news_while_the_segments_end_is_known() -> None:
    world = World(segments=2)
    world.write(6)
    group = world.created()
    reader = group.create_reader("a")
    drain(reader)
    scale(world.stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    truncate(world.stream, world.stream.view().tail)
    assert world.stream.view().has_segment(0), "the other one keeps the epoch, and so its record"
    later = world.write(4)
    world.runtime.sleep(4)
    assert sorted(drain(reader)) == sorted(later)


def test_deleted_stream_is_told_by_its_readers() -> None:
    world = World()
    reader = world.created().create_reader("a")
    drain(reader)
    lifecycle.seal(world.stream)
    lifecycle.delete(world.stream)
    with pytest.raises(NoSuchStream):
        reader.read_next_event(0)
    reader.close()
