"""Transactions in processes that tests kill: ``python -m tests.harness.transaction_processes``."""

from __future__ import annotations

import os
import signal
import sys

from pravega_spark.txn.transaction import Transaction
from tests.harness.writer_processes import STREAM, manager_of

KEYS = tuple(f"k{n}" for n in range(8))
LINES = 12


def resume(root: str, lines: str) -> None:
    """Resume after the last note: a transaction with an event for every key for each line."""
    with manager_of(root).create_transactional_writer(STREAM, "w") as writer:
        for line in range(int(writer.last_note or 0) + 1, int(lines) + 1):
            txn = writer.begin_transaction()
            _write(txn, f"{line}")
            txn.commit(str(line), wait=line % 3 != 0)
    manager_of(root).sweep_transactions(STREAM)


def _write(txn: Transaction, text: str) -> None:
    for n, key in enumerate(KEYS):
        txn.write_event(text, key)
        if n == 3:
            txn.flush()


def seal(root: str) -> None:
    """Seal the stream with one decided and one open transaction."""
    manager = manager_of(root)
    writer = manager.create_transactional_writer(STREAM)
    done, lost = writer.begin_transaction(), writer.begin_transaction()
    _write(done, "done")
    _write(lost, "lost")
    lost.flush()
    done.commit(wait=False)
    manager.seal_stream(STREAM)


def decide(root: str, stream: str) -> None:
    """Commit a transaction of the shortest lease, in one stream."""
    writer = manager_of(root).create_transactional_writer(stream)
    txn = writer.begin_transaction(lease="10 s")
    txn.write_event("decided")
    txn.commit()


def decide_jointly(root: str, *streams: str) -> None:
    """Commit a joint transaction of the shortest lease."""
    writer = manager_of(root).create_joint_writer(list(streams))
    txn = writer.begin_transaction(lease="10 s")
    for stream in streams:
        txn.write_event(stream, "decided")
    txn.commit()


def leave(root: str, way: str) -> None:
    """Decide to commit without waiting, by a handle or by the id; then end, or wait for input."""
    writer = manager_of(root).create_transactional_writer(STREAM)
    txn = writer.begin_transaction()
    txn.write_event("decided")
    txn.flush()
    if "id" in way:
        txn = manager_of(root).transaction(STREAM, txn.id)
    txn.commit(wait=False)
    print("ready", flush=True)
    if "stays" in way:
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)


def sweep(root: str) -> None:
    """Sweep the stream's transactions."""
    manager_of(root).sweep_transactions(STREAM)


def race(root: str, name: str, rounds: str) -> None:
    """Wait for a line of input, then commit transactions as fast as possible."""
    manager = manager_of(root)
    print("ready", flush=True)
    sys.stdin.readline()
    with manager.create_transactional_writer(STREAM, name) as writer:
        for n in range(int(rounds)):
            with writer.begin_transaction() as txn:
                _write(txn, f"{name} {n}")


def stall(root: str) -> None:
    """Flush into a transaction, wait for a line of input, commit, and print the outcome."""
    writer = manager_of(root).create_transactional_writer(STREAM, "w")
    txn = writer.begin_transaction()
    _write(txn, "stalled")
    txn.flush()
    print(txn.id, flush=True)
    sys.stdin.readline()
    try:
        txn.commit("stalled")
        print("committed", flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
    writer.close()


if __name__ == "__main__":
    actions = (resume, seal, sweep, race, stall, decide, decide_jointly, leave)
    action = {f.__name__: f for f in actions}[sys.argv[1]]
    action(*sys.argv[2:])
