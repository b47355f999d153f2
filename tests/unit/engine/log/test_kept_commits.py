"""State files on an object store are written from the commits that their writer has seen."""

from __future__ import annotations

from functools import partial

import pytest

from pravega_spark.backup.restore import restore_table
from pravega_spark.engine.log import reader as log_reader
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.reader import KeptCommits
from pravega_spark.engine.log.stored_state import state_key
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_tables import commit, event_add, put, table_log
from tests.harness.spy_store import Spy


class RemoteSpy(Spy):
    is_local = False


def test_state_file_reads_no_commit_that_its_writer_made_or_read() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    other = table_log(store, runtime)
    spy = RemoteSpy(store)
    ours = Log(spy, other.path, runtime)
    ours.maintain = lambda log, version: None
    for n in range(1, 12):
        put(other if n in (1, 4, 6, 7, 8) else ours, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
        if n == 8:
            ours.refresh()  # one by one, and what is listed behind
    spy.calls.clear()
    maintain(ours.reader, 11)
    read = {key for operation, key in spy.calls if operation == "get_many" and "_delta_log" in key}
    assert read == {ours.reader.key(1)}  # read before it had made a commit
    written = store.get(state_key(ours.path, 11))
    store.delete([state_key(ours.path, 11), ours.reader.hint_key])
    maintain(Log(store, other.path, runtime).reader, 11)  # by a process that kept none
    assert store.get(state_key(ours.path, 11)) == written


def _proposed(body: Body, _: object) -> Body:
    return body


def test_state_file_holds_nothing_that_a_restore_has_dropped_since_its_writer_made_it() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    other = table_log(store, runtime)
    ours = Log(RemoteSpy(store), other.path, runtime)
    ours.maintain = lambda log, version: None
    for n in range(1, 6):
        body = Body("TEST", domains={f"test-{n}": "kept"})
        commit(ours, partial(_proposed, body))
    store.delete([ours.reader.key(4)])
    assert restore_table(store, ours.path, runtime).dropped_versions == 2
    put(ours, "new")
    newest = ours.snapshot
    assert newest is not None
    maintain(ours.reader, newest.version)
    written = store.get(state_key(ours.path, newest.version))
    store.delete([state_key(ours.path, newest.version), ours.reader.hint_key])
    maintain(Log(store, other.path, runtime).reader, newest.version)
    assert store.get(state_key(ours.path, newest.version)) == written


def test_process_that_commits_nothing_keeps_nothing() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    other = table_log(store, runtime)
    reader = Log(RemoteSpy(store), other.path, runtime)
    for n in range(1, 4):
        put(other, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
        reader.refresh()
    assert [reader.reader.kept.take(n) for n in range(4)] == [None] * 4


def test_all_logs_of_a_process_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "KEPT_COMMIT_BYTES", 100)
    first, second = KeptCommits(), KeptCommits()
    first.keep_own(1, b"x" * 60)
    second.keep_own(1, b"y" * 60)
    assert first.take(1) is None
    assert second.take(1) == b"y" * 60
    assert second.take(1) is None
    first.keep(2, b"x" * 60)
    first.keep(2, b"z" * 90)
    assert first.take(2) == b"z" * 90
