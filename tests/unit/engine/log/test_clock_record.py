"""The time for decisions by age, and the root's clock record, when clocks are wrong."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log.clock import (
    CLOCK_KEY,
    ClockRecord,
    confirm_clock,
    decode_record,
    read_clock,
)
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import InvalidConfiguration, StoreReadOnly
from pravega_spark.manager import StreamManager
from pravega_spark.values.limits import CLOCK_STEP_MS, MAX_CLOCK_JUMP
from pravega_spark.values.units import parse_duration_ms
from tests.harness.fake_runtime import NOW_MS, FakeRuntime, memory
from tests.harness.spy_store import Spy

HOUR, DAY = 3_600_000, 86_400_000
YEARS = 3_650 * DAY
WRONG = [sign * by for by in (HOUR, DAY, YEARS) for sign in (1, -1)]
LIMIT_MS = parse_duration_ms("the limit", MAX_CLOCK_JUMP)


class Booted(FakeRuntime):
    """A host that a test can reboot."""

    boot = "first"

    def boot_id(self) -> str:
        return self.boot

    def reboot(self) -> None:
        self.boot += "+"
        self.elapsed = 1.0


def disk(host: FakeRuntime) -> MemoryStore:
    """Storage whose clock is the host's own."""
    store = memory(host)
    store.has_clock = False
    return store


def test_passing_of_time_is_followed() -> None:
    host = Booted()
    store = disk(host)
    for seconds in (0, 1, 60, 3_600, 86_400, 90 * 86_400):
        host.sleep(seconds)
        assert read_clock(store, host).earliest_ms == host.now_ms()


