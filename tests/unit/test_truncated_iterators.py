"""What an iterator says that meets a new head: where it goes on, and what it has lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidStreamCut, TruncatedData
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.events import Event
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.truncating import truncate

S = "s/t"
COUNT = 4_000


def world(root: Path) -> StreamManager:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
    for _ in range(4):
        with manager.create_writer(S) as writer:
            for number in range(COUNT // 4):
                writer.write_event(b"%d" % number, f"k{number}")
    return manager


def test_a_range_names_all_that_it_has_lost_also_beyond_the_chunks_of_one_look_up(
    tmp_path: Path,
) -> None:
    manager = world(tmp_path)
    rng = max(manager.segment_ranges(S, "earliest", "latest"), key=len)
    assert len(rng) > 1_500
    truncate(open_stream(root_of(manager).store, S), {0: 0, 1: 0, rng.segment_id: 1_500})
    with pytest.raises(TruncatedData) as info:
        list(manager.create_reader(S).read_range(rng))
    assert info.value.lost == (replace(rng, end=1_500),)


def test_between_two_cuts_that_are_both_below_the_head_there_is_nothing(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    cuts = [manager.tail(S)]
    for high in (1.0, 0.5):
        doomed = min(manager.segments(S), key=lambda segment: segment.key_range.low)
        manager.scale_stream(S, [doomed], [(0.0, high / 2), (high / 2, high)])
        cuts.append(manager.tail(S))
    manager.truncate_stream(S, cuts[2])
    for start, end in itertools.combinations_with_replacement(cuts, 2):
        assert manager.distance(S, start, end) == (0, 0)
        assert manager.segment_ranges(S, start, end) == []
    with pytest.raises(InvalidStreamCut, match="is behind"):
        manager.distance(S, cuts[2], cuts[1])


Reads = Callable[[StreamManager, "StreamCut | str"], Iterator[Event]]


@pytest.mark.parametrize(
    "read",
    [
        lambda manager, start: manager.read(S, start),
        lambda manager, start: manager.follow(S, start, timeout=0),
    ],
)
def test_an_iterator_goes_on_where_its_error_says_without_a_gap_or_a_repetition(
    read: Reads, tmp_path: Path
) -> None:
    manager = world(tmp_path)
    events = read(manager, StreamCut.EARLIEST)
    found = [next(events)]
    first = found[0].segment_id
    other = 1 - first
    head = StreamCut(S, manager.tail(S).life, {first: 0, other: 900})
    truncate(open_stream(root_of(manager).store, S), {first: 0, other: 900})
    with pytest.raises(TruncatedData) as info:
        found += iter(events)
    assert info.value.lost == (SegmentRange(S, head.life, other, 0, 900),)
    assert info.value.head is not None
    found += read(manager, info.value.head)
    pointers = [event.pointer for event in found]
    assert len(pointers) == len(set(pointers)) == COUNT - 900


def test_forgotten_segments_in_between_are_lost(tmp_path: Path) -> None:
    manager = world(tmp_path)
    events = manager.read(S)
    next(events)
    life = manager.tail(S).life
    halves = [(0.0, 0.5), (0.5, 1.0)]
    manager.scale_stream(S, [0, 1], halves)
    middle = [segment.segment_id for segment in manager.segments(S)]
    with manager.create_writer(S) as writer:
        for number in range(7):
            writer.write_event(b"%d" % number, "k")
    manager.scale_stream(S, middle, halves)
    truncate(open_stream(root_of(manager).store, S), dict(manager.tail(S).positions))
    with pytest.raises(TruncatedData) as info:
        list(events)
    lost = {rng.segment_id: len(rng) for rng in info.value.lost}
    assert sum(lost.get(segment_id, 0) for segment_id in middle) == 7
    assert {rng.life for rng in info.value.lost} == {life}
    assert info.value.head == manager.head(S)
