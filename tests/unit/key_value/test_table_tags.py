"""The tags of a key-value table change as those of a stream do, and nothing else of it does."""

from __future__ import annotations

import pytest

from pravega_spark.errors import (
    InvalidConfiguration,
    NoSuchTable,
    PravegaSparkError,
    StaleIdentity,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.manager import StreamManager, root_of
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.simulated_kills import Killed, kill

T = "s/t"
HOT = KeyValueTableConfiguration("string", ttl="1 day", tags=frozenset({"hot"}))


@pytest.fixture
def manager() -> StreamManager:
    made = manager_of(FakeRuntime())
    made.create_scope("s")
    made.create_stream(T)
    made.create_key_value_table(T, HOT)
    return made


def other_of(manager: StreamManager) -> StreamManager:
    return StreamManager(manager.root, runtime=root_of(manager).runtime)


def test_tags_are_added_and_removed_and_tables_are_found_by_them(manager: StreamManager) -> None:
    table = manager.key_value_table(T)
    assert manager.update_key_value_table(T, add_tags={"new"}, remove_tags=["hot", "none"])
    assert not manager.update_key_value_table(T, add_tags={"new"})
    assert manager.key_value_table_tags(T) == {"new"}
    assert manager.list_key_value_tables("s", tag="new") == [T]
    assert manager.list_key_value_tables("s", tag="hot") == []
    assert manager.tags(T) == frozenset(), "the stream of the same name is another object"
    other = other_of(manager)
    assert other.list_key_value_tables("s", tag="new") == [T]
    assert other.key_value_table(T).configuration == HOT
    assert other.key_value_table(T).configuration.tags == {"new"}
    table.get("k", fresh=True)
    assert table.configuration.tags == {"new"}
    other.update_key_value_table(T, add_tags=["other"])
    table.get("k", fresh=True)
    assert table.configuration.tags == {"new", "other"}


def test_tags_of_a_sealed_table_can_change(manager: StreamManager) -> None:
    manager.seal_key_value_table(T)
    assert manager.update_key_value_table(T, add_tags={"old"})
    assert manager.list_key_value_tables("s", tag="old") == [T]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "table s/t names nothing to change: give some of add_tags, remove_tags"),
        ({"add_tags": {"a"}, "remove_tags": {"a"}}, "table s/t adds and removes the tag 'a'"),
        ({"add_tags": "abc"}, "tags must be a set of texts"),
        ({"add_tags": {"x" * 257}}, "256"),
        ({"add_tags": [str(n) for n in range(128)]}, "table s/t has 1 tags and would have 129"),
    ],
)
def test_tags_that_are_refused(
    manager: StreamManager, given: dict[str, set[str]], message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        manager.update_key_value_table(T, **given)
    assert manager.key_value_table_tags(T) == {"hot"}


def test_the_limit_counts_what_is_removed(manager: StreamManager) -> None:
    many = [str(n) for n in range(128)]
    assert manager.update_key_value_table(T, add_tags=many, remove_tags=["hot"])
    assert manager.key_value_table_tags(T) == set(many)


def test_tags_of_a_missing_table_and_of_another_life(manager: StreamManager) -> None:
    for missing in ("s/none", "none/t"):
        with pytest.raises(NoSuchTable, match=missing):
            manager.update_key_value_table(missing, add_tags=["a"])
        with pytest.raises(NoSuchTable, match=missing):
            manager.key_value_table_tags(missing)
    manager.delete_key_value_table(T)
    with pytest.raises(NoSuchTable, match=T):
        manager.update_key_value_table(T, add_tags=["a"])
    table = other_of(manager)
    manager.create_key_value_table(T, HOT)
    old = table.key_value_table(T)
    manager.delete_key_value_table(T)
    manager.create_key_value_table(T)
    assert manager.key_value_table_tags(T) == frozenset()
    with pytest.raises(StaleIdentity, match=r"^table s/t was deleted and created") as refused:
        old.get("k", fresh=True)
    assert refused.value.name == T
    assert old.configuration.tags == {"hot"}


def test_the_row_of_a_killed_update_is_written_by_the_next_one(manager: StreamManager) -> None:
    with at_failpoint("update.row", kill), pytest.raises(Killed):
        manager.update_key_value_table(T, add_tags=["new"])
    assert manager.list_key_value_tables("s", tag="new") == []
    assert not other_of(manager).update_key_value_table(T, add_tags=["new"])
    assert manager.list_key_value_tables("s", tag="new") == [T]


def test_a_slow_update_does_not_hide_a_newer_one_nor_write_into_another_life(
    manager: StreamManager,
) -> None:
    other = other_of(manager)

    def newer() -> None:
        other.update_key_value_table(T, add_tags=["b"], remove_tags=["a"])

    with at_failpoint("update.row", newer):
        manager.update_key_value_table(T, add_tags=["a"])
    assert manager.list_key_value_tables("s", tag="a") == []
    assert manager.list_key_value_tables("s", tag="b") == [T]

    def again() -> None:
        other.delete_key_value_table(T)
        other.create_key_value_table(T)

    with at_failpoint("update.row", again):
        manager.update_key_value_table(T, add_tags=["late"])
    with pytest.raises(PravegaSparkError):
        manager.key_value_table("s/late")
    assert manager.list_key_value_tables("s", tag="late") == []
    assert manager.key_value_table_tags(T) == frozenset()
