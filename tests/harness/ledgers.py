"""Transactional writers copy numbered lines while processes crash and storage loses writes.

One thread, one seed. Before any storage call another process may make a complete step. At any
failpoint the process may be killed, or stall while its successor takes over. Each writer stores
the number of a line as the note of its commit and resumes after ``last_note``. So at the end every
line of every writer exists completely, once and in order.
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
from unittest import mock

from pravega_spark.config.descriptions import TransactionStatus
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log import checkpoint
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
from pravega_spark.scaling import commit as scaling_commit
from pravega_spark.txn import sweeper
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values.segments import KeyRange
from tests.harness import failpoints
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.faulty_store import Fault, FaultyStore
from tests.harness.simulated_kills import Killed
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
_ONCE = {"seal.sealing"}
"""Points that a history reaches about once, so a process must die there more often."""
KEYS = tuple(f"k{n}" for n in range(6))
LINES = 4
NO_ANSWER = (StoreError, CommitUnknown)


class Tokens(FakeRuntime):
    """Tokens that repeat in every run, so that the same seed gives the same calls."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._tokens = itertools.count(1)

    def token(self) -> str:
        return f"token{next(self._tokens):08d}"


@dataclass
class Met:
    """The faults, kills, stalls and outcomes of a simulation."""

    faults: collections.Counter[Fault] = field(default_factory=collections.Counter)
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    stalls: collections.Counter[str] = field(default_factory=collections.Counter)
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    rolled: int = 0

    def __iadd__(self, other: Met) -> Met:
        self.faults += other.faults
        self.kills += other.kills
        self.stalls += other.stalls
        self.outcomes += other.outcomes
        self.rolled += other.rolled
        return self


class Ledgers:
    """One simulation: a stream, its copiers and the disturbances, all from one seed."""

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

    # ------------------------------------------------------------------------ faults and steps

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
        """Kill the process at a failpoint, or stall it while its successor works."""
        likely = self.crashing * (6 if point in _ONCE else 1)
        if not self.busy or self.source.random() >= likely:
            return
        stalled = self.busy[-1]
        if stalled in self.copiers and self.source.random() < 0.5 and len(self.busy) < 3:
            assert isinstance(stalled, Copier)
            self.met.stalls[point] += 1
            successor = self._replace(stalled)
            for _ in range(self.source.randint(1, 4)):
                self._step([successor])
        else:
            self.met.kills[point] += 1
            raise Killed

    def _replace(self, copier: Copier) -> Copier:
        successor = Copier(self, copier.name)
        self.copiers[self.copiers.index(copier)] = successor
        return successor

    def _step(self, copiers: Iterable[Copier]) -> None:
        """Run a step of one of the copiers, or a disturbance."""
        ready = [copier for copier in copiers if not copier.is_done and copier in self.copiers]
        acts = [self._sweep, self._scale, self._append, self._wait]
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
        except Killed:
            if isinstance(actor, Copier) and actor in self.copiers:
                self._replace(actor)
        finally:
            self.busy.remove(actor)

    @contextmanager
    def _failpoints(self) -> Iterator[None]:
        with ExitStack() as stack:
            # The history of the stream would write its state file in a thread, whose calls would
            # draw from the seed and take steps beside this one.
            stack.enter_context(mock.patch.object(checkpoint, "maintain_in_background"))
            for point in POINTS:
                failpoints.register(point, partial(self._at, point))
                stack.callback(failpoints.register, point, None)
            yield

    # ------------------------------------------------------------------------------ disturbances

    def _sweep(self) -> None:
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
        scaling_commit.scale_stream(stream, [segment.segment_id for segment in sealed], ranges)

    # ----------------------------------------------------------------------------------- the run

    def run(self) -> Met:
        self.faulty = self.source.choice((0.0, 0.05, 0.2))
        self.crashing = self.source.choice((0.0, 0.03, 0.1))
        with self._failpoints():
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
        """Begin transactions for sealing to end: decided ones (True) and open ones (False)."""
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
            except (*NO_ANSWER, Killed):
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
        assert len(set(texts)) == len(texts), "an event exists twice"
        for copier in self.copiers:
            for key in KEYS:
                mine = [t for k, t in texts if k == key and t.startswith(f"{copier.name} ")]
                wanted = [f"{copier.name} {line}" for line in range(1, LINES + 1)]
                assert mine == wanted, f"{copier.name} on {key}: {mine}"
        existing = {text for _, text in texts}
        assert {name: name in existing for name in extras} == extras
        assert {data.decode() for data in self.acked} <= existing
        self._check_orders(stream)

    def _check_orders(self, stream: StreamLog) -> None:
        """Check that transactions are contiguous, in the same order in all segments."""
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
            assert held == sorted(held, key=order.index), (
                "segments have transactions in different orders"
            )


class Copier:
    """A process that copies the lines of one writer id, each in one transaction."""

    def __init__(self, world: Ledgers, name: str) -> None:
        self.world = world
        self.name = name
        self.stream = world.open()
        self.writer: TransactionalWriter | None = None
        self.txn: Transaction | None = None
        self.keys_left: list[str] = []
        self.line = 0
        self.is_done = False

    def step(self) -> None:
        """Open the writer, or copy the next line; after an error the next step continues."""
        try:
            if self.writer is None:
                self._open()
            elif self.txn is None:
                self.txn, self.keys_left = self.writer.begin_transaction(lease=10), list(KEYS)
            else:
                self._copy(self.txn)
        except TxnFailed:
            self.txn = None  # aborted (lease expired or successor took over): begin it again
        except WriterFenced:  # by a predecessor that stalled while opening its session
            self.writer = None

    def _open(self) -> None:
        writer = TransactionalWriter(self.stream, self.name)
        writer._leases._thread = threading.Thread()  # never started: extends no lease
        for name, opened in sorted(self.stream.view().transactions.items()):
            if opened.writer_id == self.name:
                self._decide(writer.get_transaction(name), int(writer.last_note or 0) + 1)
        self.line = int(writer.last_note or 0) + 1
        self.writer = writer
        self.is_done = self.line > LINES

    def _decide(self, txn: Transaction, line: int) -> None:
        """Commit or abort a transaction that a predecessor has prepared for its next line."""
        if txn.status is TransactionStatus.PREPARED:
            if self.world.source.random() < 0.5:
                txn.commit(str(line))
            else:
                txn.abort()

    def _copy(self, txn: Transaction) -> None:
        source = self.world.source
        while self.keys_left:
            txn.write_event(f"{self.name} {self.line}", self.keys_left.pop())
            if source.random() < 0.2:
                txn.flush()
            elif not self.keys_left and source.random() < 0.15:
                txn.prepare()
        txn.commit(str(self.line), wait=source.random() < 0.7)
        self.txn = None
        self.line += 1
        self.is_done = self.line > LINES
