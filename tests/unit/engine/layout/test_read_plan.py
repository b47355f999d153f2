from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pravega_spark.engine.layout import read_plan
from pravega_spark.errors import InvalidInput, InvalidStreamCut, TruncatedData
from pravega_spark.values.segments import StreamCut, parse_segment
from tests.harness import stream_cuts as cuts
from tests.harness.strategies import (
    MemoryStream,
    Reader,
    crossed,
    cut_of,
    events_of,
    half_merged,
    journeys,
    readers,
    streams,
)

LIMITS = st.one_of(st.none(), st.integers(1, 40))


def walk(
    stream: MemoryStream,
    cut: StreamCut,
    target: StreamCut,
    read: set[tuple[int, int]],
    limit: int | None,
) -> tuple[StreamCut, set[tuple[int, int]]]:
    """Step to the end and check each step; ``read`` holds the events before ``cut``."""
    segments = {s.segment_id: s for s in stream.all_segments()}
    read = set(read)
    for _ in range(2_000):
        step = cuts.next_step(stream, cut, target, max_events=limit)
        for r in step.ranges:
            for before in stream.before(segments[r.segment_id]):
                count = stream.records[before.segment_id].next_offset
                assert {(before.segment_id, o) for o in range(count)} <= read
        found = events_of(step.ranges)
        assert len(found) == len(set(found))
        assert not read & set(found)
        if limit is not None:
            assert len(found) <= max(limit, len(step.ranges))
        assert all(len(r) > 0 for r in step.ranges)
        cuts.check(stream, step.end)
        assert cuts.equal_or_after(stream, step.end, cut)
        assert cuts.ranges_between(stream, cut, step.end) == list(step.ranges)
        read |= set(found)
        if step.end == cut:
            assert step.done
            assert not step.ranges
            return cut, read
        cut = step.end
    raise AssertionError("the steps do not end")


@given(st.data(), LIMITS)
def test_steps_reach_the_target_and_read_each_event_between_once(
    data: st.DataObject, limit: int | None
) -> None:
    stream, positions = data.draw(journeys())
    first, second = sorted(data.draw(st.tuples(*[st.integers(0, len(positions) - 1)] * 2)))
    (a, cut), (b, target) = positions[first], positions[second]
    end, read = walk(stream, cut, target, a.events(), limit)
    assert read == b.events()
    assert end == target
    event(f"events: {len(read - a.events()) // 20 * 20}+")


@given(st.data(), LIMITS)
def test_steps_towards_any_cut_read_the_events_that_are_missing(
    data: st.DataObject, limit: int | None
) -> None:
    stream = data.draw(streams())
    a, b = data.draw(readers(stream)), data.draw(readers(stream))
    cut, target = a.cut(stream), b.cut(stream)
    end, read = walk(stream, cut, target, a.events(), limit)
    assert read == a.events() | b.events()
    assert cuts.equal_or_after(stream, end, target)
    if cuts.equal_or_after(stream, target, cut):
        assert end == target


@given(st.data(), LIMITS)
def test_steps_to_the_tail_are_canonical_all_the_way(
    data: st.DataObject, limit: int | None
) -> None:
    stream = data.draw(streams())
    reader = data.draw(readers(stream))
    cut = reader.cut(stream)
    while cut != (step := cuts.next_step(stream, cut, StreamCut.LATEST, max_events=limit)).end:
        cut = step.end
        assert cut == cuts.canonical(stream, cut)
    assert cut == cuts.tail(stream)


@given(st.data(), st.integers(1, 200))
def test_bytes_are_a_soft_limit(data: st.DataObject, limit: int) -> None:
    stream = data.draw(streams())
    cut = data.draw(readers(stream)).cut(stream)

    def events_within(segment_id: int, start: int, most: int) -> int:
        assert most >= 1
        base = stream.bytes_at(segment_id, start)
        ends = range(start, stream.records[segment_id].next_offset + 1)
        return max(e for e in ends if stream.bytes_at(segment_id, e) - base <= most)

    while True:
        step = cuts.next_step(
            stream,
            cut,
            StreamCut.LATEST,
            max_events=9,
            max_bytes=limit,
            events_within=events_within,
        )
        sizes = [
            stream.bytes_at(r.segment_id, r.end) - stream.bytes_at(r.segment_id, r.start)
            for r in step.ranges
        ]
        single = sum(size for r, size in zip(step.ranges, sizes, strict=True) if len(r) == 1)
        assert sum(sizes) <= limit + single
        if step.end == cut:
            break
        cut = step.end
    assert cut == cuts.tail(stream)


@given(
    st.dictionaries(st.integers(0, 99), st.integers(1, 1_000), min_size=1), st.integers(1, 5_000)
)
def test_limit_is_shared_by_backlog(backlog: dict[int, int], limit: int) -> None:
    parts = read_plan.share(backlog, limit)
    total, count = sum(backlog.values()), len(backlog)
    assert parts.keys() == backlog.keys()
    assert all(1 <= parts[key] <= size for key, size in backlog.items())
    assert sum(parts.values()) == min(total, max(limit, count))
    assert parts == read_plan.share(dict(reversed(backlog.items())), limit)
    if count <= limit < total:
        for key, size in backlog.items():
            assert abs(parts[key] - 1 - (size - 1) * (limit - count) / (total - count)) < 1


