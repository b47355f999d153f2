"""Leases that the application, or a thread, extends between two calls for events.

Some ask the membership how long the application was idle, which no public call tells; one looks
in the place of the thread, so that it has looked before the next call.
"""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from pravega_spark.errors import (
    ForkedProcess,
    InvalidConfiguration,
    ObjectClosed,
    ReinitializationRequired,
    StoreError,
)
from pravega_spark.reader_groups import lease_extender
from pravega_spark.reader_groups.lease_extender import LeaseExtender
from pravega_spark.reader_groups.reader import EventStreamReader
from tests.harness.fake_runtime import FakeRuntime, SkippingRuntime
from tests.harness.fault_plans import Rule
from tests.harness.group_world import World, drain, expired_after, membership_of

HEARTBEATS = "s/_reader_groups/g/_leases"
WAIT = 240.0


def read(reader: EventStreamReader) -> bytes:
    found = reader.read_next_event(0).event
    assert found is not None
    data: bytes = found.data
    return data


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_call_that_waits_for_the_storage_is_none_of_the_applications_time() -> None:
    world = World()
    world.write(5)
    reader = world.created().create_reader("a", lease="30 s", max_poll_interval="40 s")
    read(reader)
    idle: list[float] = []

    def hang(operation: str, key: str) -> None:
        world.store.hook = None
        world.runtime.sleep(90)
        idle.append(membership_of(reader).idle_seconds)

    world.runtime.sleep(35)
    world.store.hook = hang
    read(reader)
    assert idle == [0.0]
    assert membership_of(reader).idle_seconds == 0
    world.runtime.sleep(3)
    assert membership_of(reader).idle_seconds == 3
    reader.close()


# ------------------------------------------------------------------------------------- keep_alive


def test_reader_that_keeps_alive_is_not_expired_and_its_event_stays_unprocessed() -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    reader = group.create_reader("a", lease="30 s")
    assert [read(reader), read(reader)] == events[:2]
    world.runtime.sleep(11)
    assert read(reader) == events[2]  # reports that the first two are processed
    other = world.group().create_reader("b")
    for _ in range(12):
        world.runtime.sleep(9)
        reader.keep_alive()
        assert group.expire_readers() == []
        assert drain(other) == []
    world.runtime.sleep(32)
    assert expired_after(group, 31, world.runtime.sleep) == ["a"]
    world.runtime.sleep(4)
    assert drain(other) == events[2:], "keep_alive reported no position"


def test_reader_that_kept_alive_continues_where_it_was() -> None:
    world = World()
    events = world.write(10)
    reader = world.created().create_reader("a", lease="30 s")
    found = [read(reader)]
    for _ in range(10):
        world.runtime.sleep(20)
        reader.keep_alive()
    assert found + drain(reader) == events


def test_keep_alive_is_one_write_and_one_read() -> None:
    world = World()
    world.write(10)
    reader = world.created().create_reader("a")
    drain(reader)
    world.store.calls.clear()
    reader.keep_alive()
    assert [operation for operation, _ in world.store.calls] == ["put", "get"]


def test_keep_alive_after_a_reset_or_an_eviction_raises_and_so_does_the_next_read() -> None:
    world = World()
    world.write(10)
    group = world.created()
    reset = group.create_reader("b")
    read(reset)
    group.reset()
    with pytest.raises(ReinitializationRequired, match="was reset"):
        reset.keep_alive()
    with pytest.raises(ReinitializationRequired):
        reset.read_next_event(0)
    with pytest.raises(ObjectClosed):
        reset.keep_alive()
    expired = group.create_reader("b", lease="20 s")
    read(expired)
    world.runtime.sleep(30)
    assert expired_after(group, 21, world.runtime.sleep) == ["b"]
    with pytest.raises(ReinitializationRequired, match="lease expired"):
        expired.keep_alive()
    successor = world.group().create_reader("b")
    read(successor)
    expired.close()
    assert group.online_readers() == ["b"]
    assert [entry.key for entry in world.store.inner.list(HEARTBEATS)] == [f"{HEARTBEATS}/b.json"]


