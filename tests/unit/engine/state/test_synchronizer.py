"""A state that many processes share: updates, races, and compaction."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.state.state_table import Rows
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import IllegalState, InvalidInput
from tests.harness.fake_runtime import DatedDisk, FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.spy_store import Spy

State = Mapping[str, int]


class Counts:
    """A state of named numbers."""

    schema = pa.schema([("name", pa.string()), ("count", pa.int64())])
    key = "name"

    def __init__(self) -> None:
        self.decoded = 0

    def encode(self, state: State) -> Rows:
        return {name: {"name": name, "count": count} for name, count in state.items()}

    def decode(self, rows: Rows) -> State:
        self.decoded += 1
        return {name: row["count"] for name, row in rows.items()}


def opened(store: Store, runtime: FakeRuntime | None = None) -> Synchronizer[State]:
    made: Synchronizer[State] = Synchronizer(store, "s/x", Counts(), runtime or FakeRuntime())
    made.table.log.maintain = None
    return made


def add(name: str, count: int = 1) -> Any:
    def generator(state: State) -> tuple[State, int]:
        return {**state, name: state.get(name, 0) + count}, state.get(name, 0)

    return generator


def test_loser_of_the_initialisation_adopts_the_winners_state() -> None:
    store = MemoryStore()
    first, second = opened(store), opened(store)
    assert first.initialise({"a": 1})
    assert not second.initialise({"a": 9})
    assert second.local.state == {"a": 1} == first.local.state


def test_use_before_the_initialisation_is_an_error() -> None:
    made = opened(MemoryStore())
    assert made.fetch() is None
    with pytest.raises(IllegalState, match="s/x is not initialised"):
        _ = made.local
    with pytest.raises(IllegalState, match="not initialised"):
        made.update("ADD", add("a"))
    with pytest.raises(IllegalState, match="not initialised"):
        made.compact()


def test_update_returns_the_generators_value_and_other_copies_fetch_it() -> None:
    store = MemoryStore()
    first, second = opened(store), opened(store)
    first.initialise({"a": 1})
    assert second.fetch() is not None
    assert first.update("ADD", add("a", 5), {"who": "first"}) == 1
    assert first.local.state == {"a": 6}
    assert second.local.state == {"a": 1}, "a copy is old until it is fetched"
    fetched = second.fetch()
    assert fetched is not None
    assert (fetched.version, fetched.state) == (1, {"a": 6})


@pytest.mark.parametrize("nothing", [None, {"a": 1}])
def test_empty_update_writes_nothing(nothing: State | None) -> None:
    made = opened(MemoryStore())
    made.initialise({"a": 1})
    assert made.update("ADD", lambda state: (nothing, "seen")) == "seen"
    assert made.local.version == 0


def test_generator_runs_again_on_the_state_that_won_the_race() -> None:
    store = MemoryStore()
    first, second = opened(store), opened(store)
    first.initialise({"a": 1})
    second.fetch()
    seen: list[State] = []

    def generator(state: State) -> tuple[State, None]:
        if not seen:
            first.update("ADD", add("a", 10))
        seen.append(dict(state))
        return {**state, "b": state["a"]}, None

    second.update("ADD", generator)
    assert seen == [{"a": 1}, {"a": 11}]
    assert second.local.state == {"a": 11, "b": 11}


def test_error_of_the_generator_changes_nothing() -> None:
    made = opened(MemoryStore())
    made.initialise({"a": 1})

    def refuse(state: State) -> tuple[State, None]:
        raise InvalidInput("no")

    with pytest.raises(InvalidInput, match="no"):
        made.update("ADD", refuse)
    assert made.fetch() == made.local
    assert made.local.version == 0


def test_no_unconditional_update_of_concurrent_threads_is_lost() -> None:
    store = MemoryStore()
    opened(store).initialise({"a": 0})
    copies = [opened(store) for _ in range(4)]

    def work(copy: Synchronizer[State]) -> None:
        for _ in range(10):
            copy.apply("ADD", lambda state: {"a": state["a"] + 1})

    threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fetched = copies[0].fetch()
    assert fetched is not None
    assert fetched.state == {"a": 40}


@pytest.mark.parametrize("nth", [1, 2])
def test_lost_answer_is_not_a_second_update(nth: int) -> None:
    store = Spy()
    made = opened(store)
    made.initialise({"a": 0})
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=nth))
    for _ in range(3):
        made.update("ADD", add("a"))
    assert opened(store.inner).fetch() == made.local
    assert made.local.state == {"a": 3}


def test_local_state_never_goes_back() -> None:
    made = opened(MemoryStore())
    made.initialise({"a": 0})
    old = made.table.read()
    made.update("ADD", add("a"))
    assert made._adopt(old) == made.local
    assert made.local.state == {"a": 1}


def test_fetch_of_an_unchanged_state_is_one_call_and_decodes_nothing() -> None:
    store, codec = Spy(), Counts()
    made: Synchronizer[State] = Synchronizer(store, "s/x", codec, FakeRuntime())
    made.initialise({"a": 0})
    store.calls.clear()
    codec.decoded = 0
    made.fetch()
    assert [operation for operation, _ in store.calls] == ["get"]
    assert codec.decoded == 0


def test_compaction_keeps_one_generation_for_slow_processes() -> None:
    store = MemoryStore()
    made, slow, slower = opened(store), opened(store), opened(store)
    made.initialise({"a": 0})
    slower.fetch()
    for _ in range(3):
        made.update("ADD", add("a"))
    slow.fetch()
    assert made.compact() == 0, "the first compaction has none before it"
    made.update("ADD", add("a"))
    assert made.compact() == 3, "up to the previous compaction"
    assert len(store.list("s/x/data")) == 2
    for copy in (slow, slower):
        assert copy.update("ADD", add("a")) == made.local.state["a"]
        made.fetch()


def test_killed_compaction_is_finished_by_the_next() -> None:
    store = Spy()
    made = opened(store)
    made.initialise({"a": 0})
    for _ in range(3):
        made.update("ADD", add("a"))
        made.compact()
    store.rules.add(Rule(Fault.REFUSE, "delete", "*"))
    with pytest.raises(OSError, match="refused"):
        made.compact()
    store.rules.clear()
    made.compact()
    assert opened(store.inner).fetch() == made.local


def test_sql_reads_every_version_until_a_sweep_deletes_it(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    store = DatedDisk(tmp_path, runtime)
    made = opened(store, runtime)
    made.initialise({"a": 0})
    for _ in range(4):
        runtime.sleep(60)
        made.update("ADD", add("a"))
    path = str(tmp_path / "s" / "x")
    for version in range(5):
        table = deltalake.DeltaTable(path, version=version).to_pyarrow_table()
        assert table.to_pylist() == [{"name": "a", "count": version}]
    runtime.sleep(3_600)
    assert sweep_table(made.table.log, grace_ms=1_000, retain_ms=1_000).files == 4
    assert deltalake.DeltaTable(path).history(1)[0]["operation"] == "SWEEP"
    log = sorted((tmp_path / "s" / "x" / "_delta_log").glob("*.json"))
    operation = json.loads(log[1].read_text().splitlines()[0])["commitInfo"]["operation"]
    assert operation == "ADD"
    assert made.update("ADD", add("a")) == 4
