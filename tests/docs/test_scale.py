"""The tables of docs/scale.md are those that counts, measurements, prices and formulas make."""

from __future__ import annotations

import math
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


class Calculator:
    """What a reader computes, who has the page alone."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "|" in line]

    def row(self, first: str) -> list[float]:
        """Return the numbers of the row that begins so."""
        (row,) = (row for row in self.rows if row[0] == first)
        return [float(cell.strip("$").replace(",", "")) for cell in row[1:] if cell[-1].isdigit()]

    def price(self, what: str) -> float:
        return self.row(what)[0]

    def stated(self, number: float, said: str) -> float:
        """Return a number that a formula of the page has."""
        assert said in self.text, said
        return number

    def requests(self, **calls: float) -> float:
        million = {"PUT": "PUTs", "GET": "GETs and HEADs", "LIST": "LISTs", "DELETE": "DELETEs"}
        prices = {kind: self.price(f"a million {name}") for kind, name in million.items()}
        return sum(n * prices[kind] / 1e6 for kind, n in calls.items()) * 2_628_000

    def ours(self, size: float, streams: int, interval: float, *, spark: bool) -> dict[str, float]:
        put, get, lists, _, written, *_ = self.row("append of 1,024 events of 1 KiB")
        commits = max(streams / interval, size / self.stated(33_554_432, "33,554,432"))
        hourly = 160 if streams == 100_000 else self.stated(3_598, "3,598 / 3,600 s")
        upkeep = streams * hourly / 3_600
        each = 3 if spark else max(self.stated(5.5, "larger of 5.5"), 2 + interval / 2)
        cores = size / 117.4e6 + 3 * size / self.stated(738e6, "*out* / 738 MB")
        gets = commits * (get + 3 * each) + 0.8 * upkeep
        puts = commits * put + 0.2 * upkeep
        return {
            "requests": self.requests(PUT=puts, GET=gets, LIST=commits * lists),
            "storage": self.kept(size) * written / 1_048_576,
            "clients": cores * 730 * self.price("a core for an hour"),
        }

    def kept(self, size: float) -> float:
        days = self.stated(259_200, "259,200 s")
        return size * days / 1e9 * self.price("a GB for a month")

    def kafka(self, size: float, streams: int) -> dict[str, float]:
        by_size = math.ceil(3 * size / self.stated(150e6, "150 MB"))
        brokers = max(by_size, math.ceil(3 * streams / self.stated(4_000, "4,000")))
        disks = 3 * size * 259_200 / self.stated(0.6, "/ 0.6") / 1e9
        crossing = size * (2 / 3 + 2) / 1e9 * 2_628_000
        return {
            "machines": 3
            * math.ceil(brokers / 3)
            * 730
            * self.price("a broker of Kafka for an hour"),
            "disks": disks * self.price("a GB of a network disk for a month"),
            "between zones": crossing * self.price("a GB between zones"),
        }

    def diskless(self, size: float) -> dict[str, float]:
        agents = max(3, math.ceil(4 * size / self.stated(200e6, "200 MB")))
        flushes = max(agents / self.stated(0.25, "/ 0.25 s"), size / self.stated(4e6, "/ 4 MB"))
        merges = size / self.stated(16e6, "/ 16 MB")
        return {
            "machines": agents * 730 * self.price("an agent of a diskless broker for an hour"),
            "requests": self.requests(PUT=flushes + merges, GET=4 * flushes + merges),
            "storage": self.kept(size),
        }

    def delta(self, size: float, streams: int) -> dict[str, float]:
        batches = streams / 10
        cores = max(size / self.stated(20e6, "*in* / 20 MB") + 3 * size / 738e6, streams / 4)
        return {
            "machines": cores * 730 * self.price("a core for an hour"),
            "requests": self.requests(PUT=5.2 * batches, GET=8 * batches, LIST=5 * batches),
            "storage": self.kept(size),
        }


def test_a_calculator_gets_each_figure_from_the_page_alone() -> None:
    page_alone = Calculator(page.PAGE.read_text(encoding="utf-8"))
    loads = {
        "1 MB/s in, 3 MB/s out, 10 streams": (1e6, 10),
        "50 MB/s in, 150 MB/s out, 100 streams": (50e6, 100),
        "1 GB/s in, 3 GB/s out, 100 streams": (1e9, 100),
        "1 GB/s in, 3 GB/s out, 1,000 streams": (1e9, 1_000),
        "1 GB/s in, 3 GB/s out, 100,000 streams": (1e9, 100_000),
    }
    for name, (size, streams) in loads.items():
        (row,) = (r for r in page_alone.rows if r[0] == name and len(r) == 7)
        interval = float(row[1].removesuffix(" s"))
        is_last = streams == 100_000
        found = [
            page_alone.ours(size, streams, interval, spark=is_last),
            page_alone.ours(size, streams, max(10, interval), spark=True),
            page_alone.kafka(size, streams),
            page_alone.diskless(size),
            page_alone.delta(size, streams),
        ]
        said = [float(cell.strip("$").replace(",", "")) for cell in row[2:]]
        for parts, dollars in zip(found, said, strict=True):
            assert sum(parts.values()) == pytest.approx(dollars, rel=0.001, abs=0.5), name
        hows = ("pravega_spark", "pravega_spark, 10 s", "Kafka", "diskless", "Delta and Spark")
        for how, parts in zip(hows, found, strict=True):
            for told in (r for r in page_alone.rows if r[:2] == [name, how]):
                shown = dict(part.rsplit(" $", 1) for part in told[2].split(", "))
                numbers = {part: float(text.replace(",", "")) for part, text in shown.items()}
                assert numbers == pytest.approx(parts, rel=0.02, abs=0.5), (name, how)
