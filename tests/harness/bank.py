"""Processes of a bank: tellers move money between accounts; a scaler splits and merges segments.

``python -m tests.harness.bank teller|scaler <root> <name> <seed> ...`` starts one process. The
tests kill it and start it again. A transfer is one transaction of two events, keyed by the
accounts: one takes the amount, the other gives it, so the total never changes. All choices follow
from the seed, the teller and the transfer's number: a restarted teller repeats exactly the
transfers that it has not done.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pravega_spark.errors import ScaleConflict, TxnFailed, WriterFenced
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import KeyRange

STREAM = "bank/transfers"
ACCOUNTS = [f"account-{number:02d}" for number in range(16)]
OPENING_BALANCE = 1_000
MOST_SEGMENTS = 6
FENCED = 3
"""Exit code of a teller that another process has fenced."""
DECOY = "decoy"
"""The teller's name in events of transactions that are aborted."""


@dataclass(frozen=True)
class Transfer:
    """One transfer of a teller, and how the teller writes it."""

    source: str
    target: str
    amount: int
    flush_between: bool
    wait: bool
    decoy: bool

    @classmethod
    def of(cls, seed: str, teller: str, number: int) -> Transfer:
        """Return the transfer of that number; the same arguments give the same transfer."""
        dice = Random(f"{seed}/{teller}/{number}")
        source, target = dice.sample(ACCOUNTS, 2)
        amount = dice.randint(1, 99)
        return cls(
            source, target, amount, dice.random() < 0.5, dice.random() < 0.8, dice.random() < 0.1
        )


def event(teller: str, number: int, amount: int) -> bytes:
    """Return the event for one half of a transfer."""
    return json.dumps([teller, number, amount]).encode()


def fund(manager: StreamManager) -> None:
    """Give every account its opening balance, in one transaction, whose commit rolls."""
    with (
        manager.create_transactional_writer(STREAM) as writer,
        writer.begin_transaction() as transaction,
    ):
        for number, account in enumerate(ACCOUNTS):
            transaction.write_event(event("fund", number, OPENING_BALANCE), account)
        transaction.flush()
        manager.scale_stream(STREAM, [0], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)])


def teller(root: str, name: str, seed: str, count: str) -> int:
    """Do the transfers up to ``count`` that are not in the log; print the number of each."""
    manager = StreamManager(root)
    try:
        with manager.create_transactional_writer(STREAM, name) as writer:
            for number in range(int(writer.last_note or 0) + 1, int(count) + 1):
                transfer = Transfer.of(seed, name, number)
                last = number == int(count)
                if transfer.decoy:
                    with writer.begin_transaction() as decoy:
                        decoy.write_event(event(DECOY, number, transfer.amount), transfer.source)
                        decoy.flush()
                        decoy.abort()
                with writer.begin_transaction() as transaction:
                    transaction.write_event(event(name, number, -transfer.amount), transfer.source)
                    if transfer.flush_between:
                        transaction.flush()
                    transaction.write_event(event(name, number, transfer.amount), transfer.target)
                    transaction.commit(note=str(number), wait=transfer.wait or last)
                print(number, flush=True)
    except (WriterFenced, TxnFailed):
        return FENCED
    return 0


def scaler(root: str, name: str, seed: str, stop: str) -> int:
    """Split and merge segments and sweep transactions until the file ``stop`` exists."""
    manager, dice = StreamManager(root), Random(f"{seed}/{name}/{time.monotonic_ns()}")
    while not Path(stop).exists():
        time.sleep(dice.uniform(0.01, 0.08))
        segments = manager.segments(STREAM)
        at = dice.randrange(len(segments))
        if len(segments) > 1 and dice.random() < len(segments) / (MOST_SEGMENTS + 1):
            sealed = list(segments[at : at + 2] or segments[-2:])
            ranges = [KeyRange(sealed[0].key_range.low, sealed[-1].key_range.high)]
        else:
            sealed = [segments[at]]
            low, high = segments[at].key_range.low, segments[at].key_range.high
            middle = low + (high - low) * dice.uniform(0.2, 0.8)
            ranges = [KeyRange(low, middle), KeyRange(middle, high)]
        try:
            manager.scale_stream(STREAM, [segment.segment_id for segment in sealed], ranges)
        except ScaleConflict:
            continue
        if dice.random() < 0.2:
            manager.sweep_transactions(STREAM)
    return 0


if __name__ == "__main__":
    role = {function.__name__: function for function in (teller, scaler)}[sys.argv[1]]
    sys.exit(role(*sys.argv[2:]))
