"""The tables of docs/benchmarks.md are those that the kept results make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench import cases, page
from bench.harness.figures import Figure, load, save
from bench.harness.registry import find

FIGURE = Figure("one append", 2.0, "ms", "its fsyncs", 1.0, 2.0, limited_by="the disk")


def test_page_is_made_from_the_kept_results() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text, load(page.KEPT)) == text


def test_each_missed_target_names_what_bounds_it() -> None:
    missed = [figure for figure in load(page.KEPT) if figure.met is False]
    assert [figure.name for figure in missed if not figure.limited_by] == []


def test_each_benchmark_has_one_table() -> None:
    placed = [name for names in page.TABLES.values() for name in names.split()]
    assert sorted(placed) == sorted(each.name for each in find(cases))


@pytest.mark.parametrize(
    ("most", "said"),
    [(2.5, "≤2.5x: met"), (1.5, "≤1.5x: missed. Bound by the disk")],
)
def test_row_says_whether_the_target_is_met_or_what_bounds_it(most: float, said: str) -> None:
    figure = replace(
        FIGURE.within(ratio_at_most=most), benchmark="durable_append", day="2026-01-02"
    )
    written = page.written(page.PAGE.read_text(encoding="utf-8"), [figure])
    assert f"| one append | 2 ms | its fsyncs: 1 | 2.00 | {said} |\n" in written


def test_each_spark_has_a_column() -> None:
    figures = [
        replace(
            FIGURE.within(ratio_at_least=least),
            name=f"Spark {spark}: read",
            peer=peer,
            benchmark="spark_versions",
            day="2026-01-02",
        )
        for spark, peer, least in (
            ("4.2", "Delta", 1.0),
            ("4.0", "Delta", 9.0),
            ("4.0", "4.2", 1.0),
        )
    ]
    written = page.written(page.PAGE.read_text(encoding="utf-8"), figures)
    table = "| | beside | Spark 4.0 | Spark 4.2 |\n| --- | --- | --- | --- |\n"
    assert f"{table}| read | Delta | 2.00, missed | 2.00 |\n| read | 4.2 | 2.00 |  |\n" in written


def test_results_replace_those_of_their_benchmarks_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = [
        replace(FIGURE, name=name, benchmark=benchmark, day="2026-01-02")
        for name, benchmark in (("a", "durable_append"), ("b", "durable_append"), ("c", "lone_put"))
    ]
    newer = replace(FIGURE, name="d", benchmark="durable_append", day="2026-01-03")
    kept, results, text = tmp_path / "kept.json", tmp_path / "results.json", tmp_path / "page.md"
    save(old, kept)
    save([newer], results)
    text.write_text(page.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(page, "KEPT", kept)
    monkeypatch.setattr(page, "PAGE", text)
    page.take([results])
    assert load(kept) == [newer, old[2]]
    written = text.read_text(encoding="utf-8")
    assert "Measured 2026-01-02 to 2026-01-03." in written
    assert page.written(written, load(kept)) == written
