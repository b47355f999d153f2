"""Programs that play: each has a process, and gets another one when it is killed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.sim.processes import Host, Process
from tests.sim.world import ROOTS, World

Body = Callable[["Life"], object]


@dataclass
class Life:
    """A program in one of its processes."""

    world: World
    process: Process
    program: Program

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def package(self) -> Any:
        return self.process.package

    @property
    def errors(self) -> Any:
        return self.process.copy.get("errors")

    def manager(self, **options: Any) -> Any:
        """Return a manager of the simulated root."""
        given = None if self.world.is_disk else {"retry_timeout": self.world.retry_timeout}
        return self.package.StreamManager(
            ROOTS[self.world.is_disk], storage_options=given, **options
        )

    def call(self, operation: str, function: Callable[[], Any], **more: Any) -> tuple[bool, Any]:
        return self.world.call(self.process, operation, function, **more)

    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    def until_it_works(self, function: Callable[[], Any], *accepted: str) -> Any:
        """Repeat what is not part of the history until it succeeds; accept errors of some names."""
        while True:
            try:
                return function()
            except self.errors.PravegaSparkError as error:
                self.world.look_at(self.process, error)
                if type(error).__name__ in accepted:
                    return error
                self.wait(1.0)


class Program:
    """A body that runs in a process, and again in a new one after each kill, until it returns."""

    def __init__(self, world: World, name: str, host: Host, body: Body) -> None:
        self.world, self.name, self.host, self.body = world, name, host, body
        self.lives = 0
        self.is_done = False
        self.state: dict[str, Any] = {}
        """What the program knows in its next life, as if it had it from outside."""
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
            self.body(Life(self.world, process, self))
            self._end()

        if self.world.process(self.process_name, self.host, main, self.killed) is None:
            self._end()

    def _end(self) -> None:
        self.is_done = True
        self.world.unfinished -= 1

    def killed(self) -> None:
        """Be told of a kill; the next life begins somewhat later."""
        if not self.is_done:
            ns = int(self.world.source.choice((0.1, 2.0, 30.0)) * 1e9)
            self.world.scheduler.after(ns, self.begin)
