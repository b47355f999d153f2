"""State tables: changes, races, files of rows, and damage."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pravega_spark.engine.log.snapshot import ROWS_FEATURE
from pravega_spark.engine.state.state_table import (
    ROWS_DOMAIN,
    Rows,
    StateTable,
    TableChange,
    TableState,
)
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptChunk, InvalidInput, StoreError
from pravega_spark.values.limits import STATE_TABLE_FILE_ROWS
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64()), ("tags", pa.list_(pa.string()))])


def table(store: Store) -> StateTable:
    made = StateTable(store, "s/_scope", SCHEMA, "name", FakeRuntime())
    made.log.maintain = None
    return made


def row(name: str, count: int) -> dict[str, Any]:
    return {"name": name, "count": count, "tags": ["x"]}


def raise_count(name: str) -> Any:
    def decide(state: TableState) -> tuple[TableChange, int]:
        count = state.rows[name]["count"] if name in state.rows else 0
        return TableChange(
            "COUNT", {**state.rows, name: row(name, count + 1)}, {"d": str(count)}
        ), count

    return decide


def counts(rows: Rows) -> dict[str, int]:
    return {name: row["count"] for name, row in rows.items()}


def test_rows_and_domains_change_together_and_read_back_elsewhere() -> None:
    store = MemoryStore()
    first = table(store)
    assert first.read() == TableState(-1)
    first.change(raise_count("a"))
    state, before = first.change(raise_count("b"))
    assert before == 0

    read = table(store).read()
    assert (read.version, counts(read.rows)) == (1, {"a": 1, "b": 1}) == (1, counts(state.rows))
    assert read.snapshot is not None
    assert read.snapshot.domains["d"] == "0"


def test_reading_an_unchanged_state_is_one_call() -> None:
    store = Spy()
    made = table(store)
    made.change(raise_count("a"))
    store.calls.clear()
    made.read()
    assert [operation for operation, _ in store.calls] == ["get"]


def test_change_of_domains_alone_keeps_the_rows_file() -> None:
    store = MemoryStore()
    made = table(store)
    made.change(raise_count("a"))
    made.change(lambda state: (TableChange("SET", state.rows, {"d": "9"}), None))
    assert len(store.list("s/_scope/data")) == 1
    assert counts(table(store).read().rows) == {"a": 1}


def many(count: int) -> Rows:
    return {f"n{i:05d}": row(f"n{i:05d}", i) for i in range(count)}


def put_all(rows: Rows) -> Any:
    return lambda state: (TableChange("PUT", {**state.rows, **rows}), None)


@pytest.mark.medium
def test_size_of_a_change_does_not_grow_with_the_table() -> None:
    sizes = []
    for count in (1_000, 10_000):
        store = Spy()
        made = table(store)
        made.change(put_all(many(count)))
        store.calls.clear()
        before = {entry.key for entry in store.list("s/_scope/data")}
        made.change(raise_count("new"))
        added = [e for e in store.list("s/_scope/data") if e.key not in before]
        sizes.append(sum(entry.size for entry in added))
        assert (len(added), store.count("get", "/data/")) == (1, 0)
        assert counts(table(store).read().rows) == {**counts(many(count)), "new": 1}
    assert sizes[1] < 2 * sizes[0]


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(3))
def test_a_reader_that_follows_a_long_table_has_the_rows_that_a_new_one_reads(seed: int) -> None:
    store, chance = MemoryStore(), random.Random(seed)
    writer, follower = table(store), table(store)
    names = list(many(2_000))
    writer.change(put_all(many(1_200)))
    for step in range(25):
        changes: dict[str, Any] = {}
        for name in chance.sample(names, chance.choice([1, 2, 300])):
            changes[name] = None if chance.random() < 0.5 else row(name, step)
        change = TableChange("CHANGE", changes=changes)
        if chance.random() < 0.3:  # all rows, as a synchronizer gives them
            rows = {k: r for k, r in {**writer.read().rows, **changes}.items() if r is not None}
            change = TableChange("REPLACE", rows)
        state, _ = writer.change(lambda state, change=change: (change, None))  # type: ignore[misc]
        if chance.random() < 0.7:
            assert follower.read().rows == state.rows == table(store).read().rows


def test_two_threads_may_read_a_table_while_others_change_it() -> None:
    store = Spy()
    writer, shared = table(store), table(store)
    writer.change(put_all(many(2 * STATE_TABLE_FILE_ROWS)))
    first, *_, last = sorted(shared.read().rows)
    writer.change(put_all({first: row(first, -1)}))
    seen: list[TableState] = []

    def hook(operation: str, key: str) -> None:
        if "/data/" in key and not seen:  # the other thread is about to load the changed file
            seen.append(TableState(-1))
            writer.change(put_all({last: row(last, -2)}))
            seen.append(shared.read())

    store.hook = hook
    read = shared.read()
    assert (read.rows[first]["count"], seen[1].rows[last]["count"]) == (-1, -2)


def test_table_of_several_files_needs_a_feature_that_older_versions_refuse() -> None:
    store = MemoryStore()
    made = table(store)
    made.change(put_all(many(STATE_TABLE_FILE_ROWS)))
    snapshot = made.log.refresh()
    assert snapshot is not None
    assert ROWS_FEATURE not in snapshot.protocol["writerFeatures"]
    assert [name for name in snapshot.domains if name.startswith(ROWS_DOMAIN)] == [ROWS_DOMAIN]
    made.change(raise_count("new"))
    snapshot = table(store).read().snapshot
    assert snapshot is not None
    assert ROWS_FEATURE in snapshot.protocol["writerFeatures"]
    made.change(lambda state: (TableChange("DROP", {}), None))
    assert table(store).read().rows == {}
    made.change(raise_count("again"))
    assert counts(table(store).read().rows) == {"again": 1}


def test_table_without_rows_is_read_as_empty() -> None:
    store = MemoryStore()
    made = table(store)
    made.change(raise_count("a"))
    made.change(lambda state: (TableChange("CLEAR", {}), None))
    assert table(store).read().rows == {}
    made.change(raise_count("b"))
    assert counts(table(store).read().rows) == {"b": 1}


def test_no_change_of_concurrent_threads_is_lost() -> None:
    store = MemoryStore()
    tables = [table(store) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda t=t: [t.change(raise_count("a")) for _ in range(10)])
        for t in tables
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts(table(store).read().rows) == {"a": 40}


def test_lost_answer_is_not_a_second_change() -> None:
    store = Spy()
    made = table(store)
    made.change(raise_count("a"))
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    assert counts(made.change(raise_count("a"))[0].rows) == {"a": 2}


def test_error_of_the_decision_changes_nothing() -> None:
    store = MemoryStore()
    made = table(store)
    made.change(raise_count("a"))

    def refuse(state: TableState) -> tuple[TableChange, None]:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput, match="no"):
        made.change(refuse)
    assert made.read().version == 0


def test_any_delta_reader_sees_exactly_the_newest_rows(tmp_path: Path) -> None:
    made = table(LocalStore(str(tmp_path)))
    for _ in range(3):
        made.change(raise_count("a"))
    made.change(raise_count("b"))
    for version, wanted in ((0, {"a": 1}), (2, {"a": 3}), (3, {"a": 3, "b": 1})):
        delta = deltalake.DeltaTable(str(tmp_path / "s" / "_scope"), version=version)
        rows = delta.to_pyarrow_table().to_pylist()
        assert {row["name"]: row["count"] for row in rows} == wanted


@pytest.mark.parametrize("damage", ["torn", "missing"])
def test_damaged_rows_are_an_error_that_names_the_file(damage: str) -> None:
    store = MemoryStore()
    table(store).change(raise_count("a"))
    (entry,) = store.list("s/_scope/data")
    if damage == "missing":
        store.delete([entry.key])
    else:
        store.put(entry.key, store.get(entry.key)[:20])
    with pytest.raises(CorruptChunk, match=r"s/_scope: the rows in data/v0+/.*Restore"):
        table(store).read()


def test_storage_that_refuses_to_read_rows_is_not_called_damage() -> None:
    store = Spy()
    table(store).change(raise_count("a"))
    store.rules.add(Rule(StoreError("down"), "get", "*/data/*"))
    with pytest.raises(StoreError, match="down"):
        table(store).read()
