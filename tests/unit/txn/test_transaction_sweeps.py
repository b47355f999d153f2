"""Sweeps of a stream: files of transactions that cannot be committed, and old outcomes."""

from __future__ import annotations

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.chunk_paths import chunk_folder
from pravega_spark.engine.stream.history import history_log
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchTransaction
from pravega_spark.manager import root_of
from tests.harness.fake_runtime import NOW_MS, FakeRuntime, manager_of

DAY_MS = 86_400_000


def made_by(runtime: FakeRuntime) -> tuple[StreamManager, StreamLog]:
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2)))
    return manager, StreamLog(root_of(manager).store, "s/t", runtime)


def files_of(stream: StreamLog, transaction_id: str) -> list[str]:
    folder = f"{stream.path}/data/{chunk_folder(transaction_id)}"
    return [entry.key for entry in stream.store.list(folder)]


@pytest.fixture
def world() -> tuple[StreamManager, StreamLog, FakeRuntime]:
    runtime = FakeRuntime()
    return *made_by(runtime), runtime


def test_files_that_a_committed_transaction_does_not_name_are_deleted(
    world: tuple[StreamManager, StreamLog, FakeRuntime],
) -> None:
    manager, stream, _ = world
    with manager.create_transactional_writer("s/t") as writer:
        with writer.begin_transaction() as done:
            done.write_event(b"kept", "k")
        open_one = writer.begin_transaction(lease="600 s", max_execution="10 days")
        open_one.write_event(b"waiting", "k")
        open_one.flush()
    stray = f"{stream.path}/data/{chunk_folder(done.id)}/of-a-failed-task.parquet"
    stream.store.put(stray, b"x")
    manager.sweep_stream("s/t", grace="0 s", retain="0 s")
    assert stray not in files_of(stream, done.id)
    assert len(files_of(stream, done.id)) == 1
    assert len(files_of(stream, open_one.id)) == 1
    open_one.commit()
    assert sorted(event.data for event in manager.read("s/t")) == [b"kept", b"waiting"]


def test_outcome_stays_as_long_as_asked_and_then_becomes_a_row_of_the_history(
    world: tuple[StreamManager, StreamLog, FakeRuntime],
) -> None:
    manager, stream, runtime = world
    with manager.create_transactional_writer("s/t") as writer:
        with writer.begin_transaction() as txn:
            txn.write_event(b"e", "k")
        writer.begin_transaction().abort()
    runtime.wall_ms += DAY_MS // 2
    writer = manager.create_transactional_writer("s/t")
    writer.begin_transaction().abort()
    runtime.wall_ms += DAY_MS // 2 + 1
    manager.create_writer("s/t", "w").close()
    assert len(manager.list_completed_transactions("s/t")) == 3
    result = manager.sweep_stream("s/t", grace="1 h", retain="30 days")
    assert result.records == 2
    assert len(manager.list_completed_transactions("s/t")) == 1
    with pytest.raises(NoSuchTransaction, match="has dropped its outcome"):
        manager.transaction("s/t", txn.id)
    with history_log(stream).files() as files:
        kinds = {add.partition["record"] for add in files.all()}
    assert kinds == {"layout", "transaction"}
    runtime.wall_ms += DAY_MS // 2
    manager.sweep_stream("s/t", grace="1 h", keep_completed="12 h")
    assert manager.list_completed_transactions("s/t") == []
    writer.close()


def test_outcome_stays_as_long_as_asked_even_beyond_the_retained_versions(
    world: tuple[StreamManager, StreamLog, FakeRuntime],
) -> None:
    manager, stream, runtime = world
    writer = manager.create_transactional_writer("s/t")
    with writer, writer.begin_transaction() as txn:
        txn.write_event(b"e", "k")
    for _ in range(20):
        runtime.sleep(3_600)
        manager.create_writer("s/t", "w").close()
        result = manager.sweep_stream("s/t", grace="1 h", retain="1 h", keep_completed="15 h")
        kept = len(manager.list_completed_transactions("s/t"))
        assert kept == (runtime.now_ms() - NOW_MS <= 15 * 3_600_000), (result, runtime.now_ms())
    assert stream.view().snapshot.commit_deletion_mark > 3
