"""Processes that missed a fold whose old files are swept: they read the newer one, and say so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.store import Store
from pravega_spark.errors import BadKeyVersion, DataLoss
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.updates import TablePut
from pravega_spark.manager import manager_over
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill

T = "s/t"


class Process:
    """A process with the table open: its own manager, logs and index."""

    def __init__(self, store: Store, runtime: FakeRuntime) -> None:
        self.manager = manager_over(store, runtime)

    def open(self) -> KeyValueTable:
        return self.manager.key_value_table(T)

    def fold(self, table: KeyValueTable) -> None:
        log = table._stream
        assert fold(log, folded_table(log, table.configuration)).is_published


@pytest.fixture(params=["published", "killed before it published"])
def late(request: pytest.FixtureRequest) -> KeyValueTable:
    """A table whose process has seen a fold that another one has replaced, and swept."""
    runtime = FakeRuntime()
    store = memory(runtime)
    other, process = Process(store, runtime), Process(store, runtime)
    other.manager.create_scope("s")
    configuration = KeyValueTableConfiguration("string", staleness="1 day")
    other.manager.create_key_value_table(T, configuration)
    table = other.open()
    for key in "abc":
        table.put(key, b"1").result()
    other.fold(table)
    late = process.open()
    assert not late.exists("absent")  # has opened both logs, and read no file
    table.put("b", b"2").result()
    if request.param == "published":
        other.fold(table)
    else:
        with at_failpoint("fold.publish", kill), pytest.raises(Killed):
            other.fold(table)
    runtime.sleep(3_600)
    folded = folded_table(table._stream, table.configuration)
    assert sweep_table(folded.log, grace_ms=0, retain_ms=0).files
    return late


def value(table: KeyValueTable, key: str) -> bytes | None:
    found = table.get(key)
    return None if found is None else found.value


def increment(table: KeyValueTable) -> bytes | None:
    found = table.get("a")
    assert found is not None
    table.update([TablePut("a", b"2", found.version)])
    return value(table, "a")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda table: value(table, "b"), b"2"),
        (lambda table: [e and e.value for e in table.get_all(["a", "b", "x"])], [b"1", b"2", None]),
        (lambda table: table.exists("c"), True),
        (increment, b"2"),
    ],
)
def test_a_process_that_missed_it_reads_the_newer_one(
    late: KeyValueTable, call: Callable[[KeyValueTable], object], expected: object
) -> None:
    assert call(late) == expected


def test_a_condition_is_decided_on_the_newer_one(late: KeyValueTable) -> None:
    with pytest.raises(BadKeyVersion):
        late.insert("b", b"again")
    late.insert("d", b"1")
    assert [entry.key for entry in late.entries()] == ["a", "b", "c", "d"]


def test_a_file_of_the_newest_fold_that_is_gone_is_lost(late: KeyValueTable) -> None:
    folded = folded_table(late._stream, late.configuration)
    store = late._stream.store
    store.delete(
        [entry.key for entry in store.list("s/_kv_tables/t/table/") if "parquet" in entry.key]
    )
    for call in (late.get, late.exists):
        with pytest.raises(DataLoss, match="is lost"):
            call("a")
    assert folded.read() is not None
