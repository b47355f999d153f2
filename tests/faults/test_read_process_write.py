"""Processes that read, process and write are killed at every step: each result is there once."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn.decision_log import DecisionLog
from tests.harness.processing_app import GROUP, RESULT, SOURCE, order
from tests.harness.tiers import sized
from tests.harness.warm_children import WarmChild

pytestmark = [pytest.mark.slow, pytest.mark.long]

PROJECT = Path(__file__).parents[2]
POINTS = (
    "positions.prepared",
    "joint.prepared:2",
    "joint.decided",
    "joint.decided:3",
    "joint.closed:2",
    "joint.carried-out",
    "positions.settling",
    "commit.before:7",
)
EVENTS = sized(80, 1_600)
NAMES = ("ann", "bob", "cid")


def start(root: Path, name: str, seed: int, point: str) -> WarmChild:
    return WarmChild("tests.harness.processing_app", str(root), name, str(seed), crash=point)


def make_input(manager: StreamManager) -> None:
    """Write the orders, with a scale amid them, and seal the stream."""
    manager.create_scope("shop")
    for name in (SOURCE, RESULT):
        manager.create_stream(name, StreamConfiguration(scaling=ScalingPolicy.fixed(3)))
    with manager.create_writer(SOURCE) as writer:
        for number in range(EVENTS):
            event = order(number)
            writer.write_event(event, json.loads(event)[0])
            if number == EVENTS // 2:
                writer.flush()
                (_, _, last) = manager.segments(SOURCE)
                low, high = last.key_range.low, last.key_range.high
                middle = (low + high) / 2
                manager.scale_stream(SOURCE, [last.segment_id], [(low, middle), (middle, high)])
    manager.seal_stream(SOURCE)
    manager.create_reader_group(
        GROUP, [SOURCE], acknowledge="transaction", refresh=0.5, checkpoint_interval=1.0
    )


@pytest.mark.timeout(1_800)
def test_each_event_is_processed_once_whoever_is_killed_when(tmp_path: Path) -> None:
    root = tmp_path / "root"
    manager = StreamManager(root)
    make_input(manager)
    killed = 0
    for seed, point in enumerate((*POINTS, "")):
        processes = [start(root, name, seed, point) for name in NAMES]
        for process in processes:
            out, _ = process.communicate(timeout=600)
            # One that dies at no point has seen the end, at which all events are acknowledged.
            assert process.returncode in ((0, -9) if point else (0,)), (point, out)
            killed += process.returncode == -9
    assert killed >= len(POINTS), "the processes reached the points"
    assert manager.reader_group(GROUP).is_at_end()
    manager.sweep_transactions(RESULT)

    found = defaultdict(list)
    for event in manager.read(RESULT):
        key, number, amount = json.loads(event.data)
        assert amount == 2 * (3 * number + 1)
        found[key].append(number)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(EVENTS))
    assert all(numbers == sorted(numbers) for numbers in found.values()), "the order of each key"
    assert manager.reader_group(GROUP)._state().prepared == {}
    manager.sweep_scope("shop")
    left = DecisionLog(root_of(manager).store).read().values()
    assert not [record for record in left if record.order is not None]
