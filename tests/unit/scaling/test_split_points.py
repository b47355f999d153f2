from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.layout.epochs import split
from pravega_spark.scaling.auto import (
    balanced_ranges,
    largest_share,
    newest_key_positions,
    split_by_keys,
)
from pravega_spark.values.segments import KeyRange
from tests.harness.small_streams import make_stream, write

WHOLE = KeyRange(0.0, 1.0)

key_positions = st.lists(
    st.integers(0, 63).map(lambda n: n / 64) | st.floats(0, 1, exclude_max=True), max_size=60
)


@given(key_positions, st.integers(2, 8), st.sampled_from((WHOLE, KeyRange(0.25, 0.5))))
def test_balanced_ranges_tile_the_range_and_are_better_than_even_ones(
    rolled: list[float], parts: int, whole: KeyRange
) -> None:
    found = np.sort(np.array([p for p in rolled if whole.low <= p < whole.high]))
    ranges = balanced_ranges(found, whole, parts)
    if ranges is None:
        return
    assert 2 <= len(ranges) <= parts
    assert (ranges[0].low, ranges[-1].high) == (whole.low, whole.high)
    assert all(left.high == right.low for left, right in pairwise(ranges))
    assert largest_share(found, ranges) < largest_share(found, split(whole, parts))
    counts = [sum(r.low <= p < r.high for p in found) for r in ranges]
    assert sum(counts) == len(found)
    assert largest_share(found, ranges) == max(counts) / len(found)


def test_load_in_a_small_range_is_split_into_equal_shares() -> None:
    found = np.linspace(0.9, 0.99, 1_000)
    ranges = balanced_ranges(found, WHOLE, 4)
    assert ranges is not None
    assert len(ranges) == 4
    assert largest_share(found, ranges) == 0.25


def test_key_with_more_than_its_share_is_not_split() -> None:
    found = np.sort(np.array([0.1] * 10 + [0.2] * 80 + [0.3] * 10))
    ranges = balanced_ranges(found, WHOLE, 2)
    assert ranges is not None
    assert largest_share(found, ranges) == 0.9
    assert largest_share(found, split(WHOLE, 2)) == 1.0


@pytest.mark.parametrize("found", [[], [0.4], [0.4] * 9, [0.1, 0.9], [0.1, 0.4, 0.6, 0.9]])
def test_keys_that_balance_no_better_than_even_ranges_give_no_ranges(found: list[float]) -> None:
    assert balanced_ranges(np.array(found), WHOLE, 2) is None


def test_sample_has_the_newest_events_with_a_key() -> None:
    stream = make_stream()
    write(stream, [(f"old-{i}", b"e") for i in range(50)])
    write(stream, [(f"new-{i}", b"e") for i in range(10)] + [(None, b"e")] * 5)
    view = stream.view()
    (segment,) = view.active.segments
    found = newest_key_positions(stream, view, segment, limit=15)
    assert found.tolist() == sorted(position(f"new-{i}") for i in range(10))
    assert len(newest_key_positions(stream, view, segment)) == 60


def test_note_of_a_split_says_what_it_gains_or_that_it_is_even() -> None:
    stream = make_stream()
    view = stream.view()
    (segment,) = view.active.segments
    assert split_by_keys(stream, view)(segment, 2) == (split(WHOLE, 2), "even parts")
    low = [key for key in map(str, range(4_000)) if position(key) < 0.1]
    write(stream, [(key, b"e") for key in low])
    view = stream.view()
    ranges, note = split_by_keys(stream, view)(segment, 2)
    assert 0 < ranges[0].high < 0.1
    assert note == "parts by keys, the fullest with 50% instead of 100%"
