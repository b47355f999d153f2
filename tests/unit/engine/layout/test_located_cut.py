from __future__ import annotations

import itertools

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from pravega_spark.engine.layout.located_cut import Order
from pravega_spark.errors import InvalidInput, InvalidStreamCut, TruncatedData
from pravega_spark.values.segments import END, NOT_REACHED, SegmentRange, StreamCut, parse_segment
from tests.harness import stream_cuts as cuts
from tests.harness.strategies import (
    MemoryStream,
    crossed,
    cut_of,
    events_of,
    half_merged,
    is_valid,
    journeys,
    readers,
    streams,
)

# --- validity ---------------------------------------------------------------------------------


@given(st.data())
def test_every_cut_of_a_reader_is_valid_in_every_form(data: st.DataObject) -> None:
    stream, positions = data.draw(journeys())
    for reader, cut in positions:
        cuts.check(stream, cut)
        if any(mark >= 0 for _, mark in cut):
            cuts.check(stream, reader.short_cut(stream))
        assert is_valid(stream, cut)
        assert StreamCut.parse(str(cut)) == cut
        assert str(StreamCut.parse(str(cut))) == str(cut)


@given(st.data())
def test_validity_agrees_with_its_definition(data: st.DataObject) -> None:
    stream = data.draw(streams())
    positions = dict(data.draw(readers(stream)).cut(stream))
    ids = [s.segment_id for s in stream.all_segments()]
    marks = st.sampled_from((END, NOT_REACHED, None, 0, 1, 3, 10, 40))
    for segment_id, mark in data.draw(
        st.lists(st.tuples(st.sampled_from(ids), marks), min_size=1, max_size=4)
    ):
        if mark is None:
            positions.pop(segment_id, None)
        else:
            positions[segment_id] = mark
    cut = StreamCut(stream.stream, stream.life, positions)
    valid = is_valid(stream, cut)
    event(f"valid: {valid}")
    if valid:
        cuts.check(stream, cut)
    else:
        with pytest.raises(InvalidStreamCut):
            cuts.check(stream, cut)


@given(st.data())
def test_random_cut_is_valid_only_by_the_definition(data: st.DataObject) -> None:
    stream = data.draw(streams())
    segments = stream.all_segments()
    positions: dict[int, int] = {}
    low = 0.0
    while low < 1.0:
        fitting = [s for s in segments if s.key_range.low == low]
        if not fitting:
            break
        segment = data.draw(st.sampled_from(fitting))
        positions[segment.segment_id] = data.draw(st.sampled_from((0, 0, 1, END)))
        low = segment.key_range.high
    cut = StreamCut(stream.stream, stream.life, positions)
    valid = is_valid(stream, cut)
    event(f"valid: {valid}")
    try:
        cuts.check(stream, cut)
    except InvalidStreamCut:
        assert not valid
    else:
        assert valid


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0#0=5,1#0=5,2#1=0", "segment 0#0 and its successor 2#1, both to be read; take cuts from"),
        ("0#0=5,2#1=0", "segment 0#0 and its successor 2#1, both to be read"),
        ("0#0=5", r"leaves out the keys \[0.5, 1.0\)"),
        ("1#0=5", r"leaves out the keys \[0.0, 0.5\)"),
        ("0#0=11,1#0=5", "offset 11 of segment 0#0, which holds 10 events"),
        ("2#1=end", "segment 2#1 as read to its end, but it is not sealed"),
        ("2#1=future", "no segment that is reached"),
        ("0#0=future,1#0=future", "no segment that is reached"),
        ("0#0=end,1#0=end,2#1=future", "2#1 as future, but all its predecessors are finished"),
        ("0#0=future,1#0=5", "0#0 as future, but it has no predecessor"),
        ("0#0=5,1#0=5,9#1=0", "segment 9#1, which the stream never had; its current .* 2#1"),
        ("0#0=5,1#0=5,9#7=0", "segment 9#7, which the stream never had"),
        ("0#0=future,2#1=3", "0#0 as future and its successor 2#1 as reached"),
        ("", "names no segment"),
    ],
)
def test_invalid_cut_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidStreamCut, match=f"cut of nyc/flights .*{reason}"):
        cuts.check(half_merged(), cut_of(text))


