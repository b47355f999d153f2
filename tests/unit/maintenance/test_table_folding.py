from __future__ import annotations

from typing import Any

import pytest

from pravega_spark import StreamManager
from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.kinds import FOLD_SUBSCRIBER
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import subscribers
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.key_value import fold
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.folded_record import FoldedRecord
from pravega_spark.key_value.folded_table import folded_log
from pravega_spark.maintenance.shares import RootStreams
from pravega_spark.manager import manager_over
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.spy_store import Spy

NAME, LOG = "shop/stock", "shop/_kv_tables/stock"


@pytest.fixture
def clock() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def store(clock: FakeRuntime) -> Spy:
    return Spy(MemoryStore(f"folding-{id(clock)}", clock_ms=clock.now_ms))


@pytest.fixture
def manager(store: Spy, clock: FakeRuntime) -> StreamManager:
    manager = manager_over(store, clock)
    manager.create_scope("shop")
    configuration = KeyValueTableConfiguration(key_type="string")
    manager.create_key_value_table(NAME, configuration)
    return manager


def put(manager: StreamManager, *keys: str) -> None:
    table = manager.key_value_table(NAME)
    for key in keys:
        table.put(key, key.encode()).result()


@pytest.mark.medium
@pytest.mark.parametrize(("count", "folds"), [(30, 0), (300, 1)])
def test_a_table_is_folded_for_the_number_of_its_changes_and_opening_it_then_reads_none(
    count: int, folds: int, manager: StreamManager, store: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fold, "FOLD_CHANGES", 100)
    with manager.key_value_table(NAME) as table:
        for number in range(count):
            table.put(f"k{number}", b"")
    assert folding(manager)["folds"] == folds
    store.calls.clear()
    manager.key_value_table(NAME).get("absent")
    assert any("/events/data/" in key for _, key in store.calls) == (not folds)
    put(manager, *(f"k{number}" for number in range(25)))
    assert folding(manager)["folds"] == 0, "fewer than a tenth of the rows, or than 100"


def folding(manager: StreamManager, **options: Any) -> Any:
    found = manager.maintain(**options)
    assert found.failures == {}
    return found.kinds[MaintenanceKind.FOLDING].figures


@pytest.mark.medium
def test_rounds_fold_what_is_old_enough_truncate_behind_it_and_sweep(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    manager.update_settings(grace="1 hour", retain="2 hours")
    put(manager, "a", "b", "c")
    assert folding(manager)["folds"] == 0
    clock.sleep(601)
    assert folding(manager, dry_run=True)["folds"] == 0
    assert folding(manager) == {"folds": 1, "keys": 3, "bytes_written": pytest.approx(1, abs=1e9)}
    log = open_stream(store, LOG, clock)
    assert log.view().head == log.view().tail, "the round's retention truncated what was folded"
    for number in range(8):
        put(manager, f"k{number}")
        clock.sleep(1_800)
        assert folding(manager)["folds"] == 1
    live = len(store.list(f"{LOG}/table/data"))
    assert live < 8, "files that no retained version names are swept"
    assert len(list(manager.key_value_table(NAME).entries())) == 11


@pytest.mark.medium
def test_an_idle_table_costs_what_an_idle_stream_does(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    manager.create_stream("shop/plain")
    put(manager, "a")
    for pause in (601, 0, 3_600, 7_200, 14_400, 28_800):
        clock.sleep(pause)
        manager.maintain()
    store.calls.clear()
    found = manager.maintain()
    assert found.idle == found.streams == 2
    table = [call for call in store.calls if call[1].startswith(LOG)]
    plain = [call for call in store.calls if call[1].startswith("shop/plain/")]
    assert len(table) == len(plain) <= 2, table


def test_retention_makes_the_fold_a_subscriber_before_it_truncates(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    log = open_stream(store, LOG, clock)
    assert log.view().subscriber(FOLD_SUBSCRIBER) is not None
    subscribers.unsubscribe(log, FOLD_SUBSCRIBER)
    put(manager, "a", "b")
    subscribers.subscribe(log, "greedy", protect=True)
    subscribers.publish(log, "greedy", None, log.view().tail)
    found = manager.maintain(kinds=["retention"])
    assert found.failures == {}
    assert log.view().head.positions == {0: 0}
    record = log.view().subscriber(FOLD_SUBSCRIBER)
    assert record is not None
    assert not record.removed


def test_the_fold_of_a_table_never_expires_as_a_subscriber(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    manager.update_settings(expire="1 hour")
    put(manager, "a", "b")
    for _ in range(4):
        clock.sleep(7_200)
        assert manager.maintain(kinds=["retention"]).failures == {}
    log = open_stream(store, LOG, clock)
    record = log.view().subscriber(FOLD_SUBSCRIBER)
    assert record is not None
    assert not record.removed
    assert record.generation == 0, "it did not expire in between, either"
    assert log.view().head.positions == {0: 0}
    assert folding(manager)["folds"] == 1


@pytest.mark.medium
def test_what_a_killed_deletion_left_is_swept(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    manager.update_settings(grace="1 hour", retain="2 hours")
    put(manager, "a", "b")
    clock.sleep(700)
    assert folding(manager)["folds"] == 1

    def kill() -> None:
        raise KeyboardInterrupt

    with at_failpoint("delete.folded", kill), pytest.raises(KeyboardInterrupt):
        manager.delete_key_value_table(NAME)
    for _ in range(3):
        manager.list_key_value_tables("shop")
        manager.delete_key_value_table(NAME)
        assert manager.maintain().failures == {}
        clock.sleep(3 * 3_600)
    assert manager.list_key_value_tables("shop") == []
    assert store.list(f"{LOG}/table/data") == []
    log = folded_log(open_stream(store, LOG, clock))
    snapshot = log.refresh()
    assert snapshot is not None
    record = FoldedRecord.of(snapshot)
    assert record is not None
    assert record.is_ended


def test_shares_of_automatic_maintenance_fold_tables_and_pass_plain_streams(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    manager.create_stream("shop/plain")
    put(manager, "a")
    clock.sleep(700)
    streams = RootStreams(store, clock)
    names = [name for name, _ in streams.after("")]
    assert names == [LOG, "shop/plain", "shop/~"]
    streams.begin({})
    store.calls.clear()
    assert not streams.due([MaintenanceKind.FOLDING], "shop/plain")
    assert store.calls == []
    assert streams.due([MaintenanceKind.FOLDING], LOG) == [MaintenanceKind.FOLDING]
    streams.maintain(MaintenanceKind.FOLDING, LOG)
    assert folded_log(open_stream(store, LOG, clock)).refresh() is not None
