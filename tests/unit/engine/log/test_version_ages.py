"""Ages of versions whose dates were wrong for a time: never too old, and no later than needed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.log.clock import ClockReading
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.retained import VersionAges, pin
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.store.memory import MemoryStore
from tests.harness.fake_runtime import NOW_MS, FakeRuntime
from tests.harness.small_tables import put, table_log

MINUTE = 60_000
_names = itertools.count(1)


class WrongDates(MemoryStore):
    """Objects in memory that may get a date ten minutes before the right one."""

    def __init__(self, runtime: FakeRuntime) -> None:
        self.behind_ms = 0
        super().__init__(f"ages-{next(_names)}", clock_ms=lambda: runtime.now_ms() - self.behind_ms)


def table(are_right: list[bool]) -> tuple[Log, FakeRuntime]:
    """A table with a version a minute; ``are_right`` tells the dates of version 0 and the next."""
    runtime = FakeRuntime()
    store = WrongDates(runtime)
    log = None
    for number, is_right in enumerate(are_right):
        store.behind_ms = 0 if is_right else 10 * MINUTE
        log = log or table_log(store, runtime)
        if number:
            put(log, str(number))
        runtime.sleep(60)
    store.behind_ms = 0
    assert log is not None
    assert log.refresh() is not None
    return log, runtime


def ages_of(log: Log, runtime: FakeRuntime) -> VersionAges:
    return VersionAges(log, ClockReading(runtime.now_ms(), runtime.now_ms()))


@pytest.mark.parametrize(
    ("wrong", "right"), [(3, 1), (5, 3), (60, 1), (60, 3), (63, 1), (64, 1), (65, 8)]
)
def test_versions_with_wrong_dates_get_the_next_right_one(wrong: int, right: int) -> None:
    log, runtime = table([False] * wrong + [True] * right)
    ages = ages_of(log, runtime)
    assert {ages.written_ms(version) for version in range(wrong)} == {NOW_MS + wrong * MINUTE}
    assert ages.version_at(NOW_MS + wrong * MINUTE) == wrong
    assert ages.version_at(NOW_MS + wrong * MINUTE - 1) == 0


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 40))
def test_ages_are_never_too_old_and_a_right_date_of_the_newest_version_is_always_found(
    are_right: list[bool], minutes: int
) -> None:
    log, runtime = table(are_right)
    ages = ages_of(log, runtime)
    for version in range(len(are_right)):
        later = [at for at in range(version, len(are_right)) if are_right[at]]
        written_ms = ages.written_ms(version)
        assert written_ms >= NOW_MS + version * MINUTE
        assert written_ms in [*(NOW_MS + at * MINUTE for at in later), runtime.now_ms()]
        if not later or are_right[-1]:
            assert (ages.dated_version(version) is None) == (not later)
        if are_right[version]:
            assert written_ms == NOW_MS + version * MINUTE
    assert ages.version_at(NOW_MS + minutes * MINUTE) <= minutes


def test_sweep_says_why_nothing_moved() -> None:
    log, runtime = table([True] + [False] * 4)
    found = sweep_table(log, grace_ms=MINUTE, retain_ms=MINUTE)
    assert found.retention_mark == 0
    assert found.unmoved.startswith("Versions from 1 on count as new.")
    assert "Correct the clock" in found.unmoved

    put(log, "right")
    assert "is younger than" in sweep_table(log, grace_ms=MINUTE, retain_ms=MINUTE).unmoved
    runtime.sleep(61)
    swept = sweep_table(log, grace_ms=MINUTE, retain_ms=MINUTE)
    assert (swept.retention_mark, swept.unmoved) == (5, "")

    held = pin(log, "p", keep_ms=60 * MINUTE)
    runtime.sleep(600)
    pinned = sweep_table(log, grace_ms=60 * MINUTE, retain_ms=MINUTE).unmoved
    assert f"A backup holds version {held.version} until it is complete" in pinned
    assert "UTC. If it was killed" in pinned
