"""Entries with a ttl while clocks are wrong by a day: they end late and never early, for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.compaction.plan import CompactionOptions, plan_compaction
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import BadKeyVersion
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.snapshot import table_snapshot
from pravega_spark.manager import StreamManager
from pravega_spark.spark.key_value.scan import changed_rows
from tests.harness.fake_runtime import DatedDisk, FakeRuntime, manager_of

T, LOG = "s/t", "s/_kv_tables/t"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
HOURLY = KeyValueTableConfiguration("string", ttl="1 hour")


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def table(runtime: FakeRuntime) -> KeyValueTable:
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_key_value_table(T, HOURLY)
    return manager.key_value_table(T)


def off_by(runtime: FakeRuntime, days: float) -> FakeRuntime:
    """A host whose clock is wrong; its boot clock begins as the other one."""
    found = FakeRuntime()
    found.wall_ms = runtime.wall_ms + int(days * DAY_MS)
    return found


def seen_by(table: KeyValueTable, runtime: FakeRuntime) -> KeyValueTable:
    """The table as another process has it, with a clock of its own."""
    log = StreamLog(table._stream.store, LOG, runtime)
    return KeyValueTable(log, T, log.view())


def fold_of(table: KeyValueTable) -> None:
    fold(table._stream, folded_table(table._stream, table.configuration), ttl_ms=HOUR_MS)


@pytest.mark.parametrize("days", [-1, 1])
@pytest.mark.parametrize("is_conditional", [False, True])
def test_the_clock_of_a_writer_neither_hides_its_entry_nor_keeps_it(
    table: KeyValueTable, runtime: FakeRuntime, days: float, is_conditional: bool
) -> None:
    """The writer stamps its events by a wrong clock, and commits with the storage's."""
    host = off_by(runtime, days)
    writer = seen_by(table, host)
    writer._stream.log.clock.now_ms = runtime.now_ms  # type: ignore[method-assign]
    if is_conditional:
        writer.insert("lock", "1")
    else:
        writer.put("lock", "1").result()
    following, opened = table, seen_by(table, runtime)
    times = set()
    for one in (writer, following, opened):
        found = one.get("lock", fresh=True)
        assert found is not None
        times.add(found.timestamp_us)
        with pytest.raises(BadKeyVersion):
            one.insert("lock", "2")
    (time_us,) = times
    assert abs(time_us // 1_000 - runtime.wall_ms) < 10
    assert changed_rows(table_snapshot(table._stream))["timestamp"][0].value == time_us
    runtime.sleep(3_601)
    host.sleep(3_601)
    right = (following, opened, seen_by(table, runtime))
    for one in right if days < 0 else (writer, *right):  # a host that is behind sees it longer
        assert one.get("lock", fresh=True) is None
    fold_of(table)
    for one in (writer, following, seen_by(table, runtime)):
        assert one.get("lock", fresh=True) is None, "a fold brought it back"
        assert list(one.keys()) == []


def test_a_committer_that_is_a_day_behind_ends_no_entry_early(
    table: KeyValueTable, runtime: FakeRuntime
) -> None:
    table.put("before", "1").result()
    behind = seen_by(table, off_by(runtime, -1))
    behind.put("put", "1").result()
    behind.insert("inserted", "1")
    keys = ["before", "inserted", "put"]
    runtime.sleep(3_000)
    following, opened = table, seen_by(table, runtime)
    assert list(following.keys()) == list(opened.keys()) == keys
    with pytest.raises(BadKeyVersion):
        opened.insert("put", "2")
    runtime.sleep(500)
    fold_of(table)
    assert list(following.keys()) == list(seen_by(table, runtime).keys()) == keys
    runtime.sleep(101)
    assert list(following.keys()) == list(seen_by(table, runtime).keys()) == []


def test_a_fold_brings_no_expired_entry_back_whatever_compaction_and_later_commits_do(
    table: KeyValueTable, runtime: FakeRuntime
) -> None:
    for n in range(30):
        table.put(f"old{n}", "1").result()
    runtime.sleep(3_500)
    for n in range(30):
        table.put(f"new{n}", "1").result()
    runtime.sleep(101)
    log = table._stream
    assert not plan_compaction(log, CompactionOptions())
    alive = sorted(f"new{n}" for n in range(30))
    assert list(table.keys()) == alive
    fold_of(table)
    assert list(table.keys()) == list(seen_by(table, runtime).keys()) == alive


@pytest.mark.parametrize("days", [-1, 1])
def test_a_reader_with_a_wrong_clock_takes_no_lock_of_others(tmp_path: Path, days: float) -> None:
    """On a local disk its one clock jumps; the boot clock does not explain that."""
    runtime = FakeRuntime()
    manager = StreamManager(str(tmp_path), runtime=runtime)
    manager.create_scope("s")
    manager.create_key_value_table(T, HOURLY)
    disk = DatedDisk(tmp_path, runtime)
    KeyValueTable(log := StreamLog(disk, LOG, runtime), T, log.view()).insert("lock", "1")
    runtime.sleep(600)
    runtime.wall_ms += int(days * DAY_MS)
    log = StreamLog(disk, LOG, runtime)
    reader = KeyValueTable(log, T, log.view())
    assert list(reader.keys()) == ["lock"]
    assert reader.get("lock") is not None
    with pytest.raises(BadKeyVersion):
        reader.insert("lock", "2")
    assert table_snapshot(log).expired_us is not None
    assert changed_rows(table_snapshot(log)).num_rows == 1
    if days > 0:
        runtime.sleep(3_100)
        assert reader.get("lock", fresh=True) is None, "time goes on by the boot clock"


def test_a_get_reads_the_believed_time_now_and_then(
    table: KeyValueTable, runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.put("k", "1").result()
    store, asked = table._stream.store, list[int]()
    time_ms = store.time_ms

    def counted() -> int:
        asked.append(1)
        return time_ms()

    monkeypatch.setattr(store, "time_ms", counted)
    for _ in range(100):
        assert table.get("k") is not None
    assert len(asked) == 1
    runtime.sleep(11)
    assert table.get("k") is not None
    assert len(asked) == 2
