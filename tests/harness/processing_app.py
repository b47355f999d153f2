"""A process that reads a stream in a group, and writes what follows from it, in transactions.

``python -m tests.harness.processing_app <root> <name> <seed>`` runs until the group has read
everything. The tests kill it and start it again.
"""

from __future__ import annotations

import json
import sys
import time
from random import Random

from pravega_spark.errors import IllegalState, ReinitializationRequired
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.txn.joint import JointWriter

SOURCE, RESULT, GROUP = "shop/orders", "shop/invoices", "shop/invoicing"
KEYS = 7


class Refusal(Exception):
    """The application's own error, amid a transaction."""


def order(number: int) -> bytes:
    """Return the event of an order, whose key and amount follow from its number."""
    return json.dumps([f"customer-{number % KEYS}", number, 3 * number + 1]).encode()


def invoice(order: bytes) -> tuple[str, bytes]:
    """Return the key and the event that an order leads to."""
    key, number, amount = json.loads(order)
    return key, json.dumps([key, number, 2 * amount]).encode()


def process_one(writer: JointWriter, reader: EventStreamReader, dice: Random) -> bool:
    """Process some events in one transaction; return whether everything was read."""
    with writer.begin_transaction(readers=[reader]) as txn:
        completed = False
        for _ in range(dice.randint(1, 3)):
            read = reader.read_events(dice.randint(1, 4), timeout=0.2)
            completed = read.is_completed
            for event in read.events.column("event").to_pylist():
                key, result = invoice(event)
                txn.write_event(RESULT, result, key)
        if dice.random() < 0.1:
            raise Refusal
    return completed


def process_all(root: str, name: str, seed: str) -> int:
    manager, dice = StreamManager(root), Random(f"{seed}/{name}")
    group = manager.reader_group(GROUP)
    with manager.create_joint_writer([RESULT]) as writer:
        while True:
            try:
                with group.create_reader(name, lease="5 s") as reader:
                    while True:
                        try:
                            if process_one(writer, reader, dice):
                                return 0
                        except Refusal:
                            continue
            except (IllegalState, ReinitializationRequired) as error:
                print(error, flush=True)  # a failed transaction, or a lease that is not over
                time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(process_all(*sys.argv[1:]))
