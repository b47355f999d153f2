"""Worlds of one handle that several threads share, use and end, and what must hold afterwards.

Each call is recorded: when it began and ended, by a counter that all threads share, what it
answered, and the newest commit of the stream when it returned. What was promised is then compared
with the stream as another process reads it: what was durable, when, how often and in which order.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import itertools
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from traceback import format_exception
from typing import Any, ClassVar

from pravega_spark import StreamConfiguration, StreamManager
from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    ObjectClosed,
    StoreError,
)
from tests.harness.dense_threads import DenseThreads

NEVER = 1 << 60
CALLBACK = -1
"""The thread of calls that callbacks make."""
_CHILD_SECONDS = 5.0
_roots = itertools.count()
_COMMIT = re.compile(r"(.*)/_delta_log/(\d{20})\.json")
Errors = tuple[type[BaseException], ...]


class MarkedStore(MemoryStore):
    """A store that knows the newest commit of each table, and fails once where it is told to."""

    def __init__(self) -> None:
        super().__init__(f"threads-{next(_roots)}", clock_ms=lambda: time.time_ns() // 1_000_000)
        self.newest: dict[str, int] = {}
        self.fault: tuple[int, str] | None = None
        self.seconds = 0.0
        """How long a commit takes."""
        self._left = itertools.count()

    def _spoiled(self, key: str) -> str:
        """Return the fault of this call, if it has one; maintenance of the log does not count."""
        fault = self.fault  # which the end of the program takes away
        if fault is None or "/_pravega/" in key or next(self._left) != fault[0]:
            return ""
        return fault[1]

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        if self.seconds:
            time.sleep(self.seconds)
        kind = self._spoiled(key)
        if kind == "refused":
            raise StoreError(f"{key}: refused by the plan.")
        if kind == "lost request":
            return PutOutcome.UNKNOWN
        answer = super().put_if_absent(key, data, **options)
        found = _COMMIT.fullmatch(key)
        if found and answer is PutOutcome.CREATED:
            self.newest[found[1]] = max(int(found[2]), self.newest.get(found[1], 0))
        return PutOutcome.UNKNOWN if kind == "lost answer" else answer

    def put(self, key: str, data: Any, *, durable: bool = True) -> None:
        if self._spoiled(key):
            raise StoreError(f"{key}: refused by the plan.")
        super().put(key, data, durable=durable)


@dataclass(eq=False)
class Call:
    """One call of a program."""

    thread: int
    verb: str
    began: int
    ended: int = NEVER
    mark: int = -1
    """The newest commit when it returned: what it says to be durable is in that or before."""
    key: str | None = None
    values: tuple[Any, ...] = ()
    future: Any = None
    answer: Any = None
    error: BaseException | None = None

    def before(self, other: Call) -> bool:
        return self.ended < other.began

    @property
    def is_good(self) -> bool:
        return self.error is None and self.ended < NEVER

    def __str__(self) -> str:
        found = f" -> {type(self.error).__name__}: {self.error}" if self.error else ""
        values = ",".join(map(str, self.values))
        return f"thread {self.thread} {self.verb}({values}) [{self.began}-{self.ended}]{found}"


@dataclass(frozen=True)
class Place:
    """Where a value lies, and the commit that brought it."""

    segment: int
    offset: int
    version: int


class World:
    """A root with one stream or table, and the handle that the threads share."""

    verbs: ClassVar[tuple[str, ...]]
    errors: ClassVar[Errors] = (ObjectClosed, StoreError, CommitUnknown)
    path = "s/t/events"
    segments = 1

    def __init__(self, seed: int, dense: DenseThreads) -> None:
        self.dense, self.dice = dense, random.Random(seed)
        self.store = MarkedStore()
        self.manager = StreamManager(self.store.url)
        self.manager.create_scope("s")
        self.clock, self.numbers = itertools.count(), itertools.count(1)
        self.calls: list[Call] = []
        self.prepare()
        self.store.seconds = self.dice.choice((0.0, 0.0, 0.001))
        if self.dice.random() < 0.3:
            kind = self.dice.choice(("refused", "refused", "lost request", "lost answer"))
            self.store.fault = self.dice.randrange(8), kind

    def prepare(self) -> None:
        """Create the stream, and open the handle."""
        policy = ScalingPolicy.fixed(self.segments)
        self.manager.create_stream("s/t", StreamConfiguration(policy))
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def recorded(self, thread: int, verb: str) -> Iterator[Call]:
        """Record a call: what it raises, when it began and ended, and the newest commit then."""
        call = Call(thread, verb, next(self.clock))
        self.calls.append(call)
        try:
            yield call
        except BaseException as error:
            call.error = error
        call.mark = self.store.newest.get(self.path, -1)
        call.ended = next(self.clock)
        self.dense.step()

    def call(self, thread: int, verb: str, dice: random.Random) -> None:
        """Make one call, and record what it says."""
        with self.recorded(thread, verb) as call:
            answer = getattr(self, verb)(call, dice)
            call.answer = call.answer if answer is None else answer

    async def wait_in_loop(self, thread: int, dice: random.Random) -> None:
        """Wait for something in a coroutine, where the handle has futures."""

    def value(self) -> str:
        return str(next(self.numbers))

    def finish(self) -> None:
        """End the handle, so that everything has its outcome."""
        self.store.fault = None
        self.call(CALLBACK - 1, "close", self.dice)
        while any(call.ended == NEVER for call in self.calls):  # a callback of the last writes
            time.sleep(0.001)

    def check(self) -> None:
        for call in self.calls:
            wrong = call.error is not None and not isinstance(call.error, self.allowed(call))
            assert not wrong, f"{call} may not raise that: {''.join(format_exception(call.error))}"

    def allowed(self, call: Call) -> Errors:
        own = (IllegalState,) if call.thread == CALLBACK or call.verb == "fail" else ()
        return (*self.errors, *own)

    def of(self, *verbs: str, good: bool = False) -> list[Call]:
        return [c for c in self.calls if c.verb in verbs and (c.is_good or not good)]

    # ------------------------------------------------------------------------------ forked children

    def child_calls(self) -> dict[str, Callable[[], object]]:
        """What a forked child tries with the handle: by the name of the call."""
        return {}

    child_answers: ClassVar[frozenset[str]] = frozenset({"ForkedProcess"})
    """What a child may be told: that, or what needs nothing of the parent's threads."""

    def fork(self, call: Call, dice: random.Random) -> None:
        """Fork while other threads are inside the handle; the child is refused, and never waits."""
        calls = self.child_calls()
        with tempfile.TemporaryFile("w+") as report:
            child = os.fork()
            if child == 0:
                try:
                    sys.settrace(None)
                    threading.settrace(None)
                    self.dense.rng = None
                    faulthandler.dump_traceback_later(_CHILD_SECONDS, exit=True, file=report)
                    for name, function in calls.items():
                        os.write(report.fileno(), f"{name}: {_said(function)}\n".encode())
                finally:
                    os._exit(0)
            deadline = time.monotonic() + 2 * _CHILD_SECONDS
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                assert time.monotonic() < deadline, "a forked child does not end"
                time.sleep(0.001)
            report.seek(0)
            said = report.read()
        found = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
        for name in calls:
            assert found.get(name) in self.child_answers, f"{name} in a forked child: {said}"


