"""Leases of transactions over outages of the storage: late, never early, and not for ever."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import pytest

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import StoreError
from pravega_spark.txn import leases as txn_leases
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction, keep_alive
from tests.harness.fault_plans import Rule
from tests.harness.outages import FAIL, HANG, Outages
from tests.harness.small_streams import reopen
from tests.harness.spy_store import Spy
from tests.harness.transaction_world import LEASE_MS, World, begun, written

LEASE = LEASE_MS / 1_000
PING = txn_leases.ping_interval_seconds(LEASE_MS)
LENGTHS = (0.5, 1.0, 2.0, 10.0)


@dataclass
class Owner:
    """A process that extends the lease of one transaction, as its lease keeper does."""

    txn: Transaction
    next_ping: float = 0.0


class Processes:
    """Owners of transactions and a process that sweeps them, each with a store of its own."""

    def __init__(self, owners: int = 2) -> None:
        self.world = World()
        self.clock = self.world.runtime
        self.outages = Outages(self.world.store.inner, self.clock)
        self.owners = [Owner(self.begin()) for _ in range(owners)]
        self.judge = self.open()

    def open(self) -> StreamLog:
        return reopen(self.world.stream, self.outages.process())

    def begin(self) -> Transaction:
        txn = written(self.open(), [("a", b"x")])
        txn.ping()
        return txn

    def sweep(self, judge: StreamLog | None = None) -> list[str]:
        with contextlib.suppress(StoreError):
            return list(sweeper.sweep_transactions(judge or self.judge).aborted)
        return []

    def run_for(self, seconds: float, *, every: float = 15.0, fresh: bool = False) -> list[str]:
        """Let owners ping and the judge sweep ``every`` so many seconds; return who was aborted.

        A ``fresh`` judge is another process at each sweep, as a job that runs once.
        """
        end, next_sweep, aborted = self.clock.monotonic() + seconds, 0.0, list[str]()
        while self.clock.monotonic() < end:
            for owner in self.owners:
                if self.clock.monotonic() >= owner.next_ping:
                    self._ping(owner)
            if self.clock.monotonic() >= next_sweep:
                aborted += self.sweep(self.open() if fresh else None)
                next_sweep = self.clock.monotonic() + every
            self.clock.sleep(1.0)
        return aborted

    def _ping(self, owner: Owner) -> None:
        try:
            keep_alive(owner.txn)
            owner.next_ping = self.clock.monotonic() + PING
        except StoreError:
            owner.next_ping = self.clock.monotonic() + 1.0

    def seconds_to_abort(self, txn: Transaction, **sweeps: bool | float) -> float:
        began = self.clock.monotonic()
        while not (aborted := self.run_for(1.0, every=0.0, **sweeps)):  # type: ignore[arg-type]
            assert self.clock.monotonic() - began < 10 * LEASE, "it is never aborted"
        assert aborted == [txn.id]
        return self.clock.monotonic() - began


@pytest.mark.medium
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("kind", [FAIL, HANG])
@pytest.mark.parametrize("leases", LENGTHS)
def test_no_transaction_is_aborted_by_an_outage(leases: float, kind: str, fresh: bool) -> None:
    processes = Processes()
    for _ in range(2):
        assert processes.run_for(LEASE, fresh=fresh) == []
        end = processes.outages.begin(leases * LEASE, kind)
        assert processes.run_for(end - processes.clock.monotonic(), fresh=fresh) == []
        assert processes.run_for(1.5 * LEASE, fresh=fresh) == []
    for owner in processes.owners:
        owner.txn.commit()
    assert processes.world.events() == [b"x", b"x"]


def test_transaction_that_nobody_judged_is_usable_after_the_outage() -> None:
    processes = Processes()
    processes.clock.sleep(10 * LEASE)
    first, second = (owner.txn for owner in processes.owners)
    first.write_event(b"y", "a")
    first.commit()
    assert processes.sweep() == [], "it may be the first that looks after an outage"
    second.commit()
    assert sorted(processes.world.events()) == [b"x", b"x", b"y"]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("kind", [FAIL, HANG])
@pytest.mark.parametrize("leases", LENGTHS)
def test_transaction_of_a_dead_writer_is_aborted_one_lease_after_the_outage(
    leases: float, kind: str, fresh: bool
) -> None:
    processes = Processes()
    dead = processes.owners.pop().txn
    processes.clock.sleep(LEASE * 2 / 3)
    processes.clock.sleep(
        processes.outages.begin(leases * LEASE, kind) - processes.clock.monotonic()
    )
    assert LEASE <= processes.seconds_to_abort(dead, fresh=fresh) <= LEASE + 5


@pytest.mark.parametrize("every", [1.0, 15.0, 29.0])
def test_judge_that_watched_aborts_it_one_lease_after_its_last_ping(every: float) -> None:
    processes = Processes()
    assert processes.run_for(2 * LEASE, every=every) == []
    dead = processes.owners.pop().txn
    dead.ping()
    began = processes.clock.monotonic()
    while not (aborted := processes.run_for(every, every=every)):
        assert processes.clock.monotonic() - began <= LEASE + every + 1
    assert aborted == [dead.id]
    assert processes.clock.monotonic() - began > LEASE
    assert processes.run_for(2 * LEASE, every=every) == []


def test_judge_that_began_to_watch_less_than_a_lease_ago_extends_it() -> None:
    processes = Processes(1)
    dead = processes.owners.pop().txn
    processes.clock.sleep(5)
    assert processes.run_for(LEASE - 1, every=1.0) == []
    assert LEASE - 5 <= processes.seconds_to_abort(dead) <= LEASE


def test_judge_that_looks_seldom_extends_it() -> None:
    processes = Processes(1)
    processes.run_for(4 * LEASE, every=31.0)
    dead = processes.owners.pop().txn
    dead.ping()
    assert processes.run_for(2 * LEASE - 1, every=31.0) == []
    assert processes.run_for(LEASE, every=31.0) == [dead.id]


def test_judge_that_watched_begins_again_after_a_step_of_the_storages_clock() -> None:
    processes = Processes(1)
    assert processes.run_for(2 * LEASE) == []
    processes.clock.wall_ms += 3_600_000
    assert processes.sweep() == []
    assert processes.run_for(3 * LEASE) == []


def test_judge_whose_first_look_is_after_a_step_of_the_storages_clock_has_not_watched() -> None:
    processes = Processes(1)
    other = begun(processes.judge)
    for _ in range(20):
        processes.clock.sleep(5)
        other.ping()
    processes.clock.wall_ms += 3_600_000
    assert processes.sweep() == []


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_commits_of_a_judge_count_as_calls(ends: str) -> None:
    processes = Processes(1)
    assert processes.sweep() == []
    watch, began = watch_of(processes.judge.store), processes.clock.monotonic()
    for _ in range(4):
        processes.clock.sleep(LEASE / 2 - 1)
        txn = begun(processes.judge)
        processes.clock.sleep(LEASE / 2 - 1)
        getattr(txn, ends)()
    assert watch.watched_since(LEASE) == began
    processes.clock.sleep(LEASE / 2 + 1)
    begun(processes.judge)
    assert watch.watched_since(LEASE) == processes.clock.monotonic()


def test_pings_of_a_judge_count_as_calls_and_one_that_fails_as_an_outage() -> None:
    processes = Processes(1)
    own = begun(processes.judge)
    assert processes.sweep() == []
    watch, began = watch_of(processes.judge.store), processes.clock.monotonic()
    for _ in range(4):
        processes.clock.sleep(LEASE / 2 - 1)
        keep_alive(own)
    assert watch.watched_since(LEASE) == began
    processes.outages.begin(1.0, FAIL)
    with pytest.raises(StoreError):
        keep_alive(own)
    assert watch.outage_ended(LEASE) == processes.clock.monotonic()


def test_without_an_outage_a_job_that_runs_once_aborts_it_after_two_leases() -> None:
    processes = Processes(1)
    dead = processes.owners.pop().txn
    assert 2 * LEASE <= processes.seconds_to_abort(dead, fresh=True) <= 2 * LEASE + 5


def test_last_lease_counts_from_the_end_of_an_outage_that_the_judge_met() -> None:
    processes = Processes(1)
    dead = processes.owners.pop().txn
    processes.clock.sleep(LEASE + 1)
    assert processes.sweep() == []  # its last lease
    processes.outages.begin(1.5 * LEASE, HANG)
    assert processes.sweep() == []
    assert LEASE <= processes.seconds_to_abort(dead) <= LEASE + 5


def test_outage_after_a_last_lease_had_begun_is_told_by_its_age() -> None:
    """A job that runs once has met no outage."""
    processes = Processes(1)
    dead = processes.owners.pop().txn
    processes.clock.sleep(LEASE + 1)
    assert processes.sweep(processes.open()) == []
    processes.clock.sleep(10 * LEASE)
    assert LEASE <= processes.seconds_to_abort(dead, fresh=True) <= LEASE + 5


@pytest.mark.parametrize("every", [10.0, 61.0, 180.0, 86_400.0])
def test_job_that_runs_seldom_aborts_it_in_its_third_run_after_the_lease(every: float) -> None:
    processes = Processes(1)
    dead = processes.owners.pop().txn
    processes.clock.sleep(LEASE + 1)
    runs = 1
    while not (aborted := processes.sweep(processes.open())):
        processes.clock.sleep(every)
        runs += 1
    assert aborted == [dead.id]
    assert runs <= 3 or (runs - 1) * every <= 2 * LEASE + every


def test_ping_ends_the_last_lease() -> None:
    processes = Processes(1)
    owner = processes.owners.pop()
    for _ in range(4):
        processes.clock.sleep(LEASE + 1)
        assert processes.sweep() == []
        owner.txn.ping()
    assert owner.txn.status is TransactionStatus.OPEN


def test_judge_whose_calls_fail_aborts_nothing_and_starts_again() -> None:
    processes = Processes(1)
    dead = processes.owners.pop().txn
    processes.clock.sleep(LEASE + 1)
    assert processes.sweep() == []
    processes.clock.sleep(LEASE + 1)
    store = processes.judge.store
    assert isinstance(store, Spy)
    store.rules.add(Rule(StoreError("slow down"), "list", "*/transactions*"))
    assert processes.sweep() == []
    store.rules.clear()
    assert processes.sweep() == [], "the lease begins again when the storage answers"
    assert processes.seconds_to_abort(dead) <= LEASE + 5


@pytest.mark.parametrize("hours", [1, 24])
@pytest.mark.parametrize("has_last_lease", [False, True])
def test_jump_of_the_storages_clock_aborts_nothing(hours: int, has_last_lease: bool) -> None:
    processes = Processes(1)
    if has_last_lease:
        processes.clock.sleep(LEASE + 1)
        assert processes.sweep() == []
    processes.clock.wall_ms += hours * 3_600_000
    assert processes.sweep(processes.open()) == []
    assert processes.run_for(2 * LEASE, fresh=True) == []


def test_dry_run_begins_no_last_lease() -> None:
    world = World()
    begun(world.stream).ping()
    world.runtime.sleep(LEASE + 1)
    stream = world.process()
    for _ in range(3):
        found = txn_leases.expiry_reasons(stream, stream.view(), 0, write=False)
        assert found == {}
        world.runtime.sleep(LEASE + 1)


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b'{"last":"x"}', b"{", b'{"last":null}'])
def test_damaged_lease_is_one_of_the_writer(data: bytes) -> None:
    world = World()
    txn = begun(world.stream)
    txn.ping()
    (key,) = (e.key for e in world.store.inner.list("s/t/transactions") if "lease" in e.key)
    world.store.inner.put(key, data)
    world.runtime.sleep(LEASE + 1)
    assert sweeper.sweep_transactions(world.process()).aborted == {}
    world.runtime.sleep(LEASE + 1)
    assert list(sweeper.sweep_transactions(world.process()).aborted) == [txn.id]
