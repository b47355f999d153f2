"""A table's handle in two threads: its end, and a failure that only one of them was told."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import IllegalState, ObjectClosed, PravegaSparkError, StoreFull
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.key_value import key_value_table
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.manager import manager_over
from tests.harness.spy_store import Spy

WAIT = 30.0


def full(operation: str, key: str) -> None:
    """Refuse each write, as a disk without room does."""
    if operation.startswith(("put", "stage")):
        raise StoreFull("full")


@pytest.fixture
def store() -> Spy:
    return Spy(MemoryStore())


@pytest.fixture
def table(store: Spy) -> KeyValueTable:
    manager = manager_over(store, SYSTEM)
    manager.create_scope("s")
    manager.create_key_value_table("s/t", KeyValueTableConfiguration("string"))
    return manager.key_value_table("s/t")


@pytest.mark.parametrize("name", ["flush", "close"])
def test_who_ends_it_beside_a_close_waits_until_all_is_durable(
    store: Spy, table: KeyValueTable, name: str
) -> None:
    table.put("a", "1").result(WAIT)
    go = threading.Event()

    def hold(operation: str, key: str) -> None:
        if operation == "put_if_absent" and "_delta_log" in key:
            assert go.wait(WAIT)

    store.hook = hold
    put = table.put("b", "2")
    closing = threading.Thread(target=table.close)
    closing.start()
    while not table._is_closed:
        threading.Event().wait(0.001)
    durable: list[bool] = []

    def end() -> None:
        getattr(table, name)()
        durable.append(put.done())

    ending = threading.Thread(target=end)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    go.set()
    ending.join(WAIT)
    closing.join(WAIT)
    assert durable == [True]


def test_a_close_during_the_first_put_stays(
    table: KeyValueTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = EventStreamWriter
    closing = threading.Thread(target=table.close)

    def slow(*args: Any, **options: Any) -> Any:
        closing.start()
        closing.join(0.2)
        return made(*args, **options)

    monkeypatch.setattr(key_value_table, "EventStreamWriter", slow)
    try:
        future = table.put("a", "1")
    except ObjectClosed:
        future = None
    closing.join(WAIT)
    if future is not None:
        assert future.done()
    with pytest.raises(ObjectClosed, match="table s/t was closed here"):
        table.put("b", "2")


def test_a_flush_tells_a_failure_that_the_put_of_another_thread_has_raised(
    store: Spy, table: KeyValueTable
) -> None:
    table.put("a", "1").result(WAIT)

    store.hook = full
    table.put("b", "2")
    writer = table._writer
    assert writer is not None
    while queue_of(writer).failure is None:
        threading.Event().wait(0.001)
    told: list[PravegaSparkError] = []

    def put() -> None:
        try:
            table.put("c", "3")
        except PravegaSparkError as error:
            told.append(error)

    other = threading.Thread(target=put)
    other.start()
    other.join(WAIT)
    assert len(told) == 1
    store.hook = None
    with pytest.raises(PravegaSparkError, match="failed"):
        table.flush()
    table.flush()


def test_a_flush_of_a_closed_table_tells_a_failure_that_a_future_has_told(
    store: Spy, table: KeyValueTable
) -> None:
    table.put("a", "1").result(WAIT)

    store.hook = full
    with pytest.raises(StoreFull):
        table.put("b", "2").result(WAIT)
    table.close()  # the future has told it
    with pytest.raises(StoreFull, match="full"):
        table.flush()
    table.flush()


def test_a_flush_in_a_callback_that_has_closed_the_table_is_refused(
    store: Spy, table: KeyValueTable
) -> None:
    table.put("a", "1").result(WAIT)
    go, called = threading.Event(), threading.Event()

    def hold(operation: str, key: str) -> None:
        assert "_delta_log" not in key or go.wait(WAIT)

    def end(_: object) -> None:
        table.put("c", "3")
        table.close()
        try:
            table.flush()
        except PravegaSparkError as error:
            told.append(error)
        called.set()

    told: list[PravegaSparkError] = []
    store.hook = hold
    table.put("b", "2").add_done_callback(end)
    go.set()
    assert called.wait(WAIT)
    assert [type(error) for error in told] == [IllegalState]
    table.close()
    assert [entry.value for entry in table.entries()] == [b"1", b"2", b"3"]


def test_a_flush_that_is_refused_in_a_callback_leaves_the_failure_to_the_next_one(
    store: Spy, table: KeyValueTable
) -> None:
    table.put("a", "1").result(WAIT)
    go, called = threading.Event(), threading.Event()

    def full_later(operation: str, key: str) -> None:
        if operation.startswith(("put", "stage")):
            assert go.wait(WAIT)
            raise StoreFull("full")

    def flush(_: object) -> None:
        with pytest.raises(IllegalState):
            table.flush()
        called.set()

    store.hook = full_later
    table.put("b", "2").add_done_callback(flush)
    go.set()
    assert called.wait(WAIT)
    with pytest.raises(StoreFull):
        table.flush()
    table.flush()
