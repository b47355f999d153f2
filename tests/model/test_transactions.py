"""Transactions, plain writes and scales by several processes, in any order, on bad storage.

A call of one process may be interrupted, at any of its storage calls, by a whole call of another;
a write may fail, land unnoticed, or be followed by silence. After every step the ledger compares
what was answered with the log and the events: a transaction is there as a whole or not at all, in
one version, once, whole in every segment and in the same order in all; a key's events stand in
order over all epochs, late transactions after what was there and before anything new; epochs tile
the keys and offsets have no gap; what was decided is final, and nothing else is.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pravega_spark.config import ScalingPolicy, StreamConfiguration
from pravega_spark.engine import epochs, lifecycle
from pravega_spark.engine.append import append
from pravega_spark.engine.store.faults import Fault, FaultyStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import Stream
from pravega_spark.errors import (
    CommitUnknown,
    ScaleConflict,
    StoreError,
    TxnFailed,
    WriterFenced,
)
from pravega_spark.model import KeyRange, TransactionStatus
from pravega_spark.scaling import manual
from pravega_spark.txn import controller, tending
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from tests.model.ledger import Ledger, Write, Written
from tests.support import FakeRuntime, staged

LEASE_MS = 60_000
PROCESSES = 3
MOST_SEGMENTS = 5
NO_ANSWER = (StoreError, CommitUnknown)

KEYS = st.lists(st.sampled_from([None, *(f"k{n}" for n in range(5))]), min_size=1, max_size=4)
WHO, WHICH = st.integers(0, PROCESSES - 1), st.integers(0, 11)
CALLS = ("begin", "flush", "commit", "decide", "abort", "append", "scale", "tend", "open_writer")


@dataclass(frozen=True)
class Trouble:
    """What happens during a call: a fault at a write, silence after it, another's call."""

    fault: Fault | None = None
    at: int = 0
    dark: bool = False
    call: str | None = None
    between: int = 0
    which: int = 0


FINE = Trouble()
FAULTS = [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND, Fault.DELAY, Fault.REFUSE]
TROUBLES = (
    st.just(FINE)
    | st.builds(Trouble, st.sampled_from(FAULTS), st.integers(0, 4), st.booleans())
    | st.builds(
        Trouble,
        call=st.sampled_from(CALLS),
        between=st.integers(0, 9),
        which=WHICH,
    )
)