def test_segment_passed_on_some_of_its_keys_only_is_refused() -> None:
    stream = MemoryStream.of(2)
    stream.scale([0, 1], [(0.0, 1.0)])
    stream.scale([parse_segment("2#1")], [(0.0, 0.5), (0.5, 1.0)])
    with pytest.raises(
        InvalidStreamCut, match="is behind segment 2#1 with 4#2 and not behind it with 0#0"
    ):
        cuts.check(stream, cut_of("0#0=0,4#2=0"))


@pytest.mark.parametrize(
    "text",
    [
        "0#0=0,1#0=0",
        "0#0=10,1#0=20",
        "0#0=end,1#0=3",
        "0#0=end,1#0=3,2#1=future",
        "1#0=3,2#1=future",
        "0#0=end,1#0=20,2#1=future",
        "0#0=end,1#0=end",
        "2#1=0",
        "0#0=end,1#0=end,2#1=5",
    ],
)
def test_marks_and_pending_merges_are_accepted(text: str) -> None:
    cuts.check(half_merged(), cut_of(text))


@pytest.mark.parametrize(
    ("name", "life", "why"),
    [
        ("nyc/trains", 1, "a cut of stream nyc/trains, and this is stream nyc/flights"),
        ("nyc/trains", 2, "a cut of stream nyc/trains, and this is stream nyc/flights"),
        ("nyc/flights", 2, "of life 2 of nyc/flights, and this is life 1"),
        ("nyc/flights", 0, "of life 0 of nyc/flights, and this is life 1"),
    ],
)
def test_cut_of_another_stream_or_life_is_refused(name: str, life: int, why: str) -> None:
    stream = half_merged()
    with pytest.raises(InvalidStreamCut, match=why):
        cuts.check(stream, StreamCut(name, life, {0: 0, 1: 0}))


def test_earliest_and_latest_are_head_and_tail() -> None:
    stream = half_merged()
    assert cuts.resolve(stream, StreamCut.EARLIEST) == stream.head
    assert cuts.resolve(stream, StreamCut.LATEST) == cuts.tail(stream) == cut_of("2#1=5")
    stream.seal()
    assert cuts.tail(stream) == cut_of("2#1=end")
    cuts.check(stream, cuts.tail(stream))
    assert cuts.distance_events(stream, StreamCut.EARLIEST, StreamCut.LATEST) == 35


def test_tail_cut_is_checked_without_a_walk_over_the_epochs() -> None:
    stream = MemoryStream.of(2)
    for _ in range(200):
        stream.scale([stream.active.segment_ids[1]], [(0.5, 1.0)])
    asked: list[int] = []

    class Watched(MemoryStream):
        def epoch(self, number: int, /):  # type: ignore[no-untyped-def]
            asked.append(number)
            return super().epoch(number)

    watched = Watched(**vars(stream))
    tail = cuts.tail(watched)
    cuts.check(watched, tail)
    assert cuts.ranges_between(watched, tail, tail) == []
    assert cuts.compare(watched, tail, tail) is Order.EQUAL_OR_AFTER
    assert len(set(asked)) <= 1


# --- form -------------------------------------------------------------------------------------


@given(st.data())
def test_one_position_has_one_canonical_form(data: st.DataObject) -> None:
    stream, positions = data.draw(journeys())
    for reader, cut in positions:
        eager = reader.copy().pass_ends(stream).cut(stream)
        assert cuts.canonical(stream, cut) == eager
        assert cuts.canonical(stream, eager) == eager
        if any(mark >= 0 for _, mark in cut):
            assert cuts.canonical(stream, reader.short_cut(stream)) == eager


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("0#0=10,1#0=20", "2#1=0"),
        ("0#0=10,1#0=3", "0#0=end,1#0=3,2#1=future"),
        ("1#0=3,2#1=future", "0#0=end,1#0=3,2#1=future"),
        ("0#0=9,1#0=end", "0#0=9,1#0=end,2#1=future"),
        ("2#1=5", "2#1=5"),
    ],
)
def test_canonical_forms_of_a_merge(text: str, form: str) -> None:
    assert cuts.canonical(half_merged(), cut_of(text)) == cut_of(form)


