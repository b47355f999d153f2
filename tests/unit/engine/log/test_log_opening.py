"""The first opening of a log on an object store, beside others that commit and clean."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.files import FileIndex
from pravega_spark.engine.log.stored_state import state_key
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptLog
from pravega_spark.values.limits import OPENED_COMMITS
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_tables import clean, event_add, put, table_log
from tests.harness.spy_store import Spy


class RemoteSpy(Spy):
    is_local = False


def table(commits: int, state: int | None) -> tuple[FakeRuntime, MemoryStore, Log]:
    """A table with that many commits after its first one, and a state file of one of them."""
    runtime = FakeRuntime()
    store = memory(runtime)
    log = table_log(store, runtime)
    for n in range(1, commits + 1):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
        if n == state:
            maintain(log.reader, n)
    return runtime, store, log


def opened(
    store: MemoryStore, log: Log, hook: Callable[[str, str], None] | None = None
) -> tuple[Log, RemoteSpy]:
    spy = RemoteSpy(store)
    other = Log(spy, log.path, log.runtime)
    spy.hook = hook
    assert other.refresh() == log.refresh()
    return other, spy


def paths(index: FileIndex) -> list[str]:
    return sorted(add.path for add in index.all())


@pytest.mark.parametrize("state", [None, 4, 6])
@pytest.mark.parametrize("expects_files", [False, True])
def test_opening_lists_once_and_reads_each_object_once(
    state: int | None, expects_files: bool
) -> None:
    _, store, log = table(6, state)
    spy = RemoteSpy(store)
    other = Log(spy, log.path, log.runtime)
    if expects_files:
        other.expect_files()
    assert other.refresh() == log.refresh()
    assert spy.count("list") == 1
    assert spy.count("get") + spy.count("exists") == 0  # all that is read is read with others
    assert len(set(spy.calls)) == len(spy.calls)
    with other.files() as found, log.files() as known:
        assert paths(found) == paths(known) == [f"f{n}" for n in range(1, 7)]


def test_log_that_is_absent_is_opened_once_it_is_there() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    spy = RemoteSpy(store)
    other = Log(spy, "s/t/events", runtime)
    assert other.refresh() is None
    assert other.refresh() is None
    log = table_log(store, runtime)
    put(log, "1")
    assert other.refresh() == log.refresh()


def test_commits_that_come_during_the_opening_are_read_up_to_the_listing() -> None:
    _, store, log = table(6, 4)

    def commit(operation: str, key: str) -> None:
        if operation == "list":
            put(log, "later")

    spy = RemoteSpy(store)
    spy.hook = commit
    found = Log(spy, log.path, log.runtime).refresh()
    assert found is not None
    assert found.version == 7


@pytest.mark.parametrize("moment", ["_pravega/state", "list", "_delta_log/00000000000000000004"])
def test_cleanup_during_the_opening_is_noticed(moment: str) -> None:
    """A process stalls between any two of its calls while others commit and clean."""
    runtime, store, log = table(6, 4)

    def stall(operation: str, key: str) -> None:
        if operation == moment or moment in key:
            spy.hook = None
            for n in range(7, 14):
                put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
            assert clean(log, runtime, 10) > 0

    spy = RemoteSpy(store)
    spy.hook = stall
    other = Log(spy, log.path, runtime)
    assert other.refresh() == log.refresh()
    assert spy.hook is None
    assert put(other, "next") == 1 + max(0, log.snapshot.version if log.snapshot else 0)


def test_commit_of_the_state_file_is_proved_after_the_next_one_was_absent() -> None:
    """Without it, stale listings would hide that all commits after the state file are deleted."""
    runtime, store, log = table(4, 4)
    for n in range(5, 12):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
    hint = store.get(log.reader.hint_key)
    state = store.get(state_key(log.path, 4))
    assert clean(log, runtime, 8) > 0
    store.put(log.reader.hint_key, hint)  # a slow process wrote them again
    store.put(state_key(log.path, 4), state)
    opened(store, log)


def test_state_file_of_another_log_is_not_used() -> None:
    _, store, log = table(6, 4)
    _, foreign, _ = table(6, 4)
    key = state_key(log.path, 4)
    store.put(key, foreign.get(key))
    opened(store, log)


@pytest.mark.parametrize("lost", [0, 1, 3, 4, 5])
def test_missing_commit_is_an_error(lost: int) -> None:
    _, store, log = table(6, None)
    store.delete([log.reader.key(lost)])
    with pytest.raises(CorruptLog, match=f"version {lost}|old commits of the log were deleted"):
        Log(RemoteSpy(store), log.path, log.runtime).refresh()


def test_log_with_many_commits_after_its_state_file_is_read_step_by_step() -> None:
    _, store, log = table(OPENED_COMMITS + 2, 1)
    opened(store, log)
