"""A small transaction from begin until its events are visible, beside its floor."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from itertools import count

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.floor import put_durably, sync_folder
from bench.harness.measure import interleave, median_ms, percentile, timed_each
from bench.harness.registry import benchmark
from bench.harness.small_transaction import EVENTS, SEGMENTS, write_events
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.txn.manifests import transaction_folder
from pravega_spark.txn.transaction import Transaction


class TransactionFloor:
    """Puts the files of one small transaction: the same writes, links, folders and fsyncs."""

    def __init__(self, path: str, stream: StreamLog, transaction: Transaction) -> None:
        store, view = stream.store, stream.view()
        found = view.outcome(transaction.id)
        assert found is not None
        commit = stream.log.reader.commit(found.version, light=False)
        assert commit is not None
        self._commits = [store.get(stream.log.reader.key(found.version - n)) for n in (1, 0)]
        self._chunks = [store.get(f"{stream.path}/{add.path}") for add in commit.adds]
        self._manifest = store.get(f"{transaction_folder(stream, transaction.id)}/{0:08d}.json")
        self._path = path
        self._numbers = count()
        for name in ("log", "data", "manifests"):
            os.makedirs(f"{path}/{name}")

    def __call__(self) -> None:
        number = next(self._numbers)
        begin, commit = self._commits
        put_durably(f"{self._path}/log", f"{number}-begin", begin)
        _put_in_new_folder(f"{self._path}/data", number, self._chunks)
        _put_in_new_folder(f"{self._path}/manifests", number, [self._manifest])
        put_durably(f"{self._path}/log", f"{number}-commit", commit)


def _put_in_new_folder(parent: str, number: int, files: list[bytes]) -> None:
    made = f"{parent}/{number}"
    os.mkdir(made)
    for index, data in enumerate(files):
        put_durably(made, str(index), data)
    sync_folder(parent)


@benchmark()
def small_transaction(context: Context) -> Iterator[Figure]:
    """Begin, write 100 events in 4 segments, and commit."""
    name = context.create("transactions", SEGMENTS)
    stream = open_stream(context.root, name)
    seen: list[float] = []
    with context.manager.create_transactional_writer(name) as writer:

        def transact() -> Transaction:
            with writer.begin_transaction() as transaction:
                return write_events(transaction)

        for _ in range(context.size(100, 5)):
            last = transact()
        floor = TransactionFloor(str(context.folder / "floor-transactions"), stream, last)
        calls = context.size(10, 3)

        def ours() -> float:
            found = [1e3 * seconds for seconds in timed_each(transact, calls)]
            seen.extend(found)
            return statistics.median(found)

        sides = {"ours": ours, "floor": lambda: median_ms(floor, calls)}
        found = interleave(context.size(30, 2), sides)
    yield Figure.of_rounds(
        f"begin + {EVENTS} events in {SEGMENTS} segments + commit, visible, p50",
        found["ours"],
        "ms",
        "the same writes and fsyncs in sequence",
        found["floor"],
        note=f"p99 {percentile(seen, 0.99):.1f} ms",
        limited_by="ten waits for the disk in sequence, of 13 fsyncs (begin 2, chunks 6, closing "
        "manifest 3, commit 2), where the floor, 2.6 ms on the same disk, waits for 16; and "
        "Python: four Parquet writers of 0.1 ms each",
    ).within(ratio_at_most=2.2)
