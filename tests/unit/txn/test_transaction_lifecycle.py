from __future__ import annotations

from typing import TypedDict

import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import OpenTransaction
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    CorruptLog,
    NoSuchStream,
    NoSuchTransaction,
    StaleIdentity,
    StreamSealed,
    TxnFailed,
    WriterFenced,
)
from pravega_spark.txn import lifecycle as txn_lifecycle
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction
from pravega_spark.values.names import check_transaction
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import make_stream, scale
from tests.harness.transaction_world import World, begun, session


class Times(TypedDict):
    """How long a transaction lives."""

    lease_ms: int
    execution_ms: int


TIMES: Times = {"lease_ms": 10_000, "execution_ms": 20_000}


@pytest.fixture
def world() -> World:
    return World()


def test_begin_is_a_commit_that_other_processes_see(world: World) -> None:
    writer = session(world.stream)
    opened = txn_lifecycle.begin(world.stream, 1, **TIMES, writer=writer)
    now_ms = world.runtime.now_ms()
    assert opened == OpenTransaction(
        opened.transaction_id, 0, now_ms, 10_000, now_ms + 20_000, "w", 1, 2
    )
    assert world.process().view().transactions == {opened.transaction_id: opened}
    assert len(world.commits("BEGIN TRANSACTION")) == 1


def test_id_of_the_systems_runtime_is_32_hexadecimal_digits() -> None:
    stream = make_stream(runtime=Runtime())
    name = txn_lifecycle.begin(stream, 1, **TIMES).transaction_id
    assert len(name) == 32
    assert int(name, 16) >> 96 == 0
    check_transaction(name)


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.DELAY])
def test_begin_with_a_lost_answer_begins_one_transaction(world: World, fault: Fault) -> None:
    world.store.rules.add(Rule(fault, "put_if_absent", "*/_delta_log/*", nth=1))
    begun(world.stream)
    world.store.deliver()
    assert len(world.process().view().transactions) == 1


def test_epoch_is_that_of_the_commit_even_after_a_lost_race(world: World) -> None:
    world.stream.view()
    scale(world.process(), [0], [(0, 0.5)])
    opened = txn_lifecycle.begin(world.stream, 1, **TIMES)
    assert (opened.epoch, opened.transaction_id[:8]) == (1, "00000001")


def test_begin_is_refused_on_a_sealed_or_deleted_stream_or_another_life(world: World) -> None:
    stream = world.process()
    lifecycle.seal(stream)
    with pytest.raises(StreamSealed, match="s/t was sealed"):
        txn_lifecycle.begin(world.stream, 1, **TIMES)
    lifecycle.delete(stream)
    with pytest.raises(NoSuchStream, match="was deleted"):
        txn_lifecycle.begin(world.stream, 1, **TIMES)
    lifecycle.create(stream, 2, StreamConfiguration())
    with pytest.raises(StaleIdentity, match="life 2"):
        txn_lifecycle.begin(world.stream, 1, **TIMES)
    with pytest.raises(CorruptLog, match="s/none has lost its log: life 1 of it is known"):
        txn_lifecycle.begin(StreamLog(world.store, "s/none", world.runtime), 1, **TIMES)


def test_begin_of_a_fenced_session_is_refused(world: World) -> None:
    old = session(world.stream)
    txn_lifecycle.begin(world.stream, 1, **TIMES, writer=old)
    session(world.process())
    with pytest.raises(WriterFenced, match="'w' of stream s/t: session 1 was fenced by session 2"):
        txn_lifecycle.begin(world.stream, 1, **TIMES, writer=old)


def test_transaction_whose_outcome_was_dropped_is_unknown(world: World) -> None:
    txn = begun(world.stream)
    txn.commit()
    stream = world.process()
    view = stream.view()
    assert txn_lifecycle.find(view, txn.id) == view.outcome(txn.id)
    with pytest.raises(NoSuchTransaction, match="ended so long ago that the log has dropped its"):
        txn_lifecycle.find(view, txn.id[:-1] + "x")


def test_concurrent_decisions_agree(world: World) -> None:
    """Two processes commit and abort: one wins, and both report the same outcome."""
    for first, second in (("commit", "abort"), ("abort", "commit")):
        txn = begun(world.stream)
        txn.write_event(b"x", "a")
        txn.flush()
        other = Transaction(world.process(), txn.id)
        with (
            at_failpoint("txn.deciding", getattr(other, first)),
            pytest.raises(TxnFailed, match="final"),
        ):
            getattr(txn, second)()
        assert txn.status is other.status
    assert world.events() == [b"x"]
    sweeper.sweep_transactions(world.stream)
    assert world.process().view().transactions == {}
