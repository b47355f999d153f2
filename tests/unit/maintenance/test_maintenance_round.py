"""One round of maintenance in threads: what it does, what idle streams cost, what fails."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.config.descriptions import MaintenanceKind, TransactionStatus
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.config.root_settings import AUTO, EffectiveSettings
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.state.due_hints import DUE_FOLDER
from pravega_spark.engine.state.maintenance_table import JOB, MaintenanceTable
from pravega_spark.engine.stream import time_limit
from pravega_spark.errors import (
    CorruptLog,
    InvalidConfiguration,
    InvalidInput,
    InvalidName,
    NoSuchScope,
    NoSuchStream,
    RootChanged,
    StoreReadOnly,
)
from pravega_spark.maintenance import round
from pravega_spark.maintenance import work as maintenance_work
from pravega_spark.maintenance.round import RoundRequest, RoundStop, maintain_root
from pravega_spark.maintenance.work import retention_due
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.retention.plan import StreamAmounts
from pravega_spark.values.segments import StreamCut
from tests.harness.backup_world import manager_of
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.folder_state import folder_state, wait_for_maintenance
from tests.harness.loads import load
from tests.harness.small_streams import reopen
from tests.harness.spy_store import Spy

RETENTION, SCALING = MaintenanceKind.RETENTION, MaintenanceKind.SCALING
TRANSACTIONS, SWEEPING = MaintenanceKind.TRANSACTIONS, MaintenanceKind.SWEEPING
ONE_BYTE = StreamConfiguration(retention=RetentionPolicy.by_size(1))
HOUR = 3_600.0


@pytest.fixture
def manager(store: Spy, clock: FakeRuntime) -> StreamManager:
    made = manager_of(store, clock)
    made.create_scope("s")
    return made


def write(manager: StreamManager, name: str, *data: bytes) -> None:
    with manager.create_writer(name) as writer:
        for event in data:
            writer.write_event(event, "k").result()


def limited(monkeypatch: pytest.MonkeyPatch, *hanging: str) -> None:
    """Give work that hangs a short limit, and the rest one that a busy machine keeps."""

    def run_within(
        seconds: float, run: Any, what: str, where: object, *, unit: str | None = None
    ) -> Any:
        limit = 0.2 if any(text in what for text in hanging) else 600.0
        return time_limit.run_within(limit, run, what, where, unit=unit)

    monkeypatch.setattr(maintenance_work, "run_within", run_within)


def looked_at(manager: StreamManager, **options: Any) -> Mapping[str, int]:
    found = manager.maintain(**options)
    assert found.failures == {}
    return {kind.value: result.looked_at for kind, result in found.kinds.items()}


def settled(manager: StreamManager) -> None:
    """Do rounds until no stream is looked at for an hour; the tables of scopes always are."""
    for hours in (0, 0, 1, 2):
        root_of(manager).runtime.sleep(hours * HOUR)
        manager.maintain()


def test_one_round_does_all_kinds(manager: StreamManager, clock: FakeRuntime) -> None:
    manager.create_stream("s/kept", ONE_BYTE)
    write(manager, "s/kept", b"first", b"last")
    manager.create_stream("s/busy", StreamConfiguration(ScalingPolicy.by_event_rate(2, 4, 1)))
    load(reopen(root_of(manager).stream("s/busy")), seconds=900, rate=9)
    writer = manager.create_transactional_writer("s/kept")
    transaction = writer.begin_transaction(lease="10 s")
    transaction.write_event(b"never", "k")
    transaction.flush()
    name = transaction.id
    writer.close()  # nothing extends the lease from here on, however long this takes
    for pause in (45, 15):  # begins the lease, and then the last one
        manager.maintain(kinds=["transactions"])
        clock.sleep(pause)
    found = manager.maintain()
    assert found.failures == {}
    assert (found.streams, found.dry_run, found.stopped) == (2, False, False)
    figures = {kind: result.figures for kind, result in found.kinds.items()}
    assert figures[TRANSACTIONS]["aborted"] == 1
    assert figures[SCALING]["splits"] == 1
    assert figures[RETENTION]["events"] == 1
    assert manager.transaction("s/kept", name).status is TransactionStatus.ABORTED
    assert [event.data for event in manager.read("s/kept")] == [b"last"]
    assert len(manager.segments("s/busy")) > 1
    rows = [(unit, kind) for unit, kind, _ in found.rows()]
    done = {("s/busy", "scaling"), ("s/kept", "retention"), ("s/kept", "transactions")}
    assert done <= set(rows)
    assert found.counts()["retention_events"] == 1
    assert "retention: 2 looked at, 1 changed, 0 failed (1 truncated" in str(found)
    infos = {info.kind: info for info in manager.maintenance()}
    assert all(infos[kind].streams == 2 for kind in found.kinds)
    assert all((infos[kind].by or "").startswith("job on ") for kind in found.kinds)


@pytest.mark.medium
def test_sweeping_brings_space_of_streams_groups_and_deleted_ones_back(
    store: Spy, manager: StreamManager, clock: FakeRuntime
) -> None:
    manager.update_settings(grace="1 hour", retain="2 hours")
    for name in ("kept", "deleted"):
        manager.create_stream(f"s/{name}", ONE_BYTE)
        write(manager, f"s/{name}", *(b"%d" % n for n in range(20)))
    group = manager.create_reader_group("s/g", ["s/kept"])
    for number in range(10):
        group.update(refresh=f"{number + 4} s")
    manager.create_scope("gone")
    manager.create_stream("gone/t")
    manager.delete_scope("gone", recursive=True)
    manager.seal_stream("s/deleted")
    manager.delete_stream("s/deleted")
    before = {top: len(store.list(top)) for top in ("s/kept", "s/deleted", "s/_reader_groups")}
    for _ in range(8):
        clock.sleep(1.5 * HOUR)
        found = manager.maintain()
        assert found.failures == {}
    after = {top: len(store.list(top)) for top in before}
    assert all(after[top] < before[top] for top in before), (before, after)
    assert after["s/deleted"] <= 8
    assert len(store.list("gone/t")) <= 8, "also in a deleted scope"
    assert [event.data for event in manager.read("s/kept")] == [b"19"]


@pytest.mark.medium
def test_idle_stream_costs_one_call_a_round(
    store: Spy, manager: StreamManager, clock: FakeRuntime
) -> None:
    names = [f"s/t{number}" for number in range(8)]
    for name in names:
        manager.create_stream(name, StreamConfiguration(retention=RetentionPolicy.by_time("7 d")))
        write(manager, name, b"event")
    clock.sleep(6 * HOUR)
    settled(manager)
    clock.sleep(60)
    store.calls.clear()
    found = manager.maintain()
    assert (found.streams, found.idle) == (8, 8)
    calls = [(op, key) for op, key in store.calls if key.startswith("s/t")]
    assert [operation for operation, _ in calls] == ["exists"] * 8
    write(manager, "s/t7", b"news")
    found = manager.maintain()
    assert (found.streams, found.idle) == (8, 7)


def test_time_alone_makes_a_stream_due(manager: StreamManager, clock: FakeRuntime) -> None:
    week = StreamConfiguration(retention=RetentionPolicy.by_time("3 hours"))
    manager.create_stream("s/t", week)
    write(manager, "s/t", b"old")
    looks, minutes = 0, 0
    while not (found := manager.maintain(kinds=["retention"])).kinds[RETENTION].changed:
        looks += found.kinds[RETENTION].looked_at
        clock.sleep(300)
        minutes += 5
    assert 180 <= minutes <= 190
    assert looks <= 5, "of 36 rounds"


@pytest.mark.medium
def test_changed_settings_make_all_streams_due(manager: StreamManager, clock: FakeRuntime) -> None:
    manager.create_stream("s/t")
    clock.sleep(HOUR)
    settled(manager)
    assert looked_at(manager, kinds=["retention"]) == {"retention": 0}
    manager.update_settings(expire="2 days")
    assert looked_at(manager, kinds=["retention"]) == {"retention": 1}
    assert looked_at(manager, kinds=["retention"], full=True) == {"retention": 1}


@pytest.mark.medium
def test_settings_of_one_round_decide_for_it_and_leave_no_hint_for_others(
    store: Spy, manager: StreamManager, clock: FakeRuntime
) -> None:
    manager.create_stream("s/t", StreamConfiguration(retention=RetentionPolicy.by_consumption()))
    write(manager, "s/t", b"a")
    manager.subscribe("s/t", "silent")
    clock.sleep(HOUR)
    settled(manager)
    never = RoundRequest((RETENTION,), full=True)
    assert maintain_root(store, never, 1, runtime=clock).kinds[RETENTION].figures["expired"] == 0
    soon = RoundRequest((RETENTION,), flags={"expire": 60_000})
    assert maintain_root(store, soon, 1, runtime=clock).kinds[RETENTION].figures["expired"] == 1
    found = looked_at(manager, kinds=["retention"])
    assert found == {"retention": 1}, "the hint is that of other settings"


def test_round_over_scopes_is_recorded_for_them(manager: StreamManager) -> None:
    manager.create_scope("other")
    for name in ("s/a", "s/b", "other/c"):
        manager.create_stream(name)
    manager.maintain(kinds=["retention"], scopes=["s", "other"], streams=["other/c"])
    found = {info.scope: info.streams for info in manager.maintenance() if info.finished_ms}
    assert found == {"s": 3, "other": 3}


def test_record_that_cannot_be_written_does_not_stop_the_round(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise StoreReadOnly("the folder _maintenance is read-only", url="u")

    manager.create_stream("s/t")
    monkeypatch.setattr(MaintenanceTable, "_change", refuse)
    assert looked_at(manager, kinds=["retention"]) == {"retention": 1}
    for done in ("claimed", "recorded"):
        assert f"could not be {done}: the folder _maintenance is read-only" in caplog.text


def test_open_transactions_are_looked_at_in_every_round(
    manager: StreamManager, clock: FakeRuntime
) -> None:
    manager.create_stream("s/t")
    with manager.create_transactional_writer("s/t") as writer:
        transaction = writer.begin_transaction(lease="600 s")
        for _ in range(4):
            manager.maintain(kinds=["transactions"])
            clock.sleep(60)
        assert looked_at(manager, kinds=["transactions"]) == {"transactions": 1}
        transaction.abort()


@pytest.mark.medium
def test_round_over_some_streams_keeps_the_hints_of_the_others_and_leaves_no_mark(
    manager: StreamManager, clock: FakeRuntime
) -> None:
    for name in ("s/a", "s/b"):
        manager.create_stream(name)
    clock.sleep(HOUR)
    settled(manager)
    finished = [info.finished_ms for info in manager.maintenance()]
    clock.sleep(60)
    found = manager.maintain(streams=["s/a"], full=True)
    assert found.streams == 1
    assert [info.finished_ms for info in manager.maintenance()] == finished
    assert manager.maintain(kinds=["transactions"]).idle == 2


def test_stream_and_scope_that_fail_stop_no_other(
    store: Spy, manager: StreamManager, clock: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, "retention of stream s/slow")
    manager.create_scope("broken")
    for name in ("s/bad", "s/good", "s/slow"):
        manager.create_stream(name, ONE_BYTE)
        write(manager, name, b"first", b"last")
    store.put("s/bad/events/_delta_log/00000000000000000000.json", b"garbage")
    store.delete(["s/bad/events/_pravega/latest.json"])
    store.delete([e.key for e in store.list("s/bad/events/_pravega")])
    newest = max(e.key for e in store.list("broken/_scope/_delta_log") if e.key.endswith(".json"))
    store.put(newest, b"garbage")
    ended = threading.Event()

    def hang(operation: str, key: str) -> None:
        is_slow = threading.current_thread().name == "retention-of-stream-s/slow"
        if is_slow and key.startswith("s/slow/"):
            ended.wait(60)

    store.hook = hang
    fresh = manager_of(store, clock)
    found = fresh.maintain(kinds=["retention", "scaling"], parallelism=2)
    assert set(found.kinds[RETENTION].failures) == {"scope broken", "stream s/bad", "stream s/slow"}
    assert "exceeded its limit of 0.2 s" in found.failures["retention of stream s/slow"]
    assert set(found.kinds[SCALING].failures) == {"scope broken", "stream s/bad"}
    assert [event.data for event in manager.read("s/good")] == [b"last"]
    again = fresh.maintain(kinds=["retention"], streams=["s/slow"])
    assert "still runs" in again.failures["retention of stream s/slow"]
    ended.set()
    store.hook = None
    (retention,) = (i for i in fresh.maintenance() if i.kind is RETENTION)
    assert (retention.streams, retention.failed) == (3, 3)


@pytest.mark.medium
def test_streams_that_hang_cost_one_limit_and_others_go_on(
    store: Spy,
    manager: StreamManager,
    clock: FakeRuntime,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = {f"s/a{number}" for number in range(4)}
    limited(monkeypatch, *hanging)
    for name in (*hanging, "s/good"):
        manager.create_stream(name, ONE_BYTE)
        write(manager, name, b"first", b"last")
    ended, begun, hung = threading.Event(), list[str](), threading.Semaphore(0)

    def hang(operation: str, key: str) -> None:
        thread = threading.current_thread().name
        if "-of-stream-s/a" in thread and key.startswith("s/a"):
            begun.append(thread)
            hung.release()
            ended.wait(60)

    store.hook = hang
    fresh = manager_of(store, clock)
    others = "watermarks, scaling, retention, compaction, sweeping"
    for lines in ({"transactions", others}, {f"transactions, {others}"}):
        caplog.clear()
        found = fresh.maintain()
        assert all(
            set(result.failures) == {f"stream {name}" for name in hanging}
            for kind, result in found.kinds.items()
            if kind is not MaintenanceKind.FOLDING  # of tables, which none of these is
        )
        shown = {f"{kinds} of stream {name}" for kinds in lines for name in hanging}
        assert set(found.failure_lines) == shown
        assert len(found.failures) == 4 * 6, "each kind counts"
        assert {r.getMessage().partition(" failed: ")[0] for r in caplog.records} == shown
        assert len(caplog.records) == len(shown)
        failed = [row for row in found.rows() if row[0] in hanging]
        assert {f"{kinds.count(',')}" for _, kinds, _ in failed} == {
            f"{kinds.count(',')}" for kinds in lines
        }
        assert len(failed) == len(shown)
    assert all(hung.acquire(timeout=60) for _ in hanging)
    assert len(begun) == 4, "each stream hangs in one kind, in one round"
    reason = found.failures["retention of stream s/a0"]
    assert "transactions of stream s/a0 exceeded its limit before and still runs" in reason
    assert [event.data for event in manager.read("s/good")] == [b"last"]
    ended.set()
    store.hook = None
    for _ in range(50):
        if not (failures := fresh.maintain(limit=10.0).failures):
            break
        clock.sleep(1)
    assert failures == {}
    assert [event.data for event in manager.read("s/a0")] == [b"last"]


def test_failure_is_one_line_of_the_log_and_its_traceback_is_for_debugging(
    store: Spy, manager: StreamManager, clock: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    manager.create_stream("s/bad")
    wait_for_maintenance()
    newest = max(e.key for e in store.list("s/bad/events/_delta_log"))
    store.put(newest, b"garbage")
    with caplog.at_level("DEBUG", "pravega_spark.maintenance"):
        manager_of(store, clock).maintain(kinds=["retention"])
    warned = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1
    assert warned[0].getMessage().startswith("retention of stream s/bad failed: CorruptLog: ")
    assert warned[0].exc_info is None
    assert "\n" not in warned[0].getMessage()
    assert any(r.exc_info for r in caplog.records if r.levelname == "DEBUG")


def test_stream_that_is_deleted_during_the_round_is_no_failure(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s/a", "s/b"):
        manager.create_stream(name)
    work = maintenance_work.WORKS[RETENTION]

    def delete_first(stream: Any, view: Any, options: Any) -> Any:
        if stream.name == "s/a":
            manager.seal_stream("s/a")
            manager.delete_stream("s/a")
        return work(stream, view, options)

    monkeypatch.setattr(maintenance_work, "WORKS", {RETENTION: delete_first})
    found = manager.maintain(kinds=["retention"], parallelism=1)
    assert (found.failures, found.kinds[RETENTION].looked_at) == ({}, 1)


@pytest.mark.medium
def test_root_without_the_right_to_delete_fails_sweeps_and_goes_on(
    store: Spy, manager: StreamManager, clock: FakeRuntime
) -> None:
    manager.update_settings(grace="1 minute", retain="0 s")
    manager.create_stream("s/t", ONE_BYTE)
    write(manager, "s/t", b"first", b"last")
    clock.sleep(HOUR)

    def refuse(operation: str, key: str) -> None:
        if operation == "delete":
            raise StoreReadOnly(f"{key} may not be deleted")

    store.hook = refuse
    failures: dict[str, str] = {}
    for _ in range(4):
        found = manager.maintain()
        failures |= found.failures
        clock.sleep(2 * HOUR)
    assert failures
    assert all(what.startswith("sweeping of ") for what in failures), failures
    assert "may not be deleted" in failures["sweeping of stream s/t"]
    assert [event.data for event in manager.read("s/t")] == [b"last"], "retention went on"


def test_dry_run_changes_nothing_and_says_what_would_be_done(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t", ONE_BYTE)
    write(manager, "s/t", b"first", b"last")
    before = folder_state(tmp_path / "root")
    found = manager.maintain(dry_run=True)
    assert folder_state(tmp_path / "root") == before
    assert (found.dry_run, found.kinds[RETENTION].figures["events"]) == (True, 1)
    assert found.rows()[0][2].startswith("would truncate 1 event")


def test_dry_run_shows_what_a_sweep_would_delete_what_waits_why_and_from_when(
    store: Spy, manager: StreamManager, clock: FakeRuntime
) -> None:
    manager.update_settings(grace="1 hour", retain="2 hours")
    manager.create_stream("s/t", ONE_BYTE)
    write(manager, "s/t", *(b"%d" % number for number in range(9)))
    manager.maintain(kinds=["retention"])
    group = manager.create_reader_group("s/g", ["s/t"])
    for number in range(6):
        group.update(refresh=f"{number + 4} s")

    def sweeping(**options: Any) -> tuple[Mapping[str, int], dict[str, str]]:
        wait_for_maintenance()
        store.calls.clear()
        found = manager.maintain(kinds=["sweeping"], full=True, **options)
        assert found.failures == {}
        if options["dry_run"]:
            assert not [op for op, _ in store.calls if op.startswith(("put", "delete"))]
            assert not [key for op, key in store.calls if op == "list" and key.endswith("/data")]
        texts = {unit: text for unit, _, text in found.rows()}
        return found.kinds[SWEEPING].figures, texts

    clock.sleep(HOUR)
    figures, texts = sweeping(dry_run=True)
    assert figures["pending_files"] > 8, "those of the stream, the group and the scope"
    assert (figures["files"], figures["commits"]) == (0, 0)
    waits = "versions of the last 2.0 hours hold them; the first can be deleted in 1.0 hours"
    assert re.match(f"kept 8 files of .*: {waits}, the last in 1.0 hours$", texts["s/t"])
    assert "the root's tables" not in texts, "nothing waits"
    manager.update_settings(grace="90 minutes")
    assert sweeping(dry_run=True)[0]["unmoved"] == 4, "also the settings"
    assert "is younger than the retain of 2 hours" in sweeping(dry_run=True)[1]["s/t"]
    assert texts["tables of scope s"].startswith("kept ")
    clock.sleep(2 * HOUR)
    write(manager, "s/t", b"10")
    figures, texts = sweeping(dry_run=True)
    assert texts["s/t"].startswith("would delete 8 files (")
    swept, texts = sweeping(dry_run=False)
    assert texts["s/t"].startswith("deleted 8 files (")
    assert swept["files"] >= figures["files"] >= 8
    assert "s/t" not in sweeping(dry_run=False)[1], "nothing was done"


def test_events_behind_a_held_segment_go_in_the_round_after_the_maximum(
    manager: StreamManager, clock: FakeRuntime
) -> None:
    """Only one segment is held, and everything is beyond the minimum when it is looked at."""
    policy = RetentionPolicy.by_consumption("1 hour", "3 hours")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2), policy))
    with manager.create_writer("s/t") as writer:
        for number in range(8):
            writer.write_event(b"%d" % number, str(number)).result()
    tail = manager.tail("s/t")
    group = manager.create_reader_group("s/g", ["s/t"], retention="manual")
    group.publish({"s/t": StreamCut("s/t", tail.life, {0: tail.positions[0], 1: 0})})
    left = []
    for _ in range(14):
        clock.sleep(HOUR / 4)
        manager.maintain(kinds=["retention"])
        left.append(len(list(manager.read("s/t"))))
    held = tail.positions[1]
    assert left == [8] * 3 + [held] * 9 + [0] * 2


def test_stream_whose_events_have_all_expired_is_due_after_idle_time(
    manager: StreamManager, clock: FakeRuntime
) -> None:
    """All is beyond the limit and stays, as where commits are no longer told apart."""
    policy = RetentionPolicy.by_time("1 hour")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(1), policy))
    write(manager, "s/t", b"first", b"second")
    explained = manager.retention("s/t").explain()
    view = root_of(manager).stream("s/t").view()
    stays = replace(explained.stays, seconds=2 * HOUR)
    now_ms = view.timestamp_ms + int(2 * HOUR * 1_000)
    settings = EffectiveSettings(sample_every_ms=10**9)
    due_ms = retention_due(view, replace(explained, stays=stays), settings, now_ms)
    assert due_ms == now_ms + int(2 * HOUR * 1_000)


def test_age_of_an_amount_is_that_of_events_before_its_end(
    manager: StreamManager, clock: FakeRuntime
) -> None:
    """The old events are those of the segment that stays."""
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer("s/t") as writer:
        for number in range(8):
            writer.write_event(b"%d" % number, str(number)).result()
        middle = manager.tail("s/t")
        clock.sleep(2 * HOUR)
        for number in range(8):
            writer.write_event(b"%d" % number, str(number)).result()
    clock.sleep(HOUR)
    stream, tail = root_of(manager).stream("s/t"), manager.tail("s/t")
    view = stream.view()
    amounts = StreamAmounts.read(stream, view, VersionAges.read(stream.log))
    start = StreamCut("s/t", tail.life, {0: middle.positions[0], 1: 0})
    end = StreamCut("s/t", tail.life, {0: tail.positions[0], 1: 0})
    found = amounts.amount(locate(view, start), locate(view, end))
    assert found.events == tail.positions[0] - middle.positions[0] > 0
    assert found.seconds == pytest.approx(HOUR, abs=60)


def test_kind_that_another_job_does_is_left_to_it(
    store: Spy, manager: StreamManager, clock: FakeRuntime
) -> None:
    manager.create_stream("s/t")
    work = MaintenanceTable(store, clock).claim((RETENTION,), (None,), JOB)
    assert work is not None
    found = manager.maintain(kinds=["retention", "scaling"])
    assert found.kinds[RETENTION].claimed_by.startswith("job on ")
    assert "retention: 1 stream left to job on" in str(found)
    assert (found.left, found.counts()["left"]) == (1, 1)
    assert found.kinds[SCALING].looked_at == 1
    (row,) = (row for row in found.rows() if row[1] == "retention")
    assert row[2].startswith("1 stream left to job on")
    alone = manager.maintain(kinds=["retention"])
    assert (alone.streams, alone.idle, alone.left) == (1, 0, 1)


def test_share_of_another_process_is_waited_for(
    store: Spy, manager: StreamManager, clock: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round, "_CHECK_SECONDS", 0.02)
    manager.create_stream("s/t")
    other = MaintenanceTable(store, clock)
    share = other.claim((RETENTION,), (None,), AUTO)
    assert share is not None
    timer = threading.Timer(0.3, lambda: other.release(share))
    timer.start()
    assert manager.maintain(kinds=["retention"]).kinds[RETENTION].looked_at == 1
    timer.join()


def test_stopped_round_ends_early_and_records_nothing(
    store: Spy, manager: StreamManager, clock: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        manager.create_stream(f"s/t{number}")
    stop, work = RoundStop(), maintenance_work.WORKS[SCALING]

    def stop_there(*arguments: Any) -> Any:
        stop.request()
        return work(*arguments)

    monkeypatch.setattr(maintenance_work, "WORKS", {SCALING: stop_there})
    found = maintain_root(store, RoundRequest((SCALING,)), 1, stop, clock)
    assert (found.stopped, found.kinds[SCALING].looked_at) == (True, 1)
    (info,) = (i for i in manager.maintenance() if i.kind is SCALING)
    assert (info.finished_ms, info.claimed_by) == (None, None)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"kinds": ["retention", "cleaning"]}, InvalidInput, "no kind of maintenance 'cleaning'"),
        ({"kinds": "retention"}, InvalidInput, "list"),
        ({"kinds": []}, InvalidInput, "no kind of maintenance is given"),
        ({"parallelism": 0}, InvalidInput, "from 1 to 256, got 0"),
        ({"parallelism": 1_000}, InvalidInput, "from 1 to 256, got 1000"),
        ({"limit": "soon"}, InvalidConfiguration, "'soon' is not a valid duration"),
        ({"limit": 0}, InvalidInput, "longer than 0 s"),
        ({"limit": 1e306}, InvalidConfiguration, "finite duration"),
        ({"limit": 1e30}, InvalidInput, "at most 7 days, got 1e.30"),
        ({"limit": "8 days"}, InvalidInput, "at most 7 days, got '8 days'"),
        ({"dry_run": 1}, InvalidInput, "dry_run is True or False"),
        ({"streams": "s/t"}, InvalidInput, "list"),
        ({"streams": ["t"]}, InvalidName, "t"),
        ({"streams": ["s/none"]}, NoSuchStream, "stream s/none does not exist"),
        ({"scopes": ["none"]}, NoSuchScope, "scope none does not exist"),
    ],
)
def test_bad_input_changes_nothing(
    store: Spy, manager: StreamManager, options: Any, error: type[Exception], text: str
) -> None:
    wait_for_maintenance()
    store.calls.clear()
    with pytest.raises(error, match=text):
        manager.maintain(**options)
    assert not [op for op, key in store.calls if op.startswith("put") and "_maint" not in key]


def test_root_without_a_scope_or_that_vanished_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no scope"):
        StreamManager(tmp_path / "none").maintain()
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t")
    manager.maintain()
    os.rename(tmp_path / "root", tmp_path / "away")
    with pytest.raises(RootChanged):
        manager.maintain()
    assert not (tmp_path / "root").exists()


def test_settings_that_cannot_be_read_stop_the_round(store: Spy, manager: StreamManager) -> None:
    manager.update_settings(grace="2 hours")
    newest = max(e.key for e in store.list("_settings/_delta_log") if e.key.endswith(".json"))
    store.put(newest, b"garbage")
    with pytest.raises(CorruptLog, match="_settings"):
        manager_of(store, FakeRuntime()).maintain()


def test_hints_of_streams_that_are_gone_do_not_stay(
    store: Spy, manager: StreamManager, clock: FakeRuntime
) -> None:
    for scope in ("a", "b"):
        manager.create_scope(scope)
        manager.create_stream(f"{scope}/t")
    manager.maintain()
    assert len(store.list(f"{DUE_FOLDER}/a")) == 2
    manager.delete_scope("a", recursive=True)
    manager.maintain()
    keys = {entry.key.removeprefix(f"{DUE_FOLDER}/") for entry in store.list(DUE_FOLDER)}
    assert "a/streams-1-0.json" not in keys
    assert {"a/tables-1-0.json", "b/streams-1-0.json", "b/tables-1-0.json"} <= keys
