from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.layout import epoch_changes, epochs
from pravega_spark.errors import InvalidConfiguration, NoSuchSegment, StreamSealed
from pravega_spark.values.segments import Epoch, KeyRange, Segment, make_segment_id, parse_segment
from tests.harness.strategies import MemoryStream, Reader, scale_by_numbers, streams

ID = parse_segment


def halves() -> MemoryStream:
    return MemoryStream.of(2)


def scaled(stream: MemoryStream, seal: list[str], *ranges: tuple[float, float]) -> Epoch:
    return epoch_changes.scale(
        stream, [ID(s) for s in seal], [KeyRange(*r) for r in ranges], 0, stream.next_number
    )


@given(st.integers(1, 3_000), st.integers(0, 100), st.integers(0, 100))
def test_first_epoch_tiles_exactly_with_equal_ranges(count: int, number: int, epoch: int) -> None:
    made = epoch_changes.first_epoch(count, number, epoch, 5)
    assert [s.number for s in made.segments] == list(range(number, number + count))
    assert {s.epoch for s in made.segments} == {made.number} == {made.reference} == {epoch}
    widths = [s.key_range.high - s.key_range.low for s in made.segments]
    assert max(widths) - min(widths) < 1e-12


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_first_epoch_of_no_or_too_many_segments_is_refused(count: int) -> None:
    with pytest.raises(InvalidConfiguration, match="1 to 10000 segments"):
        epoch_changes.first_epoch(count, 0, 0, 0)


@given(st.floats(0, 0.5), st.floats(0.6, 1), st.integers(1, 50))
def test_split_tiles_any_range(low: float, high: float, parts: int) -> None:
    made = epochs.split(KeyRange(low, high), parts)
    assert (len(made), made[0].low, made[-1].high) == (parts, low, high)
    assert all(a.high == b.low for a, b in itertools.pairwise(made))


def test_one_call_splits_and_merges_in_any_order() -> None:
    stream = MemoryStream.of(4)
    made = scaled(stream, ["3#0", "0#0", "1#0"], (0.75, 0.9), (0.0, 0.5), (0.9, 1.0))
    assert [str(s) for s in made.segments] == ["4#1", "2#0", "5#1", "6#1"]
    assert (made.number, made.reference, made.splits, made.merges) == (1, 1, 1, 1)


def test_segment_may_be_replaced_by_one_of_the_same_range() -> None:
    made = scaled(halves(), ["0#0"], (0.0, 0.5))
    assert [str(s) for s in made.segments] == ["2#1", "1#0"]
    assert (made.splits, made.merges) == (0, 0)


