from __future__ import annotations

import pytest

from bench.harness.figures import Figure

FIGURE = Figure("append", 2.0, "ms", "floor", 1.0, 2.0, limited_by="the disk")


@pytest.mark.parametrize(
    ("limits", "target", "margin"),
    [
        ({"at_most": 3.0}, "<= 3 ms", 1.5),
        ({"at_least": 4.0}, ">= 4 ms", 0.5),
        ({"ratio_at_most": 2.5, "at_most": 3.0}, "<= 2.5x and <= 3 ms", 1.25),
        ({"ratio_at_most": 2.5, "at_most": 1.0}, "<= 2.5x and <= 1 ms", 0.5),
        ({"ratio_at_least": 1.0}, ">= 1x", 2.0),
    ],
)
def test_margin_is_that_of_the_limit_met_worst(
    limits: dict[str, float], target: str, margin: float
) -> None:
    figure = FIGURE.within(**limits)
    assert figure.target == target
    assert figure.margin == pytest.approx(margin)
    assert figure.met is (margin >= 1)


def test_figure_of_rounds_has_the_medians_and_the_median_of_the_ratios() -> None:
    figure = Figure.of_rounds("append", [2.0, 30.0, 4.0], "ms", "floor", [1.0, 10.0, 4.0])
    assert (figure.value, figure.peer_value, figure.ratio) == (4.0, 4.0, 2.0)
