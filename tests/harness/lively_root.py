"""A root with an hour of history: scaled streams, groups that lag, transactions, tables, times.

``python -m tests.harness.lively_root FOLDER`` makes one on a disk, to look at the page with.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence

from pravega_spark import (
    KeyValueTableConfiguration,
    RetentionPolicy,
    ScalingPolicy,
    StreamConfiguration,
    StreamManager,
)
from tests.harness.fake_runtime import SkippingRuntime

SECONDS = 3_300
HOSTILE = "<img src=x onerror=document.title='owned'>"
"""A text that a careless page would run."""

SCALES: dict[float, tuple[Sequence[str], Sequence[tuple[float, float]]]] = {
    0.14: (["0#0"], [(0.0, 0.25), (0.25, 0.5)]),
    0.29: (["2#1"], [(0.0, 0.125), (0.125, 0.25)]),
    0.43: (["3#1"], [(0.25, 0.3125), (0.3125, 0.375), (0.375, 0.5)]),
    0.6: (["4#2", "5#2"], [(0.0, 0.25)]),
    0.73: (["1#0"], [(0.5, 0.75), (0.75, 1.0)]),
    0.86: (["6#3", "7#3"], [(0.25, 0.375)]),
}
"""By part of the hour: the segments that ``nyc/flights`` seals, and the ranges that it opens."""


def make_lively_root(url: str, *, steps: int = 22) -> StreamManager:
    """Make the root in so many steps; its last commit was made just now, the first an hour ago."""
    runtime = SkippingRuntime()
    runtime.skip(-SECONDS)
    scales = {int(part * steps): change for part, change in SCALES.items()}
    manager = StreamManager(url, runtime=runtime)
    _create(manager)
    rng = random.Random(7)
    archive = manager.reader_group("nyc/archive")
    dashboards = manager.reader_group("nyc/dashboards")
    with (
        manager.create_writer("nyc/flights", "ingest-1") as flights,
        manager.create_writer("shop/orders", "checkout", automatically_note_time=False) as orders,
        manager.create_writer("shop/clicks") as clicks,
        archive.create_reader("archive-1") as slow,
        dashboards.create_reader("dashboard-a") as first,
        dashboards.create_reader("dashboard-b") as second,
    ):
        for step in range(steps):
            runtime.skip(SECONDS / steps)
            wave = 30 + 25 * math.sin(12 * step / steps) + rng.random() * 10
            for number in range(int(wave)):
                key = rng.choice(("UA", "B6", "DL", "AA", "EV", "WN", "MQ"))
                flights.write_event(
                    f'{{"flight": "{key}{number}", "delay": {rng.randint(-5, 90)}}}', key
                )
            flights.flush()
            for number in range(rng.randint(0, 6)):
                orders.write_event(f"order {step}-{number}", f"customer-{rng.randint(1, 40)}")
            orders.flush()
            if step % 9 == 0:
                orders.note_time(runtime.now_ms())
            for _ in range(rng.randint(20, 60) if (3 * step // steps) % 2 == 0 else 0):
                clicks.write_event(b"\x00\x01\xff" + rng.randbytes(20), str(rng.randint(1, 900)))
            clicks.flush()
            if step in scales:
                manager.scale_stream("nyc/flights", *scales[step])
            for _ in range(20):
                slow.read_next_event(timeout=0)
            for reader in (first, second):
                while reader.read_next_event(timeout=0).event is not None:
                    pass
            if step % 10 == 9:
                manager.compact_stream("nyc/flights")
        runtime.skip(-runtime.skipped)
        slow.read_next_event(timeout=0)
    _finish(manager)
    return manager


def _create(manager: StreamManager) -> None:
    for scope in ("nyc", "shop"):
        manager.create_scope(scope)
    manager.create_stream(
        "nyc/flights",
        StreamConfiguration(
            ScalingPolicy.by_event_rate(target=100, minimum=2),
            RetentionPolicy.by_consumption("5 minutes", "7 days"),
            tags={"raw", "aviation"},
        ),
    )
    manager.create_stream("nyc/weather", StreamConfiguration(tags={HOSTILE}))
    manager.create_stream(
        "shop/orders",
        StreamConfiguration(ScalingPolicy.fixed(4), RetentionPolicy.by_time("30 days")),
    )
    manager.create_stream(
        "shop/clicks",
        StreamConfiguration(ScalingPolicy.fixed(8), RetentionPolicy.by_size("1 GiB"), {"raw"}),
    )
    manager.create_stream("shop/payments")
    manager.create_reader_group("nyc/archive", ["nyc/flights"], retention="automatic")
    manager.create_reader_group("nyc/dashboards", ["nyc/flights"])
    manager.create_reader_group("shop/fulfilment", ["shop/orders", "shop/payments"])
    manager.subscribe("nyc/flights", "nightly-export")
    manager.create_key_value_table(
        "shop/inventory", KeyValueTableConfiguration(key_type="string", partitions=2)
    )
    manager.create_key_value_table(
        "shop/sessions", KeyValueTableConfiguration(key_type="string", ttl="1 hour")
    )


def _finish(manager: StreamManager) -> None:
    with manager.create_transactional_writer("shop/payments", "settlement") as writer:
        for number in range(4):
            transaction = writer.begin_transaction()
            transaction.write_event(f"payment {number}", "bank")
            if number == 2:
                transaction.abort()
            else:
                transaction.commit()
    with manager.create_writer("nyc/weather") as weather:
        weather.write_event(HOSTILE, HOSTILE)
    with manager.key_value_table("shop/inventory") as inventory:
        for number in range(25):
            inventory.put(f"article-{number}", str(number * 3))
        inventory.flush()
    manager.update_stream("shop/clicks", add_tags={"web"})
    manager.create_stream("shop/retired")
    manager.seal_stream("shop/retired")


if __name__ == "__main__":
    make_lively_root(sys.argv[1], steps=110)