def _said(function: Callable[[], object]) -> str:
    try:
        function()
    except BaseException as error:
        return type(error).__name__
    return "None"


Step = tuple[int, str, int]


def own_steps(steps: Sequence[Step]) -> dict[int, list[tuple[str, random.Random]]]:
    """Return the calls of each thread, in its order."""
    found: dict[int, list[tuple[str, random.Random]]] = {}
    for thread, verb, dice in steps:
        found.setdefault(thread, []).append((verb, random.Random(dice)))
    return found


def play_in_threads(world: World, steps: Sequence[Step], seed: int) -> None:
    """Make the calls of each thread in its order, all threads at once."""

    def make_calls(thread: int, own: list[tuple[str, random.Random]]) -> None:
        for verb, dice in own:
            world.call(thread, verb, dice)

    bodies = [partial(make_calls, *item) for item in own_steps(steps).items()]
    world.dense.run(seed, bodies)


def play_in_tasks(world: World, steps: Sequence[Step], seed: int) -> None:
    """Make the calls in tasks of one loop: each in a thread, but waits in the loop."""

    async def make_calls(thread: int, own: list[tuple[str, random.Random]]) -> None:
        for verb, dice in own:
            if verb == "wait":
                await world.wait_in_loop(thread, dice)
            else:
                await asyncio.to_thread(world.call, thread, verb, dice)

    async def make_all() -> None:
        await asyncio.gather(*(make_calls(*item) for item in own_steps(steps).items()))

    world.dense.run(seed, [lambda: asyncio.run(make_all())])


def end_and_check(world: World, seed: int) -> None:
    """End the handle, and compare what was promised with what is stored."""
    world.dense.run(seed, [world.finish])
    world.check()
