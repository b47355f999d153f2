from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.errors import InvalidConfiguration, TxnFailed
from pravega_spark.model import TransactionStatus
from pravega_spark.transactions import sweeper, transaction_leases
from pravega_spark.transactions.transaction import Transaction
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
    return transaction_leases.expiry_reasons(stream, stream.view(), limit_ms)


@pytest.mark.parametrize(
    ("lease", "ms"), [("10 s", 10_000), (10, 10_000), ("10 minutes", 600_000), (600, 600_000)]
)
def test_lease_within_the_bounds_is_read(lease: Any, ms: int) -> None:
    assert transaction_leases.parse_lease_ms(lease) == ms


@pytest.mark.parametrize(
    "lease",
    ["9.999 s", 9, "601 s", "11 minutes", 0, -1, "soon", None, True, "", "10", float("nan")],
)
def test_lease_beyond_the_bounds_is_refused_with_the_value(lease: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"lease"):
        transaction_leases.parse_lease_ms(lease)


@pytest.mark.parametrize(("lease_ms", "seconds"), [(10_000, 3.162), (100_000, 10), (600_000, 24.5)])
def test_pings_come_as_in_pravega(lease_ms: int, seconds: float) -> None:
    assert transaction_leases.ping_interval_seconds(lease_ms) == pytest.approx(seconds, rel=0.01)


def test_transaction_whose_lease_ran_out_is_expired_and_not_before(world: World) -> None:
    txn = begun(world.stream)
    txn.ping()
    world.runtime.sleep(LEASE)
    assert expired(world) == {}
    world.runtime.sleep(0.001)
    assert expired(world) == {txn.id: "its lease of 60 s ran out"}
    txn.ping()
    assert expired(world) == {}


def test_one_that_was_never_pinged_gets_its_lease_from_whoever_looks_first(world: World) -> None:
    """So a beginner whose clock is an hour behind is not taken for dead."""
    world.runtime.wall_ms -= 3_600_000
    txn = begun(world.stream)
    world.runtime.wall_ms += 3_600_000
    assert expired(world) == {}
    world.runtime.sleep(LEASE + 1)
    assert list(expired(world)) == [txn.id]


def test_only_the_storages_clock_counts(world: World) -> None:
    txn = begun(world.stream, execution_ms=2 * LEASE_MS)
    txn.ping()
    stream = world.process()

    class Ahead(type(stream.runtime)):  # type: ignore[misc]
        def now_ms(self) -> int:
            return int(super().now_ms()) + 10**9

    stream.runtime = Ahead()
    assert transaction_leases.expiry_reasons(stream, stream.view(), WEEK_MS) == {}


def test_clock_of_the_storage_that_goes_back_or_stays_out_of_the_listing_ends_nothing(
    world: World,
) -> None:
    begun(world.stream).ping()
    world.runtime.wall_ms -= 3_600_000
    assert expired(world) == {}
    world.runtime.wall_ms += 2 * 3_600_000
    stream = world.process()
    stream.store = world.store
    world.store.rules.add(Rule(Fault.STALE_LIST, "list", "s/t/transactions*"))
    assert transaction_leases.expiry_reasons(stream, stream.view(), WEEK_MS) == {}


def test_beyond_the_maximum_execution_time_it_ends_with_its_lease(world: World) -> None:
    txn = begun(world.stream, execution_ms=2 * LEASE_MS)
    txn.ping()
    world.runtime.sleep(LEASE)
    txn.ping()
    world.runtime.sleep(0.5)
    assert not txn._keep_alive()
    assert expired(world) == {}
    world.runtime.sleep(LEASE)
    assert expired(world) == {txn.id: "its maximum execution time ran out"}


@pytest.mark.parametrize("state", TransactionStatus, ids=lambda state: state.value)
def test_only_the_open_expire(world: World, state: TransactionStatus) -> None:
    txn = begun(world.stream)
    txn.ping()
    drive_to(state, world.stream, txn.id, cleared=False)
    world.runtime.sleep(LEASE + 1)
    assert list(expired(world)) == ([txn.id] if state is TransactionStatus.OPEN else [])


def test_prepared_one_expires_only_long_after_its_preparation(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.ping()
    world.runtime.sleep(1_000)
    txn.prepare()
    world.runtime.sleep(500)
    assert expired(world, 500_000) == {}
    world.runtime.sleep(1)
    assert expired(world, 500_000) == {txn.id: "prepared 501 s ago, and nobody has decided it"}
    tended = sweeper.sweep_transactions(world.process(), prepared_limit_ms=500_000)
    assert list(tended.aborted) == [txn.id]


def test_one_that_is_prepared_while_it_is_judged_is_spared(world: World) -> None:
    txn = written(world.stream, [("a", b"x")])
    txn.ping()
    world.runtime.sleep(LEASE + 1)
    with at_failpoint("txn.deciding", txn.prepare):
        assert sweeper.sweep_transactions(world.process()).aborted == {}
    assert txn.status is TransactionStatus.PREPARED


def test_expired_one_that_commits_first_is_committed_and_the_other_way_round(world: World) -> None:
    first, second = written(world.stream, [("a", b"x")]), written(world.stream, [("a", b"y")])
    for txn in (first, second):
        txn.ping()
    world.runtime.sleep(LEASE + 1)
    with at_failpoint("txn.deciding", lambda: first.commit(wait=False)):
        tended = sweeper.sweep_transactions(world.process())
    assert (tended.committed, list(tended.aborted)) == ([first.id], [second.id])
    with pytest.raises(TxnFailed, match=r"aborted \(its lease of 60 s ran out\)"):
        second.commit()
    assert world.events() == [b"x"]


def test_leases_of_others_are_left_alone(world: World) -> None:
    kept, lost = begun(world.stream), begun(world.stream)
    for txn in (kept, lost):
        txn.ping()
    world.runtime.sleep(LEASE / 2)
    Transaction(world.process(), kept.id).ping()
    world.runtime.sleep(LEASE / 2 + 1)
    assert list(sweeper.sweep_transactions(world.process()).aborted) == [lost.id]


def test_stream_without_open_transactions_costs_no_call(world: World) -> None:
    begun(world.stream).commit()
    view = world.stream.view()
    assert world.calls(lambda: transaction_leases.expiry_reasons(world.stream, view, WEEK_MS)) == []
