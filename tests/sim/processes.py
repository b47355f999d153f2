"""Simulated hosts and processes: clocks that are wrong, kills, pauses and orderly ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.sim.copies import Copy
from tests.sim.scheduler import Scheduler, Task

BEGIN_NS = 1_700_000_000 * 1_000_000_000


@dataclass
class Host:
    """A machine: its wall clock, which is wrong and jumps, and the processes that run on it."""

    name: str
    scheduler: Scheduler
    rate: float = 1.0
    """Seconds of its clocks in a second of true time."""
    offset_ns: int = 0
    """By how much its wall clock is ahead."""
    running: dict[int, Process] = field(default_factory=dict)
    stopped_at: int | None = None
    """What the wall clock shows while it stands still."""

    def wall_ns(self) -> int:
        now = self.scheduler.look()
        if self.stopped_at is not None:
            return self.stopped_at
        return BEGIN_NS + int(now * self.rate) + self.offset_ns

    def boot_ns(self) -> int:
        return 1_000_000_000 + int(self.scheduler.look() * self.rate)

    def true_ns(self, seconds: float) -> int:
        """Return how long a wait of so many of its seconds takes."""
        return max(0, int(seconds * 1e9 / self.rate))

    def stop_clock(self) -> None:
        self.stopped_at = self.wall_ns()

    def start_clock(self) -> None:
        """Let the wall clock go on from where it stood: it is behind from now on."""
        if self.stopped_at is not None:
            stood, self.stopped_at = self.stopped_at, None
            self.offset_ns += stood - self.wall_ns()

    def pids(self) -> dict[int, Process]:
        return self.running


class Process:
    """A simulated process: a copy of the package, and the threads that run in it."""

    def __init__(
        self,
        scheduler: Scheduler,
        host: Host,
        name: str,
        copy: Copy,
        pid: int,
        on_kill: Callable[[], object] = bool,
    ) -> None:
        self.scheduler, self.host, self.name, self.copy, self.pid = scheduler, host, name, copy, pid
        self._on_kill = on_kill
        self.chance = random.Random(scheduler.source.getrandbits(64))
        self.alive, self.is_paused, self.is_asked_to_stop = True, False, False
        self._held: list[Task] = []
        self.tasks = 0
        assert copy.process is None
        copy.process = self
        host.running[pid] = self

    @property
    def package(self) -> Any:
        """The module ``pravega_spark`` of this process."""
        return self.copy.package

    def __repr__(self) -> str:
        return self.name

    def start(self, function: Callable[[], object], name: str) -> Task:
        """Begin a thread."""
        self.tasks += 1
        return self.scheduler.start(self, name, function)

    def start_main(self, function: Callable[[], object]) -> Task:
        """Begin the main thread."""
        task = self.start(function, "main")
        threading: Any = self.copy.stand_ins["threading"]
        threading._active[task.ident] = threading._active.pop(threading._main_thread._ident)
        threading._main_thread._ident = task.ident
        return task

    def may_run(self, task: Task) -> bool:
        """Return whether a thread may go on now; one of a killed process never may."""
        if not self.alive:
            return False
        if self.is_paused:
            self._held.append(task)
            return False
        return True

    def kill(self) -> None:
        """End the process as SIGKILL does: nothing of it runs again, no handler, no ``finally``."""
        if self.alive:
            self._forget()
            self._on_kill()

    def _forget(self) -> None:
        self.alive = False
        self.host.running.pop(self.pid, None)

    def pause(self, ns: int) -> None:
        """Stop all of its threads for a time, as SIGSTOP or a long collection of garbage does."""
        if not self.is_paused and self.alive:
            self.is_paused = True
            self.scheduler.after(ns, self.go_on)

    def go_on(self) -> None:
        """End a pause."""
        self.is_paused = False
        held, self._held = self._held, []
        self.scheduler.resume(held)

    def end(self) -> None:
        """End the process in order, in its main thread: its handlers of the exit run."""
        if not self.alive:
            return
        threading: Any = self.copy.stand_ins["threading"]
        for call in reversed(threading._threading_atexits):
            call()
        for call in reversed(self.copy.at_exit):
            call()
        self._forget()
