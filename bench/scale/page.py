"""The tables of docs/scale.md, made from what was counted, from results.json and from prices."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bench.harness.figures import Figure, load
from bench.page import KEPT as RESULTS
from bench.scale import model
from bench.scale.counts import KINDS, Count
from bench.scale.model import LOADS, Cost, Load, PriceList
from bench.scale.simulation import simulate

FOLDER = Path(__file__).parent
COUNTS = FOLDER / "counts.json"
PRICES = FOLDER / "prices-2025-06-us-east-1.toml"
PAGE = FOLDER.parents[1] / "docs/scale.md"
CALL_SECONDS = 0.030


def save_counts(found: Sequence[Count], day: str) -> None:
    """Keep what was counted."""
    kept = {"day": day, "counts": [asdict(count) for count in found]}
    COUNTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def load_counts() -> tuple[dict[str, Count], str]:
    """Return what was counted, by name, and when."""
    kept = json.loads(COUNTS.read_text(encoding="utf-8"))
    return {row["name"]: Count(**row) for row in kept["counts"]}, kept["day"]


def written(page: str, prices: PriceList) -> str:
    """Return the page with its tables made again, at these prices."""
    counts, day = load_counts()
    made = {
        "counts": _counts(counts, prices, day),
        "simulation": _simulation(load(RESULTS)),
        "segments": _segments(counts),
        "intervals": _intervals(counts, prices),
        "loads": _loads(counts, prices),
        "parts": _parts(counts, prices),
        "prices": _prices(prices),
    }
    for name, lines in made.items():
        before, mark, rest = page.partition(f"<!-- scale: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"the page has no place for {name}"
        page = f"{before}{mark}{''.join(lines)}{end}{after}"
    return page


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |\n|{' --- |' * len(headings)}\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"


def number(value: float) -> str:
    """Return a number with three digits that count."""
    if not value:
        return "0"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def dollars(value: float) -> str:
    """Return dollars, to the dollar above ten."""
    return f"${value:,.0f}" if value >= 10 else f"${value:.2g}"


def _counts(counts: Mapping[str, Count], prices: PriceList, day: str) -> Iterator[str]:
    rows = [
        [
            count.name,
            *(f"{count.calls[kind]:,.4g}" for kind in KINDS),
            number(count.written_bytes),
            number(count.read_bytes),
            dollars(1e6 * prices.storage.requests(count.calls)),
        ]
        for count in counts.values()
    ]
    yield f"Counted {day}.\n\n"
    yield from _table(
        ["operation", *KINDS, "bytes written", "bytes read", "requests of a million"], rows
    )


def _prices(prices: PriceList) -> Iterator[str]:
    storage = prices.storage
    million = {
        "PUTs": storage.put_per_1000,
        "GETs and HEADs": storage.get_per_1000,
        "LISTs": storage.list_per_1000,
        "DELETEs": storage.delete_per_1000,
    }
    rows = [[f"a million {kind}", f"${1_000 * price:g}"] for kind, price in million.items()]
    rows += [
        ["a GB for a month", f"${storage.gb_month:g}"],
        ["a GB to the bucket, and from it", f"${storage.gb_written:g}, ${storage.gb_read:g}"],
        ["a core for an hour", f"${prices('machines', 'core_hour'):g}"],
        ["a broker of Kafka for an hour", f"${prices('machines', 'broker_hour'):g}"],
        ["an agent of a diskless broker for an hour", f"${prices('machines', 'agent_hour'):g}"],
        ["a GB of a network disk for a month", f"${prices('machines', 'disk_gb_month'):g}"],
        ["a GB between zones", f"${prices('network', 'cross_zone_gb'):g}"],
        [
            "vendors: of Kafka a month, of a diskless broker a GB",
            f"${prices('vendor', 'kafka_month'):g}, ${prices('vendor', 'diskless_gb_written'):g}",
        ],
    ]
    yield f"Prices: {storage.name}.\n\n"
    yield from _table(["what", "dollars"], rows)


def _value(figures: Sequence[Figure], name: str) -> str:
    return number(next(figure.value for figure in figures if figure.name == name))


def _simulation(figures: Sequence[Figure]) -> Iterator[str]:
    measured = {
        1: "a writer alone, S3: p50 of an acknowledgement",
        16: "16 writers, S3: appends a second",
        64: "64 writers, simulated store: appends a second",
    }
    rows = []
    for writers in (1, 16, 64, 256, 1_024):
        found = simulate(writers, CALL_SECONDS)
        said = "no: extrapolated"
        if writers == 1:
            p50 = next(figure.value for figure in figures if figure.name == measured[1])
            said = f"{number(1_000 / p50)} a second"
        elif writers in measured:
            said = f"{_value(figures, measured[writers])} a second"
        rows.append(
            [
                f"{writers:,}",
                number(found.acknowledged_per_second),
                number(found.commits_per_second),
                f"{1e3 * found.p50:.0f} ms",
                f"{1e3 * found.p99:.0f} ms",
                said,
            ]
        )
    yield from _table(
        ["writers", "appends a second", "commits a second", "p50", "p99", "measured"], rows
    )


def _segments(counts: Mapping[str, Count]) -> Iterator[str]:
    rows = []
    for segments in (1, 100, 1_000, 10_000):
        count = counts[f"opening a stream, segments: {segments:,}"]
        rows.append([f"{segments:,}", number(sum(count.calls.values())), number(count.read_bytes)])
    yield from _table(["segments", "calls to open", "bytes to open"], rows)


def _intervals(counts: Mapping[str, Count], prices: PriceList) -> Iterator[str]:
    rows = []
    for seconds in (0.1, 0.25, 1.0, 10.0, 60.0):
        row = [f"{seconds:g} s"]
        for streams in (1, 1_000, 100_000):
            kept = Load("", 0.0, streams, seconds, followers=1, upkeep_calls=0.0)
            cost = model.ours(kept, counts, prices)
            row.append(dollars(cost.parts["requests"]))
        rows.append(row)
    yield from _table(["a commit each", "1 stream", "1,000 streams", "100,000 streams"], rows)


def costs(load: Load, counts: Mapping[str, Count], prices: PriceList) -> dict[str, Cost]:
    """Return the dollars a month of each way to carry a load."""
    batches = replace(load, commit_seconds=max(10.0, load.commit_seconds), by_batches=True)
    return {
        "pravega_spark": model.ours(load, counts, prices),
        "pravega_spark, 10 s": model.ours(batches, counts, prices),
        "Kafka": model.kafka(load, prices),
        "diskless": model.diskless(load, prices),
        "Delta and Spark": model.delta(load, prices),
    }


def _loads(counts: Mapping[str, Count], prices: PriceList) -> Iterator[str]:
    rows = []
    for carried in LOADS:
        found = costs(carried, counts, prices)
        interval = f"{carried.commit_seconds:g} s"
        rows.append([carried.name, interval, *(dollars(cost.dollars) for cost in found.values())])
    yield from _table(
        [
            "load",
            "our commits",
            "pravega_spark",
            "the same, each 10 s, Spark reads",
            "Kafka",
            "diskless",
            "Delta and Spark, each 10 s",
        ],
        rows,
    )


def _parts(counts: Mapping[str, Count], prices: PriceList) -> Iterator[str]:
    rows = []
    for carried in LOADS:
        found = costs(carried, counts, prices)
        if found["pravega_spark"] == found["pravega_spark, 10 s"]:
            del found["pravega_spark, 10 s"]
        for name, cost in found.items():
            parts = ", ".join(
                f"{part} {dollars(value)}" for part, value in cost.parts.items() if value
            )
            rate = ", ".join(
                f"{number(value)} {what}" for what, value in cost.per_second.items() if value
            )
            rows.append([carried.name, name, parts, rate])
    yield from _table(["load", "how", "dollars a month", "a second, or machines"], rows)
