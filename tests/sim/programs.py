"""Programs that play: each has a process, and gets another one when it is killed."""

from __future__ import annotations

from typing import Any

from tests.sim.lives import Body, Life
from tests.sim.processes import Host, Process
from tests.sim.workloads import restarts
from tests.sim.world import ROOTS, OpenCall, World


class SimulatedLife(Life):
    """A program in one of its simulated processes."""

    def __init__(self, world: World, process: Process, program: Program) -> None:
        self.world, self.process = world, process
        self.name, self.author, self.lives = process.name, program.name, program.lives
        self.source, self.state, self.made = world.source, program.state, world.made
        self.scope, self.segments = "s", world.segments
        self.package, self.root = process.package, ROOTS[world.is_disk]
        self.group_retention, self.changes_groups = world.group_retention, True
        self.has_long_waits = world.has_long_waits
        self.retry_timeout = world.retry_timeout

    def change(self) -> None:
        """Come back with other settings than the life before: of this process, and of all."""
        draw = self.source
        self.retry_timeout = draw.choice(("60 s", "5 s", "1 s"))
        self.lease = draw.choice(("5 s", "10 s", "30 s"))
        restarts.change(self)

    def module(self, path: str) -> Any:
        return self.process.copy.get(path)

    def manager(self) -> Any:
        given = None if self.world.is_disk else {"retry_timeout": self.retry_timeout}
        return self.package.StreamManager(self.root, storage_options=given)

    def place_of(self, copy: str) -> str:
        return f"{self.root}-{copy}"

    def now(self) -> int:
        return self.world.scheduler.now

    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)
        self._go_on()

    def _go_on(self) -> None:
        if self.process.is_asked_to_stop:
            raise Stops

    def begin(self, operation: str, **arguments: Any) -> OpenCall:
        self._go_on()
        return self.world.begin(self.process, operation, **arguments)

    def look_at(self, error: BaseException) -> bool:
        self.world.look_at(self.process, error)
        return True

    def strike_soon(self, seconds: float = 2.0) -> bool:
        return self.world.strike_soon(self.process, seconds)

    def pause_soon(self) -> bool:
        return self.world.pause_soon(self.process)

    def cut_off(self, seconds: float) -> bool:
        return self.world.cut_off(self.process, seconds)

    def stop_at(self, failpoint: str, passing: int = 0, seconds: float = 200.0) -> bool:
        return self.world.stop_at(self.process, failpoint, passing, seconds)

    def lose_commit(self, how: str) -> bool:
        return self.world.lose_commit(self.process, how)

    def meanwhile(self, failpoint: str, seconds: float = 60.0) -> bool:
        until = self.now() + int(seconds * 1e9)
        while not self.world.has_stopped(failpoint):
            if self.now() > until:
                return False
            self.wait(seconds / 600)
        return True

    def go_on(self, failpoint: str) -> bool:
        return self.world.go_on(failpoint)


class Stops(BaseException):
    """A process ends in order, between two calls, before its program has come to its end."""


class Program:
    """A body that runs in a process, and again in a new one after each kill, until it returns."""

    def __init__(self, world: World, name: str, host: Host, body: Body) -> None:
        self.world, self.name, self.host, self.body = world, name, host, body
        self.lives = 0
        self.is_done = False
        self.state: dict[str, Any] = {}
        world.programs.append(self)
        world.unfinished += 1
        self.begin()

    @property
    def process_name(self) -> str:
        return self.name if self.lives == 1 else f"{self.name}.{self.lives}"

    def begin(self) -> None:
        """Start the next process; without a copy of the package for it the program is over."""
        self.lives += 1

        def main(process: Process) -> None:
            life = SimulatedLife(self.world, process, self)
            try:
                if self.lives > 1 and self.world.has(f"change of {process.name}"):
                    life.change()
                self.body(life)
            except Stops:
                process.end()
                self.over()
            else:
                self._end()

        if self.world.process(self.process_name, self.host, main, self.over) is None:
            self._end()

    def _end(self) -> None:
        self.is_done = True
        self.world.unfinished -= 1

    def over(self) -> None:
        """Be told that the process has ended; the next life begins somewhat later."""
        if not self.is_done:
            ns = int(self.world.source.choice((0.1, 2.0, 30.0)) * 1e9)
            self.world.scheduler.after(ns, self.begin)
