"""Groups with ``acknowledge="checkpoint"``: answers to checkpoints acknowledge events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    IllegalState,
    ReinitializationRequired,
    StoreError,
    TruncatedData,
)
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.query_member import QueryMember
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.values.segments import StreamCut
from tests.harness.fault_plans import Rule
from tests.harness.group_world import NAME, BufferingApplication, OpenGroup, World
from tests.harness.small_streams import scale

LOOK = 4
"""Seconds after which a reader refreshes the group's state."""


def group_of(world: World, **options: object) -> OpenGroup:
    return world.created(acknowledge="checkpoint", **options)


def looks(world: World, *applications: BufferingApplication, count: int = 6) -> None:
    for _ in range(count):
        world.runtime.sleep(LOOK)
        for application in applications:
            application.read(100)


def checkpointed(world: World, group: OpenGroup, *applications: BufferingApplication) -> None:
    group.initiate_checkpoint()
    looks(world, *applications, count=1)


def test_takeover_continues_at_the_last_answered_checkpoint() -> None:
    world = World(segments=2)
    events = world.write(30)
    group, flushed = group_of(world), list[bytes]()
    a = BufferingApplication(group.create_reader("a", lease="30 s"), flushed)
    a.read(5)
    group.initiate_checkpoint("c")
    world.runtime.sleep(LOOK)
    a.read(7)  # the marker, and six events after it
    assert len(flushed) == 5
    world.runtime.sleep(11)
    a.read(3)  # with a heartbeat
    assert len(a.buffer) > 5
    b = BufferingApplication(world.group().create_reader("b"), flushed)
    for _ in range(12):
        world.runtime.sleep(LOOK)
        b.read(100)
    assert group.online_readers() == ["b"]
    b.close()
    assert sorted(flushed) == sorted(events), "nothing is lost, and nothing is flushed twice"
    with pytest.raises(ReinitializationRequired):
        a.read(1)


def test_offline_without_a_position_goes_back_and_with_one_goes_there() -> None:
    world = World()
    events = world.write(10)
    group, flushed = group_of(world), list[bytes]()
    a = BufferingApplication(group.create_reader("a"), flushed)
    a.read(6)
    world.runtime.sleep(25)
    a.read(1)  # a heartbeat
    assert group.reader_offline("a")
    b = BufferingApplication(group.create_reader("b"), flushed)
    b.read(4)
    position = b.reader.position
    b.read(5)
    assert group.reader_offline("b", position)
    c = BufferingApplication(group.create_reader("c"), flushed)
    c.read(100)
    c.close()
    assert flushed == events[4:]


def test_failed_block_gives_back_everything_since_the_last_checkpoint() -> None:
    world = World()
    events = world.write(10)
    group = group_of(world)

    def fail() -> None:
        with group.create_reader("a") as reader:
            application = BufferingApplication(reader, [])
            application.read(3)
            checkpointed(world, group, application)
            assert application.flushed == events[:3]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with group.create_reader("b") as reader:
        again = BufferingApplication(reader, [])
        again.read(4)
    assert again.buffer == events[3:7]
    with group.create_reader("c") as reader:
        rest = BufferingApplication(reader, [])
        rest.read(100)
    assert rest.buffer == events[7:], "the end of a block acknowledges what was handed out"


def removed_with_a_buffer(**options: Any) -> EventStreamReader:
    world = World()
    world.write(4)
    group = world.created(**options)
    reader = group.create_reader("a")
    for _ in range(3):
        reader.read_next_event(0)
    group.reader_offline("a")
    return reader


def leave_block(reader: EventStreamReader) -> None:
    with reader:
        pass


def close_at_its_position(reader: EventStreamReader) -> None:
    reader.close_at(reader.position)


@pytest.mark.parametrize("close", [EventStreamReader.close, leave_block, close_at_its_position])
@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_closing_a_removed_reader_does_not_claim_to_acknowledge(
    acknowledge: str, close: Callable[[EventStreamReader], None], caplog: pytest.LogCaptureFixture
) -> None:
    reader = removed_with_a_buffer(acknowledge=acknowledge)
    if acknowledge == "checkpoint" or close is close_at_its_position:
        with pytest.raises(ReinitializationRequired, match="no longer in reader group"):
            close(reader)
        assert not caplog.records
    else:
        close(reader)
        assert (
            "closed reader a of reader group s/g; its last events may be read again" in caplog.text
        )
    reader.close()


def test_closing_a_removed_reader_that_has_handed_out_nothing_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = group_of(World())
    reader = group.create_reader("a")
    group.reader_offline("a")
    reader.close()
    assert not caplog.records


def test_error_of_the_body_is_not_hidden_by_the_removal_of_the_reader() -> None:
    with pytest.raises(KeyError), removed_with_a_buffer():
        raise KeyError


