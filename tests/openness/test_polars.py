"""Polars reads a stream correctly with pyarrow; with its own scan two columns are null."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager


@pytest.fixture
def written(tmp_path: Path) -> tuple[str, Counter[tuple[int, int, bytes]]]:
    """A stream's table and its events."""
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer("s/a") as writer:
        for n in range(100):
            writer.write_event(b"%d" % n, routing_key=str(n))
            if n % 10 == 0:
                writer.flush()
    events = manager.read("s/a")
    expected = Counter((e.pointer.segment_id, e.pointer.offset, e.data) for e in events)
    return str(tmp_path / "root" / "s/a/events"), expected


def rows(frame: pl.DataFrame) -> Counter[tuple[int, int, bytes]]:
    at = pl.col("base_offset") + pl.col("offset_delta")
    return Counter(frame.select("segment_id", at, "event").iter_rows())


def test_polars_with_pyarrow_returns_all_events(
    written: tuple[str, Counter[tuple[int, int, bytes]]],
) -> None:
    table, expected = written
    assert sum(expected.values()) == 100
    assert rows(pl.read_delta(table, use_pyarrow=True)) == expected
    assert rows(pl.from_arrow(DeltaTable(table).to_pyarrow_table())) == expected  # type: ignore[arg-type]


def test_polars_own_scan_returns_the_events_without_their_positions(
    written: tuple[str, Counter[tuple[int, int, bytes]]],
) -> None:
    """If this fails, Polars reads partition values from the log: update docs/query-engines.md."""
    table, expected = written
    found = pl.read_delta(table)
    assert Counter(found["event"]) == Counter(event for _, _, event in expected)
    assert found["segment_id"].null_count() == found["base_offset"].null_count() == 100
