"""Blocks of bytes in other Delta readers: rows without a key, whose order gives the bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable, QueryBuilder

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.values.limits import BLOCK_BYTES
from tests.harness.delta_engines import connect_duckdb

STREAM = "s/bytes"
DATA = np.arange((6 * BLOCK_BYTES + 24) // 8, dtype=">u8").tobytes()


@pytest.mark.medium
def test_delta_rs_and_duckdb_read_the_blocks_and_their_bytes(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))
    with manager.create_byte_writer(STREAM) as writer:
        writer.write(DATA)
    with manager.create_byte_writer(STREAM, compression="zstd") as writer:
        writer.write(DATA)
    chunks = list((tmp_path / STREAM / "events" / "data").rglob("*.parquet"))
    assert any(b"pravega_spark version" in path.read_bytes()[-400:] for path in chunks)

    table = DeltaTable(str(tmp_path / STREAM / "events"))
    columns = "event, routing_key, base_offset + offset_delta AS place"
    ours = [(event.data, None) for event in manager.read(STREAM)]
    assert b"".join(data for data, _ in ours) == 2 * DATA
    query = f"SELECT {columns} FROM t ORDER BY place"
    found = QueryBuilder().register("t", table).execute(query).read_all()
    rows = zip(found["event"].to_pylist(), found["routing_key"].to_pylist(), strict=True)
    assert [*rows] == ours

    with connect_duckdb() as duck:
        scan = f"delta_scan('{tmp_path / STREAM / 'events'}')"
        found_rows = duck.sql(f"SELECT {columns} FROM {scan} ORDER BY place").fetchall()
    assert [(data, key) for data, key, _ in found_rows] == ours
