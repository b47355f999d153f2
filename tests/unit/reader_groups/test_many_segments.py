"""The costs of a group with ten times as many segments are about ten times as high.

The tests count lines of Python, which do not depend on the machine's speed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.retention.run import explain_retention
from pravega_spark.values.segments import StreamCut
from tests.harness.group_world import NAME, World, drain

FEW, MANY = 10, 100


def steps(work: Callable[[], object]) -> int:
    """Return the number of lines of Python that a call runs, with each round of a loop."""
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
    """A group that has read half of each segment and holds the rest."""

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
        """Create another group with an end cut, and read its first event."""
        group = self.world.group("s/h")
        end = StreamCut(NAME, 1, dict.fromkeys(self.stream.view().active.segment_ids, 1))
        group.create(ReaderGroupConfiguration({NAME: (StreamCut.EARLIEST, end)}))
        assert group.create_reader("a", lease=None).read_next_event(0).event is not None

    def join(self) -> None:
        """Add a second reader and wait until it has its share."""
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
        """Publish a subscriber's cut in the middle of every segment."""
        positions = {segment: max(0, offset - 1) for segment, offset in self.stream.view().tail}
        subscribe(self.stream, "s/x", 1)
        publish(self.stream, "s/x", 1, StreamCut(NAME, 1, positions))

    def refresh(self) -> None:
        self.world.runtime.sleep(60)
        assert self.reader.read_next_event(0).event is not None

    def decide(self) -> None:
        policy = RetentionPolicy.by_consumption(maximum="20 B")
        lifecycle.update(self.stream, StreamConfiguration(retention=policy))
        assert explain_retention(self.stream).goes.events


@pytest.mark.medium
@pytest.mark.parametrize("what", ["begin", "join", "checkpoint", "publish", "refresh", "decide"])
def test_cost_of_a_group_grows_no_faster_than_its_segments(what: str) -> None:
    few, many = (steps(getattr(Group(segments), what)) for segments in (FEW, MANY))
    assert many <= 11 * few


def test_idle_poll_visits_no_segment() -> None:
    few, many = Group(FEW), Group(MANY)
    for group in (few, many):
        drain(group.reader)
    found = [steps(group.reader._selector.poll) for group in (few, many)]
    assert found[1] < found[0] + MANY


def test_chunks_are_read_before_a_publication_and_not_under_the_lock_of_the_log() -> None:
    group = Group(4)
    locked = []

    def hook(operation: str, key: str) -> None:
        if operation in ("get", "get_many", "open") and "/events/data/" in key:
            locked.append(group.stream.log._lock._is_owned())  # type: ignore[attr-defined]

    group.world.store.hook = hook
    group.publish()
    group.world.store.hook = None
    assert locked == [False] * 4
    record = group.stream.view().subscriber("s/x")
    assert record is not None
    assert record.published is not None
    positions = record.published.positions
    sizes = {segment: group.stream.bytes_at(segment, at) for segment, at in positions.items()}
    assert record.published.sizes == sizes
