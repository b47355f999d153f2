"""One operating system thread that plays all threads of all simulated processes, by a seed.

A simulated thread is a greenlet. It runs until it waits, or until a point at which the seed lets
another go on. Time is simulated: it passes when all wait, and a little with each look at a clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet

MOST_STEPS = 400_000
MOST_NS = 6 * 3_600 * 1_000_000_000
"""Of simulated time; a seed that needs more hangs."""
_LOOK_NS = 1_000
"""What a look at a clock takes: a loop that waits for a time ends."""


class Hung(Exception):
    """No thread can go on, or the steps or the time are used up, before the run has ended."""


class Task:
    """A thread of a simulated process, or of the world itself."""

    __slots__ = ("frozen", "greenlet", "ident", "is_daemon", "name", "owner", "sleeping", "woken")

    def __init__(self, owner: Any, name: str, ident: int) -> None:
        self.owner, self.name, self.ident = owner, name, ident
        self.greenlet: greenlet | None = None
        self.sleeping = 0
        """The number of the present wait; 0 while it may run."""
        self.woken = False
        self.is_daemon = False

    def __repr__(self) -> str:
        return f"{getattr(self.owner, 'name', 'world')}/{self.name}"


@dataclass
class Pace:
    """How often, and to whom, the threads of a seed yield."""

    at_locks: float = 0.02
    at_failpoints: float = 0.2
    at_starts: float = 0.5
    stays: float = 0.0
    """How likely the next to run is the newest that became ready, in place of any."""

    @classmethod
    def drawn(cls, source: random.Random) -> Pace:
        return cls(
            at_locks=source.choice((0.0, 0.005, 0.05, 0.3)),
            at_failpoints=source.choice((0.05, 0.3, 0.8)),
            at_starts=source.choice((0.1, 0.5)),
            stays=source.choice((0.0, 0.0, 0.5, 0.9)),
        )


@dataclass
class Scheduler:
    """The tasks of one run, the simulated time in ns, and the draws of the seed."""

    source: random.Random
    pace: Pace = field(default_factory=Pace)
    now: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self._hub = getcurrent()
        self._ready: list[Task] = []
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count(1)
        self._waits = itertools.count(1)
        self._idents = itertools.count(1)
        self.current: Task | None = None
        self.failure: BaseException | None = None
        self.ended = False
        self.dropped: list[Task] = []
        """Tasks that never run again; a greenlet that is collected would run its handlers."""

    # What tasks call

    def start(self, owner: Any, name: str, function: Callable[[], object]) -> Task:
        """Begin a task; it runs later."""
        task = Task(owner, name, next(self._idents))

        def run() -> None:
            try:
                function()
            except BaseException as error:  # a fault of the simulator or of a workload
                self.failure = self.failure or error
                self.ended = True

        task.greenlet = greenlet(run, parent=self._hub)
        self.dropped.append(task)
        self._ready.append(task)
        return task

    def at(self, when: int, function: Callable[[], None]) -> None:
        """Call a function, which must not wait, at a time."""
        heapq.heappush(self._due, (max(when, self.now), next(self._order), function))

    def after(self, ns: int, function: Callable[[], None]) -> None:
        """Call a function, which must not wait, after a time."""
        heapq.heappush(self._due, (self.now + ns, next(self._order), function))

    def wait(self, ns: int | None = None) -> bool:
        """Have the present task wait until it is woken (True), or for so long (False)."""
        task = self.task()
        number = task.sleeping = next(self._waits)
        task.woken = False
        if ns is not None:

            def wake() -> None:
                if task.sleeping == number:
                    task.sleeping = 0
                    self._ready.append(task)

            self.after(ns, wake)
        self._hub.switch()
        return task.woken

    def wake(self, task: Task) -> bool:
        """Let a task go on that waits; False if it does not."""
        if not task.sleeping:
            return False
        task.sleeping, task.woken = 0, True
        self._ready.append(task)
        return True

    def step_aside(self) -> None:
        """Let any other task run first."""
        self._ready.append(self.task())
        self._hub.switch()

    def maybe(self, chance: float) -> None:
        """Step aside with this chance."""
        if chance and self.current is not None and self.source.random() < chance:
            self.step_aside()

    def task(self) -> Task:
        if self.current is None:
            raise RuntimeError("only a simulated thread can wait")
        return self.current

    def look(self) -> int:
        """Return the time; a look at it takes some."""
        self.now += _LOOK_NS
        return self.now

    # The run

    def run(self, is_done: Callable[[], bool]) -> None:
        """Run the tasks until the run is done. Raises Hung, and what a task raised."""
        while not (self.ended or is_done()):
            if self._due and (not self._ready or self._due[0][0] <= self.now):
                when, _, function = heapq.heappop(self._due)
                self.now = max(self.now, when)
                function()
                if self.now > MOST_NS:
                    raise Hung(f"after {self.now / 1e9:.0f} simulated seconds\n{self.stacks()}")
                continue
            if not self._ready:
                raise Hung(f"no thread can go on\n{self.stacks()}")
            at = -1
            if not (self.pace.stays and self.source.random() < self.pace.stays):
                at = self.source.randrange(len(self._ready))
            task = self._ready.pop(at)
            if task.owner is not None and not task.owner.may_run(task):
                continue
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Hung(f"after {self.steps} steps\n{self.stacks()}")
            self.current = task
            assert task.greenlet is not None
            task.greenlet.switch()
            self.current = None
        if self.failure is not None:
            raise self.failure

    def resume(self, tasks: list[Task]) -> None:
        """Give back tasks that ``may_run`` held."""
        self._ready.extend(tasks)

    def stacks(self) -> str:
        """Return where the main threads of processes wait, for an error."""
        lines = []
        for task in self.dropped:
            frame = task.greenlet.gr_frame if task.greenlet is not None else None
            if frame is not None and task.name == "main" and task.owner.alive:
                lines.append(f"{task!r} waits at\n{''.join(traceback.format_stack(frame)[-12:])}")
        return "".join(lines)


_present: list[Scheduler] = []
"""The scheduler of the run, of which a process has one at a time."""


def begin(scheduler: Scheduler) -> Scheduler:
    _present[:] = [scheduler]
    return scheduler


def present() -> Scheduler:
    return _present[0]
