"""Leases of readers over outages of the storage: late, never early, and not for ever."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field

import pytest

from pravega_spark.errors import ReinitializationRequired, StoreError
from pravega_spark.reader_groups.leases import ReaderLeases
from pravega_spark.reader_groups.reader import EventStreamReader
from tests.harness.fault_plans import Rule
from tests.harness.group_world import OpenGroup, World, drain
from tests.harness.outages import FAIL, HANG, Outages
from tests.harness.spy_store import Spy

LEASE = 30.0
STEP = 2.0
LENGTHS = (0.5, 1.0, 2.0, 10.0)


@dataclass
class Process:
    """A process with one reader, which calls every two seconds while it runs."""

    store: Spy
    reader: EventStreamReader
    found: list[bytes] = field(default_factory=list)
    is_evicted: bool = False

    def step(self) -> None:
        if self.is_evicted:
            return
        try:
            event = self.reader.read_next_event(0).event
        except ReinitializationRequired:
            self.is_evicted = True
        except StoreError:
            pass
        else:
            self.found += [] if event is None else [event.data]


class Readers:
    """Readers of one group in processes of their own, and outages of their storage."""

    def __init__(self, *names: str, lease: float = LEASE) -> None:
        self.world = World(segments=4)
        self.clock = self.world.runtime
        self.world.created()
        self.outages = Outages(self.world.store.inner, self.clock)
        self.processes = {name: self.process(name, lease) for name in names}

    def process(self, name: str, lease: float = LEASE) -> Process:
        store = self.outages.process()
        return Process(store, self.world.group(store=store).create_reader(name, lease=lease))

    def run(self, until: float) -> None:
        """Let the processes make their calls until this time."""
        while self.clock.monotonic() < until:
            for process in list(self.processes.values()):
                process.step()
            self.clock.sleep(STEP)

    def run_for(self, seconds: float) -> None:
        self.run(self.clock.monotonic() + seconds)

    def seconds_to_expiry(self, longest: float = 20 * LEASE) -> float:
        """Return after how long one reader has expired; fail if none has."""
        began = self.clock.monotonic()
        count = len(self.online())
        while len(self.online()) == count:
            assert self.clock.monotonic() - began < longest, "nobody expires"
            self.run_for(STEP)
        return self.clock.monotonic() - began

    def online(self) -> list[str]:
        return self.world.group().online_readers()


@pytest.mark.parametrize("kind", [FAIL, HANG])
@pytest.mark.parametrize("leases", LENGTHS)
def test_no_reader_expires_by_an_outage_and_no_event_is_read_twice(
    leases: float, kind: str
) -> None:
    readers = Readers("a", "b", "c")
    for _ in range(2):
        readers.world.write(100)
        readers.run_for(LEASE / 2)
        readers.run(readers.outages.begin(leases * LEASE, kind))
        assert readers.online() == ["a", "b", "c"]
        readers.run_for(1.5 * LEASE)
        assert readers.online() == ["a", "b", "c"]
    for process in readers.processes.values():
        process.found += drain(process.reader)
    found = sorted(int(event) for p in readers.processes.values() for event in p.found)
    assert found == list(range(readers.world.written))


@pytest.mark.medium
@pytest.mark.parametrize("kind", [FAIL, HANG])
@pytest.mark.parametrize("leases", LENGTHS)
@pytest.mark.parametrize("before", [0.0, 0.6])
def test_reader_that_died_before_an_outage_expires_one_lease_after_it(
    leases: float, kind: str, before: float
) -> None:
    readers = Readers("a", "b")
    readers.run_for(2 * LEASE)
    readers.processes.pop("a")
    readers.run_for(before * LEASE)
    readers.run(readers.outages.begin(leases * LEASE, kind))
    assert readers.online() == ["a", "b"]
    seconds = readers.seconds_to_expiry()
    earliest = LEASE - before * LEASE - 10 if leases < 1 else LEASE - STEP
    assert earliest <= seconds <= LEASE + 5
    assert readers.online() == ["b"]


def test_without_an_outage_a_reader_expires_one_lease_after_its_last_heartbeat() -> None:
    readers = Readers("a", "b")
    readers.run_for(2 * LEASE)
    readers.processes.pop("a")
    assert LEASE * 2 / 3 - STEP <= readers.seconds_to_expiry() <= LEASE + 2


def test_judge_that_came_after_the_outage_expires_nobody_for_a_lease() -> None:
    """It has seen no failure; the heartbeats are as old as those of dead readers."""
    readers = Readers("a", "b")
    readers.run_for(2 * LEASE)
    readers.clock.sleep(3 * LEASE)  # the outage, as far as the storage shows it
    judge = readers.world.group(store=readers.outages.process())
    assert judge.expire_readers() == []
    readers.run_for(LEASE)
    assert judge.expire_readers() == []
    readers.processes.pop("a")
    readers.processes["c"] = readers.process("c")
    assert readers.seconds_to_expiry() <= 2 * LEASE
    assert readers.online() == ["b", "c"]


def test_judge_whose_calls_fail_while_others_extend_their_leases() -> None:
    readers = Readers("a", "b")
    readers.run_for(2 * LEASE)
    judge = readers.processes["b"]
    judge.store.rules.add(Rule(StoreError("down")))
    readers.run_for(LEASE - 11)
    judge.store.rules.clear()
    readers.processes.pop("a")
    assert LEASE - STEP <= readers.seconds_to_expiry() <= LEASE + 5, "counted since its recovery"


def test_reader_that_cannot_write_expires_for_a_judge_that_can() -> None:
    readers = Readers("a", "b")
    readers.run_for(2 * LEASE)
    readers.processes["a"].store.rules.add(Rule(StoreError("down")))
    assert readers.seconds_to_expiry() <= LEASE + 2
    readers.processes["a"].store.rules.clear()
    readers.run_for(5)
    assert readers.processes["a"].is_evicted
    assert readers.online() == ["b"]


@pytest.mark.parametrize("operation", ["put", "list"])
def test_judge_that_can_read_but_not_write_or_list_expires_nobody(operation: str) -> None:
    readers = Readers("a", "b", "c")
    readers.run_for(2 * LEASE)
    for process in readers.processes.values():
        process.store.rules.add(Rule(StoreError("slow down"), operation, "*/_leases*"))
    readers.run_for(3 * LEASE)
    assert readers.online() == ["a", "b", "c"]
    for process in readers.processes.values():
        process.store.rules.clear()
    readers.run_for(2 * LEASE)
    assert readers.online() == ["a", "b", "c"]


@pytest.mark.parametrize("hours", [-24, 1, 24])
def test_jump_of_the_storages_clock_expires_nobody(hours: int) -> None:
    readers = Readers("a", "b")
    readers.run_for(2 * LEASE)
    readers.clock.wall_ms += hours * 3_600_000
    readers.run_for(2 * LEASE)
    assert readers.online() == ["a", "b"]


def test_judge_that_looks_less_than_once_a_lease_expires_a_dead_reader_at_last() -> None:
    readers = Readers("a")
    readers.processes.clear()
    judge: OpenGroup = readers.world.group(store=readers.outages.process())
    looks = 0
    while not judge.expire_readers():
        readers.clock.sleep(1.7 * LEASE)
        looks += 1
    assert looks <= 3


class RareJudge:
    """A dead reader, and a judge that looks less than twice in a lease."""

    def __init__(self) -> None:
        self.readers = Readers("a")
        self.reader = self.readers.processes.pop("a").reader
        self.store = self.readers.outages.process()
        self.group = self.readers.world.group(store=self.store)

    def look_after(self, seconds: float) -> list[str]:
        self.readers.clock.sleep(seconds)
        return self.group.expire_readers()


def test_outage_that_a_rare_judge_met_begins_the_lease_again() -> None:
    judge = RareJudge()
    assert judge.look_after(LEASE + 2) == []
    judge.store.rules.add(Rule(StoreError("down")))
    with pytest.raises(StoreError):
        judge.look_after(LEASE - 5)
    judge.store.rules.clear()
    assert judge.look_after(LEASE - 2) == []
    assert judge.look_after(3) == ["a"]


def test_heartbeat_between_two_looks_of_a_rare_judge_counts() -> None:
    judge = RareJudge()
    assert judge.look_after(LEASE + 2) == []
    judge.readers.clock.sleep(LEASE / 2)
    judge.reader.keep_alive()
    assert judge.look_after(LEASE + 2) == []
    assert judge.look_after(LEASE + 2) == ["a"]


def test_judge_that_was_stopped_itself_expires_nobody() -> None:
    """Its clock ran on; the others' heartbeats stopped with its machine."""
    readers = Readers("a", "b", "c")
    readers.run_for(2 * LEASE)
    readers.clock.sleep(5 * LEASE)
    readers.run_for(2 * LEASE)
    assert readers.online() == ["a", "b", "c"]