@pytest.mark.parametrize(
    ("seal", "ranges", "message"),
    [
        ([], [(0.0, 0.5)], r"scale of nyc/flights names no segment to seal; epoch 0 has 0#0, 1#0"),
        (["7#0"], [(0.0, 0.5)], r"segment 7#0 is not current; epoch 0 has 0#0, 1#0"),
        (["0#0"], [], r"seal cover \[0.0, 0.5\), the new ranges cover nothing"),
        (["0#0"], [(0.0, 0.4)], r"seal cover \[0.0, 0.5\), the new ranges cover \[0.0, 0.4\)"),
        (["0#0"], [(0.0, 0.6)], "must cover the same keys"),
        (["0#0"], [(0.5, 1.0)], "must cover the same keys"),
        (["0#0", "1#0"], [(0.0, 0.4), (0.6, 1.0)], "must cover the same keys"),
        (["0#0"], [(0.0, 0.3), (0.2, 0.5)], r"\[0.0, 0.3\) and \[0.2, 0.5\) overlap"),
        (["0#0"], [(0.0, 0.5), (0.0, 0.5)], "overlap"),
    ],
)
def test_invalid_scales_are_refused(
    seal: list[str], ranges: list[tuple[float, float]], message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        scaled(halves(), seal, *ranges)


def test_scale_below_the_minimum_is_refused() -> None:
    stream = halves()
    ids = stream.active.segment_ids
    with pytest.raises(InvalidConfiguration, match=r"would leave 1 segment; .* at least 2"):
        epoch_changes.scale(stream, ids, [KeyRange(0.0, 1.0)], 0, 2, minimum=2)


def test_scale_of_a_sealed_stream_is_refused() -> None:
    stream = halves()
    stream.seal()
    with pytest.raises(StreamSealed, match="nyc/flights"):
        scaled(stream, ["0#0"], (0.0, 0.5))


@pytest.mark.parametrize(("now", "created"), [(0, 1_001), (1_000, 1_001), (9_000, 9_000)])
def test_epoch_times_increase_with_any_clock(now: int, created: int) -> None:
    stream = halves()
    made = epoch_changes.scale(stream, [0], [KeyRange(0.0, 0.5)], now, 2)
    assert made.created_ms == created


@given(st.data())
def test_histories_tile_repeat_no_id_and_have_correct_neighbours(data: st.DataObject) -> None:
    stream = data.draw(streams())
    times = [e.created_ms for e in stream.history]
    assert times == sorted(set(times))
    segments = stream.all_segments()
    assert len({s.number for s in segments}) == len(segments)
    for segment in segments:
        after = epochs.successors(stream, segment.segment_id)
        assert [s for s, _ in after] == stream.after(segment)
        assert all(list(before) == stream.before(s) for s, before in after)
        before = epochs.predecessors(stream, segment.segment_id)
        assert [s for s, _ in before] == stream.before(segment)
        assert all(list(after) == stream.after(s) for s, after in before)


@given(st.data())
def test_neighbours_above_a_truncation_stay_correct(data: st.DataObject) -> None:
    stream = data.draw(streams())
    stream.truncate(epoch_cut(stream, data.draw(st.integers(0, stream.active.number))))
    for segment in stream.all_segments():
        if stream.has_segment(segment.segment_id):
            after = [s for s, _ in epochs.successors(stream, segment.segment_id)]
            before = [s for s, _ in epochs.predecessors(stream, segment.segment_id)]
            assert after == stream.after(segment)
            if segment.epoch > stream.oldest_epoch:
                assert before == stream.before(segment)
            else:
                assert before == []
        else:
            with pytest.raises(NoSuchSegment):
                epochs.successors(stream, segment.segment_id)
            with pytest.raises(NoSuchSegment):
                epochs.predecessors(stream, segment.segment_id)


def epoch_cut(stream: MemoryStream, number: int):  # type: ignore[no-untyped-def]
    reader = Reader(ended={s.segment_id for e in stream.history[:number] for s in e.segments})
    reader.ended -= set(stream.history[number].segment_ids)
    return reader.cut(stream)


def test_epoch_lookup_reads_few_epochs() -> None:
    stream = MemoryStream.of(1)
    for i in range(300):
        stream.scale(stream.active.segment_ids, [(0.0, 1.0)])
        assert stream.active.number == i + 1
    asked: list[int] = []

    class Watched(MemoryStream):
        def epoch(self, number: int, /) -> Epoch:
            asked.append(number)
            return super().epoch(number)

    watched = Watched(**vars(stream))
    assert epochs.epoch_at(watched, stream.history[120].created_ms).number == 120
    assert len(asked) <= 11
    asked.clear()
    epochs.successors(watched, stream.history[120].segment_ids[0])
    assert set(asked) <= {120, 121, 300}


def test_epoch_at_a_time_is_the_one_that_was_active() -> None:
    stream = halves()
    for now in (2_000, 3_000):
        stream._add(
            epoch_changes.scale(stream, stream.active.segment_ids, [KeyRange(0, 1)], now, 9)
        )
    asked = (0, 999, 1_000, 1_999, 2_000, 2_999, 3_000, 10**15)
    found = [epochs.epoch_at(stream, time).number for time in asked]
    assert found == [0, 0, 0, 0, 1, 1, 2, 2]


def test_segments_at_time_zero_are_those_of_the_head() -> None:
    stream = halves()
    stream.scale([0], [(0.0, 0.25), (0.25, 0.5)])
    stream.truncate(epoch_cut(stream, 1))
    assert [str(s) for s in epochs.segments_at(stream, 0)] == ["2#1", "3#1", "1#0"]
    assert [str(s) for s in epochs.segments_at(stream, 1_000)] == ["0#0", "1#0"]
    assert [str(s) for s in epochs.segments_at(stream, 1_001)] == ["2#1", "3#1", "1#0"]


@given(st.data())
def test_duplicate_keeps_numbers_ranges_and_reference(data: st.DataObject) -> None:
    stream = data.draw(streams())
    source = stream.active
    made = epoch_changes.duplicate(source, source.number + 1, source.created_ms + 1)
    again = epoch_changes.duplicate(made, made.number + 1, made.created_ms + 1)
    assert again.reference == made.reference == source.reference
    for old, new in zip(source.segments, made.segments, strict=True):
        assert new == Segment(make_segment_id(old.number, made.number), old.key_range)


@given(st.integers(0, 2**16), st.integers(0, 2**16))
def test_scales_by_numbers_are_scales(place: int, shape: int) -> None:
    stream = MemoryStream.of(4)
    scale_by_numbers(stream, place, shape)
    assert stream.active.number == 1
