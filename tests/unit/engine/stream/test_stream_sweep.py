from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.log.sweep import SweepResult, sweep_table
from pravega_spark.engine.state.state_table import StateTable, TableChange, TableState
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.history import HistoryRow, append_history, history_log
from pravega_spark.engine.stream.records import anonymous_id
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.stream_sweep import sweep_stream
from pravega_spark.engine.writing.identity import SessionBatch
from pravega_spark.errors import CommitUnknown
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import all_events, make_stream, reopen, staged, write
from tests.harness.small_tables import versions
from tests.harness.spy_store import Spy

HOUR_MS = 3_600_000


SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64())])


def stream_of() -> tuple[FakeRuntime, StreamLog]:
    runtime = FakeRuntime()
    return runtime, make_stream(memory(runtime), runtime)


def sweep_now(stream: StreamLog, hours: int = 2) -> SweepResult:
    ages_ms = dict.fromkeys(("grace_ms", "retain_ms", "completed_ms"), hours * HOUR_MS)
    return sweep_stream(reopen(stream), **ages_ms)


def test_version_at_a_time_is_the_newest_one_committed_by_then() -> None:
    runtime, stream = stream_of()
    for n in range(5):
        runtime.sleep(60)
        write(stream, [("k", b"%d" % n)])
    now = runtime.now_ms()
    assert VersionAges.read(stream.log).version_at(now) == 5
    assert VersionAges.read(stream.log).version_at(now - 60_000) == 4
    assert VersionAges.read(stream.log).version_at(now - 60_001) == 3
    assert VersionAges.read(stream.log).version_at(0) == 0


@pytest.mark.medium
def test_log_of_a_stream_that_is_written_and_swept_stays_bounded() -> None:
    runtime, stream = stream_of()
    kept = []
    for hour in range(40):
        for n in range(6):
            write(stream, [("k", b"%d" % (6 * hour + n))])
            runtime.sleep(600)
            if n in (2, 5):
                sweep_now(stream)  # twice an hour: more often than commits are deleted
        kept.append(len(versions(stream.log)))
    assert max(kept[20:]) < 120 < stream.view().version
    assert versions(stream.log)[0] == 0
    assert [event for _, event in all_events(reopen(stream))] == [b"%d" % n for n in range(240)]


def test_uncommitted_files_are_deleted_after_the_grace_only() -> None:
    runtime, stream = stream_of()
    for n in range(3):
        write(stream, [("k", b"%d" % n)])
    staged(stream, [("k", b"never")])
    runtime.sleep(3_600)
    for n in range(3):
        write(stream, [("k", b"%d" % n)])
    assert sweep_now(stream).files == 0
    runtime.sleep(7_200)
    for n in range(3):
        write(stream, [("k", b"%d" % n)])
    result = sweep_now(stream)
    assert result.files == 1
    assert len(all_events(stream)) == 9


def test_sweep_deletes_the_files_of_refused_writers() -> None:
    runtime, stream = stream_of()
    stray = f"{stream.path}/segment_id=0/base_offset=0/part-0.parquet"
    stream.store.put(stray, b"theirs")
    assert sweep_now(stream).files == 0
    runtime.sleep(3 * 3_600)
    assert sweep_now(stream).files == 1
    assert not stream.store.exists(stray)


def test_sweep_of_an_idle_stream_commits_nothing() -> None:
    runtime, stream = stream_of()
    write(stream, [("k", b"x")])
    for _ in range(5):
        runtime.sleep(24 * 3_600)
        sweep_now(stream)
    assert stream.view().version <= 2


def test_anonymous_writers_become_history() -> None:
    runtime, stream = stream_of()
    names = [anonymous_id(n, f"token{n}") for n in range(4)]
    for name in names:
        write(stream, [("k", b"x")], SessionBatch(name, 0, 0, 1))
    runtime.sleep(3 * 3_600)
    assert sweep_now(stream).records == 3  # the last commit of the newest one is the horizon
    assert [name for name in names if reopen(stream).view().writer(name)] == names[3:]
    with pytest.raises(CommitUnknown, match="open a new writer"):
        write(stream, [("k", b"y")], SessionBatch(names[0], 0, 1, 2))
    entries = stream.store.list("s/t/metadata/data")
    (key,) = (entry.key for entry in entries if "/writer-" in entry.key)
    rows = pq.read_table(pa.BufferReader(stream.store.get(key))).to_pylist()
    assert sorted(row["name"] for row in rows) == [f"pravega.writer.{name}" for name in names[:3]]


def test_note_of_an_anonymous_writer_becomes_history_with_it() -> None:
    runtime, stream = stream_of()
    names = [anonymous_id(n, f"token{n}") for n in range(2)]
    for name in names:
        write(stream, [("k", b"x")], SessionBatch(name, 0, 0, 1, f"note of {name}"))
    runtime.sleep(3 * 3_600)
    assert sweep_now(stream).records == 1
    snapshot = reopen(stream).view().snapshot
    assert list(snapshot.names("pravega.note.")) == [f"pravega.note.{names[1]}"]


@pytest.mark.parametrize("point", ["sweep.history", "sweep.delete", "sweep.recorded"])
def test_two_concurrent_sweeps_do_no_harm(point: str) -> None:
    runtime, stream = stream_of()
    for n in range(3):
        staged(stream, [("k", b"never")])
        write(stream, [("k", b"%d" % n)], SessionBatch(anonymous_id(n, f"t{n}"), 0, 0, 1))
    runtime.sleep(3 * 3_600)
    with at_failpoint(point, lambda: sweep_now(stream)):
        sweep_now(stream)
    assert len(all_events(reopen(stream))) == 3
    assert len(stream.store.list(f"{stream.path}/data")) == 3


