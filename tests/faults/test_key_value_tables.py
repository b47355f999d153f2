"""Real processes increment counters by compare-and-set while they are killed at any moment."""

from __future__ import annotations

import collections
import sys
from pathlib import Path

import pytest

from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.counter_processes import COUNTERS, TABLE
from tests.harness.killed_processes import KilledProcesses
from tests.harness.tiers import sized

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL"),
    pytest.mark.slow,
    pytest.mark.long,
]
WORKERS = 3
KILLS = sized(6, 120)


def test_no_increment_is_lost_or_made_twice_by_processes_that_are_killed(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_key_value_table(TABLE, KeyValueTableConfiguration("string", partitions=3))
    processes = KilledProcesses(
        tmp_path,
        "tests.harness.counter_processes",
        lambda worker, life: (root, f"w{worker}-{life}"),
        seed=11,
    )
    processes.run(WORKERS, KILLS)

    done = [line for line in processes.acknowledged() if line.startswith("done ")]
    acknowledged = collections.Counter(key for line in done for key in line.split()[1:])
    updates = len(done)
    table = manager.key_value_table(TABLE)
    found = {e.key: int(e.value) for e in table.entries() if e.key in COUNTERS}
    assert updates > WORKERS
    assert all(found[counter] >= acknowledged[counter] for counter in COUNTERS)
    open_updates = (sum(found.values()) - updates * 2) / 2
    assert 0 <= open_updates <= KILLS, "only a kill leaves an answer open"
    assert open_updates == int(open_updates), "an update changes both of its counters, or none"
    version = table.at().version
    again = StreamManager(root).key_value_table(TABLE)
    assert {e.key: e.value for e in again.at(version).entries()} == {
        e.key: e.value for e in table.entries()
    }
