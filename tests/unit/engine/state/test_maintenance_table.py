"""The record of maintenance: who claims a kind of work, what a run records, what is overdue."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import AUTO, EffectiveSettings
from pravega_spark.engine.runtime.processes import identity
from pravega_spark.engine.state import maintenance_table
from pravega_spark.engine.state.maintenance_table import (
    JOB,
    ClaimedWork,
    ClaimKeeper,
    FinishedRun,
    MaintenanceEntry,
    MaintenanceTable,
    RunProgress,
    decode_entries,
    describe,
    encode_entry,
    entry_of,
    intervals_ms,
    overdue_text,
)
from pravega_spark.engine.state.state_table import TableChange
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptLog, StoreError
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.limits import (
    CLAIM_MS,
    OVERDUE_MS,
    RECORD_FAILURE_CHARACTERS,
    RECORD_FAILURES,
    SCOPE_RECORD_MS,
)
from pravega_spark.values.names import check_scope
from tests.harness.fake_runtime import FakeRuntime, manager_of, memory
from tests.harness.outages import FAIL, HANG, Outages
from tests.harness.spy_store import Spy
from tests.harness.warm_children import FORKED

RETENTION, SCALING, TRANSACTIONS, *_ = MaintenanceKind
HOUR_MS = 3_600_000
ALL = (None,)
INTERVALS_MS = intervals_ms(EffectiveSettings())


@pytest.fixture
def clock() -> FakeRuntime:
    return FakeRuntime()


def table_of(store: Store, clock: FakeRuntime) -> MaintenanceTable:
    """The record as another process has it."""
    made = MaintenanceTable(store, clock)
    made.table.log.maintain = None
    return made


@pytest.fixture
def record(clock: FakeRuntime) -> MaintenanceTable:
    return table_of(memory(clock), clock)


def another(record: MaintenanceTable, monkeypatch: pytest.MonkeyPatch, process: str) -> None:
    """Let the claims that follow be those of another process."""
    monkeypatch.setattr(maintenance_table, "identity", lambda: process)


def claimed(found: ClaimedWork | None) -> ClaimedWork:
    assert found is not None
    return found


# ------------------------------------------------------------------------------------ claims


def test_one_process_at_a_time_has_a_kind_and_other_kinds_are_free(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    work = claimed(record.claim((RETENTION,), ALL, AUTO))
    other = table_of(record._store, clock)
    assert other.claim((RETENTION,), ALL, JOB) is None
    assert other.claim((SCALING,), ALL, JOB) is not None
    record.release(work)
    assert other.claim((RETENTION,), ALL, JOB) is not None


@pytest.mark.parametrize(
    ("first", "second", "excludes"),
    [
        (ALL, ("a",), True),
        (("a",), ALL, True),
        (("a", "b"), ("b", "c"), True),
        (("a",), ("b",), False),
    ],
)
def test_claim_excludes_those_that_have_a_scope_of_it(
    record: MaintenanceTable,
    first: Iterable[str | None],
    second: Iterable[str | None],
    excludes: bool,
) -> None:
    claimed(record.claim((RETENTION,), first, JOB))
    assert (record.claim((RETENTION,), second, JOB) is None) is excludes


def test_several_kinds_are_claimed_at_once_as_far_as_they_are_free_and_go_on_together(
    record: MaintenanceTable,
) -> None:
    claimed(record.claim((SCALING,), ALL, JOB))
    work = claimed(record.claim((RETENTION, SCALING, TRANSACTIONS), ALL, AUTO))
    assert work.kinds == (RETENTION, TRANSACTIONS)
    far = RunProgress(1, "s/m", 2)
    record.release(work, {RETENTION: far, TRANSACTIONS: RunProgress(1, "s/a", 1)})
    work = claimed(record.claim((RETENTION, TRANSACTIONS), ALL, AUTO))
    assert (work.kinds, work.progress) == ((RETENTION,), {RETENTION: far})
    assert record.extend(work)
    record.finish_shares(work, {RETENTION: far})
    found = record.entries()
    assert entry_of(found, RETENTION).claim is None
    assert entry_of(found, TRANSACTIONS).progress is not None
    assert entry_of(found, SCALING).claim is not None


def test_claim_ends_by_the_storages_clock_and_is_then_another_process(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    work = claimed(record.claim((RETENTION,), ALL, AUTO))
    clock.sleep(CLAIM_MS / 1_000 - 1)
    assert record.claim((RETENTION,), ALL, AUTO) is None
    assert record.extend(work)
    clock.sleep(CLAIM_MS / 1_000 - 1)
    assert record.claim((RETENTION,), ALL, AUTO) is None
    clock.sleep(1)
    next_work = claimed(record.claim((RETENTION,), ALL, AUTO))
    assert not record.extend(work)
    record.release(work, {RETENTION: RunProgress(0, "s/late", 1)})  # the late one changes nothing
    entry = entry_of(record.entries(), RETENTION)
    assert (entry.claim, entry.progress) == (next_work.claim, None)


@pytest.mark.parametrize("seconds", [100.0, 1_000.0])
@pytest.mark.parametrize("hangs", [False, True])
def test_claim_lasts_over_an_outage_that_the_other_process_met_and_no_longer(
    clock: FakeRuntime, seconds: float, hangs: bool
) -> None:
    outages = Outages(memory(clock), clock)
    holder, other = (table_of(outages.process(), clock) for _ in range(2))
    work = holder.claim((RETENTION,), ALL, JOB)
    assert work is not None
    clock.sleep(1)
    end = outages.begin(seconds, HANG if hangs else FAIL)
    with contextlib.suppress(StoreError):
        assert other.claim((RETENTION,), ALL, JOB) is None
    clock.sleep(max(0.0, end - clock.monotonic()))
    if not hangs:  # its next attempt, just before the end of the outage, failed as well
        clock.sleep(-1)
        with pytest.raises(StoreError):
            other.claim((RETENTION,), ALL, JOB)
        clock.sleep(1)
    assert other.claim((RETENTION,), ALL, JOB) is None
    assert holder.extend(work)
    clock.sleep(CLAIM_MS / 1_000 - 2)
    assert other.claim((RETENTION,), ALL, JOB) is None
    clock.sleep(3)
    assert other.claim((RETENTION,), ALL, JOB) is not None, "the holder has died meanwhile"


def test_claim_from_a_clock_that_was_ahead_has_ended(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    clock.wall_ms += 10 * HOUR_MS
    claimed(record.claim((RETENTION,), ALL, AUTO))
    record.finish_now(SCALING, ALL, AUTO, 0, 1)
    clock.wall_ms -= 10 * HOUR_MS
    assert entry_of(record.entries(), SCALING).is_due(clock.now_ms(), HOUR_MS)
    assert record.claim((RETENTION,), ALL, AUTO) is not None


def test_claim_of_a_process_of_this_machine_that_has_ended_delays_nobody(
    record: MaintenanceTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = multiprocessing.get_context("spawn").Process(target=str)
    child.start()
    assert child.pid is not None
    with monkeypatch.context() as patch:
        another(record, patch, identity(child.pid))
        claimed(record.claim((RETENTION,), ALL, AUTO))
    child.join()
    assert record.claim((RETENTION,), ALL, AUTO) is not None
    with monkeypatch.context() as patch:
        another(record, patch, "elsewhere 1 1")
        claimed(record.claim((SCALING,), ALL, AUTO))
    assert record.claim((SCALING,), ALL, AUTO) is None


def test_what_became_unwanted_is_not_claimed(record: MaintenanceTable, clock: FakeRuntime) -> None:
    other = table_of(record._store, clock)
    known = record.entries()
    other.finish_now(RETENTION, ALL, JOB, 0, 1)

    def is_due(kind: MaintenanceKind, entries: Any, now_ms: int) -> bool:
        return entry_of(entries, kind).is_due(now_ms, HOUR_MS)

    assert is_due(RETENTION, known, clock.now_ms())
    assert record.claim((RETENTION,), ALL, AUTO, is_due) is None
    clock.sleep(3_600)
    assert record.claim((RETENTION,), ALL, AUTO, is_due) is not None


def test_one_of_many_threads_claims() -> None:
    store, start, found = MemoryStore(), threading.Barrier(8), list[Any]()

    def race() -> None:
        table = MaintenanceTable(store)
        start.wait()
        found.append(table.claim((RETENTION,), ALL, AUTO))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [work is not None for work in found].count(True) == 1


ROUNDS = 5


def race_in_process(root: str, start: Any, results: Any) -> None:
    record = MaintenanceTable(open_store(root))
    for number in range(ROUNDS):
        start.wait()
        work = record.claim((RETENTION,), ALL, AUTO)
        results.put((number, work is not None))
        start.wait()
        if work is not None:
            record.release(work)
        start.wait()


@pytest.mark.medium
def test_one_of_several_processes_claims(tmp_path: Path) -> None:
    root = tmp_path / "root"
    StreamManager(root).create_scope("s")
    start, results = FORKED.Barrier(3, timeout=60), FORKED.Queue()
    given = (str(root), start, results)
    processes = [FORKED.Process(target=race_in_process, args=given) for _ in range(3)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=60) for _ in range(3 * ROUNDS)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for number in range(ROUNDS):
        assert sorted(won for n, won in answers if n == number) == [False, False, True]


def test_keeper_extends_a_claim_and_sees_that_it_is_lost(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    work = claimed(record.claim((RETENTION,), ALL, AUTO))
    extended, lost = threading.Event(), threading.Event()

    class Watched(MaintenanceTable):
        def extend(self, work: ClaimedWork) -> bool:
            found = super().extend(work)
            (extended if found else lost).set()
            return found

    keeper = ClaimKeeper(Watched(record._store, clock), work, every_seconds=0.01)
    clock.sleep(60)
    keeper.start()
    assert extended.wait(60)
    clock.sleep(60)  # later than the end of the claim as it was made
    assert record.claim((RETENTION,), ALL, AUTO) is None
    keeper.end()
    for thread in threading.enumerate():
        if thread.name == f"pravega-claim-{RETENTION.value}":
            thread.join(60)  # it may be about to extend the claim once more
    clock.sleep(CLAIM_MS / 1_000)
    claimed(record.claim((RETENTION,), ALL, AUTO))
    keeper = ClaimKeeper(Watched(record._store, clock), work, every_seconds=0.01)
    keeper.start()
    assert lost.wait(60)
    keeper.end()


# ------------------------------------------------------------------------------------ record


def test_finished_run_is_recorded_and_ends_its_claim_and_the_shares(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    work = claimed(record.claim((RETENTION,), ALL, AUTO))
    progress = RunProgress(clock.now_ms()).add("s/b", 2, {"stream s/a": "broken"})
    record.release(work, {RETENTION: progress})
    work = claimed(record.claim((RETENTION,), ALL, AUTO))
    assert work.progress == {RETENTION: progress}
    clock.sleep(5)
    record.finish_now(RETENTION, ALL, AUTO, progress.started_ms, 3, {"stream s/a": "broken"}, work)
    entry = entry_of(table_of(record._store, clock).entries(), RETENTION)
    assert (entry.claim, entry.progress) == (None, None)
    assert entry.last == FinishedRun(
        maintenance_table.worker_text(AUTO),
        progress.started_ms,
        clock.now_ms(),
        3,
        1,
        {"stream s/a": "broken"},
    )


def test_run_without_a_claim_leaves_the_claim_of_another(record: MaintenanceTable) -> None:
    work = claimed(record.claim((RETENTION,), ALL, JOB))
    record.finish_now(RETENTION, ALL, JOB, 0, 7)
    entry = entry_of(record.entries(), RETENTION)
    assert entry.claim == work.claim
    assert entry.last is not None
    assert entry.last.streams == 7


def test_rows_are_decoded_as_they_were_encoded_and_unknown_kinds_stay(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    run = FinishedRun("job", 1, 2, 3, 1, {"stream s/a": "broken"})
    work = claimed(record.claim((TRANSACTIONS,), ("a",), AUTO))
    made = MaintenanceEntry(
        TRANSACTIONS, "a", run, RunProgress(4, "a/b", 5, 0), replace(work.claim, until_ms=9)
    )
    row = encode_entry(made)
    assert decode_entries({made.work: row}) == {"transactions/a": made}
    unknown = {**row, "work": "tidying", "kind": "tidying"}

    def add(state: Any) -> Any:
        rows = {**state.rows, "tidying": unknown}
        return TableChange("CLAIM MAINTENANCE", rows), None

    record.table.change(add)
    record.finish_now(RETENTION, ALL, JOB, 0, 1)
    assert record.table.read().rows["tidying"] == unknown
    assert "tidying" not in record.entries()


def test_record_does_not_grow_with_runs_failures_and_scopes(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    failures = {f"stream s/{number}": "x" * 10_000 for number in range(100)}
    record.finish_now(RETENTION, ALL, JOB, 0, 100, failures)
    entry = entry_of(record.entries(), RETENTION)
    assert entry.last is not None
    assert entry.last.failed == 100
    named = entry.last.failures
    assert (len(named), max(map(len, named.values()))) == (
        RECORD_FAILURES,
        RECORD_FAILURE_CHARACTERS,
    )
    progress = RunProgress(0)
    for name, text in failures.items():
        progress = progress.add(name, 1, {name: text})
    assert (progress.failed, len(progress.failures)) == (100, RECORD_FAILURES)
    record.finish_now(RETENTION, ("gone",), JOB, 0, 1)
    clock.sleep(SCOPE_RECORD_MS / 1_000)
    record.finish_now(RETENTION, ("kept",), JOB, 0, 1)
    assert set(record.entries()) == {"retention", "retention/kept"}


@pytest.mark.medium
def test_table_of_a_job_that_runs_each_minute_is_swept(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    most = 0
    for _ in range(400):
        work = claimed(record.claim((SCALING,), ALL, JOB))
        record.finish_now(SCALING, ALL, JOB, 0, 1, work=work)
        clock.sleep(60)
        most = max(most, len(record._store.list("_maintenance/data")))
    assert most < 450 < 2 * 400, "each run commits twice, each time with a file"
    snapshot = record.table.log.snapshot
    assert snapshot is not None
    assert snapshot.commit_deletion_mark > 500, (
        "commits may be deleted, too, once there are checkpoints"
    )


# ------------------------------------------------------------------------------------ shown


def text_of(record: MaintenanceTable, clock: FakeRuntime, since_ms: int = 0) -> str | None:
    return overdue_text(
        record.entries(),
        RETENTION,
        "s",
        since_ms=since_ms,
        now_ms=clock.now_ms(),
        interval_ms=INTERVALS_MS[RETENTION],
    )


def test_what_has_not_run_for_several_intervals_is_overdue(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    assert text_of(record, clock) == "retention has never run"
    assert text_of(record, clock, since_ms=clock.now_ms() - HOUR_MS) is None
    record.finish_now(RETENTION, ALL, JOB, 0, 1)
    clock.sleep(2 * 3_600)
    assert text_of(record, clock) is None
    clock.sleep(46 * 3_600)
    assert text_of(record, clock) == "retention has not run for 2.0 days"
    record.finish_now(RETENTION, ("other",), JOB, 0, 1)
    assert text_of(record, clock) == "retention has not run for 2.0 days"
    record.finish_now(RETENTION, ("s",), JOB, 0, 1)
    assert text_of(record, clock) is None


def test_each_kind_is_described_also_one_that_never_ran(
    record: MaintenanceTable, clock: FakeRuntime
) -> None:
    started_ms = clock.now_ms()
    clock.sleep(5)
    record.finish_now(RETENTION, ALL, JOB, started_ms, 12, {"stream s/t": "StoreError: full"})
    record.finish_now(RETENTION, ("s",), JOB, started_ms, 2)
    work = claimed(record.claim((SCALING,), ALL, AUTO))
    clock.sleep(60)
    first, scoped, scaling, last, *_ = describe(record.entries(), INTERVALS_MS, clock.now_ms())
    assert (first.kind, first.scope, first.is_overdue) == (RETENTION, None, False)
    assert (first.age_seconds, first.interval_seconds) == (60.0, 1_800.0)
    assert (first.streams, first.failed) == (12, 1)
    assert first.failures == {"stream s/t": "StoreError: full"}
    assert str(first) == f"retention: 12 streams, 1 failed, 1.0 minutes ago by {first.by}"
    assert first.by is not None
    assert first.by.startswith("job on ")
    assert (scoped.kind, scoped.scope, scoped.streams) == (RETENTION, "s", 2)
    assert (scaling.claimed_by, scaling.claimed_until_ms) == (work.claim.by, work.claim.until_ms)
    assert (last.kind, last.is_overdue, last.finished_ms) == (TRANSACTIONS, True, None)
    assert str(last) == "transactions: no run is recorded"


def test_manager_shows_the_record_of_its_root_and_writes_none(clock: FakeRuntime) -> None:
    manager = manager_of(clock)
    manager.create_scope("s")
    assert [info.finished_ms for info in manager.maintenance()] == [None] * len(MaintenanceKind)
    assert {info.is_overdue for info in manager.maintenance()} == {False}, "the root is new"
    assert root_of(manager).store.folders("") == ["s"]
    table_of(root_of(manager).store, clock).finish_now(SCALING, ALL, JOB, 0, 3)
    (scaling,) = (info for info in manager.maintenance() if info.kind is SCALING)
    assert (scaling.streams, scaling.is_overdue) == (3, False)
    clock.sleep(OVERDUE_MS / 1_000 + 1)
    late = {info.kind for info in manager.maintenance() if info.is_overdue}
    assert {SCALING, RETENTION, TRANSACTIONS} <= late, "nothing ran since"
    assert manager.list_scopes() == ["s"], "the record is no scope"
    with pytest.raises(Exception, match="not allowed"):
        check_scope(maintenance_table.MAINTENANCE_TABLE)


def test_look_that_finds_nothing_new_is_one_storage_call(clock: FakeRuntime) -> None:
    store = Spy(memory(clock))
    record = table_of(store, clock)
    record.finish_now(RETENTION, ALL, JOB, 0, 1)
    record.entries()
    store.calls.clear()
    record.entries()
    record.about_now_ms()
    assert len(store.calls) == 1


@pytest.mark.parametrize("column", ["failures", "progress"])
def test_damaged_row_is_an_error_that_names_the_table(
    record: MaintenanceTable, column: str
) -> None:
    finished = FinishedRun("job on h", 1, 2, 1, 0, {})
    entry = MaintenanceEntry(RETENTION, None, finished, RunProgress(1, "s/a", 1, 0, {}))
    row = {**encode_entry(entry), column: "[" * 9}
    record.table.change(lambda _: (TableChange("TEST", {"retention": row}), None))
    with pytest.raises(CorruptLog, match=r"damaged.*begins the record again") as caught:
        record.entries()
    assert caught.value.path == record.table.log.reader.where


def torn_row(record: MaintenanceTable) -> None:
    row = {**encode_entry(MaintenanceEntry(RETENTION)), "progress": "[" * 9}
    record.table.change(lambda _: (TableChange("TEST", {"retention": row}), None))


def torn_commit(record: MaintenanceTable) -> None:
    store = record.table.log.store
    newest = max(e.key for e in store.list("_maintenance/_delta_log") if e.key.endswith(".json"))
    store.put(newest, b"garbage")
    record.table.log.forget()


@pytest.mark.parametrize("damage", [torn_row, torn_commit])
def test_damaged_record_begins_again_with_the_next_claim(
    damage: Callable[[MaintenanceTable], None],
    record: MaintenanceTable,
    clock: FakeRuntime,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        record.finish_now(RETENTION, ALL, JOB, 0, 1)
    store = record.table.log.store
    other = table_of(store, clock)
    assert entry_of(other.entries(), RETENTION).last is not None
    damage(record)
    work = claimed(record.claim((SCALING,), ALL, JOB))
    assert "could not be read and begins again" in caplog.text
    assert set(record.entries()) == {"scaling"}
    record.finish_now(SCALING, ALL, JOB, 0, 2, work=work)
    with contextlib.suppress(CorruptLog):
        other.finish_now(RETENTION, ALL, JOB, 0, 1)  # behind a gap: it knows the deleted log
    for process in (other, record):
        work = claimed(process.claim((RETENTION,), ALL, JOB))
        process.finish_now(RETENTION, ALL, JOB, 0, 1, work=work)
    assert entry_of(table_of(store, clock).entries(), RETENTION).last is not None


def test_file_in_place_of_the_record_is_an_error_that_says_so(tmp_path: Path) -> None:
    StreamManager(tmp_path).create_scope("s")
    (tmp_path / "_maintenance").write_text("notes")
    record = MaintenanceTable(open_store(str(tmp_path)))
    with pytest.raises(StoreError, match=r"_maintenance is a file.*Delete the file"):
        record.claim((RETENTION,), ALL, JOB)
    assert (tmp_path / "_maintenance").read_text() == "notes"


@pytest.mark.medium
@pytest.mark.parametrize("keeps_running", [True, False])
def test_log_does_not_grow_with_rounds_that_claim_all_kinds_first(
    clock: FakeRuntime, monkeypatch: pytest.MonkeyPatch, *, keeps_running: bool
) -> None:
    """Each round makes ten commits, so a run ends only at some versions."""
    monkeypatch.setattr(maintenance_table, "RECORD_SWEEP_COMMITS", 20)
    store, commits = memory(clock), []
    table = MaintenanceTable(store, clock)
    for _ in range(25):
        table = table if keeps_running else MaintenanceTable(store, clock)
        claimed = [(kind, table.claim((kind,), ALL, JOB)) for kind in MaintenanceKind]
        for kind, work in claimed:
            table.finish_now(kind, ALL, JOB, clock.now_ms(), 1, work=work)
        commits.append(len(store.list(f"{maintenance_table.MAINTENANCE_TABLE}/_delta_log")))
        clock.sleep(HOUR_MS / 1_000)
    assert table.table.log.snapshot is not None
    assert table.table.log.snapshot.version >= 249
    assert max(commits) < 160
