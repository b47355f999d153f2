"""Wrong clocks of any host delete nothing young, and retention recovers when they are right."""

from __future__ import annotations

import json

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.clock import confirm_clock
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import SampleRecord, SubscriberRecord, decode_subscriber
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.retention.run import (
    RetentionOptions,
    explain_retention,
    parse_options,
    run_retention,
)
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import events_of, write

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
YEARS = 3_650 * DAY
WRONG = [sign * by for by in (SECOND, HOUR, DAY, YEARS) for sign in (1, -1)]
KEPT_MS = HOUR
OPTIONS = parse_options(grace="1 min", retain="1 min", keep_completed="1 min")


class World:
    """A storage and two hosts, one with a wrong clock; each event holds its true time."""

    def __init__(self, *, policy: RetentionPolicy | None = None, own_clock: bool = True) -> None:
        self.time = FakeRuntime()
        self.storage = FakeRuntime()
        self.right, self.wrong = FakeRuntime(), FakeRuntime()
        self.store = memory(self.storage if own_clock else self.wrong)
        self.store.has_clock = own_clock
        first = self.host(self.right)
        rule = policy or RetentionPolicy.by_time("1 hour")
        lifecycle.create(first, 1, StreamConfiguration(ScalingPolicy.fixed(1), rule))

    def host(self, runtime: FakeRuntime, store: Store | None = None) -> StreamLog:
        stream = StreamLog(store or self.store, "s/t", runtime)
        stream.log.maintain = None
        return stream

    def advance(self, seconds: float) -> None:
        """Let time pass on all clocks."""
        for runtime in (self.time, self.storage, self.right, self.wrong):
            runtime.sleep(seconds)

    def write(self, runtime: FakeRuntime) -> None:
        write(self.host(runtime), [(None, b"%d" % self.time.now_ms())])

    def ages(self) -> list[int]:
        """Return the true ages in ms of the remaining events."""
        events = events_of(self.host(self.right), 0)
        return [self.time.now_ms() - int(event) for _, event in events]

    def run(self, runtime: FakeRuntime, options: RetentionOptions = OPTIONS) -> None:
        """Run retention, and check that no young event was deleted."""
        before = [age for age in self.ages() if age < KEPT_MS]
        run_retention(self.host(runtime), options)
        assert [age for age in self.ages() if age < KEPT_MS] == before


