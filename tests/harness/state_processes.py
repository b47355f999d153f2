"""Processes that count in one shared state, and compact it; the tests kill them.

``python -m tests.harness.state_processes <root> <name> <ledger> <end>`` starts one.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from pravega_spark.errors import TooBusy
from pravega_spark.manager import StreamManager

STREAM = "s/shared"
Counts = dict[str, int]


def applied(counts: Counts, update: list[Any]) -> Counts:
    """Return the counts after one update: a name, and the count that it has then."""
    name, number = update
    assert counts.get(name, 0) + 1 == number, f"{update} was made on another state than {counts}"
    return {**counts, name: number}


def count_up(root: str, name: str, ledger: str, end: str) -> None:
    """Count for the process and for all together, until the file ``end`` exists.

    Both counts are one update, whose number is noted once it is acknowledged.
    """
    chance = random.Random(name)

    def step(counts: Counts, updates: list[Any]) -> int:
        updates += [[one, counts.get(one, 0) + 1] for one in ("all", name)]
        return counts.get(name, 0) + 1

    shared = StreamManager(root).state_synchronizer(STREAM, applied)
    shared.initialize({})
    with open(ledger, "a", buffering=1, encoding="utf-8") as acknowledged:
        print("ready", flush=True)
        while not Path(end).exists():
            try:
                number = shared.update_state(step)
            except TooBusy:  # it lost too many races, and wrote nothing
                continue
            acknowledged.write(f"{number}\n")
            if chance.random() < 0.1:
                shared.compact()


if __name__ == "__main__":
    count_up(*sys.argv[1:])