def test_lag_and_cuts_show_what_is_acknowledged_and_silent_ones_what_was_handed_out() -> None:
    world = World()
    world.write(10)
    group = group_of(world)
    a = BufferingApplication(group.create_reader("a", lease="30 s"), [])
    a.read(6)
    silent = group.generate_stream_cuts()
    world.runtime.sleep(15)
    a.read(1)
    assert silent.result(0).stream_cuts == {NAME: StreamCut(NAME, 1, {0: 6})}
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 0})}
    assert group.lag().events == 10
    assert group.cuts_at([a.reader.position]) == {NAME: StreamCut(NAME, 1, {0: 7})}
    heartbeat = group.lifecycle.leases.heartbeat("a")
    assert heartbeat is not None
    assert heartbeat.held == {}
    checkpointed(world, group, a)
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 7})}
    assert group.lag().events == 3
    world.store.calls.clear()
    group.lag()
    assert not [call for call in world.store.calls if "_leases" in str(call)]


def test_ended_segments_are_left_by_a_checkpoint_that_their_reader_asks_for() -> None:
    world = World()
    events = world.write(10)
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    events += world.write(10)
    lifecycle.seal(world.stream)
    group, flushed = group_of(world), list[bytes]()
    a = BufferingApplication(group.create_reader("a"), flushed)
    b = BufferingApplication(world.group().create_reader("b"), flushed)
    looks(world, a, b, count=12)
    assert group.is_at_end()
    assert flushed[:10] == events[:10]
    assert sorted(flushed) == sorted(events)
    assert len(a.markers) <= 5
    assert a.reader.read_next_event().is_completed


def test_segments_are_shared_without_automatic_checkpoints_and_no_event_is_flushed_twice() -> None:
    world = World(segments=4)
    events = world.write(40)
    group, flushed = group_of(world), list[bytes]()
    a = BufferingApplication(group.create_reader("a"), flushed)
    a.read(7)
    b = BufferingApplication(world.group().create_reader("b"), flushed)
    world.runtime.sleep(LOOK)
    a.read(1)
    assert group.distribution() == {"a": 4, "b": 0, None: 0}, "seven events are unacknowledged"
    assert len(a.markers) == 1
    for _ in range(2):
        a.read(1)
        world.runtime.sleep(LOOK)
        b.read(2)
    assert group.distribution() == {"a": 2, "b": 2, None: 0}
    looks(world, a, b)
    a.close()
    b.close()
    assert sorted(flushed) == sorted(events)


def test_reader_with_nothing_unacknowledged_releases_without_a_checkpoint() -> None:
    world = World(segments=2)
    group = group_of(world)
    a = BufferingApplication(group.create_reader("a"), [])
    a.read(1)
    b = BufferingApplication(world.group().create_reader("b"), [])
    looks(world, a, b, count=2)
    assert group.distribution() == {"a": 1, "b": 1, None: 0}
    assert a.markers == b.markers == []


def test_late_answer_acknowledges_nothing_after_its_marker() -> None:
    world = World()
    events = world.write(20)
    group, flushed = group_of(world), list[bytes]()
    a = BufferingApplication(group.create_reader("a", lease="60 s"), flushed)
    a.read(5)
    group.initiate_checkpoint()
    world.runtime.sleep(LOOK)
    a.read(1)
    assert flushed == events[:5]
    world.store.rules.add(Rule(StoreError("down"), "*", "*_reader_groups*"))
    a.read(4)
    assert a.buffer == events[5:9], "it reads on while its group cannot be reached"
    world.store.rules.clear()
    world.runtime.sleep(LOOK)
    a.read(1)
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 5})}


def test_iteration_is_refused() -> None:
    world = World()
    reader = group_of(world).create_reader("a")
    with pytest.raises(IllegalState, match="an iteration shows neither"):
        next(iter(reader))


def test_streams_keep_what_no_checkpoint_covers() -> None:
    world = World(segments=2)
    world.write(20)
    group = group_of(world, retention="automatic")
    a = BufferingApplication(group.create_reader("a", lease="20 s"), [])
    a.read(1)
    b = BufferingApplication(world.group().create_reader("b"), [])
    looks(world, a, b, count=3)
    assert group.distribution() == {"a": 1, "b": 1, None: 0}
    ((segment, owned),) = group.state().owned_by("a").items()
    before = owned.offset
    world.write(20)
    a.read(100)
    b.read(100)
    future = group.initiate_checkpoint("c")
    looks(world, b, count=1)
    assert not future.done()
    for _ in range(6):  # the lease of the crashed reader ends while its answer is missing
        world.runtime.sleep(LOOK)
        b.read(1)
    assert future.done()
    world.runtime.sleep(6)
    b.read(1)
    (subscriber,) = world.stream.view().subscribers
    assert subscriber.published is not None
    published = subscriber.published.positions
    assert published == future.result(0).stream_cuts[NAME].positions
    acquired = published[segment.segment_id]
    assert acquired == before, "what the crashed reader had buffered is kept"


