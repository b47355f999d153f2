"""Which maintenance of a stream is overdue, and where people see it."""

from __future__ import annotations

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.state.maintenance_table import JOB, MaintenanceTable
from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
from pravega_spark.manager import StreamManager, manager_over, root_of
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.spy_store import Spy

RETENTION, SCALING, TRANSACTIONS, *_ = MaintenanceKind
HOUR, DAY = 3_600, 86_400
ALL = (None,)


@pytest.fixture
def clock() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def store(clock: FakeRuntime) -> Spy:
    return Spy(memory(clock))


@pytest.fixture
def manager(store: Spy, clock: FakeRuntime) -> StreamManager:
    made = manager_over(store, clock)
    made.create_scope("s")
    plain = StreamConfiguration()
    kept = StreamConfiguration(retention=RetentionPolicy.by_time("7 days"))
    scaled = StreamConfiguration(ScalingPolicy.by_event_rate(10))
    for name, configuration in (("plain", plain), ("kept", kept), ("scaled", scaled)):
        made.create_stream(f"s/{name}", configuration)
    return made


def overdue(manager: StreamManager, name: str) -> dict[MaintenanceKind, str]:
    stream = root_of(manager).stream(f"s/{name}")
    return overdue_maintenance(stream, stream.view())


def test_only_what_a_stream_needs_is_overdue(manager: StreamManager, clock: FakeRuntime) -> None:
    clock.sleep(HOUR)
    assert [overdue(manager, name) for name in ("plain", "kept", "scaled")] == [{}, {}, {}]
    clock.sleep(2 * DAY)
    writer = manager.create_transactional_writer("s/plain")
    writer.begin_transaction(lease="600 s")
    assert overdue(manager, "plain") == {}
    assert overdue(manager, "kept") == {RETENTION: "retention has never run"}
    assert overdue(manager, "scaled") == {SCALING: "scaling has never run"}
    clock.sleep(3 * HOUR)
    assert overdue(manager, "plain") == {TRANSACTIONS: "transactions has never run"}


def test_the_interval_of_the_root_decides(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    MaintenanceTable(store, clock).finish_now(RETENTION, ALL, JOB, 0, 3)
    clock.sleep(2 * DAY)
    assert overdue(manager, "kept") == {RETENTION: "retention has not run for 2.0 days"}
    manager.update_settings(retention_interval="1 day")
    assert overdue(manager, "kept") == {}
    clock.sleep(3 * DAY)
    assert overdue(manager, "kept") == {RETENTION: "retention has not run for 5.0 days"}


def test_an_explanation_says_it_and_equals_that_of_a_run(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    clock.sleep(2 * DAY)
    found = manager.retention("s/kept").explain()
    assert str(found).endswith("\n  retention has never run")
    assert manager.retention("s/kept").run().explanation == found
    MaintenanceTable(store, clock).finish_now(RETENTION, ("s",), JOB, 0, 3)
    found = manager.retention("s/kept").explain()
    assert found.overdue == ""
    assert "has never run" not in str(found)


def test_a_stream_that_needs_nothing_costs_no_call_and_a_damaged_record_no_error(
    manager: StreamManager, store: Spy, clock: FakeRuntime
) -> None:
    stream = root_of(manager).stream("s/plain")
    view = stream.view()
    store.calls.clear()
    assert overdue_maintenance(stream, view) == {}
    assert store.calls == []
    MaintenanceTable(store, clock).finish_now(RETENTION, ALL, JOB, 0, 3)
    clock.sleep(2 * DAY)
    for entry in store.list("_maintenance/data"):
        store.put(entry.key, b"garbage")
    assert overdue(manager, "kept") == {}
    assert manager.retention("s/kept").explain().overdue == ""
