"""Programs that play: each has a process, and gets another one when it is killed."""

from __future__ import annotations

from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.processes import Host, Process
from tests.sim.world import ROOTS, OpenCall, World


class SimulatedLife(Life):
    """A program in one of its simulated processes."""

    def __init__(self, world: World, process: Process, program: Program) -> None:
        self.world, self.process = world, process
        self.name, self.author, self.lives = process.name, program.name, program.lives
        self.source, self.state, self.made = world.source, program.state, world.made
        self.scope, self.segments = "s", world.segments
        self.package, self.root = process.package, ROOTS[world.is_disk]

    def module(self, path: str) -> Any:
        return self.process.copy.get(path)

    def manager(self) -> Any:
        return self.package.StreamManager(self.root)

    def now(self) -> int:
        return self.world.scheduler.now

    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    def begin(self, operation: str, **arguments: Any) -> OpenCall:
        return self.world.begin(self.process, operation, **arguments)


class Program:
    """A body that runs in a process, and again in a new one after each kill, until it returns."""

    def __init__(self, world: World, name: str, host: Host, body: Body) -> None:
        self.world, self.name, self.host, self.body = world, name, host, body
        self.lives = 0
        self.is_done = False
        self.state: dict[str, Any] = {}
        world.programs.append(self)
        self.begin()

    @property
    def process_name(self) -> str:
        return self.name if self.lives == 1 else f"{self.name}.{self.lives}"

    def begin(self) -> None:
        """Start the next process; without a copy of the package for it the program is over."""
        self.lives += 1

        def main(process: Process) -> None:
            self.body(SimulatedLife(self.world, process, self))
            self.is_done = True

        if self.world.process(self.process_name, self.host, main, self.killed) is None:
            self.is_done = True

    def killed(self) -> None:
        """Be told of a kill; the next life begins somewhat later."""
        if not self.is_done:
            ns = int(self.world.source.choice((0.1, 2.0, 30.0)) * 1e9)
            self.world.scheduler.after(ns, self.begin)
