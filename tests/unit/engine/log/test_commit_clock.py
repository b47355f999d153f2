"""The time that commits carry, and the age of a snapshot, when clocks are wrong."""

from __future__ import annotations

import logging

import pytest

from pravega_spark.engine.log import commit as log_commit
from pravega_spark.engine.log.actions import parse_commit
from pravega_spark.engine.log.commit import CommitClock, Log
from pravega_spark.engine.store.base import ResponseDate
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.values.limits import CLOCK_SKEW_MS, STALE_SNAPSHOT_SECONDS
from tests.harness.fake_runtime import NOW_MS, FakeRuntime, memory
from tests.harness.small_tables import put, table_log
from tests.harness.spy_store import Spy

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000
YEARS = 3_650 * DAY
WRONG = [sign * by for by in (HOUR, DAY, YEARS) for sign in (1, -1)]


class Dating(MemoryStore):
    """A store whose answers carry its own date, as S3's do."""

    def __init__(self, storage: FakeRuntime, host: FakeRuntime) -> None:
        super().__init__(clock_ms=storage.now_ms)
        self.dates, self.host, self.asked = storage, host, 0
        self.response_date: ResponseDate | None = None  # type: ignore[assignment]

    def answer(self) -> None:
        date_ms = self.dates.now_ms() // 1_000 * 1_000
        self.response_date = ResponseDate(date_ms, self.host.now_ms(), self.host.monotonic())

    def time_ms(self) -> int:
        self.asked += 1
        self.answer()
        return self.response_date.storage_ms if self.response_date else 0


@pytest.fixture(autouse=True)
def _no_host_was_warned() -> None:
    log_commit._warned.clear()


def hosts(wrong_ms: int) -> tuple[FakeRuntime, FakeRuntime, Dating]:
    storage, host = FakeRuntime(), FakeRuntime()
    host.wall_ms += wrong_ms
    store = Dating(storage, host)
    store.answer()
    return storage, host, store


# ------------------------------------------------------------------------- the time of a commit


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_host_that_is_far_off_uses_the_storages_time_and_warns_once(
    wrong_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    storage, host, store = hosts(wrong_ms)
    clock = CommitClock(store, host)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert abs(clock.now_ms() - storage.now_ms()) <= SECOND
            storage.sleep(100)
            host.sleep(100)
    assert len(caplog.records) == 1
    assert ("ahead of" if wrong_ms > 0 else "behind") in caplog.text
    assert store.asked == 0


@pytest.mark.parametrize("wrong_ms", [0, SECOND, -SECOND, CLOCK_SKEW_MS - SECOND])
def test_host_that_is_near_uses_its_own_clock(wrong_ms: int) -> None:
    _, host, store = hosts(wrong_ms)
    assert CommitClock(store, host).now_ms() == host.now_ms()


@pytest.mark.parametrize("step_ms", WRONG)
def test_clock_that_steps_after_the_last_answer_asks_for_a_new_one(step_ms: int) -> None:
    storage, host, store = hosts(0)
    host.wall_ms += step_ms
    assert abs(CommitClock(store, host).now_ms() - storage.now_ms()) <= SECOND
    assert store.asked == 1


def test_machine_that_was_frozen_asks_before_it_dates_a_commit() -> None:
    storage, host, store = hosts(0)
    storage.sleep(7_200)
    host.wall_ms += 7_200_000  # corrected since, while the boot clock stood still
    assert abs(CommitClock(store, host).now_ms() - storage.now_ms()) <= SECOND


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_commits_carry_the_storages_time(wrong_ms: int) -> None:
    storage, host, store = hosts(wrong_ms)
    log = table_log(store, host)
    put(log, "x")
    assert log.snapshot is not None
    assert abs(log.snapshot.timestamp_ms - storage.now_ms()) <= SECOND


def test_commit_behind_one_of_the_future_holds_its_own_time_as_well() -> None:
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
def test_snapshot_is_stale_as_soon_as_any_clock_says_so(moved: str) -> None:
    storage, host, store = hosts(0)
    spy = Spy(store)
    log = table_log(spy, host)
    for n in range(3):
        put(log, str(n))
    spy.calls.clear()
    put(log, "at once")
    assert [operation for operation, _ in spy.calls] == ["put_if_absent"]
    if moved == "elapsed":
        host.elapsed += STALE_SNAPSHOT_SECONDS + 1
    elif moved == "storage":
        storage.sleep(STALE_SNAPSHOT_SECONDS + 1)
        store.answer()
    else:
        host.wall_ms += (1 if moved == "wall" else -1) * (STALE_SNAPSHOT_SECONDS + 1) * 1_000
        storage.wall_ms = host.wall_ms  # the other clocks show nothing
        store.answer()
        store.response_date = (
            ResponseDate(0, host.now_ms(), host.monotonic()) if moved == "wall back" else None
        )
    spy.calls.clear()
    put(log, "late")
    assert "get" in [operation for operation, _ in spy.calls], "its own last version is read again"
