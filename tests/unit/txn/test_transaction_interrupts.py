"""An interrupt at any line of a transaction's calls: the call can be repeated, or the next made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.txn import transaction as txn_transaction
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values.limits import TRANSACTION_BATCH_EVENTS, TRANSACTION_BUFFER_BYTES
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.joint_world import JointProcess
from tests.harness.line_interrupts import AtLine, interrupt, lines_in
from tests.harness.small_streams import all_events, make_stream
from tests.harness.tiers import sized

STEP = sized(37, 1)
"""Every line in ``make long``; otherwise some, which begin elsewhere for each call."""
pytestmark = pytest.mark.long
TABLE = pa.table({"event": pa.array([b"x", b"y"], pa.binary()), "routing_key": ["k", "k"]})

CALLS: dict[str, Callable[[Transaction], Any]] = {
    "write_event": lambda one: one.write_event(b"x", "k"),
    "write_events": lambda one: one.write_events([b"x", b"y"], "k"),
    "write_table": lambda one: one.write_table(TABLE),
    "a large event": lambda one: one.write_event([b"x" * 9_000_000], "k"),
    "flush": lambda one: one.flush(),
    "prepare": lambda one: one.prepare(),
    "commit": lambda one: one.commit(),
}


def world(name: str) -> tuple[StreamLog, TransactionalWriter, Transaction]:
    stream = make_stream()
    writer = TransactionalWriter(stream, large_events=True)
    transaction = writer.begin_transaction()
    transaction.write_event(b"before", "k")
    if name in ("flush", "commit"):
        transaction.write_table(pa.table({"event": [b"columns"], "routing_key": ["k"]}))
        transaction.write_event(b"newest", "k")
    return stream, writer, transaction


def stored(stream: StreamLog) -> list[bytes]:
    found = [event for _, event in all_events(stream)]
    return [event if len(event) < 100 else b"x" for event in found]


@pytest.mark.parametrize("spills", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_neither_loses_nor_doubles_an_event(
    name: str, spills: bool
) -> None:
    limit = 1 if spills else TRANSACTION_BATCH_EVENTS
    total = 1 if spills else TRANSACTION_BUFFER_BYTES
    with (
        mock.patch.object(txn_transaction, "TRANSACTION_BATCH_EVENTS", limit),
        mock.patch.object(txn_transaction, "TRANSACTION_BUFFER_BYTES", total),
    ):
        _check(name, CALLS[name])


def _check(name: str, call: Callable[[Transaction], Any]) -> None:
    _, writer, transaction = world(name)
    lines = lines_in(lambda: call(transaction))
    writer.close()
    held = [b"before", b"columns", b"newest"] if name in ("flush", "commit") else [b"before"]
    for number in range(len(name) % STEP, lines, STEP):
        stream, writer, transaction = world(name)
        with suppress(KeyboardInterrupt), AtLine(number, interrupt):
            call(transaction)
        if name in ("prepare", "commit"):
            call(transaction)
        else:
            transaction.write_event(b"after", "k")
        transaction.commit()
        transaction.commit()
        found = stored(stream)
        after = [] if name in ("prepare", "commit") else [b"after"]
        inside = found[len(held) : len(found) - len(after)]
        assert found == [*held, *inside, *after], (name, number)
        assert inside in ([], [b"x"], [b"x", b"y"]), (name, number)
        assert inside == [] or name.startswith(("write", "a large")), (name, number)
        assert not transaction.is_open
        writer.close()


@pytest.mark.parametrize("name", ["flush", "commit", "abort"])
def test_an_interrupt_at_any_line_of_a_joint_transaction_can_be_repeated(name: str) -> None:
    def begin() -> tuple[JointProcess, Any]:
        runtime = FakeRuntime()
        store = memory(runtime)
        for stream in ("s/a", "s/b"):
            make_stream(store, runtime, name=stream)
        process = JointProcess(store, runtime)
        joint = process.begin("s/a", "s/b")
        for stream in ("s/a", "s/b"):
            joint.write_event(stream, stream.encode(), "k")
        return process, joint

    _, joint = begin()
    lines = lines_in(getattr(joint, name))
    for number in range(len(name) % STEP, lines, STEP):
        process, joint = begin()
        with suppress(KeyboardInterrupt), AtLine(number, interrupt):
            getattr(joint, name)()
        getattr(joint, name)()
        if name == "flush":
            joint.commit()
        for stream in ("s/a", "s/b"):
            found = stored(process.stream(stream))
            assert found == ([] if name == "abort" else [stream.encode()]), (name, number)
        assert joint._done
        assert all(part._end_reported for part in joint._parts.values()), number


def test_an_event_writer_goes_on_after_an_interrupted_transaction() -> None:
    stream, writer, transaction = world("write_event")
    with suppress(KeyboardInterrupt), AtLine(20, interrupt):
        transaction.write_event(b"x", "k")
    transaction.abort()
    writer.close()
    with EventStreamWriter(stream) as plain:
        plain.write_event(b"plain", "k").result()
    assert stored(stream) == [b"plain"]
