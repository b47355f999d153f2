from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.errors import InvalidConfiguration, TxnFailed
from pravega_spark.txn import leases, sweeper
from pravega_spark.txn.transaction import Transaction, keep_alive
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.transaction_world import LEASE_MS, World, begun, drive_to, written

LEASE = LEASE_MS / 1_000
WEEK_MS = 7 * 86_400_000


@pytest.fixture
def world() -> World:
    return World()


def expired(world: World, limit_ms: int = WEEK_MS) -> dict[str, str]:
    stream = world.process()
    return leases.expiry_reasons(stream, stream.view(), limit_ms)


@pytest.mark.parametrize(
    ("lease", "ms"), [("10 s", 10_000), (10, 10_000), ("10 minutes", 600_000), (600, 600_000)]
)
def test_lease_within_the_bounds_is_parsed(lease: Any, ms: int) -> None:
    assert leases.parse_lease_ms(lease) == ms


@pytest.mark.parametrize(
    "lease",
    ["9.999 s", 9, "601 s", "11 minutes", 0, -1, "soon", None, True, "", "10", float("nan")],
)
def test_lease_out_of_bounds_is_refused_with_its_value(lease: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"lease"):
        leases.parse_lease_ms(lease)


@pytest.mark.parametrize(("lease_ms", "seconds"), [(10_000, 3.162), (100_000, 10), (600_000, 24.5)])
def test_ping_interval_is_pravegas(lease_ms: int, seconds: float) -> None:
    assert leases.ping_interval_seconds(lease_ms) == pytest.approx(seconds, rel=0.01)


def test_transaction_expires_after_its_lease_and_not_before(world: World) -> None:
    txn = begun(world.stream)
    txn.ping()
    for _ in range(2):  # its own lease, and the last one that whoever finds it begins
        assert expired(world) == {}
        world.runtime.sleep(LEASE)
        assert expired(world) == {}
        world.runtime.sleep(0.001)
    assert expired(world) == {txn.id: "its lease of 60 s ran out"}
    txn.ping()
    assert expired(world) == {}


def test_transaction_without_a_ping_gets_its_lease_from_the_first_sweep(
    world: World,
) -> None:
    """So a writer whose clock is an hour behind does not lose its transaction."""
    world.runtime.wall_ms -= 3_600_000
    txn = begun(world.stream)
    world.runtime.wall_ms += 3_600_000
    assert expired(world) == {}
    world.run_out()
    assert list(expired(world)) == [txn.id]


def test_only_the_clock_of_the_storage_counts(world: World) -> None:
    txn = begun(world.stream, execution_ms=2 * LEASE_MS)
    txn.ping()
    stream = world.process()

    class Ahead(type(stream.runtime)):  # type: ignore[misc]
        def now_ms(self) -> int:
            return int(super().now_ms()) + 10**9

    stream.runtime = Ahead()
    assert leases.expiry_reasons(stream, stream.view(), WEEK_MS) == {}


def test_storage_clock_that_goes_back_expires_nothing(
    world: World,
) -> None:
    begun(world.stream).ping()
    world.runtime.wall_ms -= 3_600_000
    assert expired(world) == {}
    world.runtime.wall_ms += 2 * 3_600_000
    stream = world.process()
    stream.store = world.store
    world.store.rules.add(Rule(Fault.STALE_LIST, "list", "s/t/transactions*"))
    assert leases.expiry_reasons(stream, stream.view(), WEEK_MS) == {}


def test_transaction_beyond_its_maximum_execution_time_expires_with_its_lease(world: World) -> None:
    txn = begun(world.stream, execution_ms=2 * LEASE_MS)
    txn.ping()
    world.runtime.sleep(LEASE)
    txn.ping()
    world.runtime.sleep(0.5)
    assert not keep_alive(txn)
    assert expired(world) == {}
    world.run_out()
    assert expired(world) == {txn.id: "its maximum execution time ran out"}


@pytest.mark.parametrize("state", TransactionStatus, ids=lambda state: state.value)
def test_only_open_transactions_expire(world: World, state: TransactionStatus) -> None:
    txn = begun(world.stream)
    txn.ping()
    drive_to(state, world.stream, txn.id, delete_remains=False)
    world.run_out()
    assert list(expired(world)) == ([txn.id] if state is TransactionStatus.OPEN else [])


def test_prepared_transaction_expires_only_at_the_prepared_limit(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.ping()
    world.runtime.sleep(1_000)
    txn.prepare()
    world.runtime.sleep(500)
    assert expired(world, 500_000) == {}
    world.runtime.sleep(1)
    assert expired(world, 500_000) == {txn.id: "it was prepared 501 s ago and not decided since"}
    tended = sweeper.sweep_transactions(world.process(), prepared_limit_ms=500_000)
    assert list(tended.aborted) == [txn.id]


def test_transaction_prepared_during_the_sweep_is_spared(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.ping()
    world.run_out()
    with at_failpoint("txn.deciding", txn.prepare):
        assert sweeper.sweep_transactions(world.process()).aborted == {}
    assert txn.status is TransactionStatus.PREPARED


def test_expired_transaction_is_committed_or_aborted_by_the_first_decision(world: World) -> None:
    first, second = written(world.stream, [("a", b"x")]), written(world.stream, [("a", b"y")])
    for txn in (first, second):
        txn.ping()
    world.run_out()
    with at_failpoint("txn.deciding", lambda: first.commit(wait=False)):
        tended = sweeper.sweep_transactions(world.process())
    assert (tended.committed, list(tended.aborted)) == ([first.id], [second.id])
    with pytest.raises(TxnFailed, match=r"aborted \(its lease of 60 s ran out\)"):
        second.commit()
    assert world.events() == [b"x"]


def test_leases_of_other_transactions_are_unchanged(world: World) -> None:
    kept, lost = begun(world.stream), begun(world.stream)
    for txn in (kept, lost):
        txn.ping()
    world.run_out()
    Transaction(world.process(), kept.id).ping()
    assert list(sweeper.sweep_transactions(world.process()).aborted) == [lost.id]


def test_stream_without_open_transactions_costs_no_call(world: World) -> None:
    begun(world.stream).commit()
    view = world.stream.view()
    assert world.calls(lambda: leases.expiry_reasons(world.stream, view, WEEK_MS)) == []
