"""Dollars a month of four ways to carry one load, from counts, measurements and prices."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.scale.counts import Count
from pravega_spark.benchmark.prices import Prices, read_prices
from pravega_spark.values.limits import WRITER_BATCH_BYTES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOURS: Final = 730
SECONDS: Final = HOURS * 3_600
GB: Final = 10**9
MB: Final = 10**6


@dataclass(frozen=True, slots=True)
class PriceList:
    """The prices of the storage, and dollars of the rest by table and name."""

    storage: Prices
    others: Mapping[str, Mapping[str, float]]

    def __call__(self, table: str, name: str) -> float:
        """Return a price."""
        return float(self.others[table][name])


def read_list(path: Path) -> PriceList:
    """Read a list of prices; a missing table or price is an error that names it."""
    storage = read_prices(path)
    found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    for table, names in _NEEDED.items():
        missing = sorted(set(names) - set(found.get(table, {})))
        if missing:
            raise ValueError(f"{path}: [{table}] lacks {', '.join(missing)}")
    return PriceList(storage, {table: found[table] for table in _NEEDED})


_NEEDED: Final = {
    "machines": ("core_hour", "broker_hour", "agent_hour", "disk_gb_month"),
    "network": ("cross_zone_gb",),
    "vendor": ("kafka_month", "diskless_gb_written"),
}


@dataclass(frozen=True, slots=True)
class Load:
    """What is carried: bytes a second in, three times as many out, kept for three days."""

    name: str
    in_bytes: float
    streams: int
    commit_seconds: float
    """How long a writer of ours collects events: each stream commits so often."""
    followers: int = 3
    """Processes that read all; each follows every stream."""
    kept_days: float = 3.0
    by_batches: bool = False
    """Whether readers are Spark queries, with a batch as often as a commit, and not followers."""
    upkeep_calls: float = 3_598.0
    """Of maintenance, an hour for each stream that is written; a fifth of them are writes."""

    @property
    def out_bytes(self) -> float:
        """Bytes a second that readers get."""
        return self.in_bytes * self.followers

    @property
    def kept_bytes(self) -> float:
        """Bytes that are kept at a time."""
        return self.in_bytes * self.kept_days * 86_400


LOADS: Final = (
    Load("1 MB/s in, 3 MB/s out, 10 streams", 1 * MB, 10, 1.0),
    Load("50 MB/s in, 150 MB/s out, 100 streams", 50 * MB, 100, 1.0),
    Load("1 GB/s in, 3 GB/s out, 100 streams", 1 * GB, 100, 0.25),
    Load("1 GB/s in, 3 GB/s out, 1,000 streams", 1 * GB, 1_000, 1.0),
    Load(
        "1 GB/s in, 3 GB/s out, 100,000 streams",
        1 * GB,
        100_000,
        60.0,
        by_batches=True,
        upkeep_calls=160.0,
    ),
)

# What is assumed of others. Each stands in the page's list of formulas.
BROKER_BYTES: Final = 150 * MB
"""That a Kafka broker writes in a second, copies of others included."""
BROKER_REPLICAS: Final = 4_000
AGENT_BYTES: Final = 200 * MB
"""That a diskless broker takes and gives in a second."""
AGENT_FLUSH_SECONDS: Final = 0.25
AGENT_OBJECT_BYTES: Final = 4 * MB
DISK_FILL: Final = 0.6
DELTA_TRIGGER_SECONDS: Final = 10.0
DELTA_CORE_BYTES: Final = 20 * MB
"""That a core of Spark reads, sorts by table and writes as Parquet in a second."""
DELTA_TABLES_PER_CORE: Final = 4

# What was measured (docs/benchmarks.md): one writer's process takes 0.92 cores for 1.08 million
# events of 100 bytes a second on S3; a group's reader in Arrow batches 7.4 million a second.
WRITER_CORE_BYTES: Final = 108 * MB / 0.92
READER_CORE_BYTES: Final = 738 * MB
FOLLOWER_CALLS: Final = 5.5
"""GETs of a follower for each commit that it sees, on S3: polls, the commit and the chunk."""
IDLE_LOOK_SECONDS: Final = 2.0
"""The longest pause of a follower (docs/limits.md), which matters where commits are rare."""
BATCH_CALLS: Final = 3.0
"""GETs of a Spark query for each commit, if its batches are as rare: a look, commit and chunk."""
UPKEEP_WRITES: Final = 0.2


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars a month by what they are for, and what happens each second."""

    parts: Mapping[str, float]
    per_second: Mapping[str, float]

    @property
    def dollars(self) -> float:
        """The sum."""
        return sum(self.parts.values())


