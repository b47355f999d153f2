"""The load splits a segment of the demo's stream; on a slow machine it is split by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flights.scaling import BY_HAND, COOLDOWN, Scaler
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.config.policies import ScalingPace

EVENTS = 100
PACE = ScalingPace.of_cooldown(COOLDOWN)


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A stream of two segments with half of the events, whose load requires no split."""
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    calm = ScalingPolicy.by_event_rate(target=1_000_000, factor=2, minimum=2)
    manager.create_stream("s/a", StreamConfiguration(scaling=calm))
    write(manager, EVENTS // 2)
    return manager


@pytest.fixture
def scaler(manager: StreamManager) -> Iterator[Scaler]:
    made = Scaler(manager.root, "s/a", EVENTS)
    yield made
    made.stop()


def write(manager: StreamManager, events: int) -> None:
    with manager.create_writer("s/a") as writer:
        for n in range(events):
            writer.write_event(b"x", routing_key=str(n))


def test_after_half_of_the_events_without_a_split_one_is_made_by_hand_and_reported(
    manager: StreamManager, scaler: Scaler
) -> None:
    ends = manager.tail("s/a").positions
    fullest = max(ends, key=ends.__getitem__)
    scaler.start()
    scaler._thread.join(100)  # it ends with the first split
    assert [(split.segment, split.reason) for split in scaler.splits] == [(f"{fullest}#0", BY_HAND)]
    assert len(manager.segments("s/a")) == 3


def test_stream_that_was_not_split_in_time_is_split_at_the_end(
    manager: StreamManager, scaler: Scaler
) -> None:
    scaler.finish()
    assert [split.reason for split in scaler.splits] == [BY_HAND]
    scaler.finish()
    assert len(manager.segments("s/a")) == 3, "once"


def test_before_half_of_the_events_nothing_is_split_by_hand(manager: StreamManager) -> None:
    scaler = Scaler(manager.root, "s/a", EVENTS + 2)
    scaler._scale(PACE)
    assert scaler.splits == []
    write(manager, 1)
    scaler._scale(PACE)
    assert len(scaler.splits) == 1
