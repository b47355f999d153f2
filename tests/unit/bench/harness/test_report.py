from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.harness import report
from bench.harness.figures import Figure, save

FIGURE = Figure("append", 2.0, "ms", "floor", 1.0, 2.0, limited_by="the disk")


def test_results_are_written_as_json_table_and_picture(tmp_path: Path) -> None:
    figures = [FIGURE.within(at_most=3.0), FIGURE.within(at_most=0.01), FIGURE]
    save(figures, tmp_path / "out" / "results.json")
    report.draw(figures, tmp_path / "out" / "results.png")
    (first, missed, _) = json.loads((tmp_path / "out" / "results.json").read_text())
    keys = {"name", "value", "unit", "peer", "peer_value", "ratio", "target", "met"}
    assert keys <= set(first)
    assert (first["met"], missed["met"]) == (True, False)
    assert (tmp_path / "out" / "results.png").read_bytes().startswith(b"\x89PNG")


def test_missed_figure_is_printed_with_what_bounds_it() -> None:
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