def test_keep_alive_of_a_deleted_group_raises() -> None:
    world = World()
    world.write(1)
    group = world.created()
    reader = group.create_reader("a")
    read(reader)
    group.delete()
    with pytest.raises(ReinitializationRequired, match="was deleted"):
        reader.keep_alive()


def test_keep_alive_of_a_closed_reader_writes_nothing() -> None:
    world = World()
    reader = world.created().create_reader("a")
    reader.close()
    with pytest.raises(ObjectClosed, match="reader a was closed"):
        reader.keep_alive()
    assert world.store.inner.list(HEARTBEATS) == []


def test_keep_alive_that_fails_extends_nothing() -> None:
    world = World()
    world.write(5)
    reader = world.created().create_reader("a", lease="30 s")
    read(reader)
    for operation, pattern in (("put", "*/_leases/a.json"), ("get", "*_delta_log*")):
        world.runtime.sleep(20)
        world.store.rules.add(Rule(StoreError("down"), operation, pattern))
        with pytest.raises(StoreError, match="down"):
            reader.keep_alive()
    with pytest.raises(StoreError, match="down"):  # its lease has ended
        reader.read_next_event(0)
    world.store.rules.clear()
    read(reader)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_keep_alive_refuses_a_forked_process() -> None:
    reader = World().created().create_reader("a")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            reader.keep_alive()
        except ForkedProcess:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reader.keep_alive()


def test_keep_alive_in_another_thread_while_the_reader_reads() -> None:
    clock = SkippingRuntime()
    world = World(segments=3, clock=clock)
    events = world.write(3_000)
    reader = world.created(refresh=0.1).create_reader("a", lease="6 s")
    found: list[bytes] = []
    done = threading.Event()
    errors: list[BaseException] = []

    def keep_alive() -> None:
        try:
            while not done.is_set():
                reader.keep_alive()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=keep_alive) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(found) < len(events):
        clock.skip(0.05)
        found.append(read(reader))
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(found) == sorted(events)
    reader.close()
    assert world.store.inner.list(HEARTBEATS) == []


@pytest.mark.medium
def test_heartbeats_of_two_threads_never_go_back() -> None:
    clock = SkippingRuntime()
    world = World(clock=clock)
    world.write(2_000)
    reader = world.created(refresh=0.1).create_reader("a", lease="6 s")
    offsets: list[int] = []
    original = world.store.put

    def put(key: str, data: Any, *, durable: bool = True) -> None:
        if "_leases" in key:
            held = json.loads(bytes(data))["held"]
            offsets.extend(offset for *_, offset in held)
        original(key, data, durable=durable)

    world.store.put = put  # type: ignore[method-assign]
    done = threading.Event()

    def keep_alive() -> None:
        while not done.is_set():
            reader.keep_alive()

    thread = threading.Thread(target=keep_alive)
    thread.start()
    for _ in range(2_000):
        clock.skip(0.1)
        read(reader)
    done.set()
    thread.join()
    assert offsets == sorted(offsets)
    assert len(set(offsets)) > 3


# ------------------------------------------------------------------------------ max_poll_interval


@pytest.mark.parametrize(
    ("lease", "interval", "reason"),
    [
        ("30 s", "30 s", "is longer than the reader's lease, 30 s"),
        ("30 s", "2 days", "at most 86400 s"),
        (None, "6 minutes", "a reader without a lease never expires"),
        ("30 s", "soon", "max_poll_interval"),
    ],
)
def test_max_poll_interval_out_of_its_limits_is_refused(
    lease: str | None, interval: str, reason: str
) -> None:
    group = World().created()
    with pytest.raises(InvalidConfiguration, match=reason):
        group.create_reader("a", lease=lease, max_poll_interval=interval)
    assert group.online_readers() == []


@pytest.fixture(autouse=True)
def extender(monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseExtender]:
    """The extender of the test's readers alone."""
    made = LeaseExtender()
    monkeypatch.setattr(lease_extender, "EXTENDER", made)
    yield made
    made._readers.clear()
    made.look()