def test_canonical_form_where_a_segment_has_a_reached_and_a_future_successor() -> None:
    stream = crossed()
    assert cuts.canonical(stream, cut_of("0#0=10,1#0=4")) == cut_of(
        "0#0=end,1#0=4,3#1=future,4#2=0,5#2=0"
    )


# --- order ------------------------------------------------------------------------------------


@given(st.data())
def test_later_cut_of_a_reader_is_equal_or_after(data: st.DataObject) -> None:
    stream, positions = data.draw(journeys())
    for (_, a), (_, b) in itertools.combinations(positions, 2):
        assert cuts.compare(stream, b, a) is Order.EQUAL_OR_AFTER
        assert cuts.equal_or_after(stream, b, a)
        assert cuts.compare(stream, a, b) is not Order.OVERLAPS


@given(st.data())
def test_order_of_two_readers_agrees_with_the_events_they_read(data: st.DataObject) -> None:
    stream = data.draw(streams())
    a, b = data.draw(readers(stream)), data.draw(readers(stream))
    cut, other = a.cut(stream), b.cut(stream)
    order, reverse = cuts.compare(stream, cut, other), cuts.compare(stream, other, cut)
    event(order.value)
    if order is Order.EQUAL_OR_AFTER:
        assert a.events() >= b.events()
        assert reverse is not Order.OVERLAPS
    elif order is Order.BEFORE:
        assert a.events() <= b.events()
        assert reverse is Order.EQUAL_OR_AFTER
    else:
        assert reverse is Order.OVERLAPS
    if not a.events() <= b.events() and not a.events() >= b.events():
        assert order is Order.OVERLAPS


def test_age_counts_before_offset() -> None:
    stream = half_merged()
    end, start = cut_of("0#0=10,1#0=20"), cut_of("2#1=0")
    assert cuts.compare(stream, end, start) is Order.BEFORE
    assert cuts.compare(stream, start, end) is Order.EQUAL_OR_AFTER
    assert cuts.compare(stream, cut_of("0#0=3,1#0=4"), cut_of("0#0=4,1#0=3")) is Order.OVERLAPS
    assert cuts.equal_or_after(stream, end, cut_of("0#0=end,1#0=end"))


# --- between ----------------------------------------------------------------------------------


@pytest.mark.medium
@given(st.data())
def test_ranges_between_are_the_events_read_between(data: st.DataObject) -> None:
    stream, positions = data.draw(journeys())
    for (a, start), (b, end) in itertools.combinations(positions, 2):
        ranges = cuts.ranges_between(stream, start, end)
        found = events_of(ranges)
        assert len(found) == len(set(found))
        assert set(found) == b.events() - a.events()
        assert cuts.distance_events(stream, start, end) == len(found)
        sizes = sum(
            stream.bytes_at(r.segment_id, r.end) - stream.bytes_at(r.segment_id, r.start)
            for r in ranges
        )
        assert cuts.distance_bytes(stream, start, end, stream.bytes_at) == sizes
        seen: set[int] = set()
        for segment in cuts.segments_between(stream, start, end):
            assert not seen & {s.segment_id for s in stream.after(segment)}
            seen.add(segment.segment_id)
        assert seen >= {s for s, mark in (*start, *end) if mark >= 0}
        assert seen >= {r.segment_id for r in ranges}
        assert not seen & {s for s, mark in end if mark == NOT_REACHED}
        assert not seen & (a.ended - start.positions.keys())


def test_bytes_of_whole_segments_come_from_their_records() -> None:
    stream = half_merged()

    def never(segment_id: int, offset: int) -> int:
        raise AssertionError((segment_id, offset))

    whole = cuts.distance_bytes(stream, StreamCut.EARLIEST, StreamCut.LATEST, never)
    assert whole == sum(record.size_bytes for record in stream.records.values())


def test_cuts_in_the_wrong_order_have_nothing_between() -> None:
    stream = half_merged()
    for function in (cuts.ranges_between, cuts.segments_between, cuts.distance_events):
        for a, b in (("2#1=0", "0#0=3,1#0=3"), ("0#0=3,1#0=4", "0#0=4,1#0=3")):
            with pytest.raises(InvalidStreamCut, match="is behind"):
                function(stream, cut_of(a), cut_of(b))


