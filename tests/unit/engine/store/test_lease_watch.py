from __future__ import annotations

import gc
import math
import weakref

import pytest

from pravega_spark.engine.store.lease_watch import LeaseWatch, watch_of
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CommitUnknown, NoSuchStream, StoreError
from tests.harness.fake_runtime import FakeRuntime

LEASE = 30.0


class Watched:
    """A watch, and calls of a given duration after a pause."""

    def __init__(self) -> None:
        self.clock, self.watch = FakeRuntime(), LeaseWatch()

    def call(
        self, pause: float = 0.0, duration: float = 0.0, error: Exception | None = None
    ) -> float:
        """Make a call; return when it ended."""
        self.clock.sleep(pause)
        try:
            with self.watch.call(self.clock):
                self.clock.sleep(duration)
                self.watch.compare_clocks(self.clock.now_ms(), self.clock)
                if error is not None:
                    raise error
        except type(error or AssertionError()):
            pass
        return self.clock.monotonic()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_watch_that_has_seen_no_call_knows_nothing(watched: Watched) -> None:
    assert watched.watch.watched_since(LEASE) == math.inf
    assert watched.watch.outage_ended(LEASE) == -math.inf


def test_frequent_calls_count_from_the_first(watched: Watched) -> None:
    first = watched.call()
    for _ in range(20):
        watched.call(pause=LEASE / 2 - 0.1, duration=0.1)
    assert watched.watch.watched_since(LEASE) == first
    assert watched.watch.outage_ended(LEASE) == -math.inf


def test_gap_matters_to_leases_that_it_is_half_of(watched: Watched) -> None:
    first = watched.call()
    late = watched.call(pause=16)
    assert watched.watch.watched_since(LEASE) == late
    assert watched.watch.watched_since(60) == first
    watched.call(pause=5)
    latest = watched.call(pause=10)
    assert watched.watch.watched_since(LEASE) == late
    assert watched.watch.watched_since(10) == latest
    assert watched.watch.outage_ended(LEASE) == -math.inf, "nobody has met an outage"


def test_no_age_is_believed_before_the_clocks_were_compared(watched: Watched) -> None:
    for _ in range(10):
        with watched.watch.call(watched.clock):
            watched.clock.sleep(1)
    assert watched.watch.watched_since(LEASE) == math.inf
    compared = watched.call()
    watched.call(1)
    assert watched.watch.watched_since(LEASE) == compared


def test_answers_to_other_calls_fill_gaps(watched: Watched) -> None:
    first = watched.call()
    for _ in range(5):
        watched.clock.sleep(10)
        watched.watch.answered(watched.clock)
    watched.call(10)
    assert watched.watch.watched_since(LEASE) == first
    watched.clock.sleep(16)
    watched.watch.answered(watched.clock)
    assert watched.watch.watched_since(LEASE) == watched.clock.monotonic()


@pytest.mark.parametrize("error", [StoreError("down"), CommitUnknown("unknown")], ids=repr)
def test_call_that_fails_is_an_outage_for_all_leases(watched: Watched, error: Exception) -> None:
    watched.call()
    ended = watched.call(1, error=error)
    watched.call(1)
    for lease in (5, LEASE, 86_400):
        assert watched.watch.outage_ended(lease) == watched.watch.watched_since(lease) == ended


def test_call_that_takes_long_is_an_outage_until_it_is_answered(watched: Watched) -> None:
    first = watched.call()
    ended = watched.call(1, duration=20)
    assert watched.watch.outage_ended(LEASE) == watched.watch.watched_since(LEASE) == ended
    assert watched.watch.outage_ended(60) == -math.inf
    assert watched.watch.watched_since(60) == first


def test_other_errors_are_answers(watched: Watched) -> None:
    first = watched.call()
    watched.call(1, error=NoSuchStream("gone"))
    assert watched.watch.watched_since(LEASE) == first


@pytest.mark.parametrize(
    ("step", "is_believed"), [(0, True), (1.5, True), (-3_600, True), (3, False), (86_400, False)]
)
def test_step_of_the_storages_clock_is_an_outage(
    watched: Watched, step: float, is_believed: bool
) -> None:
    clock, watch = watched.clock, watched.watch
    watch.compare_clocks(clock.now_ms(), clock)
    clock.sleep(60)
    watch.compare_clocks(clock.now_ms() + int(1_000 * step), clock)
    assert (watch.outage_ended(LEASE) == -math.inf) is is_believed


@pytest.mark.medium
def test_a_watch_remembers_little_and_lives_as_long_as_its_store(watched: Watched) -> None:
    for _ in range(2_000):
        watched.call(pause=watched.clock.random() * 100)
    assert len(watched.watch._gaps._pauses) < 50
    store = MemoryStore()
    assert watch_of(store) is watch_of(store)
    kept = weakref.ref(watch_of(store))
    del store
    gc.collect()
    assert kept() is None