def ours(load: Load, counts: Mapping[str, Count], prices: PriceList) -> Cost:
    """Streams in a bucket: requests, bytes that are kept, and what clients compute."""
    append = counts["append of 1,024 events of 1 KiB"]
    commits = max(load.streams / load.commit_seconds, load.in_bytes / WRITER_BATCH_BYTES)
    calls = {kind: commits * count for kind, count in append.calls.items()}
    gets = max(FOLLOWER_CALLS, 2 + load.commit_seconds / IDLE_LOOK_SECONDS)
    calls["GET"] += commits * load.followers * (BATCH_CALLS if load.by_batches else gets)
    calls["DELETE"] = calls["PUT"]
    upkeep = load.streams * load.upkeep_calls / 3_600
    calls["PUT"] += upkeep * UPKEEP_WRITES
    calls["GET"] += upkeep * (1 - UPKEEP_WRITES)
    amplification = append.written_bytes / (1_024 * 1_024)
    cores = load.in_bytes / WRITER_CORE_BYTES + load.out_bytes / READER_CORE_BYTES
    return Cost(
        {
            "requests": prices.storage.requests(calls) * SECONDS,
            "storage": prices.storage.a_month(load.kept_bytes * amplification),
            "transfer": prices.storage.transfer(load.in_bytes, load.out_bytes) * SECONDS,
            "clients": cores * prices("machines", "core_hour") * HOURS,
        },
        {**calls, "commits": commits, "cores": cores},
    )


def kafka(load: Load, prices: PriceList) -> Cost:
    """Three copies in three zones; consumers read from the leader's zone or a follower's."""
    by_bytes = math.ceil(3 * load.in_bytes / BROKER_BYTES)
    by_partitions = math.ceil(3 * load.streams / BROKER_REPLICAS)
    brokers = max(3, 3 * math.ceil(max(by_bytes, by_partitions) / 3))
    crossing = load.in_bytes * (2 / 3 + 2)
    return Cost(
        {
            "machines": brokers * prices("machines", "broker_hour") * HOURS,
            "disks": 3 * load.kept_bytes / DISK_FILL / GB * prices("machines", "disk_gb_month"),
            "between zones": crossing / GB * prices("network", "cross_zone_gb") * SECONDS,
            "vendor": prices("vendor", "kafka_month"),
        },
        {"brokers": brokers, "MB between zones": crossing / MB},
    )


def diskless(load: Load, prices: PriceList) -> Cost:
    """Brokers without disks: each flushes all of its partitions as one object; then it compacts."""
    agents = max(3, math.ceil((load.in_bytes + load.out_bytes) / AGENT_BYTES))
    puts = max(agents / AGENT_FLUSH_SECONDS, load.in_bytes / AGENT_OBJECT_BYTES)
    compacted = load.in_bytes / (4 * AGENT_OBJECT_BYTES)
    calls = {"PUT": puts + compacted, "GET": puts * 3 + puts + compacted, "DELETE": puts}
    return Cost(
        {
            "machines": agents * prices("machines", "agent_hour") * HOURS,
            "requests": prices.storage.requests(calls) * SECONDS,
            "storage": prices.storage.a_month(load.kept_bytes),
            "vendor": prices("vendor", "diskless_gb_written") * load.in_bytes / GB * SECONDS,
        },
        {**calls, "agents": agents},
    )


def delta(load: Load, prices: PriceList) -> Cost:
    """Producers put files, a streaming query for each table appends them: a micro-batch each 10 s.

    A batch reads a listing and its files, writes a data file, a commit, and two files of its
    checkpoint, and every tenth a checkpoint of the log; each reader lists the log and reads both.
    """
    batches = load.streams / DELTA_TRIGGER_SECONDS
    cores = max(
        load.in_bytes / DELTA_CORE_BYTES + load.out_bytes / READER_CORE_BYTES,
        load.streams / DELTA_TABLES_PER_CORE,
    )
    calls = {
        "PUT": batches * (1 + 4 + 0.2),
        "GET": batches * (2 + 2 * load.followers),
        "LIST": batches * (2 + load.followers),
        "DELETE": batches * 2,
    }
    return Cost(
        {
            "machines": cores * prices("machines", "core_hour") * HOURS,
            "requests": prices.storage.requests(calls) * SECONDS,
            "storage": prices.storage.a_month(load.kept_bytes),
        },
        {**calls, "cores": cores},
    )
