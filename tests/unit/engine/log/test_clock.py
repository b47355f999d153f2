"""What time it is, when clocks are wrong."""

from __future__ import annotations

import logging

import pytest

from pravega_spark.engine.log import clock
from pravega_spark.engine.log.actions import parse_commit
from pravega_spark.engine.log.clock import (
    CLOCK_KEY,
    ClockRecord,
    HostClock,
    confirm_clock,
    read_now,
)
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.store.base import Dated
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.limits import CLOCK_FAR_MS, CLOCK_STEP_MS, MAX_CLOCK_JUMP, STALE_HEAD_SECONDS
from pravega_spark.manager import StreamManager
from pravega_spark.units import parse_duration_ms
from tests.harness.engine import NOW_MS, FakeRuntime, Spy, memory, put, table_log

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
YEARS = 3_650 * DAY
WRONG = [sign * by for by in (HOUR, DAY, YEARS) for sign in (1, -1)]
LIMIT_MS = parse_duration_ms("the limit", MAX_CLOCK_JUMP)


class Dating(MemoryStore):
    """A store whose answers carry its own date, as S3's do."""

    def __init__(self, storage: FakeRuntime, host: FakeRuntime) -> None:
        super().__init__(clock_ms=storage.now_ms)
        self.dates, self.host, self.asked = storage, host, 0
        self.dated: Dated | None = None  # type: ignore[assignment]

    def answer(self) -> None:
        date_ms = self.dates.now_ms() // 1_000 * 1_000
        self.dated = Dated(date_ms, self.host.now_ms(), self.host.monotonic())

    def time_ms(self) -> int:
        self.asked += 1
        self.answer()
        return self.dated.storage_ms if self.dated else 0


class Booted(FakeRuntime):
    """A host on which a test can start the machine again."""

    boot = "first"

    def boot_id(self) -> str:
        return self.boot

    def restart(self) -> None:
        self.boot += "+"
        self.elapsed = 1.0


@pytest.fixture(autouse=True)
def _nothing_was_warned_of() -> None:
    clock._warned.clear()


def hosts(wrong_ms: int) -> tuple[FakeRuntime, FakeRuntime, Dating]:
    storage, host = FakeRuntime(), FakeRuntime()
    host.wall_ms += wrong_ms
    store = Dating(storage, host)
    store.answer()
    return storage, host, store


