"""A reader whose lease has ended hands nothing out before it asks, however late answers come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pravega_spark.errors import ReinitializationRequired, StoreError
from pravega_spark.reader_groups.reader import EventStreamReader
from tests.harness.fault_plans import Rule
from tests.harness.group_world import OpenGroup, World, drain, expired_after, membership_of

Read = Callable[[EventStreamReader], list[bytes]]


def next_event(reader: EventStreamReader) -> list[bytes]:
    found = reader.read_next_event(5).event
    return [] if found is None else [found.data]


def events(reader: EventStreamReader) -> list[bytes]:
    found: list[bytes] = reader.read_events(1, 5).events.column("event").to_pylist()
    return found


def late(world: World, part: str, meanwhile: Callable[[], object]) -> None:
    """Let the next read of such an object be answered after 40 s, and after ``meanwhile``."""
    store = world.store

    def hook(operation: str, key: str) -> None:
        if operation.startswith("get") and part in key:
            store.hook = None
            world.runtime.sleep(40)
            meanwhile()

    store.hook = hook


@pytest.fixture(params=["next", "checkpoint"])
def begun(request: pytest.FixtureRequest) -> tuple[World, OpenGroup, EventStreamReader]:
    """Return a reader at the tail whose lease is 30 s, and whose stream has five new events."""
    world = World()
    world.write(1)
    group = world.created(acknowledge=request.param)
    reader = group.create_reader("a", lease="30 s")
    assert drain(reader) == [b"0"]
    world.write(5)
    return world, group, reader


@pytest.mark.parametrize("part", ["/events/data/", "/events/_delta_log/"])
@pytest.mark.parametrize("read", [next_event, events])
def test_events_that_another_reader_took_over_are_not_handed_out(
    begun: tuple[World, OpenGroup, EventStreamReader], read: Read, part: str
) -> None:
    world, _, reader = begun
    other = world.group()
    taken: list[bytes] = []

    def take_over() -> None:
        assert expired_after(other, 31, world.runtime.sleep) == ["a"]
        taken.extend(drain(other.create_reader("b", lease="30 s")))

    late(world, part, take_over)
    with pytest.raises(ReinitializationRequired, match="lease expired"):
        read(reader)
    assert taken[-5:] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("read", [next_event, events])
def test_expired_reader_whose_id_joined_again_in_another_process_hands_nothing_out(
    begun: tuple[World, OpenGroup, EventStreamReader], read: Read
) -> None:
    world, _, reader = begun
    other = world.group()
    world.runtime.sleep(40)
    assert expired_after(other, 31, world.runtime.sleep) == ["a"]
    successor = other.create_reader("a", lease="30 s")
    with pytest.raises(ReinitializationRequired, match="lease expired"):
        read(reader)
    assert drain(successor)[-5:] == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("read", [next_event, events])
def test_events_that_nobody_took_over_are_handed_out_after_the_lease_was_extended(
    begun: tuple[World, OpenGroup, EventStreamReader], read: Read
) -> None:
    world, group, reader = begun
    late(world, "/events/data/", lambda: None)
    assert read(reader) == [b"1"]
    assert membership_of(reader).lease.ends_at >= world.runtime.monotonic() + 25
    assert group.expire_readers() == []
    assert drain(reader) == [b"2", b"3", b"4", b"5"], "none is lost, and none comes twice"


@pytest.mark.parametrize("read", [next_event, events])
def test_events_wait_until_the_group_can_be_asked(
    begun: tuple[World, OpenGroup, EventStreamReader], read: Read
) -> None:
    world, _, reader = begun
    refused = Rule(StoreError("no answer"), "get*", "*_reader_groups/*", nth=1)
    late(world, "/events/data/", lambda: world.store.rules.add(refused))
    with pytest.raises(StoreError, match="no answer"):
        read(reader)
    assert drain(reader) == [b"1", b"2", b"3", b"4", b"5"]
