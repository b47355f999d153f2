"""State files on an object store are written from the commits that their writer made."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log import kept_commits
from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.kept_commits import KeptCommits
from pravega_spark.engine.log.state_file import state_key
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_tables import event_add, put, table_log
from tests.harness.spy_store import Spy


class RemoteSpy(Spy):
    is_local = False


def test_state_file_reads_only_the_commits_of_others() -> None:
    runtime = FakeRuntime()
    store = memory(runtime)
    other = table_log(store, runtime)
    spy = RemoteSpy(store)
    ours = Log(spy, other.path, runtime)
    ours.maintain = lambda log, version: None
    for n in range(1, 10):
        put(other if n == 4 else ours, str(n), [event_add(f"f{n}", 0, n - 1, 1)])
    spy.calls.clear()
    maintain(ours.reader, 9)
    read = {key for operation, key in spy.calls if operation == "get_many" and "_delta_log" in key}
    assert read == {ours.reader.key(0), ours.reader.key(4)}
    written = store.get(state_key(ours.path, 9))
    store.delete([state_key(ours.path, 9), ours.reader.hint_key])
    maintain(Log(store, other.path, runtime).reader, 9)  # by a process that kept none
    assert store.get(state_key(ours.path, 9)) == written


def test_all_logs_of_a_process_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_commits, "KEPT_COMMIT_BYTES", 100)
    first, second = KeptCommits(), KeptCommits()
    first.keep(1, b"x" * 60)
    second.keep(1, b"y" * 60)
    assert first.take(1) is None
    assert second.take(1) == b"y" * 60
    assert second.take(1) is None
    first.keep(2, b"x" * 60)
    first.keep(2, b"z" * 90)
    assert first.take(2) == b"z" * 90
