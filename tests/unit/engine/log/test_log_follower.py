"""A log that others commit to, and whose old commits they delete."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.stored_state import state_key
from pravega_spark.engine.store.base import ResponseDate
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CommitUnknown
from pravega_spark.values.limits import (
    CLEANUP_WAIT_SECONDS,
    FAR_COMMITS,
    STALE_SNAPSHOT_SECONDS,
)
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_tables import clean, event_add, put, table_log, versions
from tests.harness.spy_store import Spy

# ------------------------------------------------------------------------- a log that is cleaned


def with_stalled_process() -> tuple[FakeRuntime, MemoryStore, Log, Log]:
    """A table with five commits, its log, and a log of a process that stalled at version 5."""
    runtime = FakeRuntime()
    store = memory(runtime)
    log = table_log(store, runtime)
    for n in range(1, 6):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
    stalled = Log(store, log.path, runtime)
    assert stalled.refresh() is not None
    return runtime, store, log, stalled


def others_clean(runtime: FakeRuntime, log: Log) -> None:
    """Commit six more versions, and delete those below version 8."""
    for n in range(6, 12):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
    assert clean(log, runtime, 8) == 7
    assert versions(log)[:2] == [0, 8]


def test_put_of_a_writer_that_stalled_while_the_log_was_cleaned_is_unknown() -> None:
    runtime, store, log, stalled = with_stalled_process()
    with (
        at_failpoint("commit.before", lambda: others_clean(runtime, log)),
        pytest.raises(CommitUnknown, match="does not count"),
    ):
        put(stalled, "lost")

    newest = log.refresh()
    assert newest is not None
    assert newest.get("test") == 11
    assert put(stalled, "12") == newest.version + 1  # it opens the log again
    assert Log(store, log.path, runtime).refresh() == stalled.refresh()


def test_writer_that_stalled_between_two_commits_opens_the_log_again() -> None:
    runtime, _, log, stalled = with_stalled_process()
    others_clean(runtime, log)
    newest = log.refresh()
    assert newest is not None

    assert stalled.refresh() == newest
    with stalled.files() as files:
        assert len(list(files.all())) == 11


def test_put_on_an_old_snapshot_that_lands_in_the_gap_is_unknown() -> None:
    runtime, _, log, stalled = with_stalled_process()
    others_clean(runtime, log)

    with pytest.raises(CommitUnknown, match="does not count"):
        stalled._send(Body("TEST", domains={"test": "lost"}))
    newest = log.refresh()
    assert newest is not None
    assert newest.get("test") == 11


class RemoteSpy(Spy):
    is_local = False


class DatedSpy(RemoteSpy):
    """An object store whose answers bear dates."""

    def __init__(self, inner: MemoryStore, runtime: FakeRuntime) -> None:
        super().__init__(inner)
        self.runtime = runtime

    @property
    def response_date(self) -> ResponseDate:
        now_ms = self.runtime.now_ms()
        return ResponseDate(now_ms, now_ms, self.runtime.monotonic())


def test_stray_commit_of_one_stalled_writer_is_no_proof_for_the_next() -> None:
    """Two writers stalled one version apart: the second one builds on the first one's commit."""
    runtime, store, log, first = with_stalled_process()
    put(log, "6", [event_add("f6", 0, 5, 1)])
    second = Log(store, log.path, runtime)
    assert second.refresh() is not None
    for n in range(7, 12):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
    assert clean(log, runtime, 8) == 7

    for stalled in (first, second):
        with pytest.raises(CommitUnknown, match="does not count"):
            stalled._send(Body("TEST", domains={"test": "lost"}))
    newest = log.refresh()
    assert newest is not None
    assert second.refresh() == newest
    assert newest.get("test") == 11