def test_waiting_at_the_end_of_a_segment_reads_the_group_only_when_a_refresh_is_due() -> None:
    world = World(segments=2)
    world.write(20)
    group = group_of(world)
    a = BufferingApplication(group.create_reader("a"), [])
    silent = world.group().create_reader("b", lease="1 hour")
    silent.read_next_event(0)
    looks(world, a, count=2)
    world.write(10)
    group.initiate_checkpoint("first")
    looks(world, a, count=2)  # it has answered; the other reader has not
    scale(world.stream, sorted(s.segment_id for s in world.stream.view().active.segments), [(0, 1)])
    looks(world, a, count=1)
    world.store.calls.clear()
    with contextlib.suppress(TimeoutError):
        a.reader.read_next_event(2.5)
    of_group = [call for call in world.store.calls if "_reader_groups" in str(call)]
    assert len(of_group) <= 55, "a poll every 50 ms"


def test_truncation_is_reported_once_and_unflushed_events_stay_with_their_reader() -> None:
    world = World()
    events = world.write(10)
    group, flushed = group_of(world), list[bytes]()
    a = BufferingApplication(group.create_reader("a"), flushed)
    a.read(6)
    truncate(world.stream, StreamCut(NAME, 1, {0: 4}))
    world.runtime.sleep(LOOK)
    a.read(100)
    a.close()
    assert flushed == events, "they were read before the truncation"
    truncate(world.stream, StreamCut(NAME, 1, {0: 8}))
    group.reset({NAME: StreamCut(NAME, 1, {0: 5})})
    b = BufferingApplication(group.create_reader("b"), [])
    with pytest.raises(TruncatedData):
        b.read(1)
    b.read(100)
    assert b.buffer == events[8:]


def test_reset_to_another_configuration_changes_when_events_count() -> None:
    world = World()
    events = world.write(10)
    group = group_of(world)
    assert group.configuration.acknowledges_at_checkpoints
    options = {"checkpoint_interval": None}
    group.reset(ReaderGroupConfiguration([NAME], **options))  # type: ignore[arg-type]
    assert not group.configuration.acknowledges_at_checkpoints
    a = BufferingApplication(group.create_reader("a", lease="30 s"), [])
    a.read(3)
    world.runtime.sleep(11)
    a.read(1)
    assert group.reader_offline("a")
    b = BufferingApplication(group.create_reader("b"), [])
    b.read(1)
    assert b.buffer == events[3:4]


def test_update_continues_at_what_is_acknowledged() -> None:
    world = World()
    events = world.write(10)
    group = group_of(world)
    a = BufferingApplication(group.create_reader("a", lease="30 s"), [])
    a.read(3)
    checkpointed(world, group, a)
    world.runtime.sleep(15)
    a.read(2)  # a heartbeat
    group.update(refresh="1 s")
    assert group.configuration.acknowledges_at_checkpoints
    with pytest.raises(ReinitializationRequired):
        looks(world, a)
    b = BufferingApplication(group.create_reader("b"), a.flushed)
    b.read(100)
    b.close()
    assert a.flushed == events


def test_finished_batches_of_a_query_acknowledge() -> None:
    world = World(segments=2)
    world.write(20)
    group = group_of(world)
    query = QueryMember(group.lifecycle)
    tail = world.stream.view().tail
    query.finish_batch({NAME: tail})
    query.leave()
    assert group.stream_cuts() == {NAME: tail}
    assert group.lag().events == 0


def test_group_ends_at_its_end_cut() -> None:
    world = World()
    events = world.write(10)
    spans = {NAME: (StreamCut(NAME, 1, {0: 3}), StreamCut(NAME, 1, {0: 7}))}
    group = group_of(world, streams=spans)
    a = BufferingApplication(group.create_reader("a"), [])
    looks(world, a, count=3)
    assert group.is_at_end()
    assert a.flushed == events[3:7]


def test_reading_and_waiting_cost_no_more_than_in_other_groups() -> None:
    world = World(segments=2)
    world.write(1_000)
    group = group_of(world)
    a = BufferingApplication(group.create_reader("a"), [])
    b = BufferingApplication(world.group().create_reader("b"), [])
    looks(world, a, b, count=3)
    assert group.distribution() == {"a": 1, "b": 1, None: 0}
    world.store.calls.clear()
    a.read(100)
    assert world.store.calls == []
    looks(world, a, b, count=20)
    world.store.sent.clear()
    looks(world, a, b, count=20)
    assert a.buffer, "unacknowledged"
    assert [key for key, _ in world.store.sent if "_reader_groups" in key] == []
