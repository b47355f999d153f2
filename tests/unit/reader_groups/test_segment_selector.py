from __future__ import annotations

import contextlib
from typing import Any

import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import InvalidStreamCut, NoSuchStream, TruncatedData
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.group_world import NAME, World, drain
from tests.harness.small_streams import scale


def test_long_backlog_of_one_segment_does_not_block_others() -> None:
    world = World(names=(NAME, "s/u"))
    world.write(20_000)
    reader = world.created().create_reader("a")
    for _ in range(10):
        reader.read_next_event(0)
    late = world.write(1, "s/u")
    world.runtime.sleep(4)
    found = [reader.read_next_event(0).event for _ in range(9_000)]
    assert late[0] in [event.data for event in found if event is not None]


def test_only_the_reader_whose_segment_lost_events_reports_what_another_one_found() -> None:
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
    lost = list[SegmentRange]()
    found = []
    for reader in (a, b, a, b, a, b):
        world.runtime.sleep(4)
        try:
            found += drain(reader)
        except TruncatedData as error:
            assert reader is b, "a had its events in memory and handed them out"
            lost += error.lost
    assert lost == [SegmentRange(NAME, 1, 1, 2, ends[1])]
    assert found[-3:] == later
    assert not group.state().finds


def test_truncation_of_read_events_is_not_reported_while_the_segment_has_a_record() -> None:
    world = World(segments=2)
    world.write(6)
    group = world.created()
    reader = group.create_reader("a")
    drain(reader)
    scale(world.stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    truncate(world.stream, world.stream.view().tail)
    assert world.stream.view().has_segment(0), "the other segment keeps the epoch"
    later = world.write(4)
    world.runtime.sleep(4)
    assert sorted(drain(reader)) == sorted(later)


def test_reader_that_joins_gets_half_of_the_backlog_and_half_of_the_segments() -> None:
    names = [f"s/{name}" for name in "abcd"]
    world = World(names=names)
    for name in names[:2]:
        world.write(100, name)
    group = world.created()
    a = group.create_reader("a")
    a.read_next_event(0)
    b = world.group().create_reader("b")
    for reader in (a, b):
        world.runtime.sleep(1)
        reader.read_next_event(0)
    for reader in (a, b):
        assert len({key.stream for key in reader.position.offsets} & set(names[:2])) == 1


def delete_stream(world: World, name: str) -> None:
    lifecycle.seal(world.streams[name])
    lifecycle.delete(world.streams[name])


def test_group_whose_only_stream_was_deleted_is_at_its_end() -> None:
    world = World()
    group = world.created()
    reader = group.create_reader("a")
    drain(reader)
    delete_stream(world, NAME)
    with pytest.raises(NoSuchStream, match=f"{NAME} was deleted; the next call continues"):
        reader.read_next_event(0)
    assert reader.read_next_event(0).is_completed
    reader.close()
    assert group.lag().events == 0


def drain_until_deleted(reader: EventStreamReader) -> list[bytes]:
    found: list[bytes] = []
    try:
        while not (read := reader.read_next_event(0)).is_completed:
            found += [] if read.event is None else [read.event.data]
    except NoSuchStream:
        return found
    pytest.fail("no call reported the deleted stream")


@pytest.mark.parametrize("is_recreated", [False, True])
def test_deleted_stream_is_reported_once_and_other_streams_are_read(
    is_recreated: bool,
) -> None:
    world = World(names=(NAME, "s/u"))
    world.write(9_000)
    group = world.created()
    a = group.create_reader("a")
    early = [a.read_next_event(0).event for _ in range(3)]
    assert {event.pointer.stream for event in early if event is not None} == {NAME}
    delete_stream(world, NAME)
    if is_recreated:
        lifecycle.create(world.stream, 2, StreamConfiguration())
    future = group.initiate_checkpoint("c")
    found = world.write(5, "s/u")
    world.runtime.sleep(4)
    late = drain_until_deleted(a)
    world.runtime.sleep(4)
    assert [data for data in late + drain(a) if data in found] == found
    assert future.done()
    assert group.lag().events == 0
    assert not group.is_at_end()
    assert drain(world.group().create_reader("b")) == []
    with pytest.raises(NoSuchStream) if not is_recreated else contextlib.nullcontext():
        group.reset(ReaderGroupConfiguration([NAME, "s/u"]))
    group.reset(ReaderGroupConfiguration(["s/u"]))
    assert drain(group.create_reader("c")) == found


@pytest.mark.parametrize("retention", ["none", "automatic"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_only_a_reset_that_names_the_present_life_reads_a_stream_that_was_created_again(
    has_checkpoint: bool, retention: str
) -> None:
    world = World(names=(NAME, "s/u"))
    world.write(3)
    group = world.created(retention=retention)
    cuts = group.stream_cuts()
    targets: list[Any] = [None, cuts, {}, {"s/u": cuts["s/u"]}]
    if has_checkpoint:
        targets.append(group.initiate_checkpoint("c").result(0))
    delete_stream(world, NAME)
    lifecycle.create(world.stream, 2, StreamConfiguration())
    present = world.write(4)
    for target in targets:
        with pytest.raises(InvalidStreamCut, match=NAME):
            group.reset(target)
        assert (group.generation, group.stream_cuts()) == (0, cuts)
    for start in (StreamCut.EARLIEST, "earliest", world.stream.view().head):
        group.reset({NAME: start})
        assert drain(group.create_reader("b")) == present


def test_group_that_holds_data_of_a_deleted_stream_can_be_reset() -> None:
    world = World(names=(NAME, "s/u"))
    group = world.created(retention="automatic")

    def delete() -> None:
        delete_stream(world, NAME)

    with at_failpoint("group.change.noted", delete):
        group.reset()
    events = world.write(3, "s/u")
    reader = group.create_reader("a")
    with pytest.raises(NoSuchStream):
        drain(reader)
    assert drain(reader) == events


def test_reader_notices_a_change_of_its_group_immediately_on_a_local_store() -> None:
    world = World(segments=2)
    world.write(20)
    group = world.created(refresh="1 hour")
    a, b = group.create_reader("a", lease="1 hour"), group.create_reader("b", lease="1 hour")
    a.read_next_event(0)
    a.read_next_event(0)
    b.read_next_event(0)
    world.runtime.sleep(0.051)
    a.read_next_event(0)
    b.read_next_event(0)
    assert group.distribution() == {"a": 1, "b": 1, None: 0}
    future = group.initiate_checkpoint("c")
    world.runtime.sleep(0.051)
    assert [reader.read_next_event(0).checkpoint for reader in (a, b)] == ["c", "c"]
    for reader in (a, b):
        reader.read_next_event(0)
    assert future.done()
