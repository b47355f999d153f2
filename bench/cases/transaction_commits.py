"""The commit of a transaction: large, with others waiting, among many open ones, after a scale."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from unittest.mock import patch

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, timed
from bench.harness.registry import benchmark
from bench.harness.small_transaction import EVENTS, SEGMENTS, flushed, write_events
from pravega_spark import KeyRange
from pravega_spark.engine.chunk_paths import chunk_folder, version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.txn import owed
from pravega_spark.txn.transaction import Transaction, add_staged

FLUSH_ROWS = 335_544
"""Events of 100 bytes that a transaction flushes at once, 32 MiB."""


@benchmark()
def large_commit(context: Context) -> Iterator[Figure]:
    """Only the call of commit(), on a transaction whose events are all flushed."""
    name = context.create("large", SEGMENTS)
    stream = open_stream(context.root, name)
    flushes = context.size(32, 2)
    rows = context.size(FLUSH_ROWS, 1_000)
    originals = _stage_flush(stream, rows)
    with context.manager.create_transactional_writer(name) as writer:

        def commit(prepare: Callable[[Transaction], object]) -> float:
            transaction = writer.begin_transaction()
            prepare(transaction)
            return 1e3 * timed(transaction.commit)

        def fill(transaction: Transaction) -> None:
            for number in range(flushes):
                add_staged(transaction, _link(context, stream, transaction, originals, number))

        sides: dict[str, Side] = {
            "large": lambda: commit(fill),
            "small": lambda: commit(lambda transaction: write_events(transaction).flush()),
        }
        interleave(2, sides)
        found = interleave(context.size(25, 3), sides)
    gigabytes = flushes * rows * 100 / 1e9
    yield Figure.of_rounds(
        f"commit of a transaction of {gigabytes:.1f} GB in {flushes * SEGMENTS} chunks",
        found["large"],
        "ms",
        f"commit of a transaction of {EVENTS} events",
        found["small"],
        note="commit() alone, which neither reads nor writes events",
        limited_by="one line of JSON for each chunk, made, written and fsynced once; a chunk "
        "holds the events of one segment that one flush writes",
    ).within(ratio_at_most=1.5)


def _stage_flush(stream: StreamLog, rows: int) -> list[StagedChunk]:
    """Stage the chunks of one full flush, once."""
    view = stream.view()
    return [
        chunk
        for segment_id, part in split(table(rows), Router(view.active.segments))
        for chunk in stage(
            stream.store,
            stream.path,
            version_folder(view.version),
            segment_id,
            part,
            name=f"original-{segment_id}",
        )
    ]


def _link(
    context: Context,
    stream: StreamLog,
    transaction: Transaction,
    originals: list[StagedChunk],
    number: int,
) -> list[StagedChunk]:
    """Link the chunks into the transaction's folder under new names; return the links."""
    target = f"data/{chunk_folder(transaction.id)}"
    root = f"{context.root}/{stream.path}"
    os.makedirs(f"{root}/{target}", exist_ok=True)
    links = []
    for chunk in originals:
        path = f"{target}/{number}-{chunk.segment_id}.parquet"
        os.link(f"{root}/{chunk.path}", f"{root}/{path}")
        links.append(replace(chunk, path=path))
    return links


@benchmark()
def waiting_transactions(context: Context) -> Iterator[Figure]:
    """commit() of the last of many transactions, which also commits the waiting ones."""
    name = context.create("waiting", SEGMENTS)
    many = context.size(100, 10)
    waits = patch.object(owed, "DECIDED_SECONDS", 3_600.0)  # the background commits none of them
    with waits, context.manager.create_transactional_writer(name) as writer:

        def commit_last(waiting: int) -> float:
            transactions = [flushed(writer) for _ in range(waiting)]
            for transaction in transactions[:-1]:
                transaction.commit(wait=False)
            return 1e3 * timed(transactions[-1].commit)

        sides = {"many": lambda: commit_last(many), "one": lambda: commit_last(1)}
        interleave(1, sides)
        found = interleave(context.size(15, 2), sides)
    yield Figure.of_rounds(
        f"one commit with {many} waiting transactions of {SEGMENTS} chunks each",
        found["many"],
        "ms",
        "one commit with a single one",
        found["one"],
        note="both: commit() of the last one, whose events are flushed",
        limited_by="Python for each transaction and chunk of the one commit: the outcome, the "
        "line of history, four lines of JSON",
    ).within(ratio_at_most=3.0)


@benchmark()
def commit_among_many(context: Context) -> Iterator[Figure]:
    """commit() while many other transactions are open and undecided."""
    many, few = context.size(400, 20), context.size(40, 2)
    with ExitStack() as opened:

        def side(others: int) -> Side:
            name = context.create(f"among-{others}", SEGMENTS)
            writer = opened.enter_context(context.manager.create_transactional_writer(name))
            for _ in range(others):
                writer.begin_transaction()
            return lambda: 1e3 * timed(flushed(writer).commit)

        sides = {"many": side(many), "few": side(few)}
        interleave(1, sides)
        found = interleave(context.size(25, 2), sides)
    yield Figure.of_rounds(
        f"commit of a small transaction while {many} others are open",
        found["many"],
        "ms",
        f"the same while {few} others are open",
        found["few"],
        note="its events are flushed; both commits look at the oldest open transactions",
        limited_by="the fsyncs of an announcement, a closing manifest and a commit",
    ).within(ratio_at_most=1.5)


@benchmark()
def rolling_commit(context: Context) -> Iterator[Figure]:
    """commit() of a transaction whose segments were replaced after it began."""
    name = context.create("rolling", SEGMENTS)
    manager = context.manager
    with manager.create_transactional_writer(name) as writer:

        def rolling() -> float:
            transaction = flushed(writer)
            first, second, *_ = manager.segments(name)
            low, middle = first.key_range.low, first.key_range.high
            high, quarter = second.key_range.high, (first.key_range.low + middle) / 2
            new = [KeyRange(low, quarter), KeyRange(quarter, high)]
            manager.scale_stream(name, [first.segment_id, second.segment_id], new)
            seconds = timed(transaction.commit)
            old = [segment.segment_id for segment in manager.segments(name)[:2]]
            manager.scale_stream(name, old, [KeyRange(low, middle), KeyRange(middle, high)])
            return 1e3 * seconds

        sides = {"rolling": rolling, "plain": lambda: 1e3 * timed(flushed(writer).commit)}
        interleave(2, sides)
        found = interleave(context.size(40, 3), sides)
    yield Figure.of_rounds(
        "rolling commit of one small transaction",
        found["rolling"],
        "ms",
        "its commit without a scale in between",
        found["plain"],
        note="its events are flushed",
        limited_by="the fsyncs of the closing manifest and the commit, which holds two more epochs",
    ).within(at_most=25.0)
