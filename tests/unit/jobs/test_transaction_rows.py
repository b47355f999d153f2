"""The rows of a sweep of one stream's transactions, without Spark."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pravega_spark.config.root_settings import SettingSources, parse_flags
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import NoSuchStream
from pravega_spark.jobs.transaction_rows import ROW_SCHEMA, Row, sweep
from pravega_spark.manager import StreamManager
from pravega_spark.txn import lifecycle
from pravega_spark.txn.manifests import Manifest, ManifestKind, Manifests
from tests.harness.transaction_world import let_expire

EVERY = ("open", "expired", "prepared", "committing", "aborting")


@pytest.fixture
def ids(tmp_path: Path) -> dict[str, str]:
    """One transaction in each state, by state; nothing is committed or aborted yet."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a")
    with manager.create_transactional_writer("s/a", "etl") as writer:
        made = {name: writer.begin_transaction() for name in EVERY}
        for transaction in made.values():
            transaction.write_events([b"one", b"two"], "k")
            transaction.flush()
            transaction.ping()
    made["prepared"].prepare()
    made["committing"].commit(wait=False)
    stream = open_stream(str(tmp_path), "s/a")
    lifecycle.put_closing_manifest(
        Manifests(stream, made["aborting"].id), Manifest(ManifestKind.ABORTING)
    )
    lease = tmp_path / f"s/a/transactions/{made['expired'].id}/lease.json"
    let_expire(lease)
    return {name: transaction.id for name, transaction in made.items()}


def swept(root: Path, *, dry_run: bool, limit: str = "7 days") -> tuple[dict[str, Row], int]:
    sources = SettingSources(flags=parse_flags({"prepared_limit": limit}))
    *rows, last = sweep(str(root), "s/a", sources=sources, dry_run=dry_run)
    assert set(last) <= set(ROW_SCHEMA.names) >= set(rows[0])
    return {row["transaction"]: row for row in rows}, last["cleared"]


def test_sweep_does_what_its_dry_run_reports(tmp_path: Path, ids: dict[str, str]) -> None:
    planned, clearing = swept(tmp_path, dry_run=True)
    done, cleared = swept(tmp_path, dry_run=False)
    decisions = {name: planned[ids[name]]["decision"] for name in EVERY}
    assert decisions == {
        "open": "keep",
        "expired": "abort",
        "prepared": "keep",
        "committing": "commit",
        "aborting": "abort",
    }
    assert decisions == {name: done[ids[name]]["decision"] for name in EVERY}
    assert clearing == cleared == 3
    assert planned[ids["expired"]]["reason"] == "its lease of 60 s ran out"
    assert done[ids["expired"]]["reason"] == "its lease of 60 s ran out"
    assert [event.data for event in StreamManager(tmp_path).read("s/a")] == [b"one", b"two"]


def test_row_has_state_writer_age_and_size(tmp_path: Path, ids: dict[str, str]) -> None:
    planned, _ = swept(tmp_path, dry_run=True)
    states = {name: planned[ids[name]]["status"] for name in EVERY}
    assert states == {
        "open": "OPEN",
        "expired": "OPEN",
        "prepared": "PREPARED",
        "committing": "COMMITTING",
        "aborting": "ABORTING",
    }
    for row in planned.values():
        assert (row["writer"], row["events"], row["size_bytes"]) == ("etl", 2, 6)
        assert 0 <= row["age_seconds"] < 60
    done, _ = swept(tmp_path, dry_run=False)
    ended = done[ids["committing"]]
    assert (ended["status"], ended["events"], ended["size_bytes"]) == ("COMMITTED", 2, 6)


def test_prepared_transactions_are_aborted_after_their_limit(
    tmp_path: Path, ids: dict[str, str]
) -> None:
    time.sleep(0.01)
    planned, _ = swept(tmp_path, dry_run=True, limit="1 ms")
    assert planned[ids["prepared"]]["decision"] == "keep", (
        "it is kept at least as long as its lease"
    )
    os.utime(tmp_path / f"s/a/transactions/{ids['prepared']}/lease.json", (0, 0))
    planned, _ = swept(tmp_path, dry_run=True, limit="1 ms")
    assert planned[ids["prepared"]]["decision"] == "abort"
    assert "not decided since" in planned[ids["prepared"]]["reason"]


def test_stream_without_transactions_and_a_stream_that_does_not_exist(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a")
    for dry_run in (True, False):
        assert sweep(str(tmp_path), "s/a", sources=SettingSources(), dry_run=dry_run) == [
            {"cleared": 0}
        ]
        with pytest.raises(NoSuchStream):
            sweep(str(tmp_path), "s/b", sources=SettingSources(), dry_run=dry_run)
