"""What a group and its streams do at ten times as many segments costs about ten times as much.

Counted are the lines that run, which no machine's speed changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.model import StreamCut
from pravega_spark.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.retention import retention_run
from tests.harness.group_world import NAME, World, drain

FEW, MANY = 10, 100


def steps(work: Callable[[], object]) -> int:
    """Return the number of lines of Python that some work runs, each round of a loop anew."""
    found = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal found
        found += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


class Group:
    """A group that has read a half of each of so many segments, and holds the rest."""

    def __init__(self, segments: int) -> None:
        self.world = World(segments)
        self.stream = self.world.stream
        self.world.write(4 * segments)
        self.group = self.world.created(retention="automatic")
        self.reader = self.group.create_reader("a", lease=None)
        drain(self.reader)
        self.checkpoint()
        self.world.write(4 * segments)

    def begin(self) -> None:
        """Another group, which reads up to a cut, and its first event."""
        group = self.world.group("s/h")
        end = StreamCut(NAME, 1, dict.fromkeys(self.stream.view().active.segment_ids, 1))
        group.create(ReaderGroupConfiguration({NAME: (StreamCut.EARLIEST, end)}))
        assert group.create_reader("a", lease=None).read_next_event(0).event is not None

    def join(self) -> None:
        """A second reader, from its creation until it has its share."""
        other = self.group.create_reader("b", lease=None)
        for reader in (self.reader, other):
            self.world.runtime.sleep(60)
            reader.read_next_event(0)
        assert len(other.position.offsets) == len(self.reader.position.offsets)

    def checkpoint(self) -> None:
        asked = self.group.initiate_checkpoint("c")
        self.world.runtime.sleep(60)
        while self.reader.read_next_event(0).checkpoint != "c":
            pass
        self.reader.read_next_event(0)
        assert asked.result(0).name == "c"

    def publish(self) -> None:
        """A subscriber's cut in the middle of every segment."""
        positions = {segment: max(0, offset - 1) for segment, offset in self.stream.view().tail}
        subscribe(self.stream, "s/x", 1)
        publish(self.stream, "s/x", 1, StreamCut(NAME, 1, positions))

    def look(self) -> None:
        self.world.runtime.sleep(60)
        assert self.reader.read_next_event(0).event is not None

    def decide(self) -> None:
        policy = RetentionPolicy.by_consumption(maximum="20 B")
        lifecycle.update(self.stream, StreamConfiguration(retention=policy))
        assert retention_run.decide(self.stream).goes.events


@pytest.mark.parametrize("what", ["begin", "join", "checkpoint", "publish", "look", "decide"])
def test_a_group_of_many_segments_costs_no_more_a_segment(what: str) -> None:
    few, many = (steps(getattr(Group(segments), what)) for segments in (FEW, MANY))
    assert many <= 11 * few


def test_a_look_that_finds_nothing_new_asks_no_segment() -> None:
    few, many = Group(FEW), Group(MANY)
    for group in (few, many):
        drain(group.reader)
    found = [steps(group.reader._selector.poll) for group in (few, many)]
    assert found[1] < found[0] + MANY


def test_chunks_are_read_before_a_publication_and_not_while_the_log_is_held() -> None:
    group = Group(4)
    held = []

    def hook(operation: str, key: str) -> None:
        if operation in ("get", "get_many", "open") and "/events/data/" in key:
            held.append(group.stream.log._lock._is_owned())

    group.world.store.hook = hook
    group.publish()
    group.world.store.hook = None
    assert held == [False] * 4
    record = group.stream.view().subscriber("s/x")
    assert record is not None
    assert record.published is not None
    positions = record.published.positions
    sizes = {segment: group.stream.bytes_at(segment, at) for segment, at in positions.items()}
    assert record.published.sizes == sizes
