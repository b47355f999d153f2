"""Processes that increment counters of one table by compare-and-set.

``python -m tests.harness.counter_processes`` starts one of them, or one that folds the table.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pravega_spark.errors import CommitUnknown, ConditionalTableUpdate
from pravega_spark.key_value.entry import TableEntry
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.updates import TableInsert, TableModification, TablePut
from pravega_spark.manager import StreamManager
from pravega_spark.retention.run import RetentionOptions, run_retention

TABLE = "s/counters"
COUNTERS = ("a", "b", "c", "d")


def step(key: str, found: TableEntry | None) -> TableModification:
    """Return the increment of a counter as it was found."""
    if found is None:
        return TableInsert(key, "1")
    return TablePut(key, str(int(found.value) + 1), found.version)


def count_up(root: str, name: str, ledger: str, end: str) -> None:
    """Increment two random counters in one update, until the file ``end`` exists.

    The update also inserts a key that names it and its counters, so what it did can be checked.
    That key is noted once the update is acknowledged. Puts of an own key go on beside.
    """
    chance = random.Random(name)
    table: KeyValueTable = StreamManager(root).key_value_table(TABLE)
    with open(ledger, "a", buffering=1, encoding="utf-8") as acknowledged:
        print("ready", flush=True)
        done = tried = 0
        while not Path(end).exists():
            keys = chance.sample(COUNTERS, 2)
            found = table.get_all(keys, fresh=chance.random() < 0.5)
            tried += 1
            mark = f"op {name} {tried} {' '.join(keys)}"
            steps = [step(key, one) for key, one in zip(keys, found, strict=True)]
            try:
                table.update([*steps, TableInsert(mark, "")])
            except ConditionalTableUpdate:
                table.get(keys[0], fresh=True)
                continue
            except CommitUnknown:
                continue
            acknowledged.write(f"{mark}\n")
            done += 1
            if done % 3 == 0:
                table.put(f"own {name}", str(done)).result(120)
                own = table.get(f"own {name}")
                assert own is not None
                assert own.value == b"%d" % done


def fold_on(root: str) -> None:
    """Fold the table and truncate its change log, until this process is killed."""
    table = StreamManager(root).key_value_table(TABLE)
    log = table._stream
    while True:
        fold(log, folded_table(log, table.configuration))
        run_retention(log, RetentionOptions(root={}))


if __name__ == "__main__":
    kind, *given = sys.argv[1:]
    if kind == "fold":
        fold_on(*given)
    else:
        count_up(*given)
