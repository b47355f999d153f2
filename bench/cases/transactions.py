"""Transactions: a small one from begin to visible, and what a commit costs when there is more."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import count

from bench.cases.append import EVENT
from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.floor import _put
from bench.harness.measure import interleave, percentile, ratio, timed
from bench.harness.registry import benchmark
from pravega_spark import KeyRange
from pravega_spark.engine.chunks.chunk import StagedChunk, stage
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.transactions.manifests import chunk_folder, folder
from pravega_spark.transactions.transaction import Transaction
from pravega_spark.transactions.transactional_writer import TransactionalWriter

EVENTS = 100
KEYS = [f"key-{number}" for number in range(EVENTS)]
SEGMENTS = 4
FLUSH_ROWS = 335_544
"""Events of 100 bytes that fill a flush of a transaction's handle, 32 MiB."""


def write(transaction: Transaction) -> Transaction:
    """Write 100 events of as many keys."""
    for key in KEYS:
        transaction.write_event(EVENT, key)
    return transaction


class Floor:
    """The files of one small transaction: the same writes, links, folders and fsyncs."""

    def __init__(self, path: str, stream: StreamLog, transaction: Transaction) -> None:
        store, view = stream.store, stream.view()
        found = view.outcome(transaction.id)
        assert found is not None
        commit = stream.log.reader.commit(found.version, light=False)
        assert commit is not None
        self._commits = [store.get(stream.log.reader.key(found.version - n)) for n in (1, 0)]
        self._chunks = [store.get(f"{stream.path}/{add.path}") for add in commit.adds]
        self._mark = store.get(f"{folder(stream, transaction.id)}/{0:08d}.json")
        self._path = path
        self._numbers = count()
        for name in ("log", "data", "marks"):
            os.makedirs(f"{path}/{name}")

    def __call__(self) -> None:
        number = next(self._numbers)
        path = self._path
        _put(f"{path}/log", f"{path}/log/{number}-begin", self._commits[0])
        self._in_folder(f"{path}/data", number, self._chunks)
        self._in_folder(f"{path}/marks", number, [self._mark])
        _put(f"{path}/log", f"{path}/log/{number}-commit", self._commits[1])

    def _in_folder(self, parent: str, number: int, files: list[bytes]) -> None:
        made = f"{parent}/{number}"
        os.mkdir(made)
        for place, data in enumerate(files):
            _put(made, f"{made}/{place}", data)
        descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(descriptor)
        os.close(descriptor)


@benchmark()
def small_transaction(context: Context) -> Iterator[Figure]:
    """Begin, 100 events in 4 segments, commit: until the events are visible."""
    name = context.create("transactions", SEGMENTS)
    stream = open_stream(context.root, name)
    seen: list[float] = []
    with context.manager.create_transactional_writer(name) as writer:

        def transact() -> Transaction:
            with writer.begin_transaction() as transaction:
                return write(transaction)

        for _ in range(context.size(100, 5)):
            last = transact()
        floor = Floor(str(context.folder / "floor-transactions"), stream, last)
        calls = context.size(10, 3)

        def ours() -> float:
            found = [1e3 * timed(transact) for _ in range(calls)]
            seen.extend(found)
            return statistics.median(found)

        def bare() -> float:
            return 1e3 * statistics.median(timed(floor) for _ in range(calls))

        found = interleave(context.size(30, 2), {"ours": ours, "floor": bare})
    yield Figure(
        f"begin + {EVENTS} events in {SEGMENTS} segments + commit, visible, p50",
        statistics.median(found["ours"]),
        "ms",
        "the same writes, links, folders and fsyncs, one after the other",
        statistics.median(found["floor"]),
        ratio(found["ours"], found["floor"]),
        note=f"p99 {percentile(seen, 0.99):.1f} ms",
        limited_by="three rounds to the disk after each other (begin, chunks, mark and commit) of "
        "some twenty fsyncs; the chunks' overlap",
    ).within(at_most=12.0)


@benchmark()
def large_commit(context: Context) -> Iterator[Figure]:
    """The call of commit() alone, of a transaction whose events were all flushed before."""
    name = context.create("large", SEGMENTS)
    stream = open_stream(context.root, name)
    flushes = context.size(32, 2)
    rows = context.size(FLUSH_ROWS, 1_000)
    originals = _flush(stream, rows)
    sides: dict[str, Callable[[], float]] = {}
    with context.manager.create_transactional_writer(name) as writer:

        def commit(prepare: Callable[[Transaction], object]) -> float:
            transaction = writer.begin_transaction()
            prepare(transaction)
            return 1e3 * timed(transaction.commit)

        def fill(transaction: Transaction) -> None:
            for number in range(flushes):
                transaction.add(_linked(context, stream, transaction, originals, number))

        sides["large"] = lambda: commit(fill)
        sides["small"] = lambda: commit(lambda transaction: write(transaction).flush())
        interleave(2, sides)
        found = interleave(context.size(25, 3), sides)
    gigabytes = flushes * rows * 100 / 1e9
    yield Figure(
        f"commit of a transaction of {gigabytes:.1f} GB in {flushes * SEGMENTS} chunks",
        statistics.median(found["large"]),
        "ms",
        f"commit of a transaction of {EVENTS} events",
        statistics.median(found["small"]),
        ratio(found["large"], found["small"]),
        note="commit() alone: no event is read or written by it",
        limited_by="one line of JSON for each chunk, made, written and fsynced once; a chunk "
        "holds what a handle flushes at once",
    ).within(ratio_at_most=1.5)