def extending(world: World) -> tuple[EventStreamReader, threading.Thread]:
    reader = world.created().create_reader("a", lease="30 s", max_poll_interval="2 minutes")
    thread = lease_extender.EXTENDER.thread
    assert thread is not None
    assert thread.daemon
    return reader, thread


def test_thread_ends_with_close() -> None:
    reader, thread = extending(World(clock=SkippingRuntime()))
    reader.close()
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.medium
def test_thread_ends_when_the_reader_is_collected() -> None:
    reader, thread = extending(World(clock=SkippingRuntime()))
    del reader
    gc.collect()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_collector_of_a_reader_waits_for_no_lock(extender: LeaseExtender) -> None:
    reader, thread = extending(World(clock=SkippingRuntime()))
    kept = [reader]
    del reader

    def collect() -> None:
        kept.clear()
        gc.collect()

    collector = threading.Thread(target=collect, daemon=True)
    with extender._lock:  # never free again if the end of the process stops the thread here
        collector.start()
        collector.join(WAIT)
        assert not collector.is_alive()
    thread.join(WAIT)
    assert not thread.is_alive()


def test_thread_ends_when_the_reader_is_evicted() -> None:
    world = World(clock=SkippingRuntime())
    reader, thread = extending(world)
    world.group().reset()
    with pytest.raises(ReinitializationRequired):
        reader.keep_alive()
    with pytest.raises(ReinitializationRequired):
        reader.read_next_event(0)
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.parametrize("options", [{"max_poll_interval": None}, {"lease": None}])
def test_reader_that_no_interval_extends_has_no_thread(
    options: dict[str, Any], extender: LeaseExtender
) -> None:
    World(clock=SkippingRuntime()).created().create_reader("a", **options)
    assert extender.thread is None


@pytest.mark.parametrize(("lease", "seconds"), [("60 s", 300), ("10 minutes", 600)])
def test_default_is_five_minutes_or_the_lease(
    lease: str, seconds: int, monkeypatch: pytest.MonkeyPatch, extender: LeaseExtender
) -> None:
    given: list[float] = []
    monkeypatch.setattr(extender, "add", lambda membership, length: given.append(length))
    World().created().create_reader("a", lease=lease)
    assert given == [seconds]


@pytest.mark.medium
def test_hundred_readers_of_a_process_have_one_thread(extender: LeaseExtender) -> None:
    clock = SkippingRuntime()
    world = World(clock=clock)
    group = world.created()
    before = threading.active_count()
    readers = [group.create_reader(f"r{n}", lease="1 hour") for n in range(100)]
    world.store.calls.clear()
    clock.skip(1_500)
    extender.look()
    wait_for(lambda: world.store.count("get", "_delta_log") > 0)
    assert threading.active_count() <= before + 2, "the extender, and one call in the background"
    assert world.store.count("put", HEARTBEATS) == 100
    assert world.store.count("get", "_delta_log") == 1, "one read of the state proves all of them"
    clock.skip(2_200)
    assert not any(membership_of(one).lease.has_ended(clock.monotonic()) for one in readers)


def test_group_that_hangs_delays_no_other(extender: LeaseExtender) -> None:
    clock = SkippingRuntime()
    worlds = [World(clock=clock) for _ in range(3)]
    readers = [world.created().create_reader("a", lease="1 hour") for world in worlds]
    go_on = threading.Event()

    def hang(operation: str, key: str) -> None:
        if operation == "put":
            go_on.wait(60)

    worlds[0].store.hook = hang
    for _ in range(2):
        for world in worlds:
            world.store.calls.clear()
        clock.skip(1_500)
        extender.look()
        for world in worlds[1:]:
            wait_for(partial(world.store.count, "get", "_delta_log"))
    for reader in readers[1:]:
        assert not membership_of(reader).lease.has_ended(clock.monotonic())
    go_on.set()


class ForegroundRuntime(FakeRuntime):
    """Does the work of the background at once: when it ends counts for what a reader does next."""

    has_threads = True  # the extender takes the readers

    def start(self, function: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function())
        return done


