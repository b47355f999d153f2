"""A bounded cache from which values leave by chance: what it keeps, and what it weighs."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.runtime.eviction import ChanceCache


@given(
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12)), max_size=80),
    st.randoms(use_true_random=False),
)
def test_what_is_kept_fits_and_what_was_used_last_is_kept(
    most: int, uses: list[tuple[int, int]], chance: random.Random
) -> None:
    cache = ChanceCache[int, int](most, chance.random, lambda value: value)
    values = dict[int, int]()
    for key, value in uses:
        found = cache.get(key)
        assert found in (None, values.get(key))
        if found is None:
            cache.put(key, value)
            values[key] = value
        assert cache.get(key) == values[key]
        kept = [values[key] for key in values if key in cache]
        assert len(cache) == len(kept)
        assert cache.weight >= sum(kept)
        assert cache.weight <= most or len(cache) == 1


def test_values_that_grow_after_they_were_kept_are_weighed_as_others_are_used() -> None:
    cache = ChanceCache[int, list[int]](1_000, random.Random(1).random, len)
    for number in range(100):
        grows = list[int]()
        cache.put(number, grows)
        grows.extend(range(100))
    assert 8 <= len(cache) <= 12, "ten of them fit"