@given(st.data())
def test_offsets_of_a_time_make_the_cut_of_that_time(data: st.DataObject) -> None:
    stream = data.draw(streams())
    before = set(stream.log[: data.draw(st.integers(0, len(stream.log)))])
    cut = cuts.cut_at(stream, lambda s: sum(segment == s for segment, _ in before))
    cuts.check(stream, cut)
    assert set(events_of(cuts.ranges_between(stream, StreamCut.EARLIEST, cut))) == before
    assert cut == cuts.canonical(stream, cut)


@given(st.data())
def test_independent_offsets_make_the_latest_cut_that_passes_none_of_them(
    data: st.DataObject,
) -> None:
    stream = data.draw(streams())
    ends = {s: r.next_offset for s, r in stream.records.items()}
    offsets = {
        s: data.draw(st.sampled_from((None, 0, end // 2, end, end + 1))) for s, end in ends.items()
    }
    cut = cuts.cut_at(stream, offsets.get)
    cuts.check(stream, cut)
    reader = Reader()
    while True:
        moved = False
        for segment in reader.readable(stream):
            s = segment.segment_id
            wanted = min(offsets[s] or 0, ends[s])
            moved |= reader.offsets.get(s, 0) != wanted
            reader.offsets[s] = wanted
        size = len(reader.ended)
        if not moved and len(reader.pass_ends(stream).ended) == size:
            break
    assert cut == reader.cut(stream)


def test_successor_waits_where_its_predecessor_is_not_finished() -> None:
    stream = half_merged()
    offsets = {0: 10, 1: 4, parse_segment("2#1"): 3}
    assert cuts.cut_at(stream, offsets.get) == cut_of("0#0=end,1#0=4,2#1=future")
    assert cuts.cut_at(stream, {**offsets, 1: 20}.get) == cut_of("2#1=3")
    assert cuts.cut_at(stream, {**offsets, 1: None}.get) == cut_of("0#0=end,1#0=0,2#1=future")


def test_late_time_is_looked_up_from_its_epoch() -> None:
    stream = MemoryStream.of(1)
    for _ in range(100):
        stream.append(stream.active.segment_ids[0], 2)
        stream.scale(stream.active.segment_ids, [(0.0, 1.0)])
    asked: list[int] = []

    def offsets(segment_id: int) -> int:
        asked.append(segment_id)
        return 2

    start = read_plan.cut_of_epoch(stream, 98)
    cut = cuts.cut_at(stream, offsets, start)
    assert cut == cuts.tail(stream)
    assert len(asked) == 3


@given(st.data())
def test_cut_of_an_epoch_is_consistent(data: st.DataObject) -> None:
    stream = data.draw(streams())
    number = data.draw(st.integers(0, stream.active.number))
    cut = read_plan.cut_of_epoch(stream, number)
    cuts.check(stream, cut)
    stream.truncate(data.draw(readers(stream)).cut(stream))
    if number >= stream.oldest_epoch:
        later = cuts.cut_at(stream, lambda segment_id: 0, cut)
        assert cuts.equal_or_after(stream, later, stream.head)


# --- examples ---------------------------------------------------------------------------------


def text(step: cuts.Step) -> tuple[list[str], str]:
    ranges = [str(r).removeprefix("nyc/flights segment ") for r in step.ranges]
    return ranges, str(step.end).removeprefix("nyc/flights@1:")


def test_merge_is_read_when_both_sides_are_read() -> None:
    stream = half_merged()
    step = cuts.next_step(stream, StreamCut.EARLIEST, StreamCut.LATEST, max_events=25)
    assert text(step) == (["0#0 [0, 8)", "1#0 [0, 17)"], "0#0=8,1#0=17")
    step = cuts.next_step(stream, step.end, StreamCut.LATEST, max_events=3)
    assert text(step) == (["0#0 [8, 9)", "1#0 [17, 19)"], "0#0=9,1#0=19")
    step = cuts.next_step(stream, cut_of("0#0=9,1#0=4"), StreamCut.LATEST, max_events=5)
    assert text(step) == (["0#0 [9, 10)", "1#0 [4, 8)"], "0#0=end,1#0=8,2#1=future")
    step = cuts.next_step(stream, step.end, StreamCut.LATEST)
    assert text(step) == (["1#0 [8, 20)"], "2#1=0")
    step = cuts.next_step(stream, step.end, StreamCut.LATEST)
    assert text(step) == (["2#1 [0, 5)"], "2#1=5")
    assert step.done
    assert cuts.next_step(stream, step.end, StreamCut.LATEST) == cuts.Step(
        (), cut_of("2#1=5"), True
    )


def test_reached_successor_is_read_while_another_waits() -> None:
    stream = crossed()
    stream.append(parse_segment("5#2"), 3)
    step = cuts.next_step(stream, cut_of("0#0=10,1#0=9"), StreamCut.LATEST)
    assert text(step) == (["1#0 [9, 10)", "5#2 [0, 3)"], "3#1=0,4#2=0,5#2=3")


def test_empty_sealed_segments_are_stepped_over_in_chains() -> None:
    stream = MemoryStream.of(1)
    stream.append(0, 1)
    for _ in range(5):
        stream.scale(stream.active.segment_ids, [(0.0, 0.5), (0.5, 1.0)])
        stream.scale(stream.active.segment_ids, [(0.0, 1.0)])
    stream.append(stream.active.segment_ids[0], 4)
    step = cuts.next_step(stream, cut_of("0#0=1"), StreamCut.LATEST)
    assert text(step) == (["15#10 [0, 4)"], "15#10=4")


def test_target_from_before_a_scale_stays_reachable() -> None:
    stream = MemoryStream.of(1)
    stream.append(0, 7)
    target = cuts.tail(stream)
    stream.scale([0], [(0.0, 0.5), (0.5, 1.0)])
    stream.append(stream.active.segment_ids[0], 7)
    step = cuts.next_step(stream, StreamCut.EARLIEST, target)
    assert text(step) == (["0#0 [0, 7)"], "0#0=7")
    assert cuts.next_step(stream, step.end, target) == cuts.Step((), target, True)
    assert text(cuts.next_step(stream, step.end, StreamCut.LATEST)) == (
        ["1#1 [0, 7)"],
        "1#1=7,2#1=0",
    )


@pytest.mark.parametrize("events", [0, 7])
def test_target_is_reached_in_its_own_form_where_the_start_calls_another_segment_ended(
    events: int,
) -> None:
    """Both cuts wait for the merge of 0 and 1, read to their ends; each calls one side ended."""
    stream = MemoryStream.of(4)
    for segment_id in (0, 1) if events else ():
        stream.append(segment_id, events)
    stream.append(2, 5)
    stream.scale([0, 1], [(0.0, 0.5)])
    start = cut_of(f"0#0=end,1#0={events},2#0=0,3#0=0,4#1=future")
    target = cut_of(f"0#0={events},1#0=end,2#0=5,3#0=0,4#1=future")
    assert cuts.equal_or_after(stream, target, start)
    read = {(segment_id, n) for segment_id in (0, 1) for n in range(events)}
    end, _ = walk(stream, start, target, read, 1)
    assert end == target
    assert text(cuts.next_step(stream, target, StreamCut.LATEST))[1] == "2#0=5,3#0=0,4#1=0"


def test_cut_beyond_the_target_stays() -> None:
    stream = half_merged()
    for target in ("0#0=10,1#0=20", "0#0=end,1#0=end", "0#0=3,1#0=3", "2#1=1"):
        step = cuts.next_step(stream, cut_of("2#1=2"), cut_of(target))
        assert step == cuts.Step((), cut_of("2#1=2"), True)


def test_cut_beyond_the_target_takes_its_canonical_form() -> None:
    stream = half_merged()
    stream.scale([parse_segment("2#1")], [(0.0, 1.0)])
    for target in ("0#0=3,1#0=3", "0#0=10,1#0=20"):
        step = cuts.next_step(stream, cut_of("2#1=5"), cut_of(target))
        assert step == cuts.Step((), cut_of("3#2=0"), True)


def test_sealed_stream_is_read_to_its_end() -> None:
    stream = half_merged()
    stream.seal()
    step = cuts.next_step(stream, cut_of("2#1=4"), StreamCut.LATEST)
    assert text(step) == (["2#1 [4, 5)"], "2#1=end")
    assert cuts.next_step(stream, step.end, StreamCut.LATEST) == cuts.Step((), step.end, True)
    assert text(cuts.next_step(stream, cut_of("2#1=5"), StreamCut.LATEST)) == ([], "2#1=end")


def test_steps_below_the_head_are_refused() -> None:
    stream = half_merged()
    stream.truncate(cut_of("2#1=2"))
    for cut in ("2#1=0", "0#0=3,1#0=4"):
        with pytest.raises(TruncatedData, match="continue from the head, nyc/flights@1:2#1=2"):
            cuts.next_step(stream, cut_of(cut), StreamCut.LATEST)


def test_cut_that_the_head_passed_without_loss_is_readable() -> None:
    stream = half_merged()
    stream.truncate(cut_of("2#1=0"))
    stream.remembers = True
    step = cuts.next_step(stream, cut_of("0#0=end,1#0=end"), StreamCut.LATEST)
    assert text(step) == (["2#1 [0, 5)"], "2#1=5")


def test_wrong_limits_and_cuts_are_refused() -> None:
    stream = half_merged()
    with pytest.raises(InvalidInput, match="max_events must be at least 1, got 0"):
        cuts.next_step(stream, StreamCut.EARLIEST, StreamCut.LATEST, max_events=0)
    with pytest.raises(InvalidInput, match="max_bytes needs events_within"):
        cuts.next_step(stream, StreamCut.EARLIEST, StreamCut.LATEST, max_bytes=1)
    with pytest.raises(InvalidStreamCut):
        cuts.next_step(stream, StreamCut.EARLIEST, cut_of("2#1=9"))
