"""Prices that a user gives, and what they make of calls and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.benchmark.prices import Prices, read_prices
from pravega_spark.errors import InvalidInput


def test_prices_are_those_of_the_file_and_else_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('name = "ours"\n[storage]\nput_per_1000 = 1\ngb_read = 0.5\n[other]\nx = 1\n')
    prices = read_prices(file)
    assert prices == Prices(name="ours", put_per_1000=1.0, gb_read=0.5)
    calls = {"PUT": 2_000, "GET": 10_000, "LIST": 1_000, "DELETE": 5}
    assert prices.requests(calls) == pytest.approx(2 * 1 + 10 * 0.0004 + 0.005)
    assert prices.transfer(5e9, 4e9) == 2.0
    assert prices.a_month(2e9) == pytest.approx(0.046)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("x = = 1", "is not valid TOML"),
        ("", "needs a table [storage]"),
        ("storage = 1", "needs a table [storage]"),
        ("name = 1\n[storage]", "its `name` is a text"),
        ("[storage]\nput = 1", "has the unknown price 'put'; it has delete_per_1000,"),
        ("[storage]\ngb_month = -1", "gb_month must be dollars, 0 or more, got -1"),
        ("[storage]\ngb_month = inf", "must be dollars"),
        ("[storage]\ngb_month = nan", "must be dollars"),
        ("[storage]\ngb_month = '1'", "must be dollars"),
        ("[storage]\ngb_month = true", "must be dollars"),
    ],
)
def test_a_file_that_is_no_list_of_prices_is_named_with_its_fault(
    tmp_path: Path, text: str, part: str
) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_prices(file)
    assert str(file) in str(caught.value)
    assert part in str(caught.value)


def test_a_missing_file_and_a_folder_are_misuse(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(InvalidInput, match="cannot be read as prices"):
            read_prices(path)