def test_record_that_cannot_be_renewed_decides_late_and_never_early(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Booted()
    store = Spy(disk(host))

    def refuse(operation: str, key: str) -> None:
        if operation == "put" and key == CLOCK_KEY:
            raise StoreReadOnly(f"{key} may not be replaced")

    store.hook = refuse
    with pytest.raises(StoreReadOnly):
        read_clock(store, host)
    store.hook = None
    read_clock(store, host)
    store.hook = refuse
    for _ in range(3):
        host.sleep(3_600)
        assert read_clock(store, host).earliest_ms == host.now_ms()
    assert [r.getMessage() for r in caplog.records if "cannot be renewed" in r.getMessage()] != []
    assert len(caplog.records) == 1, "one warning for each store"
    true_ms = host.now_ms()
    host.wall_ms += YEARS
    assert read_clock(store, host).earliest_ms <= true_ms
    host.wall_ms -= YEARS
    host.sleep(90 * 86_400)
    host.reboot()
    assert read_clock(store, host).earliest_ms <= host.now_ms()


@pytest.mark.parametrize("jump_ms", [HOUR, DAY, YEARS])
def test_jump_ahead_that_the_boot_clock_does_not_explain_is_not_followed_until_confirmed(
    jump_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    host = Booted()
    store = disk(host)
    read_clock(store, host)
    host.wall_ms += jump_ms
    for _ in range(200):
        host.sleep(60)
        assert read_clock(store, host).earliest_ms == host.now_ms() - jump_ms
    assert "nothing explains it" in caplog.text
    assert "confirm" in caplog.text
    confirm_clock(store, host)
    host.sleep(60)
    assert read_clock(store, host).earliest_ms == host.now_ms()


def test_small_step_is_followed() -> None:
    host = Booted()
    store = disk(host)
    read_clock(store, host)
    host.wall_ms += CLOCK_STEP_MS
    assert read_clock(store, host).earliest_ms == host.now_ms()


def test_clock_that_went_back_and_comes_forward_again_stays_late_until_confirmed() -> None:
    host = Booted()
    store = disk(host)
    read_clock(store, host)
    host.wall_ms -= DAY
    host.sleep(60)
    assert read_clock(store, host).earliest_ms == host.now_ms()
    host.wall_ms += DAY
    assert read_clock(store, host).earliest_ms == host.now_ms() - DAY
    confirm_clock(store, host)
    assert read_clock(store, host).earliest_ms == host.now_ms()


def test_after_a_reboot_the_limit_bounds_what_is_believed() -> None:
    host = Booted()
    store = disk(host)
    read_clock(store, host)
    host.reboot()
    host.wall_ms += LIMIT_MS
    assert read_clock(store, host).earliest_ms == host.now_ms()
    host.reboot()
    host.wall_ms += YEARS
    believed = host.now_ms() - YEARS + LIMIT_MS
    assert read_clock(store, host).earliest_ms == believed
    host.sleep(3_600)
    assert read_clock(store, host).earliest_ms == believed + HOUR
    for _ in range(5):
        host.reboot()
        assert read_clock(store, host).earliest_ms == believed + HOUR, "no reboot adds to it"


def test_job_that_runs_a_little_less_often_than_the_limit_is_a_little_late() -> None:
    host = Booted()
    store = disk(host)
    read_clock(store, host)
    for _ in range(50):
        host.reboot()
        host.wall_ms += LIMIT_MS + 5_000
        read_clock(store, host)
    assert read_clock(store, host).earliest_ms == host.now_ms() - 50 * 5_000


def test_clock_that_was_ahead_and_is_right_again_is_believed_immediately() -> None:
    host = Booted()
    store = disk(host)
    read_clock(store, host)
    host.wall_ms += YEARS
    host.sleep(60)
    read_clock(store, host)
    host.wall_ms -= YEARS
    host.sleep(60)
    assert read_clock(store, host).earliest_ms == host.now_ms()


def test_root_has_its_clock_record_before_anything_is_written_into_it() -> None:
    host = Booted()
    store = MemoryStore("begun", clock_ms=host.now_ms)
    store.has_clock = False
    StreamManager(store.url, runtime=host).create_scope("s")
    host.wall_ms += YEARS
    host.sleep(60)
    assert read_clock(store, host).earliest_ms == NOW_MS + 60_000


def test_limit_is_the_roots_and_can_be_changed() -> None:
    host = Booted()
    store = disk(host)
    confirm_clock(store, host, "1 hour")
    host.reboot()
    host.wall_ms += DAY
    assert read_clock(store, host).earliest_ms == NOW_MS + HOUR
    with pytest.raises(InvalidConfiguration, match=r"limit of a clock's jump 'soon'"):
        confirm_clock(store, host, "soon")


def test_earlier_of_the_hosts_and_the_storages_clock_counts() -> None:
    storage, host = FakeRuntime(), FakeRuntime()
    store = memory(storage)
    for wrong_ms in WRONG:
        host.wall_ms = storage.wall_ms + wrong_ms
        now = read_clock(store, host)
        assert now.earliest_ms == min(storage.now_ms(), host.now_ms())
        assert now.latest_ms == storage.now_ms()


def test_storage_whose_clock_jumps_is_not_followed_by_a_host_whose_clock_does_not() -> None:
    storage, host = FakeRuntime(), FakeRuntime()
    store = memory(storage)
    storage.wall_ms += YEARS
    assert read_clock(store, host).earliest_ms == NOW_MS
    assert not store.exists(CLOCK_KEY), "it needs no record"


def test_host_that_is_far_behind_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    storage, host = FakeRuntime(), FakeRuntime()
    host.wall_ms -= DAY
    read_clock(memory(storage), host)
    assert "late by that much" in caplog.text


def test_dry_run_keeps_no_record_and_a_run_keeps_one_a_minute() -> None:
    host = Booted()
    spy = Spy(disk(host))
    read_clock(spy, host, keep=False)
    assert spy.count("put") == 0
    for _ in range(120):
        read_clock(spy, host)
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
def test_torn_record_explains_nothing_and_stops_no_run(torn: bytes) -> None:
    host = Booted()
    store = disk(host)
    store.put(CLOCK_KEY, torn)
    assert read_clock(store, host).earliest_ms == host.now_ms()


def test_record_is_read_back_as_it_was_written() -> None:
    record = ClockRecord(1, 2, "boot", 3, 4)
    assert decode_record(record.encode()) == record


def test_manager_confirms_the_clock_of_its_root() -> None:
    host = Booted()
    store = MemoryStore("confirmed", clock_ms=host.now_ms)
    store.has_clock = False
    manager = StreamManager(store.url, runtime=host)
    assert manager.confirm_clock(limit="2 days") == NOW_MS
    record = decode_record(store.get(CLOCK_KEY))
    assert record is not None
    assert (record.believed_ms, record.limit_ms) == (NOW_MS, 2 * DAY)