class Runtime(FakeRuntime):
    """Tokens that are the same in every run: their order decides what is asked for first."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens = itertools.count()

    def token(self) -> str:
        return f"{next(self._tokens):024x}"


@dataclass
class Process:
    """What one process holds: its stream, handles by id, and what it wrote but did not flush."""

    stream: Stream
    writer: TransactionalWriter | None = None
    handles: dict[str, Transaction] = field(default_factory=dict)
    buffers: dict[str, list[Written]] = field(default_factory=dict)


class TransactionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.runtime = Runtime()
        self.inner = MemoryStore(clock_ms=self.runtime.now_ms)
        self.store = FaultyStore(self.inner, self._plan)
        self.numbers, self.ticks = itertools.count(), itertools.count()
        self.trouble, self.calls, self.writes, self.who = FINE, 0, 0, 0
        self.processes = [Process(self._open(self.store)) for _ in range(PROCESSES)]

    def _open(self, store: Any) -> Stream:
        stream = Stream(store, "s/t", self.runtime)
        stream.log.maintain = None
        return stream

    @initialize(segments=st.integers(1, 3))
    def create(self, segments: int) -> None:
        stream = self._open(self.inner)
        lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(1)))
        manual.scale_stream(stream, [0], epochs.split(KeyRange(0.0, 1.0), segments))
        self.ledger = Ledger(stream)
        self.ledger.look()

    # ------------------------------------------------------------------------------- trouble

    @contextlib.contextmanager
    def _during(self, who: int, trouble: Trouble) -> Iterator[None]:
        outer = self.trouble, self.calls, self.writes, self.who
        self.trouble, self.calls, self.writes, self.who = trouble, 0, 0, who
        try:
            yield
        finally:
            self.trouble, self.calls, self.writes, self.who = outer

    def _plan(self, operation: str, key: str) -> Fault | None:
        trouble = self.trouble
        self.calls += 1
        if trouble.call is not None and self.calls == trouble.between + 1:
            other = (self.who + 1) % PROCESSES
            with self._during(other, FINE):
                getattr(self, f"_{trouble.call}")(other, trouble.which)
        if trouble.fault is None:
            return None
        is_write = operation in ("put_if_absent", "put", "delete")
        if is_write:
            self.writes += 1
            if self.writes == trouble.at + 1:
                plain = operation != "put_if_absent" and trouble.fault is Fault.RESEND
                return Fault.LOSE_ANSWER if plain else trouble.fault
        return Fault.REFUSE if trouble.dark and self.writes > trouble.at else None

    # ------------------------------------------------------------------------- calls of the API

    def _name(self, which: int) -> str | None:
        """Return one of the transactions, more often a late one."""
        names = list(self.ledger.books)
        return names[-1 - which % min(len(names), 6)] if names else None

    def _handle(self, who: int, name: str) -> Transaction:
        process = self.processes[who]
        if name not in process.handles:
            process.handles[name] = Transaction(process.stream, name)
        return process.handles[name]

    def _begin(self, who: int, which: int) -> None:
        process = self.processes[who]
        with contextlib.suppress(*NO_ANSWER, WriterFenced):
            if which % 2 and process.writer is not None:
                begun = process.writer.begin_transaction(LEASE_MS // 1_000)
                process.handles[begun.id] = begun
            else:
                times = {"lease_ms": LEASE_MS, "execution_ms": 100 * LEASE_MS}
                name = controller.begin(process.stream, 1, **times).transaction_id
                process.handles[name] = Transaction(process.stream, name)

    def _flush(self, who: int, which: int) -> None:
        name = self._name(which)
        if name is None:
            return
        book, ended = self.ledger.books[name], self.ledger.has_ended(name)
        with contextlib.suppress(*NO_ANSWER):
            handle = self._handle(who, name)
            write = self._written(who, name)
            try:
                handle.flush()
            except TxnFailed:
                assert handle.status is not TransactionStatus.OPEN
                return
            assert not (ended and write.events), "a transaction that has ended took events"
            book.answer(handle)

    def _written(self, who: int, name: str) -> Write:
        """Move what a handle has buffered into the ledger, before the call that stores it."""
        process = self.processes[who]
        write = Write(process.handles[name], process.buffers.pop(name, []))
        if write.events:
            self.ledger.books[name].writes.append(write)
        return write

    def _commit(self, who: int, which: int, *, wait: bool = True) -> None:
        name = self._name(which)
        if name is None:
            return
        book = self.ledger.books[name]
        with contextlib.suppress(*NO_ANSWER):
            handle = self._handle(who, name)
            write = self._written(who, name)
            if book.asked is None:
                book.asked = next(self.ticks)
            try:
                handle.commit(wait=wait)
            except TxnFailed:
                assert handle.status is not TransactionStatus.OPEN
                write.refused = True
                return
            book.answer(handle)
            if book.closed is None:
                book.closed = next(self.ticks)
            found = [TransactionStatus.COMMITTED, TransactionStatus.COMMITTING][: 2 - wait]
            assert Transaction(self._open(self.inner), name).status in found

    def _decide(self, who: int, which: int) -> None:
        self._commit(who, which, wait=False)

    def _abort(self, who: int, which: int) -> None:
        name = self._name(which)
        if name is None:
            return
        book = self.ledger.books[name]
        with contextlib.suppress(*NO_ANSWER):
            handle = self._handle(who, name)
            self.processes[who].buffers.pop(name, None)
            book.blame = True
            try:
                handle.abort()
            except TxnFailed:
                assert handle.status in (TransactionStatus.COMMITTING, TransactionStatus.COMMITTED)
                return
            book.aborted = True
            status = Transaction(self._open(self.inner), name).status
            assert status is TransactionStatus.ABORTED

    def _append(self, who: int, which: int, keys: Sequence[str | None] = ("k0", "k3")) -> None:
        stream = self.processes[who].stream
        events = self._events(keys)
        self.ledger.tried(events, None)
        with contextlib.suppress(*NO_ANSWER):
            version = stream.view(refresh=bool(which % 2)).version
            append(stream, 1, version, staged(stream, events))
            self.ledger.acked(events)

    def _scale(self, who: int, which: int) -> None:
        segments = self._open(self.inner).view().active.segments
        old = segments[which % len(segments)].key_range
        sealed = [segments[which % len(segments)]]
        middle = (old.low + old.high) / 2
        ranges = [KeyRange(old.low, middle), KeyRange(middle, old.high)]
        if len(segments) > 1 and (which >= 6 or len(segments) == MOST_SEGMENTS):
            first = which % (len(segments) - 1)
            sealed = list(segments[first : first + 2])
            ranges = [KeyRange(sealed[0].key_range.low, sealed[1].key_range.high)]
        with contextlib.suppress(*NO_ANSWER, ScaleConflict):
            doomed = [segment.segment_id for segment in sealed]
            manual.scale_stream(self.processes[who].stream, doomed, ranges)

    def _tend(self, who: int, which: int) -> None:
        with contextlib.suppress(*NO_ANSWER):
            tending.tend(self.processes[who].stream)

    def _open_writer(self, who: int, which: int) -> None:
        """The process opens the writer ``w``, which fences the others and ends what they left."""
        with contextlib.suppress(*NO_ANSWER):
            writer = TransactionalWriter(self.processes[who].stream, "w")
            writer._pinger = threading.Thread()  # never started: here leases are never extended
            self.processes[who].writer = writer

    def _events(self, keys: Sequence[str | None]) -> list[Written]:
        return [(key, b"%d" % next(self.numbers)) for key in keys]

    # --------------------------------------------------------------------------------- the rules

    @rule(who=WHO, which=WHICH, trouble=TROUBLES)
    def begin(self, who: int, which: int, trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._begin(who, which)

    @precondition(lambda self: self.ledger.books)
    @rule(who=WHO, which=WHICH, keys=KEYS)
    def write(self, who: int, which: int, keys: list[str | None]) -> None:
        """Events go into a handle's buffer; no storage is asked, but to take up the handle."""
        name = self._name(which)
        if name is None:
            return
        handle = self._handle(who, name)
        events = self._events(keys)
        try:
            for key, data in events:
                handle.write_event(data, key)
        except TxnFailed:
            assert handle.status is not TransactionStatus.OPEN
            return
        self.ledger.tried(events, name)
        self.processes[who].buffers.setdefault(name, []).extend(events)

    @precondition(lambda self: self.ledger.books)
    @rule(who=WHO, which=WHICH, trouble=TROUBLES)
    def flush(self, who: int, which: int, trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._flush(who, which)

    @precondition(lambda self: self.ledger.books)
    @rule(who=WHO, which=WHICH, wait=st.booleans(), trouble=TROUBLES)
    def commit(self, who: int, which: int, wait: bool, trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._commit(who, which, wait=wait)

    @precondition(lambda self: self.ledger.books)
    @rule(who=WHO, which=WHICH, trouble=TROUBLES)
    def abort(self, who: int, which: int, trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._abort(who, which)

    @rule(who=WHO, which=WHICH, keys=KEYS, trouble=TROUBLES)
    def append(self, who: int, which: int, keys: list[str | None], trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._append(who, which, keys)

    @rule(who=WHO, which=WHICH, trouble=TROUBLES)
    def scale(self, who: int, which: int, trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._scale(who, which)

    @rule(who=WHO, trouble=TROUBLES)
    def tend(self, who: int, trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._tend(who, 0)

    @rule(who=WHO, trouble=TROUBLES)
    def open_writer(self, who: int, trouble: Trouble) -> None:
        with self._during(who, trouble):
            self._open_writer(who, 0)

    @rule(who=WHO)
    def restart(self, who: int) -> None:
        """The process dies, with what it had in memory, and another takes its place."""
        self.processes[who] = Process(self._open(self.store))

    @rule(seconds=st.sampled_from([1, 20, 70]))
    def clock(self, seconds: int) -> None:
        self.runtime.sleep(seconds)

    @precondition(lambda self: self.store.delayed)
    @rule()
    def arrive(self) -> None:
        """Writes that were delayed arrive now, or too late."""
        self.store.deliver()

    @invariant()
    def what_was_answered_is_so(self) -> None:
        if hasattr(self, "ledger"):
            self.ledger.look()
            self.ledger.check_orders()

    def teardown(self) -> None:
        """Everything ends: what was promised is there, and nothing is left behind."""
        if not hasattr(self, "ledger"):
            return
        self.store.deliver()
        stream = self._open(self.inner)
        tending.tend(stream)
        self.ledger.look()
        assert all(self.ledger.has_ended(n) for n, b in self.ledger.books.items() if b.closed)
        self.runtime.sleep(LEASE_MS / 1_000 + 1)
        tending.tend(stream)
        view = self.ledger.look()
        assert not view.transactions
        assert self.inner.folders("s/t/transactions") == []
        self.ledger.check_orders()
        self.ledger.check_all()


TransactionMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
test_transactions = TransactionMachine.TestCase
