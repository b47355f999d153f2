"""The small transaction that several benchmarks commit: 100 events in 4 segments."""

from __future__ import annotations

from bench.harness.dataset import EVENT
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter

EVENTS = 100
SEGMENTS = 4
KEYS = [f"key-{number}" for number in range(EVENTS)]


def write_events(transaction: Transaction) -> Transaction:
    """Write 100 events with as many routing keys."""
    for key in KEYS:
        transaction.write_event(EVENT, key)
    return transaction


def flushed(writer: TransactionalWriter) -> Transaction:
    """Return an open transaction whose events are flushed, so that only its commit is left."""
    transaction = writer.begin_transaction()
    write_events(transaction).flush()
    return transaction
