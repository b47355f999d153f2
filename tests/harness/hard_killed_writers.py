"""Writers in processes that are killed and stopped at any moment, and what they must leave.

Each writer numbers its events and records in a ledger which of them were acknowledged. Half of the
writers have an id and continue after a kill where the log says; the others begin again under a new
name.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from tests.harness.warm_children import FORKED
from tests.harness.writer_processes import STREAM

KEYS = 3
_IN_FLIGHT = 8
_SECONDS = 240.0
"""A writer that waits longer than this for an acknowledgement has failed."""


def produce(root: str, options: str, name: str, has_id: bool, ledger: str, end: str) -> None:
    """Write until the file ``end`` exists: single events, and each tenth time five atomically."""
    manager = StreamManager(root, storage_options=json.loads(options))
    waiting: deque[tuple[list[int], Callable[[], object]]] = deque()
    with (
        open(ledger, "a", buffering=1, encoding="utf-8") as acknowledged,
        manager.create_writer(STREAM, name if has_id else None) as writer,
    ):
        number = writer.last_event_number if has_id else 0
        calls = 0

        def settle(count: int) -> None:
            while len(waiting) > count:
                numbers, result = waiting.popleft()
                result()
                acknowledged.write("".join(f"{name} {n}\n" for n in numbers))

        while not os.path.exists(end):
            calls += 1
            numbers = list(range(number + 1, number + (6 if calls % 10 == 0 else 2)))
            key = f"{name}-{calls % KEYS}"
            texts = [f"{name} {n} {key} {numbers[0]} {len(numbers)}" for n in numbers]
            if len(texts) > 1:
                several = writer.write_events(texts, key)
                waiting.append((numbers, lambda f=several: f.result(_SECONDS)))  # type: ignore[misc]
            else:
                one = writer.write_event(texts[0], key)
                waiting.append((numbers, lambda f=one: f.result(_SECONDS)))  # type: ignore[misc]
            number = numbers[-1]
            settle(_IN_FLIGHT)
        settle(0)


@dataclass
class Writer:
    """One writer and its present process."""

    index: int
    has_id: bool
    process: ForkServerProcess | None = None
    lives: int = 0

    @property
    def name(self) -> str:
        """The id, or a name of this process alone."""
        return f"w{self.index}" if self.has_id else f"a{self.index}.{self.lives}"


@dataclass
class HardKilledWriters:
    """The writers of one stream, and the kills and stops that a seed gives them."""

    root: str
    options: dict[str, object]
    folder: Path
    count: int
    seed: int
    killed: int = 0
    stopped: int = 0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._writers = [Writer(n, has_id=n % 2 == 0) for n in range(self.count)]
        self._resume: list[tuple[float, int]] = []
        self.manager = StreamManager(self.root, storage_options=self.options)
        self.manager.create_scope("s")
        self.manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))

    @property
    def _end(self) -> Path:
        return self.folder / "end"

    def start(self, writer: Writer) -> None:
        """Start a process that continues a writer."""
        writer.lives += 1
        ledger = self.folder / f"{writer.index}.{writer.lives}.ledger"
        given = (self.root, json.dumps(self.options), writer.name, writer.has_id, str(ledger))
        writer.process = FORKED.Process(target=produce, args=(*given, str(self._end)))
        writer.process.start()

    def run(
        self,
        seconds: float,
        trouble: Callable[[random.Random], None] = lambda chance: None,
        calm: Callable[[], None] = lambda: None,
    ) -> None:
        """Write for so long under kills and stops, which begin when all have written once.

        ``trouble`` is called at each step, and ``calm`` before the writers end.
        """
        try:
            for writer in self._writers:
                self.start(writer)
            self._wait(lambda: len(self.acknowledged_names()) == self.count)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline or not (self.killed and self.stopped):
                self._strike(self._random.choice(self._writers))
                trouble(self._random)
                time.sleep(self._random.random() * 0.3)
                self._continue(time.monotonic())
            calm()
            self._continue(float("inf"))
            self._end.touch()
            self._join()
        finally:
            for writer in self._writers:
                if writer.process is not None:
                    writer.process.kill()
                    writer.process.join()

    def _strike(self, writer: Writer) -> None:
        process = writer.process
        assert process is not None
        assert process.pid is not None
        if process.exitcode is not None:
            self.failures.append(f"{writer.name} ended with {process.exitcode}")
            self.start(writer)
        elif self._random.random() < 0.5:
            process.kill()
            process.join()
            self.killed += 1
            self.start(writer)
        else:
            os.kill(process.pid, signal.SIGSTOP)
            self.stopped += 1
            self._resume.append((time.monotonic() + self._random.random() * 2, process.pid))

    def _continue(self, now: float) -> None:
        for entry in [entry for entry in self._resume if entry[0] <= now]:
            self._resume.remove(entry)
            with contextlib.suppress(ProcessLookupError):  # killed while it was stopped
                os.kill(entry[1], signal.SIGCONT)

    def _join(self) -> None:
        for writer in self._writers:
            assert writer.process is not None
            writer.process.join(_SECONDS)
            if writer.process.exitcode != 0:
                self.failures.append(f"{writer.name} ended with {writer.process.exitcode}")

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            assert time.monotonic() < deadline, "a writer has written nothing"
            time.sleep(0.1)

    # ---------------------------------------------------------------------------------- the proof

    def acknowledged(self) -> list[tuple[str, int]]:
        """Return what was acknowledged; a line that a kill cut off was not recorded."""
        lines: list[str] = []
        for path in self.folder.glob("*.ledger"):
            lines += [x for x in path.read_text().splitlines(keepends=True) if x.endswith("\n")]
        return [(name, int(number)) for name, number in map(str.split, lines)]

    def acknowledged_names(self) -> set[str]:
        """Return the names of those who have been acknowledged anything."""
        return {name for name, _ in self.acknowledged()}

    def check(self, events: Iterable[str]) -> int:
        """Check the events of the stream in its order; return how many were acknowledged."""
        assert self.failures == []
        found = [text.split() for text in events]
        numbers = Counter((name, int(number)) for name, number, *_ in found)
        assert [event for event, times in numbers.items() if times > 1] == [], "once"
        acknowledged = set(self.acknowledged())
        assert sorted(acknowledged - numbers.keys()) == [], "all that were acknowledged"
        last: dict[str, int] = {}
        for _, number, key, *_ in found:
            assert int(number) > last.get(key, 0), f"{key}: {number} after {last[key]}"
            last[key] = int(number)
        newest: dict[str, int] = {}
        for name, n in numbers:
            newest[name] = max(n, newest.get(name, 0))
        expected = {(name, n) for name, most in newest.items() for n in range(1, most + 1)}
        missing = sorted(expected - numbers.keys())
        assert missing == [], "nothing before an event is left out"
        for name, _, _, first, size in found:
            whole = range(int(first), int(first) + int(size))
            assert all((name, n) in numbers for n in whole), f"{name} {first}: nothing in part"
        return len(acknowledged)
