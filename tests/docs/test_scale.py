"""The tables of docs/scale.md are those that counts, measurements, prices and formulas make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.harness.figures import load
from bench.page import KEPT
from bench.scale import model, page
from bench.scale.__main__ import main
from bench.scale.counts import counted
from bench.scale.model import LOADS, read_list
from bench.scale.simulation import simulate
from pravega_spark.benchmark.prices import Prices


@pytest.mark.medium
def test_page_is_made_from_what_is_kept() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.written(text, read_list(page.PRICES)) == text


def test_other_prices_make_another_page(tmp_path: Path) -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    mine = tmp_path / "mine.toml"
    mine.write_text(page.PRICES.read_text().replace("put_per_1000 = 0.005", "put_per_1000 = 1"))
    assert page.written(text, read_list(mine)) != text
    mine.write_text("[storage]\n")
    with pytest.raises(ValueError, match=r"mine.toml: \[machines\] lacks agent_hour"):
        read_list(mine)


@pytest.mark.parametrize("text", [None, "x = 1", "no TOML"], ids=["missing", "other", "no TOML"])
def test_prices_that_cannot_be_read_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    mine = tmp_path / "mine.toml"
    if text is not None:
        mine.write_text(text)
    with pytest.raises(SystemExit):
        main(["--prices", str(mine)])
    assert f"--prices: {mine} " in capsys.readouterr().err


def test_the_example_has_the_default_prices_of_the_command() -> None:
    storage = read_list(page.PRICES).storage
    assert replace(storage, name="") == replace(Prices(), name="")


@pytest.mark.medium
def test_an_append_still_takes_what_the_page_says() -> None:
    kept, _ = page.load_counts()
    again = next(counted())
    assert again.calls["PUT"] == pytest.approx(kept[again.name].calls["PUT"], abs=0.02)
    assert again.calls["GET"] < 0.2
    assert again.written_bytes == pytest.approx(kept[again.name].written_bytes, rel=0.1)


@pytest.mark.parametrize(
    ("writers", "figure"),
    [
        (16, "16 writers, S3: appends a second"),
        (16, "16 writers, simulated store: appends a second"),
        (64, "64 writers, simulated store: appends a second"),
    ],
)
def test_the_simulation_is_at_most_a_quarter_from_real_writers(writers: int, figure: str) -> None:
    measured = next(found.value for found in load(KEPT) if found.name == figure)
    found = simulate(writers, page.CALL_SECONDS)
    assert found.acknowledged_per_second == pytest.approx(measured, rel=0.25)


def test_a_lone_writer_waits_for_two_calls() -> None:
    assert simulate(1, 0.03).p50 == pytest.approx(0.06, rel=0.05)


def test_each_part_of_the_costs_follows_its_price() -> None:
    counts, _ = page.load_counts()
    prices = read_list(page.PRICES)
    free = {table: dict.fromkeys(names, 0.0) for table, names in prices.others.items()}
    for carried in LOADS:
        for name, cost in page.costs(carried, counts, prices).items():
            assert cost.dollars == pytest.approx(sum(cost.parts.values()))
            assert cost.dollars > 0, name
        stored = carried.in_bytes * 3 * 86_400 / 1e9 * 0.023
        ours = model.ours(carried, counts, prices)
        assert ours.parts["storage"] == pytest.approx(stored, rel=0.05)
        nothing = model.PriceList(
            Prices(put_per_1000=0, get_per_1000=0, list_per_1000=0, gb_month=0), free
        )
        assert {c.dollars for c in page.costs(carried, counts, nothing).values()} == {0.0}
