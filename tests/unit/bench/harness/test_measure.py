from __future__ import annotations

import pytest

from bench.harness.measure import interleave, percentile, ratio


@pytest.mark.medium
def test_sides_take_turns_and_change_the_order() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = interleave(2, {"ours": lambda: side("ours"), "floor": lambda: side("floor")})
    assert calls == ["ours", "floor", "floor", "ours"]
    assert found == {"ours": [1.0, 4.0], "floor": [2.0, 3.0]}


def test_ratio_is_of_neighbours_so_that_a_slow_minute_counts_for_both() -> None:
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile(range(100), 0.99) == 99
