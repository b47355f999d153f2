"""An owner beside a process that commits at a steady pace and takes no offers, on an object store.

Nothing here takes time: each call of the owner takes 30 ms of a simulated clock, 15 there and 15
back, and the other process commits whenever that clock says so.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bench.harness.slow_store import SlowStore
from pravega_spark.engine.log.actions import REQUEST, Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.group_commit import group_of
from pravega_spark.values.limits import REQUEST_AFTER
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.offering import commit_offers, contended, offer
from tests.harness.small_streams import all_events, make_stream, reopen, write
from tests.harness.tiers import sized

CALL_SECONDS = 0.030
HELD_SECONDS = 0.5
"""How long the steady process leaves the next version to the author of a request."""


class SteadyProcess:
    """Commits at fixed times, and learns nothing from the races that it loses."""

    def __init__(self, stream: StreamLog, period: float, first: float) -> None:
        self.stream, self.period, self.due = stream, period, first
        self.commits = 0
        self._held_until = 0.0

    def commit_until(self, now: float) -> None:
        while self.due <= now:
            at, self.due = self.due, self.due + self.period
            self.stream.log.refresh()
            if self.stream.log._follower.request is None:
                self._held_until = 0.0
            else:
                self._held_until = self._held_until or at + HELD_SECONDS
                if at < self._held_until:
                    continue
            self.commits += 1
            assert self.commits < 1_000, "the owner is starved"
            write(self.stream, [("k", b"%d" % self.commits)])


class SteadyTime(FakeRuntime):
    """A clock on which another process commits while this one waits."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.passes: Callable[[float], object] = float

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.passes(self.elapsed)


class DistantStore(SlowStore):
    """A store with calls that take so long on a simulated clock, half of it on each way."""

    def __init__(self, inner: MemoryStore, clock: SteadyTime) -> None:
        super().__init__(inner)
        self.inner = inner
        self.clock = clock
        self.beats: Callable[..., PutOutcome] | None = None
        """What does conditional puts instead."""
        self.jitter, self.jitter_part = Random(0), 0.1
        self.misses = 0
        """The looks that found nothing."""

    def __getattr__(self, name: str) -> Any:
        if name == "put_if_absent" and self.beats is not None:
            return self._delayed(self.beats)
        return super().__getattr__(name)

    def _delayed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def way() -> None:
            self.clock.sleep(self.delay_seconds * (0.5 + self.jitter_part * self.jitter.random()))

        def delayed(*args: Any, **options: Any) -> Any:
            way()
            try:
                return call(*args, **options)
            except FileNotFoundError:
                self.misses += 1
                raise
            finally:
                way()

        return delayed


class TakingProcess(SteadyProcess):
    """Commits at fixed times what others offer."""

    def commit_until(self, now: float) -> None:
        while self.due <= now:
            self.due += self.period
            self.stream.log.refresh()
            commit_offers(self.stream)


class Race:
    """A stream of this process, and another process that begins to commit with ``start``."""

    def __init__(self, period: float, seed: int) -> None:
        self.clock = SteadyTime(seed)
        inner = MemoryStore(clock_ms=self.clock.now_ms)
        steady = make_stream(inner, FakeRuntime())
        self.store = DistantStore(inner, self.clock)
        self.store.jitter.seed(seed)
        self.stream = StreamLog(self.store, steady.name, self.clock)
        self.stream.log.maintain = None
        self.stream.view()
        first = self.clock.elapsed + period * (seed % 5 + 1) / 5
        self.other = SteadyProcess(steady, period, first)

    def start(self) -> None:
        self.store.delay_seconds, self.clock.passes = CALL_SECONDS, self.other.commit_until

    def stop(self) -> None:
        self.store.delay_seconds, self.clock.passes = 0.0, float


def appended(period: float, seed: int, jitter: float = 0.1) -> tuple[int, Counter[str]]:
    """Append one offer; return how many commits of the other passed, and the log's operations."""
    race = Race(period, seed)
    batch = offer(race.stream, [("k", b"mine")])
    contended(race.stream)
    race.store.jitter_part = jitter
    race.start()
    assert not group_of(race.stream).append(batch).duplicate
    race.stop()
    stream = reopen(race.stream)
    assert [event for _, event in all_events(stream)].count(b"mine") == 1
    commits = stream.log.reader.span(0, stream.view().version)
    return race.other.commits, Counter(commit.operation for commit in commits)


def verb(snapshot: Snapshot | None) -> Proposal[None]:
    return Body("VERB", domains={"test.verb": "1"}), None


@pytest.mark.parametrize("calls", [2.0, 3.0, 5.0, 20.0])
def test_steady_writer_does_not_starve_an_offer_and_nothing_is_requested(calls: float) -> None:
    for seed in range(10):
        commits, operations = appended(calls * CALL_SECONDS, seed)
        assert commits <= 32
        assert REQUEST not in operations


@pytest.mark.parametrize(("calls", "most"), [(3.0, 0.55), (5.0, 0.85), (20.0, 2.5)])
def test_owner_beside_slow_commits_seldom_looks_in_vain(calls: float, most: float) -> None:
    """On a server that is short of processor time all the other looks are what commits need."""
    race, rounds = Race(period := calls * CALL_SECONDS, seed=1), 40
    race.other = TakingProcess(race.other.stream, period, race.other.due)
    contended(race.stream)
    race.start()
    for n in range(rounds):
        assert not group_of(race.stream).append(offer(race.stream, [("k", b"%d" % n)])).duplicate
    race.stop()
    assert race.store.misses <= most * rounds


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("jitter", [0.0, 0.1])
@pytest.mark.parametrize("calls", [1.2, 1.4, 1.7])
def test_writer_as_fast_as_its_calls_does_not_starve_an_offer(calls: float, jitter: float) -> None:
    """Only luck wins against it; so it must be tried often, and not in step with it."""
    seeds = sized(7, 15)
    found = sorted(appended(calls * CALL_SECONDS, seed, jitter)[0] for seed in range(seeds))
    assert found[seeds // 2] <= 64
    assert found[-1] <= 512


@pytest.mark.parametrize("calls", [1.2, 2.0])
def test_steady_writer_does_not_starve_a_verb(calls: float) -> None:
    for seed in range(10):
        race = Race(calls * CALL_SECONDS, seed)
        race.start()
        race.stream.log.commit(verb)
        assert race.other.commits <= 512


def test_owner_that_loses_every_race_on_an_object_store_gets_its_turn_by_a_late_request() -> None:
    """The other commits before each attempt of an append, which no process of its own pace can."""
    race = Race(period=math.inf, seed=1)
    batch = offer(race.stream, [("k", b"mine")])
    contended(race.stream)
    put = race.store.inner.put_if_absent

    def beaten(key: str, data: bytes, **options: Any) -> PutOutcome:
        steady = race.other.stream
        steady.log.refresh()
        if b'"APPEND"' in data and steady.log._follower.request is None:
            race.other.due = race.clock.elapsed
            race.other.commit_until(race.clock.elapsed)
        return put(key, data, **options)

    race.store.beats = beaten
    race.start()
    assert not group_of(race.stream).append(batch).duplicate
    race.stop()
    version = race.stream.view().version
    commits = [commit.operation for commit in race.stream.log.reader.span(0, version)]
    assert commits.count(REQUEST) == 1
    assert 4 * REQUEST_AFTER <= commits.index(REQUEST) <= 32
