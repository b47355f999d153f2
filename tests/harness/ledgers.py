"""Transactional writers that copy numbered lines, on storage that loses, delays, and with crashes.

One thread, one seed. Before any call of the storage another process may do a whole step of its
own; at any crash point the process may die, or stall while its successor takes over. Each writer
notes the number of the line with the commit and goes on after ``last_note``, so in the end every
line of every writer is there as a whole, once, in order.
"""

from __future__ import annotations

import collections
import itertools
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.errors import (
    CommitUnknown,
    ScaleConflict,
    StoreError,
    StreamSealed,
    TxnFailed,
    WriterFenced,
)
from pravega_spark.event_reader import EventReader
from pravega_spark.model import KeyRange, TransactionStatus
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.scaling import scale_commit
from pravega_spark.transactions import sweeper
from pravega_spark.transactions.transaction import Transaction
from pravega_spark.transactions.transactional_writer import TransactionalWriter
from tests.harness import failpoints
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.faulty_store import Fault, FaultyStore
from tests.harness.small_streams import staged

LOSSES = (Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND, Fault.DELAY)
POINTS = (
    "txn.staged",
    "txn.deciding",
    "txn.decided",
    "txn.committed",
    "txn.deleting-remains",
    "seal.sealing",
    "commit.before",
    "commit.applied",
)
KEYS = tuple(f"k{n}" for n in range(6))
LINES = 4
NO_ANSWER = (StoreError, CommitUnknown)


class Died(BaseException):
    """The process is gone; whatever it held in memory with it."""


