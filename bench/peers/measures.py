"""What is measured of each peer, in which order, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.peers.peer import Limit

SIZES = ("small", "full")


@dataclass(frozen=True, slots=True)
class Shown:
    """One figure of a measure: a row of the table."""

    title: str
    unit: str
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """A method of a peer, its figures, and by size how many rounds of how much."""

    name: str
    shown: Mapping[str, Shown]
    rounds: Mapping[str, int]
    limits: Mapping[str, Limit]
    is_warmed: bool = True
    """Whether a round goes before that does not count: not if one warms itself, or is long."""


def _measure(
    name: str,
    shown: Mapping[str, Shown],
    small: tuple[int, int, float],
    full: tuple[int, int, float],
    *,
    is_warmed: bool = True,
) -> Measure:
    """Return a measure; the sizes are rounds, calls and the most seconds of a round."""
    sizes = dict(zip(SIZES, (small, full), strict=True))
    return Measure(
        name,
        shown,
        {size: rounds for size, (rounds, _, _) in sizes.items()},
        {size: Limit(calls, seconds) for size, (_, calls, seconds) in sizes.items()},
        is_warmed,
    )


def _latency(title: str) -> dict[str, Shown]:
    return {"p50": Shown(f"{title}, p50", "ms"), "p99": Shown(f"{title}, p99", "ms")}


def _rate(title: str, unit: str = "events/s") -> dict[str, Shown]:
    return {"rate": Shown(title, unit, more_is_better=True)}


ROWS = {"small": 50_000, "full": 2_000_000}
"""The events that each peer is filled with."""

MEASURES: Sequence[Measure] = (
    _measure("append", _latency("one event acknowledged"), (2, 20, 5), (10, 200, 10)),
    _measure("end_to_end", _latency("writer to a reader at the tail"), (1, 20, 5), (3, 200, 10)),
    _measure("pipelined", _rate("pipelined writes"), (1, 20_000, 5), (5, 1_000_000, 60)),
    _measure(
        "writers",
        {
            "rate": Shown("16 writers that wait for each event", "events/s", more_is_better=True),
            "p99": Shown("the same, p99 of an acknowledgement", "ms"),
        },
        (1, 1_000_000, 1),
        (3, 1_000_000, 10),
        is_warmed=False,
    ),
    _measure("transaction", _latency("100 events, all at once or none"), (2, 10, 5), (5, 100, 10)),
    _measure("catch_up", _rate("one reader of all events"), (1, 1, 60), (5, 1, 60)),
    _measure(
        "single_rows",
        {
            "rate": Shown("rows one at a time", "rows/s", more_is_better=True),
            "rows": Shown(
                "the same: rows in that time, at most 30,000", "rows", more_is_better=True
            ),
            "aggregate": Shown("then all rows counted by key", "ms"),
        },
        (1, 200, 3),
        (1, 30_000, 120),
        is_warmed=False,
    ),
    _measure(
        "stored",
        {"bytes": Shown("bytes stored for an event of 100", "B")},
        (1, 1, 1),
        (1, 1, 1),
        is_warmed=False,
    ),
    _measure(
        "idle",
        {
            "cpu": Shown("what runs while nobody reads or writes: a core's", "%"),
            "memory": Shown("the same: memory", "MiB"),
        },
        (1, 1, 2),
        (1, 1, 30),
        is_warmed=False,
    ),
    _measure("spark_write", _rate("Spark: batch write"), (1, 1, 60), (5, 1, 60)),
    _measure("spark_read", _rate("Spark: batch read"), (1, 1, 60), (5, 1, 60)),
    _measure("backlog", _rate("Spark: stream over all events"), (1, 1, 60), (5, 1, 60)),
    _measure(
        "micro_batch",
        {"p50": Shown("Spark: micro-batch of 100 events, copied, p50", "ms")},
        (1, 6, 60),
        (3, 30, 120),
    ),
    _measure(
        "to_delta",
        {
            "delta_rs": Shown("acknowledgement to a Delta reader, delta-rs", "s"),
            "duckdb": Shown("the same: DuckDB", "s"),
            "spark": Shown("the same: Spark", "s"),
        },
        (1, 2, 30),
        (3, 10, 60),
        is_warmed=False,
    ),
)
"""In running order: Spark last, whose JVM stays until the end of the run."""
BY_NAME = {measure.name: measure for measure in MEASURES}
