"""What the marks of many writers cost a note, and that their joined positions are the furthest."""

from __future__ import annotations

import random

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, locate, reached
from pravega_spark.engine.stream import watermarks
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import furthest
from pravega_spark.errors import InvalidStreamCut
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import END, NOT_REACHED, KeyRange, StreamCut
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.tiers import sized

S = "s/t"
WHOLE = KeyRange(0.0, 1.0)


@pytest.fixture
def manager() -> StreamManager:
    found = manager_of(FakeRuntime())
    found.create_scope("s")
    found.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    found.scale_stream(S, found.segments(S), [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)])
    return found


def write(manager: StreamManager, count: int) -> None:
    with manager.create_writer(S) as writer:
        for number in range(count):
            writer.write_event(b"x", f"k{number}").result()


@pytest.mark.parametrize(("time", "most"), [(2_000, 0), (1, 2)])
def test_a_new_writer_locates_no_cut_or_one_for_all_marks(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, time: int, most: int
) -> None:
    write(manager, 20)
    tail = manager.tail(S)
    first = next(iter(tail.positions))
    for number in range(12):
        at = StreamCut(S, 1, {**tail.positions, first: min(number, tail.positions[first])})
        manager.event_time(S).note(f"w{number}", 1_000 + number, at)
    shown = manager.event_time(S).watermark()
    located: list[StreamCut | str] = []

    def counted(view: StreamView, cut: StreamCut | str) -> LocatedCut:
        located.append(cut)
        return locate(view, cut)

    monkeypatch.setattr(watermarks, "locate", counted)
    manager.event_time(S).note("new", time)
    assert len(located) == most
    found = manager.event_time(S).watermark()
    assert shown is not None
    assert found is not None
    assert (found.lower_us, found.cut) == (shown.lower_us, tail) == (1_000_000, shown.cut)


def one_by_one(view: StreamView, cuts: list[StreamCut]) -> LocatedCut:
    """Return the furthest cut as a process finds it that locates each."""
    best = locate(view, StreamCut.EARLIEST)
    for cut in cuts:
        try:
            frontier = Frontier(best, locate(view, cut).above_head())
        except InvalidStreamCut:
            continue
        frontier.advance()
        best = reached(frontier)
    return best


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(12, 500)))
def test_joined_positions_are_the_furthest_of_every_key(manager: StreamManager, seed: int) -> None:
    chance = random.Random(seed)
    write(manager, 12)
    old = manager.segments(S)
    manager.scale_stream(S, [old[0].segment_id], [KeyRange(0.0, 0.25), KeyRange(0.25, 0.5)])
    write(manager, 12)
    split = [segment.segment_id for segment in manager.segments(S)]
    manager.scale_stream(S, split, [WHOLE])
    write(manager, 5)
    (last,) = manager.segments(S)
    view = manager.stream(S)._log().view()

    def at(segment_id: int) -> int:
        return chance.randint(0, view.segment(segment_id).next_offset + chance.randint(0, 1))

    right, (low, high) = old[1].segment_id, [s for s in split if s != old[1].segment_id]
    cuts = []
    for _ in range(chance.randint(1, 12)):
        positions = chance.choice(
            [
                {old[0].segment_id: at(old[0].segment_id), right: at(right)},
                {low: at(low), high: at(high), right: at(right)},
                {low: END, high: at(high), right: at(right), last.segment_id: NOT_REACHED},
                {low: END, high: END, right: at(right), last.segment_id: NOT_REACHED},
                {last.segment_id: at(last.segment_id)},
                {7 << 32: 1},
            ]
        )
        cuts.append(StreamCut(S, 1, positions))
    found, wanted = furthest(view, cuts), one_by_one(view, cuts)
    assert found.canonical().cut == wanted.canonical().cut, cuts