def busy(world: World, runtime: FakeRuntime, minutes: int = 90) -> None:
    for _ in range(minutes // 10):
        world.advance(600)
        world.write(runtime)


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_writer_with_a_wrong_clock_ages_no_events(wrong_ms: int) -> None:
    world = World()
    world.wrong.wall_ms += wrong_ms
    busy(world, world.right)
    busy(world, world.wrong)
    world.run(world.right)
    world.write(world.wrong)
    world.run(world.right)
    busy(world, world.right, 60)
    for _ in range(3):
        world.run(world.right)
        world.advance(1_800)
    world.advance(min(abs(wrong_ms), DAY) / 1_000)  # the longest delay
    world.run(world.right)
    assert world.ages() == [], "retention recovers without help"


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_run_on_a_host_with_a_wrong_clock_is_late_never_early(wrong_ms: int) -> None:
    world = World()
    world.wrong.wall_ms += wrong_ms
    busy(world, world.right, 180)
    world.run(world.wrong)
    world.run(world.right)
    assert max(world.ages()) <= KEPT_MS + 10 * MINUTE
    busy(world, world.right, 60)
    world.run(world.wrong)
    world.run(world.right)
    assert max(world.ages()) <= KEPT_MS + 10 * MINUTE


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_subscriber_of_a_host_with_a_wrong_clock_expires_late_never_early(
    wrong_ms: int,
) -> None:
    world = World(policy=RetentionPolicy.by_consumption())
    world.wrong.wall_ms += wrong_ms
    options = parse_options(sweep=False, expire="2 hours")
    subscribe(world.host(world.wrong), "s/g", 0, protect=True)
    busy(world, world.right)
    publish(world.host(world.wrong), "s/g", 0, world.host(world.right).view().tail)
    busy(world, world.right)
    for host in (world.right, world.wrong):
        run_retention(world.host(host), options)
        assert [s.name for s in world.host(world.right).view().subscribers] == ["s/g"]
    busy(world, world.right, 180)  # the publisher's time delays the expiry by at most its limit
    run_retention(world.host(world.right), options)
    assert world.host(world.right).view().subscribers == []


@pytest.mark.parametrize("ahead_ms", [SECOND, HOUR, DAY, YEARS])
def test_storage_whose_clock_was_ahead_deletes_nothing_young(ahead_ms: int) -> None:
    world = World()
    busy(world, world.right)
    world.storage.wall_ms += ahead_ms
    busy(world, world.right, 30)
    world.run(world.right)
    world.storage.wall_ms -= ahead_ms
    busy(world, world.right, 30)
    world.run(world.right)
    world.advance(2 * 3_600)
    world.run(world.right)
    assert world.ages() == []


@pytest.mark.parametrize("step_ms", [HOUR, DAY, YEARS])
def test_local_clock_that_jumped_ahead_deletes_nothing_until_confirmed(
    step_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(own_clock=False)
    host = world.wrong
    busy(world, host)
    world.run(host)
    host.wall_ms += step_ms
    world.run(host)
    busy(world, host, 30)
    world.run(host)
    assert "nothing explains it" in caplog.text
    confirm_clock(world.store, host)
    world.advance(2 * 3_600)
    world.run(host)
    assert world.ages() == []


@pytest.mark.parametrize("step_ms", [HOUR, DAY, YEARS])
def test_local_clock_that_was_behind_for_a_while_ages_no_events(step_ms: int) -> None:
    world = World(own_clock=False)
    host = world.wrong
    busy(world, host)
    world.run(host)
    host.wall_ms -= step_ms
    busy(world, host, 30)  # without a run in between
    host.wall_ms += step_ms
    busy(world, host, 10)
    world.run(host)
    world.advance(3 * 3_600)
    world.run(host)
    assert world.ages() == []


@pytest.mark.parametrize("ahead_ms", [DAY, YEARS])
def test_log_with_commits_of_the_future_recovers_on_a_local_disk(ahead_ms: int) -> None:
    world = World(own_clock=False)
    host = world.wrong
    busy(world, host)
    host.wall_ms += ahead_ms
    world.write(host)
    host.wall_ms -= ahead_ms
    busy(world, host)
    world.run(host)
    assert max(world.ages()) <= KEPT_MS + 10 * MINUTE
    world.advance(2 * 3_600)
    world.run(host)
    world.advance(24 * 3_600)
    world.run(host)
    world.write(host)
    world.run(host)
    assert len(world.ages()) == 1


@pytest.mark.parametrize("behind_ms", [HOUR, DAY, YEARS])
@pytest.mark.parametrize("own_clock", [True, False])
def test_commit_dated_by_a_clock_that_was_behind_ages_no_events(
    behind_ms: int, own_clock: bool
) -> None:
    world = World(own_clock=own_clock)
    host = world.right if own_clock else world.wrong
    dating = world.storage if own_clock else world.wrong
    world.write(host)
    world.run(host)
    world.advance(23 * 3_600)
    world.write(host)
    dating.wall_ms -= behind_ms
    world.write(host)
    world.advance(600)
    dating.wall_ms += behind_ms
    world.advance(1_800)
    world.run(host)
    assert len(world.ages()) == 2
    world.write(host)
    world.advance(2 * 3_600)
    world.run(host)
    assert world.ages() == []


def test_samples_dated_in_the_future_are_ignored() -> None:
    world = World()
    for _ in range(4):
        busy(world, world.right, 40)
        run_retention(world.host(world.right), RetentionOptions(sweep=False))
    stream = world.host(world.right)
    view = stream.view()
    pinned = {
        f"pravega.sample.{sample.version}": SampleRecord(
            sample.version, sample.time_ms + YEARS, sample.size_bytes, sample.tail
        ).encode()
        for sample in view.samples
    }
    stream.log.commit(lambda _: (Body("TEST", domains=pinned), None))
    world.run(world.right)
    assert max(world.ages()) <= KEPT_MS + 10 * MINUTE


def test_explain_writes_nothing() -> None:
    world = World()
    busy(world, world.right)
    before = {entry.key for entry in world.store.list("")}
    explain_retention(world.host(world.right))
    assert {entry.key for entry in world.store.list("")} == before


def test_subscriber_record_of_an_older_package_is_read() -> None:
    text = json.dumps([3, 10, 4, None, None, 20, ""])
    record = decode_subscriber("s/g", text)
    assert record == SubscriberRecord("s/g", 3, 10, 4, published_ms=20)
    assert record.published_version is None
