from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import report
from bench.cpu import Meter, compare
from bench.figures import Figure, save
from bench.measure import interleave, percentile, ratio

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
def test_the_margin_is_that_of_the_limit_met_worst(
    limits: dict[str, float], target: str, margin: float
) -> None:
    figure = FIGURE.within(**limits)
    assert figure.target == target
    assert figure.margin == pytest.approx(margin)
    assert figure.met is (margin >= 1)


def test_sides_take_turns_and_change_the_order() -> None:
    calls: list[str] = []

    def side(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    found = interleave(2, {"ours": lambda: side("ours"), "floor": lambda: side("floor")})
    assert calls == ["ours", "floor", "floor", "ours"]
    assert found == {"ours": [1.0, 4.0], "floor": [2.0, 3.0]}


def test_a_ratio_is_of_neighbours_so_that_a_slow_minute_counts_for_both() -> None:
    assert ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile(range(100), 0.99) == 99  # type: ignore[arg-type]


def test_results_are_written_as_json_table_and_picture(tmp_path: Path) -> None:
    figures = [FIGURE.within(at_most=3.0), FIGURE.within(at_most=0.01), FIGURE]
    save(figures, tmp_path / "out" / "results.json")
    report.draw(figures, tmp_path / "out" / "results.png")
    (first, missed, _) = json.loads((tmp_path / "out" / "results.json").read_text())
    keys = {"name", "value", "unit", "peer", "peer_value", "ratio", "target", "met"}
    assert keys <= set(first)
    assert (first["met"], missed["met"]) == (True, False)
    assert (tmp_path / "out" / "results.png").read_bytes().startswith(b"\x89PNG")


def test_a_missed_figure_is_printed_with_what_bounds_it() -> None:
    console = Console(record=True, width=120)
    report.explain(console, FIGURE.within(at_most=1.0))
    report.explain(console, FIGURE.within(at_most=3.0))
    console.print(report.table([FIGURE.within(at_most=1.0)]))
    text = console.export_text()
    assert text.count("bounded by the disk") == 1
    assert "2.00x" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(341_224.0, "341,224 x"), (2.5e6, "2.50 M x"), (12.345, "12.3 x"), (1.2345, "1.23 x")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert report.number(value, "x") == text


def test_processor_time_of_children_counts() -> None:
    meter = Meter()
    with meter:
        subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
    assert meter.seconds[0] > 0
    assert "against" in compare(meter, meter)