# ------------------------------------------------------------------------- the time of a commit


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_a_host_that_is_far_off_uses_the_storages_time_and_says_so_once(
    wrong_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage, host, store = hosts(wrong_ms)
    clock = HostClock(store, host)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert abs(clock.now_ms() - storage.now_ms()) <= SECOND
            storage.sleep(100)
            host.sleep(100)
    assert len(caplog.records) == 1
    assert ("ahead of" if wrong_ms > 0 else "behind") in caplog.text
    assert store.asked == 0


@pytest.mark.parametrize("wrong_ms", [0, SECOND, -SECOND, CLOCK_FAR_MS - SECOND])
def test_a_host_that_is_near_uses_its_own_clock(wrong_ms: int) -> None:
    _, host, store = hosts(wrong_ms)
    assert HostClock(store, host).now_ms() == host.now_ms()


@pytest.mark.parametrize("step_ms", WRONG)
def test_a_clock_that_steps_after_the_last_answer_asks_for_a_new_one(step_ms: int) -> None:
    storage, host, store = hosts(0)
    host.wall_ms += step_ms
    assert abs(HostClock(store, host).now_ms() - storage.now_ms()) <= SECOND
    assert store.asked == 1


def test_a_machine_that_was_frozen_asks_before_it_dates_a_commit() -> None:
    storage, host, store = hosts(0)
    storage.sleep(7_200)
    host.wall_ms += 7_200_000  # set right since, while the boot clock stood still
    assert abs(HostClock(store, host).now_ms() - storage.now_ms()) <= SECOND


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_commits_carry_the_storages_time(wrong_ms: int) -> None:
    storage, host, store = hosts(wrong_ms)
    log = table_log(store, host)
    put(log, "x")
    assert log.snapshot is not None
    assert abs(log.snapshot.timestamp_ms - storage.now_ms()) <= SECOND


def test_a_commit_behind_one_of_the_future_holds_its_own_time_as_well() -> None:
    runtime = FakeRuntime()
    log = table_log(memory(runtime), runtime)
    ahead = FakeRuntime()
    ahead.wall_ms += YEARS
    put(Log(log.store, log.path, ahead), "future")
    version = put(log, "now")
    commit = log.reader.commit(version, light=True)
    assert commit is not None
    assert commit.timestamp_ms == NOW_MS + YEARS + 1, "Delta wants times that rise"
    assert commit.clock_ms == NOW_MS
    ordinary = parse_commit(0, log.store.get(log.reader.key(0)), "here")
    assert "clock" not in ordinary.info


# -------------------------------------------------------------------------- the age of a snapshot


@pytest.mark.parametrize("moved", ["elapsed", "wall", "wall back", "storage"])
def test_a_snapshot_is_stale_as_soon_as_any_clock_says_so(moved: str) -> None:
    storage, host, store = hosts(0)
    spy = Spy(store)
    log = table_log(spy, host)
    for n in range(3):
        put(log, str(n))
    spy.calls.clear()
    put(log, "at once")
    assert [operation for operation, _ in spy.calls] == ["put_if_absent"]
    if moved == "elapsed":
        host.elapsed += STALE_HEAD_SECONDS + 1
    elif moved == "storage":
        storage.sleep(STALE_HEAD_SECONDS + 1)
        store.answer()
    else:
        host.wall_ms += (1 if moved == "wall" else -1) * (STALE_HEAD_SECONDS + 1) * 1_000
        storage.wall_ms = host.wall_ms  # no other clock says anything
        store.answer()
        store.dated = Dated(0, host.now_ms(), host.monotonic()) if moved == "wall back" else None
    spy.calls.clear()
    put(log, "late")
    assert "get" in [operation for operation, _ in spy.calls], "it looked whether v is still there"


# ------------------------------------------------------------------------------ the clock record


def disk(host: FakeRuntime) -> MemoryStore:
    """Storage whose clock is the host's own."""
    store = memory(host)
    store.has_clock = False  # type: ignore[misc]
    return store


def test_time_that_passed_is_followed() -> None:
    host = Booted()
    store = disk(host)
    for seconds in (0, 1, 60, 3_600, 86_400, 90 * 86_400):
        host.sleep(seconds)
        assert read_now(store, host).earliest_ms == host.now_ms()


@pytest.mark.parametrize("jump_ms", [HOUR, DAY, YEARS])
def test_a_jump_ahead_that_the_boot_clock_does_not_explain_is_not_followed_until_confirmed(
    jump_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    host = Booted()
    store = disk(host)
    read_now(store, host)
    host.wall_ms += jump_ms
    for _ in range(200):
        host.sleep(60)
        assert read_now(store, host).earliest_ms == host.now_ms() - jump_ms
    assert "nothing explains it" in caplog.text
    assert "confirm" in caplog.text
    confirm_clock(store, host)
    host.sleep(60)
    assert read_now(store, host).earliest_ms == host.now_ms()


def test_a_small_step_is_followed() -> None:
    host = Booted()
    store = disk(host)
    read_now(store, host)
    host.wall_ms += CLOCK_STEP_MS
    assert read_now(store, host).earliest_ms == host.now_ms()


def test_a_clock_that_went_back_and_comes_forward_again_stays_late_until_confirmed() -> None:
    host = Booted()
    store = disk(host)
    read_now(store, host)
    host.wall_ms -= DAY
    host.sleep(60)
    assert read_now(store, host).earliest_ms == host.now_ms()
    host.wall_ms += DAY
    assert read_now(store, host).earliest_ms == host.now_ms() - DAY
    confirm_clock(store, host)
    assert read_now(store, host).earliest_ms == host.now_ms()


def test_after_a_restart_of_the_machine_as_much_as_the_limit_is_believed() -> None:
    host = Booted()
    store = disk(host)
    read_now(store, host)
    host.restart()
    host.wall_ms += LIMIT_MS
    assert read_now(store, host).earliest_ms == host.now_ms()
    host.restart()
    host.wall_ms += YEARS
    believed = host.now_ms() - YEARS + LIMIT_MS
    assert read_now(store, host).earliest_ms == believed
    host.sleep(3_600)
    assert read_now(store, host).earliest_ms == believed + HOUR
    for _ in range(5):
        host.restart()
        assert read_now(store, host).earliest_ms == believed + HOUR, "no restart adds to it"


def test_a_job_that_runs_a_little_less_often_than_the_limit_is_a_little_late() -> None:
    host = Booted()
    store = disk(host)
    read_now(store, host)
    for _ in range(50):
        host.restart()
        host.wall_ms += LIMIT_MS + 5_000
        read_now(store, host)
    assert read_now(store, host).earliest_ms == host.now_ms() - 50 * 5_000


def test_a_clock_that_was_ahead_and_is_right_again_is_believed_at_once() -> None:
    host = Booted()
    store = disk(host)
    read_now(store, host)
    host.wall_ms += YEARS
    host.sleep(60)
    read_now(store, host)
    host.wall_ms -= YEARS
    host.sleep(60)
    assert read_now(store, host).earliest_ms == host.now_ms()


def test_a_root_has_its_clock_record_before_anything_is_written_into_it() -> None:
    host = Booted()
    store = MemoryStore("begun", clock_ms=host.now_ms)
    store.has_clock = False  # type: ignore[misc]
    StreamManager(store.url, runtime=host).create_scope("s")
    host.wall_ms += YEARS
    host.sleep(60)
    assert read_now(store, host).earliest_ms == NOW_MS + 60_000


def test_the_limit_is_the_roots_and_can_be_changed() -> None:
    host = Booted()
    store = disk(host)
    confirm_clock(store, host, "1 hour")
    host.restart()
    host.wall_ms += DAY
    assert read_now(store, host).earliest_ms == NOW_MS + HOUR
    with pytest.raises(InvalidConfiguration, match=r"limit of a clock's jump 'soon'"):
        confirm_clock(store, host, "soon")


def test_of_a_storage_with_a_clock_of_its_own_the_earlier_one_counts() -> None:
    storage, host = FakeRuntime(), FakeRuntime()
    store = memory(storage)
    for wrong_ms in WRONG:
        host.wall_ms = storage.wall_ms + wrong_ms
        now = read_now(store, host)
        assert now.earliest_ms == min(storage.now_ms(), host.now_ms())
        assert now.latest_ms == storage.now_ms()


def test_a_storage_whose_clock_jumps_is_not_followed_by_a_host_whose_clock_does_not() -> None:
    storage, host = FakeRuntime(), FakeRuntime()
    store = memory(storage)
    storage.wall_ms += YEARS
    assert read_now(store, host).earliest_ms == NOW_MS
    assert not store.exists(CLOCK_KEY), "it needs no record"


def test_a_host_far_behind_is_told(caplog: pytest.LogCaptureFixture) -> None:
    storage, host = FakeRuntime(), FakeRuntime()
    host.wall_ms -= DAY
    read_now(memory(storage), host)
    assert "deleted late by so much" in caplog.text


def test_a_dry_run_keeps_no_record_and_a_run_keeps_one_a_minute() -> None:
    host = Booted()
    spy = Spy(disk(host))
    read_now(spy, host, keep=False)
    assert spy.count("put") == 0
    for _ in range(120):
        read_now(spy, host)
        host.sleep(1)
    assert spy.count("put") == 2


@pytest.mark.parametrize(
    "torn",
    [
        b"",
        b"{",
        b"[]",
        b'{"clock": 1}',
        b'{"believed": "x", "clock": "x", "boot": "x", "elapsed": "x", "limit": "x"}',
        b'{"believed": [], "clock": [], "boot": [], "elapsed": [], "limit": []}',
        b"\xff",
        b"[" * 5_000,
    ],
    ids=range(8),
)
def test_a_torn_record_explains_nothing_and_stops_nobody(torn: bytes) -> None:
    host = Booted()
    store = disk(host)
    store.put(CLOCK_KEY, torn)
    assert read_now(store, host).earliest_ms == host.now_ms()


def test_a_record_is_read_back_as_it_was_written() -> None:
    record = ClockRecord(1, 2, "boot", 3, 4)
    assert clock.decode_record(record.encode()) == record


def test_a_manager_confirms_the_clock_of_its_root() -> None:
    host = Booted()
    store = MemoryStore("confirmed", clock_ms=host.now_ms)
    store.has_clock = False  # type: ignore[misc]
    manager = StreamManager(store.url, runtime=host)
    assert manager.confirm_clock(limit="2 days") == NOW_MS
    record = clock.decode_record(store.get(CLOCK_KEY))
    assert record is not None
    assert (record.believed_ms, record.limit_ms) == (NOW_MS, 2 * DAY)
