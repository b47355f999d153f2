"""The horizon and the retention mark: how they move, and what the horizon forbids."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.writing.append import append
from pravega_spark.errors import StagedTooLate
from tests.harness.small_streams import all_events, make_stream, reopen, staged, write
from tests.harness.small_tables import put, table_log


def table_of(commits: int) -> Log:
    log = table_log(MemoryStore())
    for n in range(commits):
        put(log, str(n))
    return log


def newest(log: Log) -> Snapshot:
    snapshot = log.refresh()
    assert snapshot is not None
    return snapshot


def test_horizon_and_retention_mark_never_go_back_and_never_pass_the_newest_version() -> None:
    log = table_of(6)
    raise_horizon(log, 4, 2)
    for horizon, mark in ((3, 1), (4, 2), (0, 0)):
        before = newest(log).version
        raise_horizon(log, horizon, mark)
        assert newest(log).version == before
    assert (newest(log).horizon, newest(log).retention_mark) == (4, 2)

    raise_horizon(log, 1_000, 500)
    assert (newest(log).horizon, newest(log).retention_mark) == (7, 7)
    assert newest(log).commit_deletion_set_version == 0


def test_retention_mark_never_passes_the_horizon() -> None:
    log = table_of(6)
    raise_horizon(log, 3, 5)
    assert (newest(log).horizon, newest(log).retention_mark) == (3, 3)


def test_chunks_staged_below_the_horizon_are_never_committed() -> None:
    stream = make_stream()
    late = staged(stream, [("k", b"late")])
    for _ in range(3):
        write(stream, [("k", b"x")])
    raise_horizon(stream.log, 1)
    other = reopen(stream)  # its snapshot is older than the horizon

    for opened in (stream, other):
        with pytest.raises(StagedTooLate, match=r"staged at version 0 .*horizon, version 1"):
            append(opened, 1, 0, late)
    assert len(all_events(stream)) == 3
