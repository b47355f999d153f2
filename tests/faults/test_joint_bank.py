"""A bank with two streams, whose tellers are killed at every step of a joint transaction."""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn.decision_log import DecisionLog
from tests.harness.delta_engines import connect_duckdb
from tests.harness.joint_bank import STREAMS
from tests.harness.tiers import sized
from tests.harness.warm_children import WarmChild

pytestmark = [pytest.mark.slow, pytest.mark.long]

PROJECT = Path(__file__).parents[2]
TRANSFERS = sized(2, 60)
"""Transfers of a teller after each of its starts."""
POINTS = (
    "joint.prepared",
    "joint.decided",
    "joint.closed",
    "joint.closed:2",
    "txn.decided",
    "commit.before:3",
)
TELLERS = ("ann", "bob")

Transfer = tuple[str, int]


def start(role: str, root: Path, name: str, last: str, point: str = "") -> WarmChild:
    return WarmChild("tests.harness.joint_bank", role, str(root), name, "1", last, crash=point)


def transfers(rows: list[bytes]) -> list[tuple[Transfer, int]]:
    decoded = [json.loads(row) for row in rows]
    return [((name, number), amount) for name, number, amount in decoded]


def run_tellers(root: Path, acknowledged: dict[Transfer, str]) -> None:
    """Run the tellers, each killed once at every point, and note what they acknowledged."""
    for point in (*POINTS, ""):
        processes = {name: start("teller", root, name, str(TRANSFERS), point) for name in TELLERS}
        for name, process in processes.items():
            out, _ = process.communicate(timeout=240)
            assert process.returncode == (-9 if point else 0), (point, out)
            for line in out.splitlines():
                what, number = line.split()
                acknowledged[name, int(number)] = what


def test_both_streams_hold_the_same_transfers_in_the_same_order(tmp_path: Path) -> None:
    root, stop = tmp_path / "root", tmp_path / "stop"
    manager = StreamManager(root)
    manager.create_scope("bank")
    for stream in STREAMS:
        manager.create_stream(stream, StreamConfiguration(scaling=ScalingPolicy.fixed(1)))
    sweeping = start("sweeper", root, "sweeper", str(stop))
    acknowledged: dict[Transfer, str] = {}
    try:
        run_tellers(root, acknowledged)
    finally:
        stop.write_text("")
        out, _ = sweeping.communicate(timeout=240)
    assert sweeping.returncode == 0, out
    manager.sweep_scope("bank")

    # Each transfer is in both streams or in neither, in one order, once, and as it was promised.
    east, west = (ours(root, stream) for stream in STREAMS)
    done = [transfer for transfer, _ in east]
    assert [transfer for transfer, _ in west] == done
    assert not [transfer for transfer, count in Counter(done).items() if count > 1]
    assert {t for t, what in acknowledged.items() if what == "committed"} <= set(done)
    assert not {t for t, what in acknowledged.items() if what != "committed"} & set(done)
    assert len(done) > len(POINTS)
    left = DecisionLog(root_of(manager).store).read().values()
    assert not [record for record in left if record.order is not None]

    # At the cut of every decision the books balance, for each kind of reader.
    for reader in (ours, delta_rs, duckdb):
        books = [accumulate(amount for _, amount in reader(root, stream)) for stream in STREAMS]
        assert all(a + b == 0 for a, b in zip(*books, strict=True)), reader.__name__


def ours(root: Path, stream: str) -> list[tuple[Transfer, int]]:
    return transfers([event.data for event in StreamManager(root).read(stream)])


def delta_rs(root: Path, stream: str) -> list[tuple[Transfer, int]]:
    table = DeltaTable(root / stream / "events").to_pyarrow_table()
    rows = table.select(["base_offset", "offset_delta", "event"]).to_pylist()
    rows.sort(key=lambda row: row["base_offset"] + row["offset_delta"])
    return transfers([row["event"] for row in rows])


def duckdb(root: Path, stream: str) -> list[tuple[Transfer, int]]:
    with connect_duckdb() as connection:
        query = (
            f"SELECT event FROM delta_scan('{root}/{stream}/events') "
            "ORDER BY base_offset + offset_delta"
        )
        return transfers([row[0] for row in connection.sql(query).fetchall()])
