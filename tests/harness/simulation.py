"""Many writers in one thread on storage that loses and delays writes, reproducible from a seed.

Before any storage call another writer may make a complete commit, and a delayed put may arrive.
At the end the answers that the writers got are compared with the log.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.errors import CommitUnknown, StoreError
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.faulty_store import Fault, FaultyStore
from tests.harness.small_streams import make_stream

LOSSES = (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND, Fault.DELAY)


@dataclass
class History:
    """The tried and acknowledged events of a run, and the log's contents."""

    acked: set[str] = field(default_factory=set)
    tried: set[str] = field(default_factory=set)
    unknown: int = 0
    log: list[tuple[str, int, int]] = field(default_factory=list)
    faults: collections.Counter[Fault] = field(default_factory=collections.Counter)

    @property
    def duplicates(self) -> list[str]:
        counts = collections.Counter(name for name, _, _ in self.log)
        return [name for name, count in counts.items() if count > 1]

    @property
    def lost(self) -> set[str]:
        return self.acked - {name for name, _, _ in self.log}

    def check(self) -> None:
        assert not self.duplicates, f"written twice: {self.duplicates}"
        assert not self.lost, f"acknowledged and lost: {self.lost}"
        assert {name for name, _, _ in self.log} <= self.tried
        ends: dict[int, int] = {}
        numbers: dict[str, list[int]] = {}
        for name, segment, base in self.log:
            assert base == ends.get(segment, 0), f"{name} leaves a gap"
            ends[segment] = base + 1
            writer, _, number = name.partition("-")
            numbers.setdefault(writer, []).append(int(number))
        for writer, found in numbers.items():
            assert found == sorted(found), f"writer {writer} out of order: {found}"


class Simulation:
    """Writers of events ``<writer>-<number>``; with sessions each event is in the log once."""

    def __init__(
        self, seed: int, *, log: type[Log] = Log, sessions: bool, writers: int = 3, events: int = 4
    ) -> None:
        self.source = random.Random(seed)
        self.runtime = FakeRuntime(seed)
        self.store = FaultyStore(MemoryStore(), self._plan)
        self.history = History()
        self.sessions = sessions
        self.events = events
        self.probability = 0.0
        self.busy: list[_Writer] = []
        make_stream(self.store, self.runtime)
        self.writers = [_Writer(self, n, log) for n in range(writers)]

    def _plan(self, operation: str, key: str) -> Fault | StoreError | None:
        if self.source.random() < 0.1:
            self.store.deliver()
        if self.source.random() < 0.15 and 0 < len(self.busy) < 3:
            self._step(w for w in self.writers if w not in self.busy)
        if operation == "put_if_absent" and self.source.random() < self.probability:
            return self.source.choice(LOSSES)
        if self.source.random() < self.probability / 20:
            return StoreError("down")
        return None

    def _step(self, writers: Iterable[_Writer]) -> None:
        ready = [writer for writer in writers if writer.next <= self.events]
        if ready:
            writer = self.source.choice(ready)
            self.busy.append(writer)
            writer.step()
            self.busy.remove(writer)

    def run(self) -> History:
        self.probability = self.source.choice((0.1, 0.4, 0.7))
        for _ in range(2_000):
            if all(writer.next > self.events for writer in self.writers):
                break
            self._step(self.writers)
        self.probability = 0.0
        self.store.deliver()
        reader = Log(self.store.inner, self.writers[0].stream.path, self.runtime).reader
        for commit in reader.forward(0, light=False):
            for add in commit.adds:
                partition = add.partition
                self.history.log.append(
                    (add.path, int(partition["segment_id"]), int(partition["base_offset"]))
                )
        for (_, fault), count in self.store.fired.items():
            self.history.faults[fault] += count
        return self.history


class _Writer:
    def __init__(self, simulation: Simulation, number: int, log: type[Log]) -> None:
        self.simulation = simulation
        self.name = f"w{number}"
        self.next = 1
        self.session = 0
        self.stream = StreamLog(simulation.store, "s/t", simulation.runtime)
        self.stream.log = log(simulation.store, self.stream.path, simulation.runtime)

    def step(self) -> None:
        """Write the next event; after an unknown outcome, read the last number from the log."""
        history = self.simulation.history
        event = f"{self.name}-{self.next}"
        identity = None
        try:
            if self.simulation.sessions:
                if self.session == 0:
                    opened = open_session(self.stream, 1, self.name)
                    self.session, self.next = opened.session, opened.last + 1
                    return
                identity = SessionBatch(self.name, self.session, self.next - 1, self.next)
            history.tried.add(event)
            append(self.stream, 1, 0, [StagedChunk(event, 0, 1, 1, 1, 0, 0, 0)], identity)
        except CommitUnknown:
            history.unknown += 1
            self.session = 0
            if not self.simulation.sessions:
                self.next += 1
            return
        except StoreError:
            return
        history.acked.add(event)
        self.next += 1


# ------------------------------------------------------- wrong commit rules that must be caught


class RetryAtNext(Log):
    """After an unknown outcome, try again at the next free version."""

    def _put(self, version: int, token: str, data: bytes, staged: Sequence[str]) -> bool:
        return self.store.put_if_absent(self.reader.key(version), data) is PutOutcome.CREATED


class CheckNewest(Log):
    """After an unknown outcome, accept only the newest commit as this writer's; else try again."""

    def _put(self, version: int, token: str, data: bytes, staged: Sequence[str]) -> bool:
        if self.store.put_if_absent(self.reader.key(version), data) is PutOutcome.CREATED:
            return True
        newest = None
        for commit in self.reader.forward(version - 1, light=True):
            newest = commit
        return newest is not None and newest.version == version and newest.token == token


class NewToken(Log):
    """Resolve the version's commit by its token, but create a new token for every attempt."""

    def _send(self, body, **options):  # type: ignore[no-untyped-def]
        self.body = body
        return super()._send(body, **options)

    def _put(self, version: int, token: str, data: bytes, staged: Sequence[str]) -> bool:
        key = self.reader.key(version)
        while True:
            if self.store.put_if_absent(key, data) is PutOutcome.CREATED:
                return True
            found = self.reader.commit(version, light=True)
            if found is not None:
                return found.token == token
            token = self.runtime.token()
            data = self.body.encode(token, self.runtime.now_ms())
