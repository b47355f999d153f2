"""Bounds of the cuts of simulated readers, against definitions that share no code with them."""

from __future__ import annotations

import itertools
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.values.segments import END, NOT_REACHED, Segment, StreamCut, parse_segment
from tests.harness import stream_cuts as cuts
from tests.harness.strategies import (
    MemoryStream,
    Reader,
    crossed,
    cut_of,
    half_merged,
    is_valid,
    readers,
    streams,
)
from tests.harness.stream_cuts import lower_bound_of, upper_bound_of

EARLIEST = StreamCut.EARLIEST


def before(stream: MemoryStream, cut: StreamCut) -> set[tuple[int, int]]:
    """Return the events before a cut."""
    ranges = cuts.ranges_between(stream, EARLIEST, cut)
    return {(r.segment_id, o) for r in ranges for o in range(r.start, r.end)}


@pytest.mark.medium
@given(st.data())
def test_lower_bound_is_valid_has_what_all_have_read_and_ignores_the_order(
    data: st.DataObject,
) -> None:
    stream = data.draw(streams())
    found = [data.draw(readers(stream)) for _ in range(data.draw(st.integers(1, 4)))]
    given_cuts = [reader.cut(stream) for reader in found]
    bound = lower_bound_of(stream, given_cuts)
    assert is_valid(stream, bound)
    for cut in given_cuts:
        assert cuts.equal_or_after(stream, cuts.canonical(stream, cut), bound)
    assert before(stream, bound) == set.intersection(*(reader.events() for reader in found))
    for order in itertools.permutations(given_cuts):
        assert lower_bound_of(stream, order) == bound


@given(st.data())
def test_upper_bound_is_valid_and_has_what_any_has_read(data: st.DataObject) -> None:
    stream = data.draw(streams())
    one, two = data.draw(readers(stream)), data.draw(readers(stream))
    bound = upper_bound_of(stream, one.cut(stream), two.cut(stream))
    assert is_valid(stream, bound)
    assert before(stream, bound) == one.events() | two.events()
    assert upper_bound_of(stream, two.cut(stream), one.cut(stream)) == bound


@given(st.data())
def test_lower_bound_is_never_below_the_head(data: st.DataObject) -> None:
    stream = data.draw(streams())
    head = cuts.canonical(stream, data.draw(readers(stream)).cut(stream))
    if END in head.positions.values() or stream.sealed:
        return
    found = [data.draw(readers(stream)) for _ in range(2)]
    stream.truncate(head)
    bound = lower_bound_of(stream, [reader.cut(stream) for reader in found])
    assert cuts.equal_or_after(stream, bound, head)


# Pravega's fold of cuts

Fold = dict[Segment, int]


def covers(segments: list[Segment], target: Segment) -> bool:
    edges = sorted({0.0, 1.0, *(e for s in segments for e in (s.key_range.low, s.key_range.high))})
    parts = [
        (low, high)
        for low, high in itertools.pairwise(sorted({*edges, *_edges(target)}))
        if target.key_range.low <= low and high <= target.key_range.high
    ]
    return all(
        any(s.key_range.low <= low and high <= s.key_range.high for s in segments)
        for low, high in parts
    )


def _edges(segment: Segment) -> tuple[float, float]:
    return segment.key_range.low, segment.key_range.high


def fold(bound: Fold, entry: tuple[Segment, int]) -> Fold:
    """Do one step of Pravega's fold, for one entry; -1 is a future segment."""
    segment, offset = entry
    bound = dict(bound)
    if segment in bound:
        bound[segment] = min(bound[segment], offset)
        return bound
    near = [s for s in bound if s.key_range.overlaps(segment.key_range)]
    older = [s for s in near if s.segment_id < segment.segment_id]
    newer = [s for s in near if s.segment_id > segment.segment_id]
    if not near:
        bound[segment] = offset
    elif offset < 0:
        if not covers(older, segment):
            bound[segment] = offset
    elif not older:
        bound[segment] = offset
        for other in newer:
            below = [
                s
                for s in bound
                if s.key_range.overlaps(other.key_range) and s.segment_id < other.segment_id
            ]
            if bound[other] >= 0 or covers(below, other):
                del bound[other]
    return bound


def entries_of(stream: MemoryStream, cut: StreamCut) -> list[tuple[Segment, int]]:
    """Return the entries of a cut in Pravega's form: no finished segments, -1 for future ones."""
    known = {s.segment_id: s for s in stream.all_segments()}
    return [(known[s], -1 if o == NOT_REACHED else o) for s, o in cut if o != END]


@given(st.data())
def test_lower_bound_is_pravegas_fold_in_some_order(data: st.DataObject) -> None:
    stream = data.draw(streams())
    found = [data.draw(readers(stream)).pass_ends(stream) for _ in range(2)]
    given_cuts = [cuts.canonical(stream, reader.cut(stream)) for reader in found]
    entries = [entries_of(stream, cut) for cut in given_cuts]
    if sum(map(len, entries)) > 6:
        return
    bound = set(entries_of(stream, lower_bound_of(stream, given_cuts)))
    orders = itertools.permutations([entry for cut in entries for entry in cut])
    assert any(set(reduce(fold, order, Fold()).items()) == bound for order in orders)


def test_lower_bound_has_a_slow_cuts_future_segment_instead_of_a_fast_ones_successors() -> None:
    """The smallest case in which the result of Pravega's fold depends on the order."""
    stream = MemoryStream.of(2)
    for segment_id in (0, 1):
        stream.append(segment_id, 10)
    stream.scale([0, 1], [(0.0, 1.0)])
    stream.scale([parse_segment("2#1")], [(0.0, 0.5), (0.5, 1.0)])
    for text in ("3#2", "4#2"):
        stream.append(parse_segment(text), 9)
    fast, slow = cut_of("3#2=6,4#2=7"), cut_of("0#0=5,1#0=end,2#1=future")
    assert lower_bound_of(stream, [fast, slow]) == lower_bound_of(stream, [slow, fast]) == slow


def test_bounds_of_cuts_on_two_sides_of_a_merge_and_of_crossing_scales() -> None:
    merged = half_merged()
    left, right = cut_of("0#0=end,1#0=7,2#1=future"), cut_of("0#0=4,1#0=end,2#1=future")
    assert lower_bound_of(merged, [left, right]) == cut_of("0#0=4,1#0=7")
    assert upper_bound_of(merged, left, right) == cut_of("2#1=0")
    stream = crossed()
    one, two = cut_of("0#0=3,1#0=10"), cut_of("3#1=0,4#2=0,5#2=0")
    assert lower_bound_of(stream, [one, two]) == cuts.canonical(stream, one)
    assert upper_bound_of(stream, one, two) == two


def test_lower_bound_of_one_cut_is_the_cut() -> None:
    stream = half_merged()
    reader = Reader({0: 3})
    assert lower_bound_of(stream, [reader.cut(stream)]) == reader.cut(stream)
