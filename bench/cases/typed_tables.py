"""Rows of ten columns into a typed stream, durably, from one Python process."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import benchmark
from pravega_spark import ScalingPolicy, StreamConfiguration

_ROW_GROUP = 262_144


def flights(count: int, seed: int = 1) -> pa.Table:
    """Return flights of ten columns: numbers, words, a date, a time and a flag."""
    random = np.random.default_rng(seed)
    carriers = np.array([f"C{n}" for n in range(20)])
    airports = np.array([f"A{n:03d}" for n in range(300)])
    departed = pa.array(1_700_000_000_000_000 + np.arange(count) * 1_000, pa.int64())
    return pa.table(
        {
            "year": pa.array(random.integers(2_000, 2_020, count), pa.int32()),
            "day": pa.array(random.integers(0, 8_000, count).astype(np.int32)).cast(pa.date32()),
            "carrier": pa.array(carriers[random.integers(0, len(carriers), count)]),
            "flight": pa.array(random.integers(1, 9_999, count), pa.int32()),
            "origin": pa.array(airports[random.integers(0, len(airports), count)]),
            "destination": pa.array(airports[random.integers(0, len(airports), count)]),
            "departed": departed.cast(pa.timestamp("us", "UTC")),
            "delay": pa.array(random.normal(10, 30, count)),
            "distance": pa.array(random.integers(50, 5_000, count), pa.int64()),
            "cancelled": pa.array(random.random(count) < 0.02),
        }
    )


@benchmark()
def typed_tables(context: Context) -> Iterator[Figure]:
    """Flights, keyed by carrier, into 2 segments; the clock stops when the future is done."""
    count = context.size(2_000_000, 5_000)
    rows = flights(count)
    manager, name = context.manager, "bench/typed-tables"
    manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(2), schema=rows.schema))
    path = context.root.rstrip("/") + "/typed-tables.parquet"

    def ours() -> float:
        with manager.create_writer(name) as writer:
            seconds = timed(lambda: writer.write_table(rows, routing_key="carrier").result())
        return count / seconds

    def parquet() -> None:
        pq.write_table(
            rows, path, compression="zstd", compression_level=1, row_group_size=_ROW_GROUP
        )
        with open(path, "rb") as file:
            os.fsync(file.fileno())

    found = interleave(context.size(5, 2), {"ours": ours, "floor": lambda: count / timed(parquet)})
    yield Figure.of_rounds(
        "durable write_table of typed rows, 10 columns, one process",
        found["ours"],
        "rows/s",
        "pyarrow: the same rows to one fsynced Parquet file",
        found["floor"],
        note=f"best round {max(found['ours']):,.0f}/s",
        limited_by="Parquet's encoder, zstd and the disk",
    ).within(at_least=2_000_000)
