"""Nothing young is deleted, whichever clock is wrong, by how much and when; and it recovers."""

from __future__ import annotations

import json

import pytest

from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.clock_record import confirm_clock
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import SampleRecord, SubscriberRecord, decode_subscriber
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.retention.retention_run import RetentionOptions, act, decide
from tests.harness.engine import FakeRuntime, events_of, memory, write

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
YEARS = 3_650 * DAY
WRONG = [sign * by for by in (SECOND, HOUR, DAY, YEARS) for sign in (1, -1)]
KEPT_MS = HOUR
OPTIONS = RetentionOptions(grace_ms=MINUTE, retain_ms=MINUTE, completed_ms=MINUTE)


class World:
    """A storage, right hosts and a wrong one; every event says when it was really written."""

    def __init__(self, *, policy: RetentionPolicy | None = None, own_clock: bool = True) -> None:
        self.time = FakeRuntime()
        self.storage = FakeRuntime()
        self.right, self.wrong = FakeRuntime(), FakeRuntime()
        self.store = memory(self.storage if own_clock else self.wrong)
        self.store.has_clock = own_clock  # type: ignore[misc]
        first = self.host(self.right)
        rule = policy or RetentionPolicy.by_time("1 hour")
        lifecycle.create(first, 1, StreamConfiguration(ScalingPolicy.fixed(1), rule))

    def host(self, runtime: FakeRuntime, store: Store | None = None) -> StreamLog:
        stream = StreamLog(store or self.store, "s/t", runtime)
        stream.log.maintain = None
        return stream

    def pass_(self, seconds: float) -> None:
        for runtime in (self.time, self.storage, self.right, self.wrong):
            runtime.sleep(seconds)

    def write(self, runtime: FakeRuntime) -> None:
        write(self.host(runtime), [(None, b"%d" % self.time.now_ms())])

    def left(self) -> list[int]:
        """The ages of the events that are left, really."""
        events = events_of(self.host(self.right), 0)
        return [self.time.now_ms() - int(event) for _, event in events]

    def run(self, runtime: FakeRuntime, options: RetentionOptions = OPTIONS) -> None:
        """Run retention, and check that nothing young went."""
        before = [age for age in self.left() if age < KEPT_MS]
        act(self.host(runtime), options)
        assert [age for age in self.left() if age < KEPT_MS] == before