def test_late_put_whose_object_a_repeated_deletion_takes_away_again_is_unknown() -> None:
    """An object store deletes in any order, and a request that it answered late is sent again."""
    runtime, inner, log, _ = with_stalled_process()
    store = DatedSpy(inner, runtime)
    stalled = Log(store, log.path, runtime)
    assert stalled.refresh() is not None
    lost = log.reader.key(6)

    def repeat_it(operation: str, key: str) -> None:
        if operation == "list":  # the first call after the answer to the put
            store.hook = None
            assert inner.exists(lost)
            inner.delete([lost])

    def others_begin_to_clean() -> None:
        for n in range(6, 12):
            put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
        raise_horizon(log, 8, 8)
        runtime.sleep(2 * CLEANUP_WAIT_SECONDS)
        inner.delete([lost])  # of 1 to 7, the others later
        store.hook = repeat_it

    with (
        at_failpoint("commit.before", others_begin_to_clean),
        pytest.raises(CommitUnknown, match="does not count"),
    ):
        put(stalled, "lost")
    assert store.hook is None
    newest = log.refresh()
    assert newest is not None
    assert newest.get("test") == 11


# ----------------------------------------- a machine that was paused: its clocks stood still, too


def with_paused_machine() -> tuple[FakeRuntime, RemoteSpy, Log, Log]:
    """A log of an object store whose answers bear no dates, and that of a machine that pauses."""
    runtime = FakeRuntime()
    store = RemoteSpy(memory(runtime))
    log = table_log(store, runtime)
    for n in range(1, 6):
        put(log, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
    paused = Log(store, log.path, FakeRuntime())
    assert paused.refresh() is not None
    return runtime, store, log, paused


@pytest.mark.parametrize("is_first", [True, False])
def test_commit_held_back_on_a_paused_machine_is_unknown_where_answers_bear_no_dates(
    is_first: bool,
) -> None:
    runtime, _, log, paused = with_paused_machine()
    if not is_first:
        put(paused, "6")
    with (
        at_failpoint("commit.before", lambda: others_clean(runtime, log)),
        pytest.raises(CommitUnknown, match="does not count"),
    ):
        put(paused, "lost")
    newest = log.refresh()
    assert newest is not None
    assert newest.get("test") == 11
    assert put(paused, "12") == newest.version + 1
    assert paused.refresh() == log.refresh()


def test_late_commit_is_acknowledged_where_others_have_built_on_it() -> None:
    """Hours pass, but nothing is deleted, and another writer's commit follows at once."""
    runtime, store, log, paused = with_paused_machine()

    def follow(operation: str, key: str) -> None:
        if operation == "modified_ms":
            store.hook = None
            put(log, "7")

    store.hook = follow
    with at_failpoint("commit.before", lambda: runtime.sleep(10_000)):
        assert put(paused, "6") == 6
    assert store.hook is None
    assert put(paused, "8") == 8


def test_proof_of_a_commit_costs_one_call_more_and_idle_polls_cost_none() -> None:
    _, store, _, paused = with_paused_machine()
    put(paused, "6")
    store.calls.clear()
    put(paused, "7")
    assert [operation for operation, _ in store.calls] == ["put_if_absent", "modified_ms"]
    store.calls.clear()
    for _ in range(5):
        paused.read_next()
    assert [operation for operation, _ in store.calls] == ["get"] * 5


def test_reader_of_a_paused_machine_opens_the_log_again_where_it_meets_a_gap() -> None:
    runtime, store, log, paused = with_paused_machine()
    reader = Log(store, log.path, FakeRuntime())
    assert reader.refresh() is not None
    stall = at_failpoint("commit.before", lambda: others_clean(runtime, log))
    with stall, pytest.raises(CommitUnknown):
        put(paused, "lost")
    assert reader.reader.has(6)  # an orphan, behind which the log has a gap
    assert reader.refresh() == log.refresh()


def test_reader_of_a_paused_machine_that_finds_nothing_looks_again_after_half_an_hour() -> None:
    runtime, store, log, _ = with_paused_machine()
    own = FakeRuntime()
    reader = Log(store, log.path, own)
    assert reader.refresh() is not None
    others_clean(runtime, log)
    for _ in range(40):
        own.sleep(60)
        reader.read_next()
    assert reader.snapshot == log.refresh()


def test_commit_that_is_listed_and_not_found_is_no_hole() -> None:
    reader = table_log(MemoryStore()).reader
    assert "Try again; if it stays missing" in str(reader.missing(2, 2))
    hole = str(reader.missing(2, 3))
    assert "version 2 of the log is missing although version 3 exists. Restore it" in hole
    assert "Try again" not in hole


def test_refresh_on_an_object_store_ends_however_fast_others_commit() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    log = table_log(store, runtime)
    spy = RemoteSpy(store)
    reader = Log(spy, log.path, runtime)
    assert reader.refresh() is not None

    def others_commit(operation: str, key: str) -> None:
        if operation in ("get", "get_many", "list"):
            put(log, operation)

    spy.hook = others_commit
    for n in range(3):
        put(log, str(n))
    newest = reader.refresh()
    assert newest is not None
    assert newest.version >= 4


def test_reader_that_stalled_during_a_refresh_opens_the_log_again() -> None:
    runtime, store, log, _ = with_stalled_process()
    spy = Spy(store)
    stalled = Log(spy, log.path, runtime)
    assert stalled.refresh() is not None

    def stall(operation: str, key: str) -> None:
        if key == stalled.reader.key(6):
            spy.hook = None
            others_clean(runtime, log)

    spy.hook = stall
    newest = stalled.refresh()

    assert newest == log.refresh()


def test_commit_that_landed_in_the_gap_is_never_read_as_the_next_one() -> None:
    runtime, store, log, stalled = with_stalled_process()
    third = Log(store, log.path, runtime)
    third.refresh()
    stall = at_failpoint("commit.before", lambda: others_clean(runtime, log))
    with stall, pytest.raises(CommitUnknown):
        put(stalled, "lost")
    assert 6 in versions(log)

    assert third.refresh() == log.refresh()


def test_reader_whose_state_file_is_deleted_while_it_opens_uses_the_next_one() -> None:
    runtime, store, log, _ = with_stalled_process()
    maintain(log.reader, 5, checkpoint=False)
    spy = Spy(store)
    late = Log(spy, log.path, runtime)

    def stall(operation: str, key: str) -> None:
        if key == late.reader.key(6):
            spy.hook = None
            others_clean(runtime, log)

    spy.hook = stall
    assert late.refresh() == log.refresh()
    assert spy.hook is None


def test_snapshot_of_version_0_is_replaced_after_a_long_pause() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    log = table_log(store, runtime)
    stalled = Log(store, log.path, runtime)
    stalled.refresh()
    for n in range(1, 6):
        put(log, str(n))
    others_clean(runtime, log)

    assert stalled.refresh() == log.refresh()


def test_put_after_version_0_that_lands_in_the_gap_is_unknown() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    log = table_log(store, runtime)
    stalled = Log(store, log.path, runtime)
    stalled.refresh()
    for n in range(1, 6):
        put(log, str(n))
    stall = at_failpoint("commit.before", lambda: others_clean(runtime, log))
    with stall, pytest.raises(CommitUnknown):
        put(stalled, "lost")


def test_long_pause_without_cleanup_costs_two_reads_and_no_error() -> None:
    runtime = FakeRuntime()
    spy = Spy(memory(runtime))
    log = table_log(spy, runtime)
    for n in range(3):
        put(log, str(n))
    runtime.sleep(STALE_SNAPSHOT_SECONDS + 1)
    spy.calls.clear()

    assert put(log, "late") == 4
    operations = [operation for operation, _ in spy.calls]
    # The next version is absent, and the snapshot's own commit is still stored.
    assert operations == ["get", "get", "put_if_absent"]
    spy.calls.clear()
    assert put(log, "later") == 5
    assert [operation for operation, _ in spy.calls] == ["put_if_absent"]


def test_files_listed_before_a_cleanup_are_found_after_it() -> None:
    runtime, _, log, _ = with_stalled_process()
    maintain(log.reader, 2, checkpoint=False)
    opened = Log(log.store, log.path, runtime)
    opened.refresh()
    with opened.files() as files:
        files.find(0, 4, 5)  # loads the newest layer only
    with at_failpoint("cleanup.delete", opened.refresh):  # it refreshes during the cleanup
        others_clean(runtime, log)

    with opened.files() as files:
        assert [add.path for add in files.find(0, 0, 5)] == [f"f{n}" for n in range(1, 6)]
        assert len(list(files.all())) == 11


def test_layer_of_newest_files_is_rebuilt_when_it_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.follow.RECENT_FILES", 8)
    log = table_log(MemoryStore())
    log._follower._files_limit = 8
    with log.files():
        pass
    for n in range(40):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
        if n % 4 == 0:
            maintain(log.reader, n, checkpoint=False)
        with log.files() as files:
            assert [add.path for add in files.find(0, 0, n + 1)] == [f"f{k}" for k in range(n + 1)]
            assert files.recent <= 10


def test_files_that_were_looked_up_once_do_not_grow_with_a_writers_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention looks them up in a process that writes on, and nobody else there asks for them."""
    monkeypatch.setattr("pravega_spark.engine.log.follow.RECENT_FILES", 8)
    log = table_log(MemoryStore())
    log._follower._files_limit = 8
    with log.files():
        pass
    before = log.held_bytes
    for n in range(100):
        put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
    assert log.held_bytes < before + 20 * 2_000
    with log.files() as files:
        assert len(list(files.all())) == 100


def test_idle_refresh_is_one_storage_call() -> None:
    spy = Spy()
    log = table_log(spy)
    put(log, "a")
    spy.calls.clear()

    log.refresh(durable=True)

    assert spy.calls == [("get", log.reader.key(2))]


def test_commits_of_others_are_durable_before_they_are_shown() -> None:
    spy = Spy()
    log, other = table_log(spy), table_log(spy)
    put(other, "a")
    spy.calls.clear()
    log.refresh()
    assert spy.count("make_durable") == 0
    log.refresh(durable=True)
    assert spy.count("make_durable") == 1


# ----------------------------------------------------------------- a follower that is far behind


@pytest.mark.medium
@pytest.mark.parametrize("kind", [Spy, RemoteSpy])
def test_look_far_behind_costs_as_many_calls_after_ten_times_the_commits(kind: type[Spy]) -> None:
    costs = []
    for commits in (400, 4_000):
        runtime = FakeRuntime()
        store = memory(runtime)
        log = table_log(store, runtime)
        spy = kind(store)
        follower = Log(spy, log.path, runtime)
        follower.refresh()
        for number in range(commits):
            put(log, str(number))
        maintain(log.reader, commits - 100)
        spy.calls.clear()
        newest = follower.refresh()
        assert newest is not None
        assert newest == log.refresh()
        costs.append(len(spy.calls))
    assert costs[0] == costs[1] < FAR_COMMITS + 100 + 20


@pytest.mark.parametrize("kind", [Spy, RemoteSpy])
def test_look_at_a_few_commits_reads_each_once_and_no_hint(kind: type[Spy]) -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    log = table_log(store, runtime)
    spy = kind(store)
    follower = Log(spy, log.path, runtime)
    follower.refresh()
    spy.calls.clear()
    assert follower.refresh() == log.refresh()
    assert len(spy.calls) == 1
    for number in range(FAR_COMMITS - 1):
        put(log, str(number))
    spy.calls.clear()
    assert follower.refresh() == log.refresh()
    assert len(spy.calls) == FAR_COMMITS - 1 + 1  # the absent next one, or a listing
    assert [key for _, key in spy.calls if key == log.reader.hint_key] == []


@pytest.mark.parametrize("kind", [Spy, RemoteSpy])
def test_look_far_behind_reads_the_commits_where_no_intact_state_passed_them(
    kind: type[Spy],
) -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    log = table_log(store, runtime)
    follower = Log(kind(store), log.path, runtime)
    follower.refresh()
    for number in range(3 * FAR_COMMITS):
        put(log, str(number), [event_add(f"f{number}", 0, number, 1)])
    assert follower.refresh() == log.refresh()
    for number in range(4 * FAR_COMMITS):
        put(log, str(number), [event_add(f"g{number}", 1, number, 1)])
    newest = log.refresh()
    assert newest is not None
    maintain(log.reader, newest.version)
    store.put(state_key(log.path, newest.version), b"torn")
    assert follower.refresh() == newest
    with follower.files() as files:
        assert len(list(files.all())) == 7 * FAR_COMMITS
