"""Puts that fail: each failure is told once, and the next change is made."""

from __future__ import annotations

from concurrent.futures import wait

import pytest

from pravega_spark.errors import StoreFull
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import PutFuture
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.manager import manager_over
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.spy_store import Spy

T = "s/t"
FULL = Rule(StoreFull("No space left on device."), "put*", "*/_kv_tables/t/*")


@pytest.fixture
def store() -> Spy:
    return Spy()


@pytest.fixture
def table(store: Spy) -> KeyValueTable:
    manager = manager_over(store, FakeRuntime())
    manager.create_scope("s")
    manager.create_key_value_table(T, KeyValueTableConfiguration("string"))
    opened = manager.key_value_table(T)
    opened.put("before", b"1").result()
    return opened


def failed(table: KeyValueTable, store: Spy) -> PutFuture:
    """The future of a put while the disk is full; afterwards there is space again."""
    store.rules.add(FULL)
    future = table.put("lost", b"1")
    assert wait([future], 30).done  # which does not ask for its error
    store.rules.clear()
    return future


def test_failure_that_a_future_told_is_not_charged_to_the_next_change(
    table: KeyValueTable, store: Spy
) -> None:
    assert isinstance(failed(table, store).exception(), StoreFull)
    assert table.put("next", b"2").result() == table.get("next", fresh=True).version  # type: ignore[union-attr]
    assert isinstance(failed(table, store).exception(), StoreFull)
    table.remove("next").result()
    assert not table.exists("next", fresh=True)
    assert isinstance(failed(table, store).exception(), StoreFull)
    assert table.insert("inserted", b"3") == table.get("inserted", fresh=True).version  # type: ignore[union-attr]
    assert not table.exists("lost", fresh=True)


def test_flush_tells_once_what_was_lost_since_the_last_flush(
    table: KeyValueTable, store: Spy
) -> None:
    for is_told in (False, True):
        future = failed(table, store)
        if is_told:
            assert isinstance(future.exception(), StoreFull)
        with pytest.raises(StoreFull):
            table.flush()
        table.flush()
        table.put("next", b"2").result()
        table.flush()
    future = failed(table, store)  # lost beside the put that is made on
    assert isinstance(future.exception(), StoreFull)
    table.put("next", b"3").result()
    with pytest.raises(StoreFull):
        table.flush()
    table.flush()
    table.close()


def test_failure_that_nothing_told_is_raised_by_the_next_change(
    table: KeyValueTable, store: Spy
) -> None:
    failed(table, store)
    with pytest.raises(StoreFull):
        table.put("refused", b"2")
    failed(table, store)
    with pytest.raises(StoreFull):
        table.insert("refused", b"2")
    table.insert("next", b"3")
    with pytest.raises(StoreFull):  # once, whoever has told it: another thread may flush
        table.flush()
    table.flush()
    assert not table.exists("refused", fresh=True)


def test_failure_names_the_table_and_says_to_put_again(table: KeyValueTable, store: Spy) -> None:
    text = (
        r"^puts to table s/t failed: .*No space left on device\. Fix the cause, then put again\.$"
    )
    future = failed(table, store)
    with pytest.raises(StoreFull, match=text):
        future.result()
    with pytest.raises(StoreFull, match=text):
        table.flush()
    failed(table, store)
    with pytest.raises(StoreFull, match=text):
        table.put("refused", b"1")
