"""Random processes that read, process and write: each event has one result, in the order of
keys."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random

import pytest

from pravega_spark.engine.stream import lifecycle
from pravega_spark.errors import IllegalState, ReinitializationRequired, StoreError
from pravega_spark.txn.joint import JointTransaction
from tests.harness.failpoints import at_failpoint
from tests.harness.processing_world import IN, READER_LEASE, ProcessingWorld, Processor
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.simulated_kills import Killed, kill_at_visit
from tests.harness.small_streams import scale
from tests.harness.tiers import sized

POINTS = (
    "positions.prepared",
    "positions.settling",
    "joint.prepared",
    "joint.decided",
    "joint.closed",
    "joint.carried-out",
)


def fail() -> None:
    raise StoreError("no answer")


class Machine:
    """Processes, each with a transaction or none, that the dice move, kill and remove."""

    def __init__(self, seed: int) -> None:
        self.dice = Random()
        self.world = ProcessingWorld(1 + seed % 3, 30)
        self.processes: dict[str, tuple[Processor, JointTransaction | None]] = {}
        self.count = 0

    def join(self) -> None:
        if len(self.processes) < 3:
            self.count += 1
            name = f"p{self.count}"
            self.processes[name] = self.world.processor(name), None

    def step(self, name: str) -> None:
        """Go on with a process: begin, read, abort, or commit with a kill or an error amid it."""
        processor, txn = self.processes[name]
        if txn is None:
            self.processes[name] = processor, processor.begin()
        elif self.dice.random() < 0.5:
            processor.read(txn, self.dice.randint(1, 4))
        elif self.dice.random() < 0.2:
            txn.abort()
            self.processes[name] = processor, None
        else:
            self.commit(txn)
            self.processes[name] = processor, None

    def commit(self, txn: JointTransaction) -> None:
        action = self.dice.choice((kill_at_visit(1), fail, self.remove, lambda: None))
        with at_failpoint(self.dice.choice(POINTS), action):
            try:
                txn.commit()
            except StoreError:
                txn.commit()

    def remove(self) -> None:
        """What others do to the group."""
        world, dice = self.world, self.dice
        group = world.group()
        what = dice.randrange(5)
        if what == 0:
            world.runtime.sleep(dice.uniform(1, READER_LEASE))
            group.expire_readers()
        elif what == 1 and group.online_readers():
            group.reader_offline(dice.choice(group.online_readers()))
        elif what == 2:
            group.reset({})
        elif what == 3:
            world.joint().sweep()
        else:
            segments = world.streams[IN].view().active.segments
            if len(segments) < 4:
                old = dice.choice(segments)
                low, high = old.key_range.low, old.key_range.high
                middle = (low + high) / 2
                scale(world.streams[IN], [old.segment_id], [(low, middle), (middle, high)])
                world.events += world.write(4, IN)

    def run(self, steps: Iterable[Step]) -> None:
        for _, seed in steps:
            self.dice = Random(seed)
            self.join()
            name = self.dice.choice(sorted(self.processes))
            try:
                self.step(name)
                if self.dice.random() < 0.1:
                    self.remove()
            except (Killed, IllegalState, ReinitializationRequired):
                del self.processes[name]  # others go on
            self.world.runtime.sleep(self.dice.uniform(0, 4))


def play(seed: int, steps: Iterable[Step]) -> None:
    machine = Machine(seed)
    machine.run(steps)
    world = machine.world
    lifecycle.seal(world.streams[IN])
    world.finish()
    assert world.processed() == sorted(world.events)
    assert world.group().is_at_end()
    assert world.group().state().prepared == {}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(sized(3, 400)))
def test_each_event_is_processed_once(seed: int) -> None:
    play_shortest(seed, drawn_steps(seed, ("step",), 60), partial(play, seed))