def test_reader_hands_out_nothing_after_its_lease_while_the_storage_is_silent() -> None:
    readers = Readers("a")
    readers.world.write(1_000)
    readers.run_for(5)
    process = readers.processes["a"]
    readers.outages.begin(10 * LEASE, FAIL)
    readers.run_for(LEASE + 1)
    handed_out = len(process.found)
    readers.run_for(3 * LEASE)
    assert len(process.found) == handed_out
    with contextlib.suppress(StoreError):
        process.reader.keep_alive()
    readers.run_for(7 * LEASE)
    assert not process.is_evicted
    assert len(process.found) > handed_out


@pytest.mark.parametrize("watched", [0.0, 2.5], ids=["joined before the death", "watched"])
def test_reader_of_a_long_lease_watches_the_storage_for_the_shortest_lease(watched: float) -> None:
    """Its own heartbeats and refreshes are rarer than twice in the other's lease."""
    lease = 5.0
    readers = Readers("a", lease=lease)
    readers.processes["b"] = readers.process("b", lease=60.0)
    began = readers.clock.monotonic()

    def run_until(seconds: float) -> None:
        while readers.clock.monotonic() < seconds:
            for process in readers.processes.values():
                process.step()
            readers.clock.sleep(0.25)

    run_until(began + watched * lease)
    died = readers.clock.monotonic()
    readers.processes.pop("a")
    while readers.online() == ["a", "b"]:
        run_until(readers.clock.monotonic() + 0.25)
    assert readers.clock.monotonic() <= max(began, died - lease / 3) + lease + 1.0 + lease / 3


def test_watch_for_a_lease_costs_no_call_where_the_heartbeats_are_as_frequent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calls() -> int:
        readers = Readers("a", "b", lease=5.0)
        readers.run_for(20)
        readers.processes["b"].store.calls.clear()
        readers.run_for(60)
        return len(readers.processes["b"].store.calls)

    found = calls()
    monkeypatch.setattr(ReaderLeases, "look_due", math.inf)
    assert found == calls()
