"""Calls of key-value tables with what they refuse: names, sizes, ended lives, sealed tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.errors import (
    InvalidConfiguration,
    InvalidInput,
    InvalidName,
    NoSuchScope,
    NoSuchTable,
    StaleIdentity,
    TableSealed,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import KeyVersion
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.updates import TableInsert, TablePut, TableRemove
from pravega_spark.manager import StreamManager, root_of
from tests.harness.fake_runtime import FakeRuntime, manager_of

T = "s/t"
STRINGS = KeyValueTableConfiguration("string", partitions=2, tags=frozenset({"first"}))
VERSION = KeyVersion(1, 0, 0)
Call = Callable[[KeyValueTable], Any]
READS: dict[str, Call] = {
    "get": lambda t: t.get("k", fresh=True),
    "get_all": lambda t: t.get_all(["k"], fresh=True),
    "exists": lambda t: t.exists("k", fresh=True),
    "at": lambda t: t.at(),
    "entries": lambda t: list(t.entries()),
    "keys": lambda t: list(t.keys(prefix="k")),
}
CHANGES: dict[str, Call] = {
    "put": lambda t: t.put("k", b"late").result(),
    "remove": lambda t: t.remove("k").result(),
    "remove by version": lambda t: t.remove("k", version=VERSION),
    "insert": lambda t: t.insert("late", b"late"),
    "insert of a key that is there": lambda t: t.insert("k", b"late"),
    "replace": lambda t: t.replace("k", b"late", VERSION),
    "update": lambda t: t.update([TablePut("k", b"late"), TableInsert("late", b"late")]),
}
VERBS: dict[str, Callable[[StreamManager, str], Any]] = {
    "key_value_table": lambda m, name: m.key_value_table(name),
    "seal_key_value_table": lambda m, name: m.seal_key_value_table(name),
    "update_key_value_table": lambda m, name: m.update_key_value_table(name, add_tags=["a"]),
    "key_value_table_tags": lambda m, name: m.key_value_table_tags(name),
}


@pytest.fixture
def manager() -> StreamManager:
    made = manager_of(FakeRuntime())
    made.create_scope("s")
    made.create_key_value_table(T, STRINGS)
    with made.key_value_table(T) as table:
        table.put("k", b"1").result()
    return made


def other_of(manager: StreamManager) -> StreamManager:
    return StreamManager(manager.root, runtime=root_of(manager).runtime)


def contents(manager: StreamManager) -> dict[Any, bytes]:
    return {entry.key: entry.value for entry in other_of(manager).key_value_table(T).entries()}


@pytest.mark.medium
@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("call", [*READS, *CHANGES])
def test_an_object_of_another_life_changes_nothing(
    manager: StreamManager, call: str, is_used: bool
) -> None:
    tables = [other_of(manager).key_value_table(T) for _ in range(2)]
    if is_used:
        for table in tables:
            table.get("k")
            table.put("k", b"1").result()
    manager.delete_key_value_table(T)
    given = {**READS, **CHANGES}[call]
    with pytest.raises(NoSuchTable, match="table s/t does not exist") as gone:
        given(tables[0])
    assert gone.value.table == T
    manager.create_key_value_table(T, STRINGS)
    manager.key_value_table(T).put("k", b"next life").result()
    with pytest.raises(StaleIdentity, match=r"^table s/t was deleted and created again") as stale:
        given(tables[1])
    assert (stale.value.name, stale.value.life) == (T, 1)
    entry = manager.key_value_table(T).get("k")
    assert entry is not None
    assert stale.value.current_life == entry.version.life
    assert contents(manager) == {"k": b"next life"}


@pytest.mark.parametrize("is_used", [False, True])
def test_a_sealed_table_refuses_each_change_and_no_read(
    manager: StreamManager, is_used: bool
) -> None:
    for name, call in CHANGES.items():
        table = other_of(manager).key_value_table(T)
        if is_used and not name.startswith("insert"):
            table.get("k")
        other_of(manager).seal_key_value_table(T)
        with pytest.raises(TableSealed, match="table s/t was sealed") as sealed:
            call(table)
        assert sealed.value.table == T
        for read in READS.values():
            read(table)
    assert contents(manager) == {"k": b"1"}
    assert not manager.seal_key_value_table(T)


def test_a_table_that_is_missing(manager: StreamManager) -> None:
    for name in ("s/none", "none/t"):
        for call in VERBS.values():
            with pytest.raises(NoSuchTable, match=f"table {name} does not exist"):
                call(manager, name)
        assert not manager.delete_key_value_table(name)
    for missing in (
        lambda: manager.create_key_value_table("none/t"),
        lambda: manager.list_key_value_tables("none"),
    ):
        with pytest.raises(NoSuchScope, match="none"):
            missing()


@pytest.mark.parametrize(
    "name",
    ["t", "s/t/x", "s/", "/t", "s/_t", "s/züge", "s/a b", "s/..", "s/" + "n" * 251, "", 7, None],
)
def test_names_that_are_refused(manager: StreamManager, name: Any) -> None:
    verbs = {
        **VERBS,
        "create": lambda m, name: m.create_key_value_table(name),
        "delete": lambda m, name: m.delete_key_value_table(name),
    }
    for call in verbs.values():
        with pytest.raises(InvalidName):
            call(manager, name)


@pytest.mark.parametrize("name", ["n" * 250, "-", "a.b-C9", "table", "events"])
def test_names_at_the_edge_are_tables_of_their_own(manager: StreamManager, name: str) -> None:
    full = f"s/{name}"
    assert manager.create_key_value_table(full, STRINGS)
    manager.key_value_table(full).put("k", name).result()
    assert other_of(manager).key_value_table(full).get("k").value == name.encode()  # type: ignore[union-attr]
    assert contents(manager) == {"k": b"1"}
    assert manager.delete_key_value_table(full)
    assert manager.list_key_value_tables("s") == [T]


def test_updates_beyond_the_sizes_are_refused_and_say_what_to_do(manager: StreamManager) -> None:
    table = manager.key_value_table(T)
    cases: list[tuple[Any, str]] = [
        ([TablePut(f"k{n}", "1") for n in range(10_000)], r"has 10000 keys; at most 256 .* Divide"),
        ([TablePut("k", "1"), TableRemove("k")], "names the key 'k' twice"),
        ([TablePut("k", bytes(2 << 20))], "larger than .* max_value_bytes"),
        ([TablePut(f"k{n}", bytes(1_000_000)) for n in range(17)], r"bytes; at most .* Divide"),
        ([TableInsert("", "1")], "must not be empty"),
        ([TableInsert("k" * 8193, "1")], "at most 8192"),
        ([TableInsert("k", "1", b"second")], "secondary"),
        ([TableInsert("k", "\ud800")], "no UTF-8 form"),
        ([TablePut("k", "1", "not a version")], "version"),
        (7, "a list is needed"),
    ]
    for given, message in cases:
        with pytest.raises(InvalidInput, match=message):
            table.update(given)
    for call in (table.get, table.exists, table.remove):
        with pytest.raises(InvalidInput, match="must not be empty"):
            call("")
    assert table.update([]) == ()
    assert contents(manager) == {"k": b"1"}
    exactly = [TablePut(f"k{n}", "1") for n in range(256)]
    assert len(table.update(exactly)) == 256
    table.put("empty", b"").result()
    assert table.get("empty").value == b""  # type: ignore[union-attr]


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("name", ["put", "remove", "insert", "flush"])
def test_a_handle_that_was_refused_by_a_sealed_table_learns_that_its_life_ended(
    manager: StreamManager, name: str, is_made_again: bool
) -> None:
    table, other = manager.key_value_table(T), other_of(manager)
    table.put("k", b"1").result()
    other.seal_key_value_table(T)
    with pytest.raises(TableSealed):
        table.put("k", b"2").result()
    other.delete_key_value_table(T)
    if is_made_again:
        other.create_key_value_table(T, STRINGS)
    call: Call = (lambda t: t.flush()) if name == "flush" else CHANGES[name]
    with pytest.raises(StaleIdentity if is_made_again else NoSuchTable, match="table s/t"):
        call(table)


def test_too_many_tags_are_refused_by_the_name_of_the_table(manager: StreamManager) -> None:
    tags = {str(number) for number in range(129)}
    with pytest.raises(InvalidConfiguration, match="table s/t has at most 128 tags, got 129"):
        manager.update_key_value_table(T, add_tags=tags)
    with pytest.raises(InvalidConfiguration, match="a table has at most 128 tags"):
        KeyValueTableConfiguration("string", tags=frozenset(tags))