def test_active_reader_costs_no_call_more(extender: LeaseExtender) -> None:
    calls = []
    for interval in (None, "5 minutes"):
        clock = ForegroundRuntime()
        world = World(clock=clock)
        world.write(200)
        reader = world.created().create_reader("a", lease="1 hour", max_poll_interval=interval)
        world.store.calls.clear()
        for _ in range(100):
            clock.sleep(7)
            extender._extend_due()  # what its thread does when it looks
            reader.read_next_event(0)
        calls.append(world.store.count("put", HEARTBEATS))
        reader.close()
    assert calls[0] == calls[1] >= 30


def wait_for_heartbeat(world: World, clock: SkippingRuntime, skipped: float) -> None:
    """Wait until the thread writes a heartbeat."""

    def written() -> int:
        return max(entry.modified_ms or 0 for entry in world.store.inner.list(HEARTBEATS))

    before = written()
    clock.skip(skipped)
    lease_extender.EXTENDER.look()
    wait_for(lambda: written() > before)


def test_keep_alive_begins_the_interval_anew() -> None:
    clock = SkippingRuntime()
    reader = World(clock=clock).created().create_reader("a", max_poll_interval="5 minutes")
    clock.skip(250)
    reader.keep_alive()
    clock.skip(100)
    assert membership_of(reader).idle_seconds < 200


@pytest.mark.slow
def test_thread_extends_the_lease_only_until_the_interval_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = SkippingRuntime()
    world = World(clock=clock)
    world.write(5)
    group = world.created()
    reader = group.create_reader("a", lease="5 s", max_poll_interval="20 s")
    read(reader)
    for _ in range(3):
        wait_for_heartbeat(world, clock, 4)
        assert group.expire_readers() == []
    clock.skip(25)
    lease_extender.EXTENDER.look()
    wait_for(lambda: "its max_poll_interval" in caplog.text)
    assert "reader a of reader group s/g has made no call for 20 s" in caplog.text
    assert expired_after(group, 6, clock.skip) == ["a"]
    with pytest.raises(ReinitializationRequired):
        reader.read_next_event(0)


@pytest.mark.slow
def test_reader_that_calls_again_is_extended_again() -> None:
    clock = SkippingRuntime()
    world = World(clock=clock)
    events = world.write(5)
    group = world.created()
    reader = group.create_reader("a", lease="5 s", max_poll_interval="20 s")
    found = [read(reader)]
    clock.skip(25)
    lease_extender.EXTENDER.look()
    found.append(read(reader))
    for _ in range(2):
        wait_for_heartbeat(world, clock, 4)
    assert group.expire_readers() == []
    assert found + drain(reader) == events


def test_thread_continues_after_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    clock = SkippingRuntime()
    world = World(clock=clock)
    world.write(5)
    reader = world.created().create_reader("a", lease="5 s", max_poll_interval="1 hour")
    read(reader)
    world.store.rules.add(Rule(StoreError("down"), "put", "*/_leases/a.json"))
    clock.skip(3)
    lease_extender.EXTENDER.look()
    wait_for(lambda: "failed to extend the lease of reader a" in caplog.text)
    world.store.rules.clear()
    wait_for_heartbeat(world, clock, 0)


class SilentStorage(FakeRuntime):
    """Once ``is_silent``, work in the background does not end; a thread that spins is told."""

    def __init__(self) -> None:
        super().__init__()
        self.is_silent = False
        self.asked = 0

    def start(self, function: Callable[[], Any]) -> Future[Any]:
        return Future() if self.is_silent else super().start(function)

    def monotonic(self) -> float:
        self.asked += 1
        assert self.asked < 10_000, "the reader asks for the time again and again"
        return super().monotonic()


def test_read_beyond_the_earlier_end_of_an_extended_lease_waits_for_a_silent_refresh() -> None:
    clock = SilentStorage()
    world = World(clock=clock)
    events = world.write(1)
    reader = world.created().create_reader("a", lease="30 s")
    assert read(reader) == events[0]
    clock.is_silent = True
    clock.sleep(20)
    assert reader.read_next_event(timeout=1).event is None  # begins the refresh
    reader.keep_alive()
    clock.sleep(15)
    began, clock.asked = clock.elapsed, 0
    assert reader.read_next_event(timeout=5).event is None
    assert 5 <= clock.elapsed - began < 10
