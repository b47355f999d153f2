"""A position that an application stored counts, however long ago it was; or an error says why not.

The random histories compare what the group reads again with who was handed which events.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    InvalidInput,
    PositionOvertaken,
    PravegaSparkError,
    ReinitializationRequired,
    TruncatedData,
)
from pravega_spark.reader_groups import going_back, segments
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.owners import Owner, Owners
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.state import SegmentKey
from pravega_spark.values.limits import KEPT_FINISHED, KEPT_OWNERS
from pravega_spark.values.segments import StreamCut
from tests.harness.group_world import NAME, World, drain, expired_after
from tests.harness.leaving_readers import run
from tests.harness.releases import run_release
from tests.harness.small_streams import scale
from tests.harness.strategies import MemoryStream
from tests.harness.tiers import sized

SEEDS = sized(40, 500, "LEAVING_SEEDS")
OUTCOMES = {
    "went back",
    "revived",
    "overtaken",
    "unknown",
    "truncated",
    "expired",
    "0.1.0",
    "reset",
}
FIRST = SegmentKey(NAME, 0)


@pytest.mark.long
@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_every_event_after_a_position_is_read_again_or_the_call_says_why_not(
    acknowledge: str,
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts.update(run(seed, acknowledge))
    assert set(counts) >= OUTCOMES


def ignore_segments_acquired_since(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, named: {}


def ignore_dropped_records(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, known, number: None


def take_followers_from_others(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, segment: True


def leave_checkpoints_ahead(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda checkpoint, back, revived, new: checkpoint


def count_old_positions_forward(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, key: True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (going_back._Return, "_acquired_since", ignore_segments_acquired_since),
        (going_back._Return, "_check_records", ignore_dropped_records),
        (going_back._Return, "_is_only", take_followers_from_others),
        (going_back._Return, "_is_newest", count_old_positions_forward),
        (going_back, "_checkpoint_back", leave_checkpoints_ahead),
    ],
)
def test_broken_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, mutant: Any
) -> None:
    monkeypatch.setattr(module, name, mutant(getattr(module, name)))
    for seed in range(300):
        try:
            run(seed, "next")
        except (AssertionError, PravegaSparkError):
            return
    pytest.fail(f"300 histories with a broken {name} passed")


# ------------------------------------------------------------------- through readers and groups


def positions_of(reader: EventStreamReader, count: int) -> list[Position]:
    reads = [reader.read_next_event(0) for _ in range(count)]
    assert all(read.event is not None for read in reads)
    return [read.position for read in reads]


def test_position_in_a_finished_segment_counts_again() -> None:
    world = World()
    first = world.write(10)
    group = world.created()
    reader = group.create_reader("a")
    stored = str(positions_of(reader, 4)[-1])
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    after = world.write(6)
    assert len(drain(reader)) == 12
    reader.close_at(stored)
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 4})}
    assert sorted(drain(group.create_reader("b"))) == sorted(first[4:] + after)


def test_position_counts_after_the_reader_has_expired() -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    reader = group.create_reader("a", lease="20 s")
    stored = positions_of(reader, 6)[2]
    world.runtime.sleep(8)
    reader.read_next_event(0)  # a heartbeat that counts more
    world.runtime.sleep(30)
    assert expired_after(group, 21, world.runtime.sleep) == ["a"]
    assert group.reader_offline("a", stored), "it has changed the group, though not the readers"
    assert not group.reader_offline("a", stored)
    assert drain(group.create_reader("b")) == events[3:]


def test_position_counts_after_a_segment_without_events_has_ended() -> None:
    world = World(segments=2)
    world.write(20)
    group = world.created()
    a, b = group.create_reader("a"), group.create_reader("b")
    drain(a), b.read_next_event(0)
    stored = a.position
    scale(world.stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    (empty,) = (
        s.segment_id for s in world.stream.view().active.segments if s.key_range.low == 0.25
    )
    scale(world.stream, [empty, 1], [(0.25, 1.0)])  # waits for the rest of b's segment
    drain(a)
    assert list(group.state().completed) == [SegmentKey(NAME, empty)], "nobody had to read it"
    a.close_at(stored)


def test_position_does_not_go_back_over_what_another_reader_has_read() -> None:
    world = World(segments=2)
    world.write(60)
    group = world.created()
    a = group.create_reader("a")
    stored = positions_of(a, 5)[-1]
    drain(a)
    b = group.create_reader("b")
    for _ in range(3):
        world.runtime.sleep(4)
        drain(a), drain(b)
    world.write(40)
    assert drain(b)
    before = group.state()
    with pytest.raises(PositionOvertaken, match="Nothing was changed") as raised:
        a.close_at(stored)
    assert not a.is_closed
    assert group.state() == before
    lost = raised.value.ranges
    assert {rng.stream for rng in lost} == {NAME}
    assert sum(map(len, lost)) == 55, "what the position does not cover of the first 60"
    a.close()
    with pytest.raises(PositionOvertaken):
        group.reader_offline("a", stored)


def test_segments_that_a_reader_has_acquired_since_are_read_again() -> None:
    world = World(segments=2)
    world.write(20)
    group = world.created()
    a, b = group.create_reader("a"), group.create_reader("b")
    for _ in range(3):
        a.read_next_event(0), b.read_next_event(0)
        world.runtime.sleep(4)
    stored = a.position
    assert len(stored.offsets) == 1
    b.close()
    done = sum(offset for _, offset in group.stream_cuts()[NAME])
    world.runtime.sleep(4)
    drain(a)
    a.close_at(str(stored))
    left = 20 - sum(offset for _, offset in group.stream_cuts()[NAME])
    assert left >= 20 - done - 3
    assert len(drain(group.create_reader("c"))) == left


@pytest.mark.parametrize(
    ("position", "message"),
    [
        (Position({SegmentKey("s/other", 0): 1}), r"does not read s/other.*its streams are s/t"),
        (Position({SegmentKey(NAME, 7 + (3 << 32)): 1}), r"s/t never had the segment 7#3"),
        (Position({SegmentKey(NAME, 1): 0}), r"s/t never had the segment 1#0"),
        (Position({FIRST: 11}), r"s/t/0#0 has 10 events; the position names 11"),
        ('{"s/t":{"0#0":1},"number":-1}', r"has the number -1"),
        ('{"s/t":{"0#0":1},"number":1.5}', r"has the number 1\.5"),
    ],
)
def test_impossible_position_is_refused(position: Any, message: str) -> None:
    world = World()
    world.write(10)
    group = world.created()
    reader = group.create_reader("a")
    reader.read_next_event(0)
    before = group.state()
    with pytest.raises(InvalidInput, match=message):
        group.reader_offline("a", position)
    with pytest.raises(InvalidInput):
        reader.close_at(position)
    assert group.state() == before
    assert not reader.is_closed


def test_position_below_the_head_is_refused_and_one_behind_the_published_cut_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.write(10)
    group = world.created(retention="automatic")
    reader = group.create_reader("a")
    stored = positions_of(reader, 2)[-1]
    drain(reader)
    pending = group.initiate_checkpoint()
    world.runtime.sleep(4)
    drain(reader)
    pending.result(0)
    world.runtime.sleep(10)
    drain(reader)
    for leaves in (True, False):
        with caplog.at_level(logging.WARNING):
            reader.close_at(stored) if leaves else group.reader_offline("a", stored)
        assert "went back in stream s/t behind the cut that it has published" in caplog.text
        assert group.lag().events == 8
        caplog.clear()
        reader = group.create_reader("a")
        drain(reader)
    reader.close()

    again = group.create_reader("a")
    drain(again)
    truncate(world.stream, StreamCut(NAME, 1, {0: 5}))
    for call in (lambda: again.close_at(stored), lambda: group.reader_offline("a", stored)):
        with pytest.raises(TruncatedData, match=r"segment 0#0 \[2, 5\)") as raised:
            call()
        assert raised.value.lost[0].start == 2
    assert group.online_readers() == ["a"]


def test_warning_of_the_published_cut_covers_segments_that_the_position_does_not_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(segments=2)
    world.write(20)
    group = world.created(retention="automatic")
    a, b = group.create_reader("a"), group.create_reader("b")
    drain(a)
    stored = a.position
    b.close()
    world.runtime.sleep(10)
    assert drain(a)
    a.close()
    with caplog.at_level(logging.WARNING):
        assert not group.reader_offline("b")
        assert "went back" not in caplog.text
        assert group.reader_offline("a", stored)
    assert "went back in stream s/t behind the cut that it has published" in caplog.text


def test_reader_is_not_closed_ahead_of_what_it_has_handed_out() -> None:
    world = World()
    events = world.write(4)
    group = world.created()
    reader = group.create_reader("a")
    positions_of(reader, 2)
    with pytest.raises(
        InvalidInput, match="has handed out s/t/0#0 up to 2; it cannot be closed at 3"
    ):
        reader.close_at(Position({FIRST: 3}))
    reader.close()
    assert drain(group.create_reader("b")) == events[2:]


def test_position_in_a_segment_that_only_the_history_has_is_refused() -> None:
    world = World()
    world.write(4)
    group = world.created()
    reader = group.create_reader("a")
    stored = positions_of(reader, 2)[-1]
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    world.write(4)
    drain(reader)
    truncate(world.stream, StreamCut.LATEST)
    assert not world.stream.view().has_segment(0)
    for call in (lambda: reader.close_at(stored), lambda: group.reader_offline("a", stored)):
        with pytest.raises(TruncatedData, match=r"segment 0#0 \[2, 4\)"):
            call()
    assert group.online_readers() == ["a"]


def test_reader_that_has_expired_cannot_close_at_a_position() -> None:
    world = World()
    world.write(4)
    group = world.created()
    reader = group.create_reader("a")
    stored = positions_of(reader, 2)[0]
    group.reader_offline("a", reader.position)
    with pytest.raises(ReinitializationRequired):
        reader.close_at(stored)
    assert group.lag().events == 2


def test_position_of_before_a_reset_does_not_undo_it() -> None:
    world = World()
    world.write(10)
    group = world.created()
    reader = group.create_reader("a")
    stored = positions_of(reader, 8)
    group.reset({NAME: StreamCut(NAME, 1, {0: 4})})
    with pytest.raises(PositionOvertaken):
        group.reader_offline("a", stored[0])
    assert not group.reader_offline("a", stored[-1]), "the reset reads from 4 on again"
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 4})}


def test_record_that_begins_late_does_not_say_that_nobody_else_had_the_segment() -> None:
    whole = Owners().acquired(Owner("a", 7, 0))
    assert whole.is_only("a")
    assert not whole.acquired(Owner("b", 8, 3)).is_only("a")
    assert not Owners(since=7).acquired(Owner("a", 7, 0)).is_only("a")


def test_record_of_owners_is_bounded() -> None:
    owners = Owners()
    for number in range(1, 20):
        owners = owners.acquired(Owner(f"r{number}", number, 10 * number))
    assert len(owners.last) == KEPT_OWNERS
    assert owners.since == 20 - KEPT_OWNERS
    assert owners.acquired(Owner("r", 20, 190)).last[-2:] == (
        *owners.last[-2:-1],
        Owner("r", 20, 190),
    )


@pytest.mark.medium
@pytest.mark.parametrize("in_reach", [1, KEPT_FINISHED // 2 + 4])
def test_record_of_finished_segments_is_bounded(in_reach: int) -> None:
    stream = MemoryStream.of(in_reach)
    state = segments.begin(
        "nyc/g", 0, ReaderGroupConfiguration([stream.stream]), {stream.stream: stream}
    )
    kept, count = max(KEPT_FINISHED, 2 * in_reach), 100
    for number in range(count):
        key = min(state.unassigned)
        owned = Owners().acquired(Owner("a", number + 1, 0))
        state = replace(state, owners={**state.owners, key: owned}, next_number=number + 2)
        stream.append(key.segment_id, 1)
        keys = stream.lineage.find(key.segment_id).key_range
        stream.scale([key.segment_id], [(keys.low, keys.high)])
        frontier = Frontier(locate(stream, state.cut(stream.stream)))
        frontier.offsets[key.segment_id] = 1
        frontier.advance()
        state = segments.with_frontier(state, stream.stream, frontier)
    assert len(state.owners) == kept + in_reach
    assert state.finished_since == {stream.stream: count - kept + 1}


ACQUIRE = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
group = manager.reader_group("s/g")
assert group.online_readers() == ["a"]
with group.create_reader("old") as reader:
    reader.read_next_event(1.0)
print(sorted(group.distribution().items(), key=str))
"""


@pytest.mark.medium
def test_record_that_the_previous_release_drops_counts_as_missing(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1)))
    with manager.create_writer("s/t") as writer:
        writer.write_events([b"%d" % n for n in range(10)], routing_key="k")
    group = manager.create_reader_group("s/g", ["s/t"], checkpoint_interval=None)
    reader = group.create_reader("a")
    stored = positions_of(reader, 3)[0]
    assert run_release("0.1.0", ACQUIRE, tmp_path) == "[('a', 1), (None, 0)]\n"
    positions_of(reader, 3)
    with pytest.raises(PositionOvertaken, match=r"0\.1\.0") as raised:
        reader.close_at(stored)
    assert [(rng.start, rng.end) for rng in raised.value.ranges] == [(1, 6)]
    reader.close()
    assert run_release("0.1.0", ACQUIRE.replace('["a"]', "[]"), tmp_path) == "[(None, 1)]\n"
    again = group.create_reader("a")
    stored = positions_of(again, 2)[0]
    again.close_at(stored)
    assert group.lag().events == 10 - 7 - 1
