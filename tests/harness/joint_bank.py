"""Processes of a bank with two streams: a transfer takes from one and gives to the other.

``python -m tests.harness.joint_bank teller|sweeper <root> <name> <seed> ...`` starts one process.
The tests kill it and start it again. A transfer's name and number are in both of its events, so the
audit tells whether both streams hold it, and in which order.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from random import Random

from pravega_spark.errors import PravegaSparkError, TxnFailed
from pravega_spark.manager import StreamManager

STREAMS = ("bank/east", "bank/west")


def event(name: str, number: int, amount: int) -> bytes:
    """Return the event for one half of a transfer."""
    return json.dumps([name, number, amount]).encode()


def teller(root: str, name: str, seed: str, count: str) -> int:
    """Do ``count`` transfers that were not tried before; print the number of each committed one."""
    manager = StreamManager(root)
    tried = Path(f"{root}.{name}.tried")
    first = int(tried.read_text()) + 1 if tried.exists() else 1
    with manager.create_joint_writer(STREAMS) as writer:
        for number in range(first, first + int(count)):
            dice = Random(f"{seed}/{name}/{number}")
            tried.write_text(str(number))
            amount = dice.randint(1, 99)
            try:
                with writer.begin_transaction() as transaction:
                    east, west = dice.sample(STREAMS, 2)
                    transaction.write_event(east, event(name, number, -amount), name)
                    if dice.random() < 0.5:
                        transaction.flush()
                    transaction.write_event(west, event(name, number, amount), name)
                    if dice.random() < 0.1:
                        transaction.abort()
                        print(f"aborted {number}", flush=True)
                        continue
                print(f"committed {number}", flush=True)
            except TxnFailed:
                print(f"failed {number}", flush=True)
    return 0


def sweeper(root: str, name: str, seed: str, stop: str) -> int:
    """Sweep the transactions of one stream after the other until the file ``stop`` exists."""
    manager, dice = StreamManager(root), Random(f"{seed}/{name}/{time.monotonic_ns()}")
    while not Path(stop).exists():
        time.sleep(dice.uniform(0.01, 0.1))
        manager.sweep_transactions(dice.choice(STREAMS))
        if dice.random() < 0.2:
            try:
                manager.sweep_scope("bank")
            except PravegaSparkError as error:
                print(error, flush=True)
    return 0


if __name__ == "__main__":
    role = {function.__name__: function for function in (teller, sweeper)}[sys.argv[1]]
    sys.exit(role(*sys.argv[2:]))
