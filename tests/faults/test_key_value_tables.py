"""Real processes increment counters by compare-and-set, and fold them, while they are killed."""

from __future__ import annotations

import collections
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.manager import StreamManager
from tests.harness.counter_processes import COUNTERS, TABLE
from tests.harness.killed_processes import KilledProcesses
from tests.harness.tiers import sized
from tests.harness.warm_children import WarmChild

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
    pytest.mark.long,
]
WORKERS = 3
KILLS = sized(3, 120)
FOLD_POINTS = ("fold.read", "fold.written", "fold.commit", "fold.committed", "fold.publish")


def test_each_acknowledged_update_is_made_once_while_updates_and_folds_are_killed(
    tmp_path: Path,
) -> None:
    root = str(tmp_path / "root")
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_key_value_table(TABLE, KeyValueTableConfiguration("string", partitions=3))
    processes = KilledProcesses(
        tmp_path,
        "tests.harness.counter_processes",
        lambda worker, life: ("count", root, f"w{worker}-{life}"),
        seed=11,
    )
    with ThreadPoolExecutor(1) as pool:
        folds = pool.submit(kill_folds, root)
        processes.run(WORKERS, KILLS, folds.result)

    acknowledged = processes.acknowledged()
    table = manager.key_value_table(TABLE)
    entries = {entry.key: entry for entry in table.entries()}
    made = {str(key) for key in entries if str(key).startswith("op ")}
    assert len(acknowledged) == len(set(acknowledged)) > WORKERS
    assert set(acknowledged) <= made, "an acknowledged update is lost"
    increments = collections.Counter(counter for key in made for counter in key.split()[3:])
    assert {c: int(entries[c].value) for c in COUNTERS} == increments, "made twice, or in part"
    folded = folded_table(table._stream, table.configuration).read()
    assert folded is not None
    assert folded.record.number >= 2, "the folds that were killed after their commit"
    again = StreamManager(root).key_value_table(TABLE)
    assert list(again.at(table.at().version).entries()) == list(entries.values())


def kill_folds(root: str) -> None:
    """Fold the table in one process after the other, each of which is killed at another point."""
    for point in FOLD_POINTS:
        child = WarmChild("tests.harness.counter_processes", "fold", root, crash=point)
        assert child.wait(300) == -signal.SIGKILL, point