def _flush(stream: StreamLog, rows: int) -> list[StagedChunk]:
    """Stage what one full flush of a handle holds, once."""
    view = stream.view()
    return [
        chunk
        for segment_id, part in split(table(rows), Router(view.active.segments))
        for chunk in stage(
            stream.store, stream.path, view.version, segment_id, part, name=f"original-{segment_id}"
        )
    ]


def _linked(
    context: Context,
    stream: StreamLog,
    transaction: Transaction,
    originals: list[StagedChunk],
    number: int,
) -> list[StagedChunk]:
    """Return the chunks under names of their own in the transaction's folder."""
    target = f"data/{chunk_folder(transaction.id)}"
    os.makedirs(f"{context.root}/{stream.path}/{target}", exist_ok=True)
    linked = []
    for chunk in originals:
        path = f"{target}/{number}-{chunk.segment_id}.parquet"
        os.link(
            f"{context.root}/{stream.path}/{chunk.path}", f"{context.root}/{stream.path}/{path}"
        )
        linked.append(replace(chunk, path=path))
    return linked


@benchmark()
def waiting_transactions(context: Context) -> Iterator[Figure]:
    """commit() of the last one, which carries out all that were decided and wait."""
    name = context.create("waiting", SEGMENTS)
    many = context.size(100, 10)
    with context.manager.create_transactional_writer(name) as writer:

        def carried(waiting: int) -> float:
            transactions = [_flushed(writer) for _ in range(waiting)]
            for transaction in transactions[:-1]:
                transaction.commit(wait=False)
            return 1e3 * timed(transactions[-1].commit)

        sides = {"many": lambda: carried(many), "one": lambda: carried(1)}
        interleave(1, sides)
        found = interleave(context.size(15, 2), sides)
    yield Figure(
        f"one commit with {many} waiting transactions of {SEGMENTS} chunks each",
        statistics.median(found["many"]),
        "ms",
        "one commit with a single one",
        statistics.median(found["one"]),
        ratio(found["many"], found["one"]),
        note="both: commit() of the last, its events flushed before",
        limited_by="Python for each transaction and chunk of the one commit: the outcome, the "
        "line of history, four lines of JSON",
    ).within(ratio_at_most=3.0)


@benchmark()
def commit_among_many(context: Context) -> Iterator[Figure]:
    """commit() while many other transactions are open, of which nothing is decided."""
    many, few = context.size(400, 20), context.size(40, 2)
    with ExitStack() as opened:

        def side(others: int) -> Callable[[], float]:
            name = context.create(f"among-{others}", SEGMENTS)
            writer = opened.enter_context(context.manager.create_transactional_writer(name))
            for _ in range(others):
                writer.begin_transaction()
            return lambda: 1e3 * timed(_flushed(writer).commit)

        sides = {"many": side(many), "few": side(few)}
        interleave(1, sides)
        found = interleave(context.size(25, 2), sides)
    yield Figure(
        f"commit of a small transaction while {many} others are open",
        statistics.median(found["many"]),
        "ms",
        f"the same while {few} others are open",
        statistics.median(found["few"]),
        ratio(found["many"], found["few"]),
        note="its events flushed before; both look at the oldest ones and announce themselves",
        limited_by="the fsyncs of an announcement, a mark and a commit",
    ).within(ratio_at_most=1.5)


def _flushed(writer: TransactionalWriter) -> Transaction:
    transaction = writer.begin_transaction()
    write(transaction).flush()
    return transaction


@benchmark()
def rolling_commit(context: Context) -> Iterator[Figure]:
    """commit() of a transaction whose segments were split since it began."""
    name = context.create("rolling", SEGMENTS)
    manager = context.manager
    with manager.create_transactional_writer(name) as writer:

        def rolled() -> float:
            transaction = _flushed(writer)
            first, second, *_ = manager.segments(name)
            low, middle = first.key_range.low, first.key_range.high
            high, quarter = second.key_range.high, (first.key_range.low + middle) / 2
            halves = [KeyRange(low, quarter), KeyRange(quarter, high)]
            manager.scale_stream(name, [first.segment_id, second.segment_id], halves)
            seconds = timed(transaction.commit)
            old = [s.segment_id for s in manager.segments(name)[:2]]
            manager.scale_stream(name, old, [KeyRange(low, middle), KeyRange(middle, high)])
            return 1e3 * seconds

        def plain() -> float:
            return 1e3 * timed(_flushed(writer).commit)

        sides = {"rolled": rolled, "plain": plain}
        interleave(2, sides)
        found = interleave(context.size(40, 3), sides)
    yield Figure(
        "rolling commit of one small transaction",
        statistics.median(found["rolled"]),
        "ms",
        "its commit without a scale in between",
        statistics.median(found["plain"]),
        ratio(found["rolled"], found["plain"]),
        note="the events were flushed before",
        limited_by="the mark's and the commit's fsyncs; two more epochs in the commit",
    ).within(at_most=25.0)
