from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.layout.epochs import split
from pravega_spark.model import KeyRange
from pravega_spark.scaling.split_points import balanced, by_keys, most_loaded, newest_positions
from tests.harness.engine import make_stream, write

WHOLE = KeyRange(0.0, 1.0)

places = st.lists(
    st.integers(0, 63).map(lambda n: n / 64) | st.floats(0, 1, exclude_max=True), max_size=60
)


@given(places, st.integers(2, 8), st.sampled_from((WHOLE, KeyRange(0.25, 0.5))))
def test_ranges_by_keys_tile_the_old_one_and_are_never_worse_than_even_ones(
    rolled: list[float], parts: int, whole: KeyRange
) -> None:
    found = np.sort(np.array([p for p in rolled if whole.low <= p < whole.high]))
    ranges = balanced(found, whole, parts)
    if ranges is None:
        return
    assert 2 <= len(ranges) <= parts
    assert (ranges[0].low, ranges[-1].high) == (whole.low, whole.high)
    assert all(left.high == right.low for left, right in pairwise(ranges))
    assert most_loaded(found, ranges) < most_loaded(found, split(whole, parts))
    counts = [sum(r.low <= p < r.high for p in found) for r in ranges]
    assert sum(counts) == len(found)
    assert most_loaded(found, ranges) == max(counts) / len(found)


def test_a_load_in_one_corner_is_cut_into_equal_shares() -> None:
    found = np.linspace(0.9, 0.99, 1_000)
    ranges = balanced(found, WHOLE, 4)
    assert ranges is not None
    assert len(ranges) == 4
    assert most_loaded(found, ranges) == 0.25


def test_a_key_with_more_than_its_share_is_alone_with_what_is_near() -> None:
    found = np.sort(np.array([0.1] * 10 + [0.2] * 80 + [0.3] * 10))
    ranges = balanced(found, WHOLE, 2)
    assert ranges is not None
    assert most_loaded(found, ranges) == 0.9
    assert most_loaded(found, split(WHOLE, 2)) == 1.0


@pytest.mark.parametrize("found", [[], [0.4], [0.4] * 9, [0.1, 0.9], [0.1, 0.4, 0.6, 0.9]])
def test_even_ranges_stay_where_keys_give_no_better_ones(found: list[float]) -> None:
    assert balanced(np.array(found), WHOLE, 2) is None


def test_the_sample_is_of_the_newest_events_that_have_a_key() -> None:
    stream = make_stream()
    write(stream, [(f"old-{i}", b"e") for i in range(50)])
    write(stream, [(f"new-{i}", b"e") for i in range(10)] + [(None, b"e")] * 5)
    view = stream.view()
    (segment,) = view.active.segments
    found = newest_positions(stream, view, segment, limit=15)
    assert found.tolist() == sorted(position(f"new-{i}") for i in range(10))
    assert len(newest_positions(stream, view, segment)) == 60


def test_a_division_tells_what_it_gains_or_that_it_is_even() -> None:
    stream = make_stream()
    view = stream.view()
    (segment,) = view.active.segments
    assert by_keys(stream, view)(segment, 2) == (split(WHOLE, 2), "even parts")
    low = [key for key in map(str, range(4_000)) if position(key) < 0.1]
    write(stream, [(key, b"e") for key in low])
    view = stream.view()
    ranges, note = by_keys(stream, view)(segment, 2)
    assert 0 < ranges[0].high < 0.1
    assert note == "parts by keys, the fullest with 50% instead of 100%"