def test_segments_between_of_a_merge() -> None:
    stream = half_merged()
    found = cuts.segments_between(stream, stream.head, cut_of("0#0=end,1#0=4,2#1=future"))
    assert [str(s) for s in found] == ["0#0", "1#0"]
    found = cuts.segments_between(stream, cut_of("0#0=end,1#0=4,2#1=future"), cut_of("2#1=1"))
    assert [str(s) for s in found] == ["0#0", "1#0", "2#1"]


# --- head -------------------------------------------------------------------------------------


@given(st.data())
def test_cut_below_the_head_is_clipped_to_the_head(data: st.DataObject) -> None:
    stream = data.draw(streams())
    mine, other = data.draw(readers(stream)), data.draw(readers(stream))
    cut, full = mine.cut(stream), stream.copy()
    stream.truncate(other.cut(stream))
    cuts.check(stream, cut)
    clipped, lost = cuts.clip_to_head(stream, cut)
    cuts.check(stream, clipped)
    assert cuts.equal_or_after(stream, clipped, stream.head)
    assert all(stream.has_segment(s) for s, _ in clipped)
    left = set(events_of(cuts.ranges_between(full, clipped, StreamCut.LATEST)))
    assert left == set(stream.log) - mine.events() - other.events()
    kept = {e for e in other.events() - mine.events() if stream.has_segment(e[0])}
    assert set(events_of(lost)) == kept
    gone = {s for s, mark in cut if mark != NOT_REACHED and not stream.has_segment(s)}
    assert {r.segment_id for r in lost if not len(r)} == gone
    stream.remembers = True
    assert cuts.clip_to_head(stream, cut)[0] == clipped
    remembered = cuts.clip_to_head(stream, cut)[1]
    assert set(events_of(remembered)) == other.events() - mine.events()
    assert all(map(len, remembered))
    event(f"lost: {bool(lost)}, forgotten: {bool(gone)}")
    assert cuts.clip_to_head(stream, clipped) == (clipped, ())
    if not lost:
        left = set(events_of(cuts.ranges_between(stream, cut, StreamCut.LATEST)))
        assert left == set(stream.log) - mine.events() - other.events()


def truncated(stream: MemoryStream, text: str) -> MemoryStream:
    stream.truncate(cut_of(text))
    return stream


def lost_of(lost: tuple[SegmentRange, ...]) -> list[str]:
    return [str(r).removeprefix("nyc/flights segment ") for r in lost]


@pytest.mark.parametrize(
    ("head", "text", "clipped", "lost"),
    [
        ("0#0=5,1#0=5", "0#0=7,1#0=2", "0#0=7,1#0=5", ["1#0 [2, 5)"]),
        ("0#0=5,1#0=5", "0#0=end,1#0=2,2#1=future", "0#0=end,1#0=5,2#1=future", ["1#0 [2, 5)"]),
        ("2#1=2", "0#0=end,1#0=2,2#1=future", "2#1=2", ["1#0 [2, 20)", "2#1 [0, 2)"]),
        ("2#1=0", "0#0=end,1#0=2,2#1=future", "2#1=0", ["1#0 [2, 20)"]),
        ("2#1=0", "0#0=end,1#0=end", "2#1=0", []),
        ("2#1=2", "0#0=end,1#0=end", "2#1=2", ["2#1 [0, 2)"]),
        ("2#1=2", "2#1=4", "2#1=4", []),
    ],
)
def test_lost_segments_are_named(head: str, text: str, clipped: str, lost: list[str]) -> None:
    stream = truncated(half_merged(), head)
    stream.remembers = True
    found, gone = cuts.clip_to_head(stream, cut_of(text))
    assert (found, lost_of(gone)) == (cut_of(clipped), lost)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("0#0=end,1#0=end", "0#0 from its end, segment 1#0 from its end"),
        ("0#0=end,1#0=2,2#1=future", "0#0 from its end, segment 1#0 from 2"),
    ],
)
def test_what_no_history_knows_counts_as_lost(text: str, lost: str) -> None:
    stream = truncated(half_merged(), "2#1=0")
    with pytest.raises(TruncatedData, match=lost):
        cuts.next_cut(stream, cut_of(text), 5)