def busy(world: World, runtime: FakeRuntime, minutes: int = 90) -> None:
    for _ in range(minutes // 10):
        world.pass_(600)
        world.write(runtime)


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_a_writer_whose_clock_is_wrong_ages_nobodys_events(wrong_ms: int) -> None:
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
        world.pass_(1_800)
    world.pass_(min(abs(wrong_ms), DAY) / 1_000)  # so late it is at most
    world.run(world.right)
    assert world.left() == [], "and it recovers by itself"


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_retention_on_a_host_whose_clock_is_wrong_is_late_never_early(wrong_ms: int) -> None:
    world = World()
    world.wrong.wall_ms += wrong_ms
    busy(world, world.right, 180)
    world.run(world.wrong)
    world.run(world.right)
    assert max(world.left()) <= KEPT_MS + 10 * MINUTE
    busy(world, world.right, 60)
    world.run(world.wrong)
    world.run(world.right)
    assert max(world.left()) <= KEPT_MS + 10 * MINUTE


@pytest.mark.parametrize("wrong_ms", WRONG)
def test_a_subscriber_whose_publishers_clock_is_wrong_expires_late_never_early(
    wrong_ms: int,
) -> None:
    world = World(policy=RetentionPolicy.by_consumption())
    world.wrong.wall_ms += wrong_ms
    options = RetentionOptions(sweep=False, expire_ms=2 * HOUR)
    subscribe(world.host(world.wrong), "s/g", 0, protect=True)
    busy(world, world.right)
    publish(world.host(world.wrong), "s/g", 0, world.host(world.right).view().tail)
    busy(world, world.right)
    for host in (world.right, world.wrong):
        act(world.host(host), options)
        assert [s.group for s in world.host(world.right).view().subscribers] == ["s/g"]
    busy(world, world.right, 180)  # what a publisher says can delay it by the time of expiry
    act(world.host(world.right), options)
    assert world.host(world.right).view().subscribers == []


@pytest.mark.parametrize("ahead_ms", [SECOND, HOUR, DAY, YEARS])
def test_a_storage_that_is_ahead_for_a_while_deletes_nothing_young(ahead_ms: int) -> None:
    world = World()
    busy(world, world.right)
    world.storage.wall_ms += ahead_ms
    busy(world, world.right, 30)
    world.run(world.right)
    world.storage.wall_ms -= ahead_ms
    busy(world, world.right, 30)
    world.run(world.right)
    world.pass_(2 * 3_600)
    world.run(world.right)
    assert world.left() == []


@pytest.mark.parametrize("step_ms", [HOUR, DAY, YEARS])
def test_on_a_local_disk_a_clock_that_steps_ahead_deletes_nothing_until_confirmed(
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
    world.pass_(2 * 3_600)
    world.run(host)
    assert world.left() == []


@pytest.mark.parametrize("step_ms", [HOUR, DAY, YEARS])
def test_on_a_local_disk_a_clock_that_was_behind_for_a_while_ages_nothing(step_ms: int) -> None:
    world = World(own_clock=False)
    host = world.wrong
    busy(world, host)
    world.run(host)
    host.wall_ms -= step_ms
    busy(world, host, 30)  # no run sees it
    host.wall_ms += step_ms
    busy(world, host, 10)
    world.run(host)
    world.pass_(3 * 3_600)
    world.run(host)
    assert world.left() == []


@pytest.mark.parametrize("ahead_ms", [DAY, YEARS])
def test_on_a_local_disk_a_log_of_the_future_recovers_by_itself(ahead_ms: int) -> None:
    world = World(own_clock=False)
    host = world.wrong
    busy(world, host)
    host.wall_ms += ahead_ms
    world.write(host)
    host.wall_ms -= ahead_ms
    busy(world, host)
    world.run(host)
    assert max(world.left()) <= KEPT_MS + 10 * MINUTE
    world.pass_(2 * 3_600)
    world.run(host)
    world.pass_(24 * 3_600)
    world.run(host)
    world.write(host)
    world.run(host)
    assert len(world.left()) == 1


@pytest.mark.parametrize("behind_ms", [HOUR, DAY, YEARS])
@pytest.mark.parametrize("own_clock", [True, False])
def test_a_commit_dated_while_the_clock_was_behind_ages_nothing(
    behind_ms: int, own_clock: bool
) -> None:
    world = World(own_clock=own_clock)
    host = world.right if own_clock else world.wrong
    dating = world.storage if own_clock else world.wrong
    world.write(host)
    world.run(host)
    world.pass_(23 * 3_600)
    world.write(host)
    dating.wall_ms -= behind_ms
    world.write(host)
    world.pass_(600)
    dating.wall_ms += behind_ms
    world.pass_(1_800)
    world.run(host)
    assert len(world.left()) == 2
    world.write(host)
    world.pass_(2 * 3_600)
    world.run(host)
    assert world.left() == []


def test_samples_of_the_future_are_asked_of_the_log_instead() -> None:
    world = World()
    for _ in range(4):
        busy(world, world.right, 40)
        act(world.host(world.right), RetentionOptions(sweep=False))
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
    assert max(world.left()) <= KEPT_MS + 10 * MINUTE


def test_explaining_asks_and_writes_nothing() -> None:
    world = World()
    busy(world, world.right)
    before = {entry.key for entry in world.store.list("")}
    decide(world.host(world.right))
    assert {entry.key for entry in world.store.list("")} == before


def test_a_subscriber_of_an_older_version_of_the_package_is_read() -> None:
    text = json.dumps([3, 10, 4, None, None, 20, ""])
    record = decode_subscriber("s/g", text)
    assert record == SubscriberRecord("s/g", 3, 10, 4, published_ms=20)
    assert record.published_version is None
