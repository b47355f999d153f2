"""Real readers in simulated processes that crash, over a storage that fails and delays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    PravegaSparkError,
    ReinitializationRequired,
    StoreError,
)
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.reader_groups.repair import release_read
from pravega_spark.retention.run import RetentionOptions, run_retention
from pravega_spark.values.events import Event
from tests.harness.fault_plans import RandomFaults
from tests.harness.faulty_store import FaultyStore
from tests.harness.group_world import World, membership_of
from tests.harness.small_streams import reopen, scale, write
from tests.harness.tiers import sized


class Process:
    """One process with a reader and its own failing storage."""

    def __init__(self, world: World, name: str, dice: Random, share: float) -> None:
        self.world, self.name, self.dice, self.share = world, name, dice, share
        self.reader: EventStreamReader | None = None
        self.lives = 0
        self.open()

    def open(self) -> None:
        plan = RandomFaults(Random(self.dice.randrange(2**32)), self.share)
        self.store = FaultyStore(self.world.store.inner, plan)
        self.group: ReaderGroup = self.world.group(store=self.store)

    def calm(self) -> None:
        self.store.plan = lambda operation, key: None
        self.store.deliver()


class Simulation:
    def __init__(self, seed: int, share: float, acknowledge: str = "next") -> None:
        self.dice = Random(seed)
        segments = self.dice.choice((1, 3))
        self.world = World(segments=segments)
        kept = ScalingPolicy.fixed(segments), RetentionPolicy.by_consumption()
        lifecycle.update(self.world.stream, StreamConfiguration(*kept))
        self.interval, self.share = self.dice.choice((None, "15 s")), share
        self.world.created(
            checkpoint_interval=self.interval, acknowledge=acknowledge, retention="automatic"
        )
        self.processes = [Process(self.world, n, self.dice, share) for n in "abc"]
        self.written: set[bytes] = set()
        self.seen: dict[bytes, list[str]] = {}
        self.unclean: set[str] = set()
        self.met: Counter[str] = Counter()

    def read(self, process: Process, count: int) -> bool:
        """Read some events; return whether there were any."""
        found = False
        try:
            if process.reader is None:
                process.lives += 1
                process.reader = process.group.create_reader(process.name, lease="20 s")
            reader_id = f"{process.name}{process.lives}"
            for _ in range(count):
                read = process.reader.read_next_event(0)
                found |= read.event is not None
                if read.event is not None:
                    self.see(process, read.event)
                elif read.checkpoint is not None:
                    self.mark(process)
        except ReinitializationRequired:
            self.met["evicted"] += 1
            self.unclean.add(reader_id)
            process.reader = None
        except IllegalState:
            self.met["its crashed reader is in the group"] += 1
        except (StoreError, CommitUnknown) as error:
            self.met[type(error).__name__] += 1
        return found

    def see(self, process: Process, event: Event) -> None:
        self.seen.setdefault(event.data, []).append(f"{process.name}{process.lives}")

    def mark(self, process: Process) -> None:
        """Do what the application does at a marker, or before it closes its reader."""

    def kill(self, process: Process) -> None:
        self.unclean.add(f"{process.name}{process.lives}")
        process.reader = None
        process.open()
        self.met["killed"] += 1

    def close(self, process: Process) -> None:
        if process.reader is None:
            return
        reader_id, group = f"{process.name}{process.lives}", self.world.group()
        entry = group.state().readers.get(process.name)
        if entry is None or entry.number != membership_of(process.reader).number:
            self.unclean.add(reader_id)  # evicted before it noticed
        self.mark(process)
        try:
            process.reader.close()
        except (StoreError, CommitUnknown):
            self.unclean.add(reader_id)
        process.reader = None

    def write(self, count: int) -> None:
        self.written.update(self.world.write(count))

    def scale(self) -> None:
        view = self.world.stream.view()
        segments = view.active.segments
        at = self.dice.randrange(len(segments))
        if len(segments) < 5 and self.dice.random() < 0.6:
            low, high = segments[at].key_range.low, segments[at].key_range.high
            middle = (low + high) / 2
            scale(self.world.stream, [segments[at].segment_id], [(low, middle), (middle, high)])
        elif len(segments) > 1:
            a, b = segments[at - 1 : at + 1] if at else segments[:2]
            bounds = [(a.key_range.low, b.key_range.high)]
            scale(self.world.stream, [a.segment_id, b.segment_id], bounds)

    def retain(self, share: float) -> None:
        """Truncate what the group has released, in a process that does nothing else."""
        plan = RandomFaults(Random(self.dice.randrange(2**32)), share)
        store = FaultyStore(self.world.store.inner, plan)
        stream = reopen(self.world.stream, store)
        try:
            stream.view()
            release_read(stream, lambda name: stream)
            done = run_retention(stream, RetentionOptions(sweep=False))
        except PravegaSparkError as error:
            self.met[type(error).__name__] += 1
        else:
            self.met["truncated"] += done.truncated is not None

    def step(self) -> None:
        roll, process = self.dice.random(), self.dice.choice(self.processes)
        if roll < 0.60:
            self.read(process, self.dice.randint(1, 12))
        elif roll < 0.75:
            self.write(self.dice.randint(1, 10))
        elif roll < 0.80:
            self.scale()
        elif roll < 0.83:
            self.kill(process)
        elif roll < 0.86:
            self.close(process)
        elif roll < 0.89:
            try:
                process.group.initiate_checkpoint()
            except PravegaSparkError as error:
                self.met[type(error).__name__] += 1
        elif roll < 0.92:
            process.store.deliver()
        elif roll < 0.95:
            self.retain(self.share)
        self.world.runtime.sleep(self.dice.choice((0.1, 1, 4)))

    def finish(self) -> None:
        for process in self.processes:
            process.calm()
        lifecycle.seal(self.world.stream)
        group = self.world.group()
        for _ in range(80):
            if group.is_at_end():
                break
            self.world.runtime.sleep(4)
            for process in self.processes:
                while self.read(process, 20):
                    pass
        assert group.is_at_end()
        assert set(self.seen) == self.written
        for event, readers in self.seen.items():
            clean = [reader for reader in readers if reader not in self.unclean]
            assert len(clean) <= 1, f"{event!r} was read by {readers}; {clean} were not evicted"
        for process in self.processes:
            self.close(process)
        for _ in range(3):
            self.retain(0.0)
            self.world.runtime.sleep(22)
        assert group.online_readers() == []
        if self.interval is not None:
            view = self.world.stream.view()
            assert view.located_head.is_at_or_after(view.located_tail), "it holds what it has read"


class BufferingSimulation(Simulation):
    """Applications that flush their buffers at markers, and lose them in a crash."""

    def __init__(self, seed: int, share: float) -> None:
        super().__init__(seed, share, "checkpoint")
        self.buffers: dict[str, list[Event]] = {}
        self.last_flushed: dict[str | None, int] = {}

    def write(self, count: int) -> None:
        """Write events of few keys, each with a number that grows."""
        numbers = range(len(self.written), len(self.written) + count)
        events = [(f"k{self.dice.randrange(5)}", str(n).encode()) for n in numbers]
        write(self.world.stream, events)
        self.written.update(data for _, data in events)

    def see(self, process: Process, event: Event) -> None:
        self.buffers.setdefault(f"{process.name}{process.lives}", []).append(event)

    def mark(self, process: Process) -> None:
        """Flush; an event comes after the earlier ones of its key, if it was not flushed before."""
        for event in self.buffers.pop(f"{process.name}{process.lives}", []):
            if event.data not in self.seen:
                last = self.last_flushed.get(event.routing_key, -1)
                assert last < int(event.data), f"{event} was flushed after number {last}"
                self.last_flushed[event.routing_key] = int(event.data)
            super().see(process, event)
            self.met["flushed"] += 1

    def kill(self, process: Process) -> None:
        self.met["lost from a buffer"] += len(
            self.buffers.pop(f"{process.name}{process.lives}", [])
        )
        super().kill(process)


@pytest.mark.long
@pytest.mark.parametrize("kind", [Simulation, BufferingSimulation])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.2])
def test_every_event_is_read_and_again_only_after_an_eviction(
    share: float, kind: Callable[[int, float], Simulation]
) -> None:
    met: Counter[str] = Counter()
    for seed in range(sized(2, 100)):
        simulation = kind(seed, share)
        for _ in range(150):
            simulation.step()
        simulation.finish()
        met.update(simulation.met)
    assert met["killed"]
    assert met["truncated"], "what is read is truncated meanwhile, and nothing else"
    if kind is BufferingSimulation:
        assert met["lost from a buffer"]
    if share == 0.0:
        assert not met["StoreError"]
    elif share > 0.1:
        assert met["StoreError"]