def test_reads_below_the_head_are_refused() -> None:
    stream = truncated(half_merged(), "2#1=2")
    for call in (
        lambda: cuts.ranges_between(stream, cut_of("0#0=3,1#0=2"), StreamCut.LATEST),
        lambda: cuts.next_cut(stream, cut_of("2#1=0"), 5),
    ):
        with pytest.raises(TruncatedData, match=r"begins below the head: .* continue from .*2#1=2"):
            call()


def test_cuts_with_forgotten_segments_must_fit_the_oldest_epoch() -> None:
    stream = crossed()
    stream.scale([parse_segment("3#1")], [(0.25, 0.5), (0.5, 1.0)])
    stream.truncate(cut_of("3#1=0,4#2=0,5#2=0"))
    cuts.check(stream, cut_of("0#0=3,1#0=3"))
    cuts.check(stream, cut_of("0#0=3,3#1=0"))
    with pytest.raises(InvalidStreamCut, match="behind segment 3#1"):
        cuts.check(stream, cut_of("0#0=3,7#3=0"))


# --- next -------------------------------------------------------------------------------------


@given(st.data(), st.integers(1, 40))
def test_next_cuts_reach_the_tail_and_never_jump_over_a_scale(
    data: st.DataObject, size: int
) -> None:
    stream = data.draw(streams())
    reader = data.draw(readers(stream))
    cut, read = reader.cut(stream), reader.events()
    for _ in range(1_000):
        following = cuts.next_cut(stream, cut, size)
        assert cuts.equal_or_after(stream, following, cut)
        ranges = cuts.ranges_between(stream, cut, following)
        for r in ranges:
            for before in stream.before(next_segment(stream, r.segment_id)):
                assert whole(stream, before.segment_id) <= read
        read |= set(events_of(ranges))
        if following == cut:
            break
        cut = following
    assert read == set(stream.log)
    assert cuts.distance_events(stream, cut, StreamCut.LATEST) == 0


def next_segment(stream: MemoryStream, segment_id: int):  # type: ignore[no-untyped-def]
    return next(s for s in stream.all_segments() if s.segment_id == segment_id)


def whole(stream: MemoryStream, segment_id: int) -> set[tuple[int, int]]:
    return {(segment_id, o) for o in range(stream.records[segment_id].next_offset)}


def test_next_cut_stops_at_a_scale_then_shares() -> None:
    stream = MemoryStream.of(1)
    stream.append(0, 10)
    stream.scale([0], [(0.0, 0.5), (0.5, 1.0)])
    for segment_id in stream.active.segment_ids:
        stream.append(segment_id, 10)
    stream.scale(stream.active.segment_ids, [(0.0, 1.0)])
    stream.append(parse_segment("3#2"), 50)
    found = []
    cut = StreamCut.EARLIEST
    for _ in range(9):
        cut = cuts.next_cut(stream, cut, 8)
        found.append(str(cut).partition(":")[2])
    assert found[:3] == ["0#0=8", "0#0=10", "1#1=4,2#1=4"]
    assert found[3:6] == ["1#1=8,2#1=8", "1#1=10,2#1=10", "3#2=8"]


def test_next_cut_of_a_merge_waits_for_both_sides() -> None:
    stream = half_merged()
    cut = cuts.next_cut(stream, cut_of("0#0=9,1#0=4"), 4)
    assert cut == cut_of("0#0=10,1#0=6")
    cut = cuts.next_cut(stream, cut, 40)
    assert cut == cut_of("0#0=10,1#0=20")
    assert cuts.next_cut(stream, cut, 2) == cut_of("2#1=2")
    assert cuts.next_cut(stream, cut_of("2#1=5"), 2) == cut_of("2#1=5")


def test_next_cut_needs_a_size() -> None:
    with pytest.raises(InvalidInput, match=r"approx_events .* of at least 1, got 0"):
        cuts.next_cut(half_merged(), StreamCut.EARLIEST, 0)
