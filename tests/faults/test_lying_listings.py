"""Listings that omit objects never cause a sweep or clean-up to delete needed files."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.sweep import delete_unreferenced_files
from pravega_spark.engine.store import Entry
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import root_of
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.leases import Heartbeat, ReaderLeases
from pravega_spark.reader_groups.state import GroupState, Phase
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_tables import clean, put, table_log, versions
from tests.harness.spy_store import Spy


class StaleListings(Spy):
    """An object store, where readers list new commits instead of probing for each."""

    shown: frozenset[str] | None = None
    """The only keys that listings of logs show; None: all existing ones."""

    @property
    def is_local(self) -> bool:
        return False

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        found = super().list(prefix, after=after, before=before)
        if self.shown is None or not prefix.endswith("_delta_log"):
            return found
        return [entry for entry in found if entry.key in self.shown]


class World:
    """A stream, and another process whose listings keep showing the log at its start."""

    def __init__(self) -> None:
        self.manager = StreamManager(f"memory://{uuid4().hex}", runtime=FakeRuntime())
        self.manager.create_scope("s")
        self.manager.create_stream("s/t")
        self.stream = StreamLog(root_of(self.manager).store, "s/t", FakeRuntime())
        self.store = StaleListings(root_of(self.manager).store)
        self.other = StreamLog(self.store, "s/t", FakeRuntime())
        self.other.view()
        self.store.shown = frozenset(entry.key for entry in self.store.list("s/t"))

    def begin(self) -> Transaction:
        """Begin a transaction of one event, some commits after the other process's listings."""
        with self.manager.create_writer("s/t") as writer:
            for _ in range(4):
                writer.write_event(b"before").result(30)
        with self.manager.create_transactional_writer("s/t") as writer:
            transaction = writer.begin_transaction(max_execution="10 days")
            transaction.write_event(b"within")
            transaction.flush()
        return transaction

    def committed(self, transaction: Transaction) -> list[bytes]:
        """Commit the transaction through the manager, and return all events."""
        self.manager.transaction("s/t", transaction.id).commit()
        return [event.data for event in self.manager.read("s/t")]


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("prepared", [False, True])
def test_manifests_of_an_open_or_prepared_transaction_are_kept(
    world: World, prepared: bool
) -> None:
    transaction = world.begin()
    if prepared:
        world.manager.transaction("s/t", transaction.id).prepare()
    assert sweeper.delete_remains(world.other) == 0
    assert world.committed(transaction) == [*[b"before"] * 4, b"within"]


def test_chunks_of_an_open_transaction_are_kept(world: World) -> None:
    transaction = world.begin()
    assert delete_unreferenced_files(world.other.log).files == 0
    assert world.committed(transaction) == [*[b"before"] * 4, b"within"]


def test_files_of_a_replaced_root_are_kept() -> None:
    """On an object store nobody checks the root marker; the deletion decides on the live log."""
    runtime = FakeRuntime()
    store = memory(runtime)
    old = table_log(StaleListings(store), runtime)
    for number in range(4):
        put(old, str(number))
    raise_horizon(old, 4)
    store.delete([entry.key for entry in store.list("")])
    put(table_log(store, runtime), "of another")
    store.put(f"{old.path}/data/v0/staged.parquet", b"x")
    delete_unreferenced_files(old)
    assert store.exists(f"{old.path}/data/v0/staged.parquet")


def test_log_cleanup_keeps_no_version_that_a_listing_omitted() -> None:
    """A process at such a version would find the next one free, and commit into the past."""
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    log = table_log(store, runtime)
    for number in range(1, 13):
        put(log, str(number))
    stalled = Log(store, log.path, runtime)
    store.put(f"{log.reader.folder}/{0:020d}.crc", b"of another writer of Delta")
    store.rules.add(Rule(Fault.PARTIAL_LIST, "list", "*/_delta_log"))
    assert clean(log, runtime, 8) == 7
    assert ("list", Fault.PARTIAL_LIST) in store.fired
    store.rules.clear()
    assert versions(log) == [0, *range(8, 14)]
    assert stalled.refresh() == log.snapshot


def test_lease_that_a_listing_omitted_is_not_restarted() -> None:
    store = Spy(MemoryStore())
    store.inner.put(f"s/_reader_groups/g/_delta_log/{0:020d}.json", b"{}")  # the group exists
    leases = ReaderLeases(store, "s/_reader_groups/g")
    store.rules.add(Rule(Fault.PARTIAL_LIST, "list", "*/_leases"))
    configuration = ReaderGroupConfiguration(("s/t",))
    state = GroupState("s/g", 1, Phase.ACTIVE, configuration, {"s/t": 1})
    for reader in ("a", "b"):
        state = transitions.join(state, reader, 10_000)
    for reader, entry in state.readers.items():
        leases.extend(reader, Heartbeat(entry.number, {}, "a process of its own"))
    before = {entry.key: store.inner.get(entry.key) for entry in store.inner.list("s")}
    assert leases.expired(state) == {}
    after = {entry.key: store.inner.get(entry.key) for entry in store.inner.list("s")}
    assert after.items() >= before.items()