class Tokens(FakeRuntime):
    """Tokens from the seed as well, so that the same seed gives the same calls."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._tokens = itertools.count(1)

    def token(self) -> str:
        return f"token{next(self._tokens):08d}"


@dataclass
class Met:
    """What a simulation ran into."""

    faults: collections.Counter[Fault] = field(default_factory=collections.Counter)
    deaths: collections.Counter[str] = field(default_factory=collections.Counter)
    stalls: collections.Counter[str] = field(default_factory=collections.Counter)
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    rolled: int = 0

    def __iadd__(self, other: Met) -> Met:
        self.faults += other.faults
        self.deaths += other.deaths
        self.stalls += other.stalls
        self.outcomes += other.outcomes
        self.rolled += other.rolled
        return self


class Ledgers:
    """The world of one seed."""

    def __init__(self, seed: int, writers: int = 3) -> None:
        self.source = random.Random(seed)
        self.runtime = Tokens(seed)
        self.store = FaultyStore(memory(self.runtime), self._plan)
        self.met = Met()
        self.faulty = self.crashing = 0.0
        self.busy: list[Copier | Callable[[], None]] = []
        self.plain = itertools.count()
        self.acked: list[bytes] = []
        stream = self.open()
        segments = self.source.randint(1, 3)
        lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(segments)))
        lifecycle.update(stream, StreamConfiguration(ScalingPolicy.by_event_rate(1, minimum=1)))
        self.copiers = [Copier(self, f"w{n}") for n in range(writers)]

    def open(self, *, safe: bool = False) -> StreamLog:
        stream = StreamLog(self.store.inner if safe else self.store, "s/t", self.runtime)
        stream.log.maintain = None
        return stream

    # ----------------------------------------------------------------------------- what happens

    def _plan(self, operation: str, key: str) -> Fault | StoreError | None:
        if self.source.random() < 0.05:
            self.store.deliver()
        if self.source.random() < 0.04 and 0 < len(self.busy) < 3:
            self._step([copier for copier in self.copiers if copier not in self.busy])
        if operation == "put_if_absent" and self.source.random() < self.faulty:
            return self.source.choice(LOSSES)
        if self.source.random() < self.faulty / 20:
            return StoreError("down")
        return None

    def _at(self, point: str) -> None:
        """Let the process that is at a crash point die, or stall while its successor works."""
        if not self.busy or self.source.random() >= self.crashing:
            return
        stalled = self.busy[-1]
        if stalled in self.copiers and self.source.random() < 0.5 and len(self.busy) < 3:
            assert isinstance(stalled, Copier)
            self.met.stalls[point] += 1
            successor = self._replace(stalled)
            for _ in range(self.source.randint(1, 4)):
                self._step([successor])
        else:
            self.met.deaths[point] += 1
            raise Died(point)

    def _replace(self, copier: Copier) -> Copier:
        successor = Copier(self, copier.name)
        self.copiers[self.copiers.index(copier)] = successor
        return successor

    def _step(self, copiers: Iterable[Copier]) -> None:
        """Let one of the copiers take a step, or somebody else disturb them."""
        ready = [copier for copier in copiers if not copier.is_done and copier in self.copiers]
        acts = [self._tend, self._scale, self._append, self._wait]
        if not ready or self.source.random() < 0.25:
            actor: Copier | Callable[[], None] = self.source.choice(acts)
        else:
            actor = self.source.choice(ready)
        self.busy.append(actor)
        try:
            if isinstance(actor, Copier):
                actor.step()
            else:
                actor()
        except (*NO_ANSWER, ScaleConflict, StreamSealed):
            pass
        except Died:
            if isinstance(actor, Copier) and actor in self.copiers:
                self._replace(actor)
        finally:
            self.busy.remove(actor)

    @contextmanager
    def _crash_points(self) -> Iterator[None]:
        with ExitStack() as stack:
            for point in POINTS:
                failpoints.register(point, partial(self._at, point))
                stack.callback(failpoints.register, point, None)
            yield

    # ------------------------------------------------------------------------------- others' acts

    def _tend(self) -> None:
        sweeper.sweep_transactions(self.open())

    def _wait(self) -> None:
        self.runtime.sleep(self.source.choice((1, 15)))

    def _append(self) -> None:
        stream, data = self.open(), b"plain %d" % next(self.plain)
        version = stream.view().version
        append(stream, 1, version, staged(stream, [(self.source.choice(KEYS), data)]))
        self.acked.append(data)

    def _scale(self) -> None:
        stream = self.open()
        segments = stream.view().active.segments
        which = self.source.randrange(len(segments))
        sealed = list(segments[which : which + 1])
        keys = sealed[0].key_range
        middle = (keys.low + keys.high) / 2
        ranges = [KeyRange(keys.low, middle), KeyRange(middle, keys.high)]
        if which and (len(segments) > 4 or self.source.random() < 0.5):
            sealed = list(segments[which - 1 : which + 1])
            ranges = [KeyRange(sealed[0].key_range.low, keys.high)]
        scale_commit.scale_stream(stream, [segment.segment_id for segment in sealed], ranges)

    # ----------------------------------------------------------------------------------- the run

    def run(self) -> Met:
        self.faulty = self.source.choice((0.0, 0.05, 0.2))
        self.crashing = self.source.choice((0.0, 0.03, 0.1))
        with self._crash_points():
            for _ in range(600):
                if all(copier.is_done for copier in self.copiers):
                    break
                self._step(self.copiers)
            self.store.deliver()
            extras = self._extras()
            self._seal()
        self.faulty = 0.0
        self.store.deliver()
        self._check(extras)
        for (_, fault), count in self.store.fired.items():
            self.met.faults[fault] += count
        return self.met

    def _extras(self) -> dict[str, bool]:
        """Begin transactions that sealing finds: decided ones (True) and open ones."""
        found = {}
        writer = TransactionalWriter(self.open(safe=True))
        writer._leases._thread = threading.Thread()
        for n in range(4):
            txn = writer.begin_transaction()
            txn.write_event(f"extra {n}", KEYS[n])
            txn.flush()
            if n % 2:
                txn.commit(wait=False)
            found[f"extra {n}"] = bool(n % 2)
        return found

    def _seal(self) -> None:
        for _ in range(200):
            self.busy.append(self._seal)
            try:
                lifecycle.seal(self.open(), sweeper.end_all_transactions)
                return
            except (*NO_ANSWER, Died):
                continue
            finally:
                self.busy.pop()
        raise AssertionError("the stream is not sealed after 200 attempts")

    # --------------------------------------------------------------------------------- the checks

    def _check(self, extras: dict[str, bool]) -> None:
        stream = self.open(safe=True)
        sweeper.sweep_transactions(stream)
        view = stream.view()
        assert view.record.state is StreamState.SEALED
        assert not view.transactions
        assert stream.store.folders("s/t/transactions") == []
        events = list(EventReader(stream).events())
        texts = [(event.routing_key, event.data.decode()) for event in events]
        assert len(set(texts)) == len(texts), "an event is there twice"
        for copier in self.copiers:
            for key in KEYS:
                mine = [t for k, t in texts if k == key and t.startswith(f"{copier.name} ")]
                wanted = [f"{copier.name} {line}" for line in range(1, LINES + 1)]
                assert mine == wanted, f"{copier.name} on {key}: {mine}"
        there = {text for _, text in texts}
        assert {name: name in there for name in extras} == extras
        assert {data.decode() for data in self.acked} <= there
        self._check_orders(stream)

    def _check_orders(self, stream: StreamLog) -> None:
        """All segments have the transactions in one order, each in one piece."""
        order: list[str] = []
        owners: dict[str, list[str]] = collections.defaultdict(list)
        for commit in stream.log.reader.span(-1, stream.view().version):
            for add in commit.adds:
                folder = add.path.split("/")[1]
                if folder.startswith("t-"):
                    held = owners[add.partition["segment_id"]]
                    if held[-1:] != [folder]:
                        held.append(folder)
                    if folder not in order:
                        order.append(folder)
            self.met.rolled += commit.info["operationParameters"].get("rolled") == "true"
            self.met.outcomes[commit.operation] += 1
        for held in owners.values():
            assert len(set(held)) == len(held), "transactions interleave"
            assert held == sorted(held, key=order.index), "segments differ in the order"


class Copier:
    """A process that copies the lines of one writer id, one transaction a line."""

    def __init__(self, world: Ledgers, name: str) -> None:
        self.world = world
        self.name = name
        self.stream = world.open()
        self.writer: TransactionalWriter | None = None
        self.txn: Transaction | None = None
        self.left: list[str] = []
        self.line = 0
        self.is_done = False

    def step(self) -> None:
        """Open the writer, or copy the next line; after an error the next step goes on."""
        try:
            if self.writer is None:
                self._open()
            elif self.txn is None:
                self.txn, self.left = self.writer.begin_transaction(lease=10), list(KEYS)
            else:
                self._copy(self.txn)
        except TxnFailed:
            self.txn = None  # aborted: its lease ran out, or a successor took over; once more
        except WriterFenced:  # by a predecessor, which had stalled on its way to open
            self.writer = None

    def _open(self) -> None:
        writer = TransactionalWriter(self.stream, self.name)
        writer._leases._thread = threading.Thread()  # never started: leases are not extended here
        for name, opened in sorted(self.stream.view().transactions.items()):
            if opened.writer_id == self.name:
                self._decide(writer.get_transaction(name), int(writer.last_note or 0) + 1)
        self.line = int(writer.last_note or 0) + 1
        self.writer = writer
        self.is_done = self.line > LINES

    def _decide(self, txn: Transaction, line: int) -> None:
        """Commit or abort what a predecessor has prepared, which is its next line."""
        if txn.status is TransactionStatus.PREPARED:
            if self.world.source.random() < 0.5:
                txn.commit(str(line))
            else:
                txn.abort()

    def _copy(self, txn: Transaction) -> None:
        source = self.world.source
        while self.left:
            txn.write_event(f"{self.name} {self.line}", self.left.pop())
            if source.random() < 0.2:
                txn.flush()
            elif not self.left and source.random() < 0.15:
                txn.prepare()
        txn.commit(str(self.line), wait=source.random() < 0.7)
        self.txn = None
        self.line += 1
        self.is_done = self.line > LINES