# ---------------------------------------------------------------------- history, tables of state


def table_of(store: Any, runtime: FakeRuntime) -> StateTable:
    table = StateTable(store, "s/_scope", SCHEMA, "name", runtime)
    table.log.maintain = None
    return table


def count_up(table: StateTable, name: str = "a") -> None:
    def decide(state: TableState) -> tuple[TableChange, None]:
        count = state.rows[name]["count"] if name in state.rows else 0
        return TableChange("COUNT", {**state.rows, name: {"name": name, "count": count + 1}}), None

    table.change(decide)


def counts(table: StateTable) -> dict[str, int]:
    return {name: row["count"] for name, row in table.read().rows.items()}


def files(log: Log) -> int:
    return len(log.store.list(f"{log.path}/data"))


@pytest.mark.medium
def test_log_and_rows_of_a_changing_table_stay_bounded() -> None:
    runtime = FakeRuntime()
    table = table_of(memory(runtime), runtime)
    kept = []
    for _ in range(40):
        for n in range(6):
            count_up(table)
            runtime.sleep(600)
            if n in (2, 5):
                log = table_of(table.log.store, runtime).log
                sweep_table(log, grace_ms=2 * HOUR_MS, retain_ms=2 * HOUR_MS)
        kept.append((len(versions(table.log)), files(table.log)))
    assert max(commits for commits, _ in kept[20:]) < 120 < table.read().version
    assert max(rows for _, rows in kept[20:]) < 40
    assert counts(table_of(table.log.store, runtime)) == {"a": 240}


def test_rows_of_retained_versions_are_kept() -> None:
    runtime = FakeRuntime()
    table = table_of(memory(runtime), runtime)
    for _ in range(6):
        runtime.sleep(3_600)
        count_up(table)
    result = sweep_table(table.log, grace_ms=0, retain_ms=2 * HOUR_MS)
    assert (result.retention_mark, result.files, files(table.log)) == (3, 3, 3)
    assert result.size_bytes > 0
    assert sweep_table(table.log, grace_ms=0, retain_ms=2 * HOUR_MS).files == 0


def test_table_that_does_not_exist_has_nothing_to_sweep() -> None:
    log = Log(MemoryStore(), "none", FakeRuntime())
    assert sweep_table(log, grace_ms=0, retain_ms=0) == SweepResult(0, 0, 0, 0, 0, 0, 0)
    assert log.store.list("") == []


def test_reader_whose_rows_were_swept_reads_newer_ones() -> None:
    runtime = FakeRuntime()
    store = Spy(memory(runtime))
    writer, reader = table_of(store, runtime), table_of(store, runtime)
    count_up(writer)

    def overtake(operation: str, key: str) -> None:
        if (
            operation == "get" and "/data/v" in key
        ):  # the reader knows the version, but has not read the rows
            store.hook = None
            count_up(writer)
            count_up(writer)
            runtime.sleep(60)
            assert sweep_table(writer.log, grace_ms=0, retain_ms=0).files == 2

    store.hook = overtake
    assert counts(reader) == {"a": 3}


def test_change_that_a_sweep_overtakes_is_staged_again() -> None:
    runtime = FakeRuntime()
    table, other = (table_of(store, runtime) for store in [memory(runtime)] * 2)
    for _ in range(3):
        count_up(table)

    def sweep_all() -> int:
        runtime.sleep(60)
        return sweep_table(other.log, grace_ms=0, retain_ms=0).files

    with at_failpoint("commit.before", sweep_all):
        count_up(table)
    assert counts(table_of(table.log.store, runtime)) == {"a": 4}
    assert files(table.log) == 3  # the change, the version before it, and the loser of the race
    assert sweep_all() == 2
    assert counts(table_of(table.log.store, runtime)) == {"a": 4}


def test_change_during_a_sweep_is_kept() -> None:
    runtime = FakeRuntime()
    table, other = (table_of(store, runtime) for store in [memory(runtime)] * 2)
    for _ in range(3):
        count_up(table)
    runtime.sleep(60)
    with at_failpoint("sweep.delete", lambda: count_up(table)):
        assert sweep_table(other.log, grace_ms=0, retain_ms=0).files == 2
    assert counts(table_of(table.log.store, runtime)) == counts(table) == {"a": 4}


def test_history_is_swept_with_its_stream() -> None:
    runtime, stream = stream_of()
    history = history_log(stream)
    deleted, kept = 0, []
    for n in range(60):
        append_history(stream, [HistoryRow("writer", n, f"w{n}", "[]")])
        if n == 3:
            stream.store.put(f"{history.path}/data/v1/writer-never.parquet", b"staged in vain")
        runtime.sleep(3_600)
        result = sweep_now(stream)
        deleted += result.files
        kept.append(len(versions(history)))
    assert deleted == 1 + 31 + 16, "what was staged in vain, and the files that were merged twice"
    assert max(kept[30:]) < 80 < versions(history)[-1]
    log = history_log(stream)
    log.refresh()
    with log.files() as live:
        assert len(list(live.all())) == 1 + 2 + 13 == files(history), "the layout's, merged, others"
