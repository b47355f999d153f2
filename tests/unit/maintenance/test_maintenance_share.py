"""The shares of a process that maintains its root, by a clock of the test and without threads."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.state.maintenance_table import (
    JOB,
    FinishedRun,
    MaintenanceTable,
    entry_of,
)
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import events_path
from pravega_spark.errors import RootChanged, StoreError, StoreFull, StoreReadOnly
from pravega_spark.maintenance.shares import TOGETHER, MaintenanceShares, SharePace, is_stream
from pravega_spark.manager import StreamManager
from pravega_spark.values.limits import AUTO_SLACK, AUTO_WAKE_SECONDS
from tests.harness.backup_world import manager_of
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.loads import load
from tests.harness.small_streams import reopen
from tests.harness.spy_store import Spy

RETENTION, SCALING, TRANSACTIONS, COMPACTION, SWEEPING, WATERMARKS, FOLDING = MaintenanceKind
ALL = (None,)
ONE_BYTE = StreamConfiguration(retention=RetentionPolicy.by_size(1))
HOUR = 3_600.0
SHARES = 1 + len(set(MaintenanceKind) - TOGETHER)
"""A run of each kind takes as many shares in a small root."""


def shares_of(
    store: Store, clock: FakeRuntime, pace: SharePace | None = None, **options: Any
) -> MaintenanceShares:
    """What another process has, without any state in memory."""
    made = MaintenanceShares(store, clock, pace or SharePace(), **options)
    made._record.table.log.maintain = None
    return made


def filled(store: Store, clock: FakeRuntime, *names: str) -> StreamManager:
    """Streams of which retention truncates all but one event."""
    manager = manager_of(store, clock)
    for name in names:
        manager.create_scope(name.partition("/")[0])
        manager.create_stream(name, ONE_BYTE)
        with manager.create_writer(name) as writer:
            for data in (b"first", b"last"):
                writer.write_event(data, "k").result()
    return manager


def run_of(store: Store, clock: FakeRuntime, kind: MaintenanceKind) -> FinishedRun | None:
    return entry_of(MaintenanceTable(store, clock).entries(), kind).last


def finished(store: Store, clock: FakeRuntime, kind: MaintenanceKind) -> FinishedRun:
    run = run_of(store, clock, kind)
    assert run is not None
    return run


def wake_until_idle(shares: MaintenanceShares, clock: FakeRuntime) -> Iterator[float]:
    """Wake up as the thread does, and yield the pauses, until nothing is due."""
    while (pause := shares.wake_up()) < AUTO_WAKE_SECONDS / 2:
        yield pause
        clock.sleep(pause)


@pytest.mark.medium
def test_each_kind_is_done_once_and_again_after_its_interval(
    store: Spy, clock: FakeRuntime
) -> None:
    manager = filled(store, clock, "a/t", "b/t")
    shares = shares_of(store, clock)
    assert len(list(wake_until_idle(shares, clock))) == SHARES
    for kind in MaintenanceKind:
        run = finished(store, clock, kind)
        assert (run.streams, run.failed) == (2, 0)
        assert run.by.startswith("auto on ")
    assert [event.data for event in manager.read("a/t")] == [b"last"]
    first = finished(store, clock, RETENTION)
    clock.sleep(1_800)  # of retention: the slack is left to a job
    list(wake_until_idle(shares, clock))
    assert finished(store, clock, RETENTION) == first
    clock.sleep(1_800 * (AUTO_SLACK - 1))
    list(wake_until_idle(shares, clock))
    assert finished(store, clock, RETENTION).finished_ms > first.finished_ms


def test_the_intervals_are_those_of_the_root(store: Spy, clock: FakeRuntime) -> None:
    manager = filled(store, clock, "a/t")
    manager.update_settings(retention_interval="10 hours")
    shares = shares_of(store, clock)
    list(wake_until_idle(shares, clock))
    first = finished(store, clock, RETENTION)
    clock.sleep(9 * HOUR)
    list(wake_until_idle(shares, clock))
    assert finished(store, clock, RETENTION) == first
    manager.update_settings(retention_interval="1 hour")
    clock.sleep(301)
    list(wake_until_idle(shares, clock))
    assert finished(store, clock, RETENTION) != first


def test_each_wake_up_decides_on_the_present_setting(store: Spy, clock: FakeRuntime) -> None:
    manager = filled(store, clock, "a/t")
    is_asked = False
    shares = shares_of(store, clock, is_asked=lambda: is_asked)
    manager.update_settings(maintain="auto")
    assert shares.wake_up() < AUTO_WAKE_SECONDS / 2, "a share was done"
    manager.update_settings(maintain="off")
    clock.sleep(2)
    recorded = MaintenanceTable(store, clock).entries()
    assert len(recorded) < len(MaintenanceKind)
    store.calls.clear()
    assert shares.wake_up() >= AUTO_WAKE_SECONDS / 2, "the setting was read less than 300 s ago"
    of_settings = [key for _, key in store.calls if key == "_settings/_pravega/latest.json"]
    assert len(of_settings) == 1, "the table was opened, and read, once"
    assert MaintenanceTable(store, clock).entries() == recorded
    is_asked = True
    shares.wake_up()
    assert MaintenanceTable(store, clock).entries() != recorded
    is_asked, recorded = False, MaintenanceTable(store, clock).entries()
    manager.update_settings(maintain="auto")
    shares.wake_up()
    assert MaintenanceTable(store, clock).entries() != recorded


@pytest.mark.medium
def test_many_streams_are_all_done_in_shares_of_several_processes(
    store: Spy, clock: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(store, clock)
    for scope in ("a", "b", "c"):
        manager.create_scope(scope)
        for number in range(40):
            manager.create_stream(f"{scope}/t{number}")
    done = list[tuple[str, MaintenanceKind]]()

    def maintain(kind: MaintenanceKind, name: str) -> dict[str, str]:
        if is_stream(name):
            done.append((name, kind))
        return {}

    pace = SharePace(streams=20)
    several = [shares_of(store, clock, pace) for _ in range(3)]
    for shares in several:
        monkeypatch.setattr(shares._streams, "maintain", maintain)
    runs = [len(TOGETHER - {FOLDING}), *(1 for _ in range(SHARES - 1))]
    for number in range(6 * SHARES):
        before = len(done)
        assert several[number % 3].wake_up() < AUTO_WAKE_SECONDS
        assert len(done) - before in {20 * kinds for kinds in runs}
    for kind in MaintenanceKind:
        assert finished(store, clock, kind).streams == 120
    assert len(done) == len(set(done)) == 120 * sum(runs)
    assert len({name for name, _ in done}) == 120
    assert several[0].wake_up() >= AUTO_WAKE_SECONDS / 2


def test_a_share_ends_by_its_time_and_when_nobody_is_open(
    store: Spy, clock: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(store, clock, "a/t1", "a/t2", "a/t3")
    shares = shares_of(store, clock, SharePace(seconds=5.0))

    def slow(kind: MaintenanceKind, name: str) -> dict[str, str]:
        clock.sleep(3)
        return {}

    monkeypatch.setattr(shares._streams, "maintain", slow)
    pause = shares.wake_up()
    entry = entry_of(MaintenanceTable(store, clock).entries(), RETENTION)
    assert entry.progress is not None
    assert (entry.progress.after, entry.claim) == ("a/t2", None)
    assert 6 / 0.25 * 0.5 <= pause <= 6 / 0.25 * 1.5, "a quarter of the time"
    closed = shares_of(store, clock, is_ended=lambda: True)
    closed.wake_up()
    assert run_of(store, clock, RETENTION) is None


def test_a_job_that_keeps_up_leaves_nothing_to_do(store: Spy, clock: FakeRuntime) -> None:
    filled(store, clock, "a/t")
    record, shares = MaintenanceTable(store, clock), shares_of(store, clock)
    for _ in range(5):
        for kind in MaintenanceKind:
            record.finish_now(kind, ALL, JOB, clock.now_ms(), 1)
        clock.sleep(60)
        assert shares.wake_up() >= AUTO_WAKE_SECONDS / 2
    clock.sleep(60)
    shares.wake_up()
    assert finished(store, clock, SCALING).by.startswith("auto on ")


def test_a_scope_with_a_job_of_its_own_is_left_to_it(store: Spy, clock: FakeRuntime) -> None:
    manager = filled(store, clock, "a/t", "b/t")
    MaintenanceTable(store, clock).finish_now(RETENTION, ("a",), JOB, clock.now_ms(), 1)
    list(wake_until_idle(shares_of(store, clock), clock))
    events = [[e.data for e in manager.read(name)] for name in ("a/t", "b/t")]
    assert events == [[b"first", b"last"], [b"last"]]
    assert finished(store, clock, RETENTION).streams == 1


def test_a_claimed_kind_is_left_and_the_others_are_done(store: Spy, clock: FakeRuntime) -> None:
    filled(store, clock, "a/t")
    record = MaintenanceTable(store, clock)
    assert record.claim((RETENTION,), ALL, JOB) is not None
    list(wake_until_idle(shares_of(store, clock), clock))
    assert run_of(store, clock, RETENTION) is None
    assert run_of(store, clock, SCALING) is not None


@pytest.mark.medium
def test_failing_streams_and_scopes_are_recorded_and_wait_for_the_next_run(
    store: Spy, clock: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    manager = filled(store, clock, "a/bad", "a/good", "b/t", "c/good")
    store.put("a/bad/events/_delta_log/00000000000000000000.json", b"garbage")
    store.delete(["a/bad/events/_pravega/latest.json"])
    newest = max(e.key for e in store.list("b/_scope/_delta_log") if e.key.endswith(".json"))
    store.put(newest, b"garbage")
    shares = shares_of(store, clock, SharePace(streams=1))
    for _ in range(3):
        list(wake_until_idle(shares, clock))
        clock.sleep(100)
    run = finished(store, clock, RETENTION)
    assert (run.streams, run.failed) == (3, 2)
    assert set(run.failures) == {"stream a/bad", "scope b"}
    assert [e.data for n in ("a/good", "c/good") for e in manager.read(n)] == [b"last", b"last"]
    assert caplog.text.count("retention of stream a/bad") == 1
    clock.sleep(10 * 60)
    list(wake_until_idle(shares, clock))
    assert finished(store, clock, RETENTION) == run, "not again before its interval"


def test_two_at_the_same_time_do_no_harm(store: Spy, clock: FakeRuntime) -> None:
    """The claim of a process that stalls expires while it works: the other repeats its work."""
    manager = filled(store, clock, "a/t1", "a/t2", "a/t3")
    with manager.create_transactional_writer("a/t2") as writer:
        transaction = writer.begin_transaction(lease="10 s")
        transaction.write_event(b"never", "k")
        transaction.flush()
        clock.sleep(60)
    late, other = shares_of(store, clock), shares_of(store, clock)
    maintain, is_stalled = late._streams.maintain, [False]

    def stall(kind: MaintenanceKind, name: str) -> Mapping[str, str] | None:
        if name == "a/t2" and not is_stalled[0]:
            is_stalled[0] = True
            clock.sleep(120)
            list(wake_until_idle(other, clock))
        return maintain(kind, name)

    late._streams.maintain = stall  # type: ignore[method-assign]
    late.wake_up()
    assert is_stalled == [True]
    for name in ("a/t1", "a/t2", "a/t3"):
        assert [event.data for event in manager.read(name)] == [b"last"]
    run = finished(store, clock, RETENTION)
    assert (run.streams, run.failed) == (3, 0), "the late one recorded nothing"
    for _ in range(3):
        clock.sleep(100)
        list(wake_until_idle(other, clock))
    assert manager.list_transactions("a/t2") == []


@pytest.mark.medium
def test_hot_segments_split_and_expired_transactions_are_aborted(
    store: Spy, clock: FakeRuntime
) -> None:
    manager = manager_of(store, clock)
    manager.create_scope("a")
    manager.create_stream("a/t", StreamConfiguration(ScalingPolicy.by_event_rate(2, 4, 1)))
    shares = shares_of(store, clock)
    stream = reopen(shares._streams.open("a/t"))
    for _ in range(13):
        load(stream, seconds=60, rate=5)
        list(wake_until_idle(shares, clock))
    assert len(manager.segments("a/t")) == 2
    writer = manager.create_transactional_writer("a/t")
    transaction = writer.begin_transaction(lease="10 s")
    transaction.write_event(b"never", "k")
    transaction.flush()
    writer.close()  # nothing extends the lease from here on
    (opened,) = manager.list_transactions("a/t")
    for _ in range(4):  # the lease, two last ones, and the abort
        clock.sleep(100)
        list(wake_until_idle(shares, clock))
    assert manager.list_transactions("a/t") == []
    (ended,) = manager.list_completed_transactions("a/t")
    assert ended.transaction_id == opened.transaction_id


def test_kinds_that_are_done_together_ask_once_for_a_stream_and_its_date(
    store: Spy, clock: FakeRuntime
) -> None:
    manager = filled(store, clock, "a/t")
    shares = shares_of(store, clock)
    list(wake_until_idle(shares, clock))
    with manager.create_writer("a/t") as writer:
        writer.write_event(b"more", "k").result()
    clock.sleep(120)
    following = manager.stream_info("a/t").version + 1
    store.calls.clear()
    shares.wake_up()
    log = f"{events_path('a/t')}/_delta_log"
    asked = Counter(operation for operation, key in store.calls if key.startswith(log))
    assert (asked["modified_ms"], store.count("get", f"{log}/{following:020d}")) == (1, 1)
    for kind in TOGETHER:
        assert finished(store, clock, kind).finished_ms > clock.now_ms() - 60_000


def test_an_idle_wake_up_is_one_storage_call(store: Spy, clock: FakeRuntime) -> None:
    filled(store, clock, "a/t")
    shares = shares_of(store, clock)
    list(wake_until_idle(shares, clock))
    store.calls.clear()
    shares.wake_up()
    assert len(store.calls) == 1


def test_a_root_without_a_scope_gets_no_record(store: Spy, clock: FakeRuntime) -> None:
    shares_of(store, clock).wake_up()
    assert store.list("") == []


def test_storage_that_fails_is_asked_less_often_and_warned_of_once(
    store: Spy, clock: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    filled(store, clock, "a/t")
    shares = shares_of(store, clock)
    shares.wake_up()

    def fail(operation: str, key: str) -> None:
        raise StoreError("the storage is down")

    store.hook = fail
    with caplog.at_level(logging.WARNING):
        pauses = [shares.wake_up() for _ in range(8)]
    assert pauses[-1] > 10 * AUTO_WAKE_SECONDS > 0
    assert caplog.text.count("the storage is down") == 1
    store.hook = None
    assert shares.wake_up() < AUTO_WAKE_SECONDS


def test_a_full_disk_is_freed_without_a_record_and_by_nothing_else(
    store: Spy, clock: FakeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    manager = filled(store, clock, "a/t", "b/t")
    store.rules.add(Rule(StoreFull("no space is left"), "put*", "_maintenance/*"))
    shares = shares_of(store, clock, SharePace(streams=1))
    caplog.clear()
    done = list(wake_until_idle(shares, clock))
    assert len(done) == 4, "two shares of retention, and two of sweeping"
    assert [[event.data for event in manager.read(name)] for name in ("a/t", "b/t")] == [
        [b"last"]
    ] * 2
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "has no space, so retention and sweeping alone go on" in told
    assert not list(wake_until_idle(shares, clock))
    clock.sleep(1_800 * AUTO_SLACK)
    assert len(list(wake_until_idle(shares, clock))) >= 2, "again after the interval"
    store.rules.clear()
    list(wake_until_idle(shares, clock))
    assert all(run_of(store, clock, kind) for kind in MaintenanceKind)


@pytest.mark.parametrize("error", [RootChanged, StoreReadOnly])
def test_a_root_that_was_replaced_or_is_read_only_ends_it(
    store: Spy, clock: FakeRuntime, error: type[Exception]
) -> None:
    filled(store, clock, "a/t")

    def refuse(operation: str, key: str) -> None:
        if operation.startswith("put"):
            raise error("this root cannot be written")

    store.hook = refuse
    with pytest.raises(error):
        shares_of(store, clock).wake_up()


def test_wake_ups_are_jittered(store: Spy, clock: FakeRuntime) -> None:
    shares = shares_of(store, clock)
    pauses = [shares.pause() for _ in range(100)]
    assert min(pauses) >= AUTO_WAKE_SECONDS / 2
    assert max(pauses) <= AUTO_WAKE_SECONDS * 1.5
    assert len(set(pauses)) == 100
