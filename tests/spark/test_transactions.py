"""Batch writes into transactions, with Spark."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from pravega_spark.txn.manifests import Manifests
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from tests.harness.small_streams import write
from tests.spark.conftest import Load, finish

Make = Callable[..., StreamLog]


@pytest.fixture
def stream(make: Make) -> StreamLog:
    return make(segments=2)


@pytest.fixture
def writer(root: str, stream: StreamLog) -> Iterator[TransactionalWriter]:
    with StreamManager(root).create_transactional_writer(stream.name) as writer:
        yield writer


def numbers(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Return events with these numbers and seven keys, in two partitions."""
    return spark.range(first, last, 1, 2).selectExpr(
        "concat('k', id % 7) AS routing_key", "CAST(id AS STRING) AS event"
    )


def save(
    frame: DataFrame, root: str, transaction: Transaction, name: str = "s/a", **options: str
) -> None:
    given = {"root": root, "transaction": transaction.id, **options}
    frame.write.format("pravega").mode("append").options(**given).save(name)


def events(root: str, name: str = "s/a") -> list[int]:
    return [int(event.data) for event in StreamManager(root).read(name)]


def by_key(found: Iterable[int]) -> dict[int, list[int]]:
    keys = defaultdict(list)
    for number in found:
        keys[number % 7].append(number)
    return keys


@pytest.mark.versions
def test_concurrent_jobs_and_a_plain_writer_become_visible_together(
    spark: SparkSession, root: str, stream: StreamLog, writer: TransactionalWriter, load: Load
) -> None:
    transaction = writer.begin_transaction()
    version = stream.view().version

    def job(first: int) -> None:
        rows = [(f"k{i % 7}", str(i)) for i in range(first, first + 500)]
        # This call makes the session the thread's own, without which no Python source is found.
        save(spark.createDataFrame(rows, ["routing_key", "event"]), root, transaction)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(job, (0, 500)))
    for number in range(1_000, 1_100):
        transaction.write_event(str(number).encode(), f"k{number % 7}")
    transaction.flush()
    assert load().count() == 0
    assert stream.view().version == version
    manifests = Manifests(stream, transaction.id)
    assert [sum(c.rows for c in entry.chunks) for entry in manifests.read()] == [500, 500, 100]
    transaction.commit()
    assert stream.view().version == version + 1
    found = load().select("event").collect()
    assert sorted(int(row.event) for row in found) == list(range(1_100))


class Failing:
    """Fails in partition 1 after partition 0 has staged its rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1:
            deadline = time.monotonic() + 60
            while not any(self.folder.glob("*.parquet")) and time.monotonic() < deadline:
                time.sleep(0.05)
            raise RuntimeError("the task failed")


def test_failed_job_is_not_in_the_transaction_and_its_repetition_is_once(
    spark: SparkSession, root: str, stream: StreamLog, writer: TransactionalWriter
) -> None:
    transaction = writer.begin_transaction()
    numbered = {"txnAppId": "etl", "txnVersion": "1"}
    frame = numbers(spark, 0, 100)
    folder = Path(root, stream.path, "data", f"t-{transaction.id}")
    with pytest.raises(PySparkException, match="the task failed"):
        save(frame.mapInArrow(Failing(folder), frame.schema), root, transaction, **numbered)
    assert any(folder.glob("*.parquet")), "the other task has staged its rows"
    assert Manifests(stream, transaction.id).read() == []
    for _ in range(2):
        save(frame, root, transaction, **numbered)
    transaction.commit()
    assert sorted(events(root)) == list(range(100))


class Scaling:
    """Scales the stream during a job, after partition 0 has passed its rows on."""

    def __init__(self, root: str, ranges: list[tuple[float, float]]) -> None:
        self.root, self.ranges = root, ranges

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            manager = StreamManager(self.root)
            manager.scale_stream("s/a", [str(s) for s in manager.segments("s/a")], self.ranges)


def test_scale_during_a_job_and_the_rolling_commit_keep_every_keys_order(
    spark: SparkSession,
    root: str,
    stream: StreamLog,
    writer: TransactionalWriter,
    follow: Load,
    tmp_path: Path,
) -> None:
    def plain(first: int, last: int) -> None:
        write(stream, [(f"k{i % 7}", b"%d" % i) for i in range(first, last)])

    plain(0, 50)
    transaction = writer.begin_transaction()
    frame = numbers(spark, 100, 200)
    ranges = [(0.0, 0.4), (0.4, 0.7), (0.7, 1.0)]
    save(frame.mapInArrow(Scaling(root, ranges), frame.schema), root, transaction)
    assert len(stream.view().active.segments) == 3
    plain(50, 100)
    save(numbers(spark, 200, 250), root, transaction)
    transaction.commit()
    plain(250, 300)
    assert stream.view().record.active_epoch == 3, (
        "one epoch of the scale and two of the rolling commit"
    )
    assert [r.key_range for r in stream.view().active.segments] == [
        r.key_range for r in stream.view().epoch(1).segments
    ]
    query = (
        follow(maxOffsetsPerTrigger="60")
        .select("routing_key", "event")
        .writeStream.format("pravega")
        .options(root=root, checkpointLocation=str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start("s/copy")
    )
    finish(query)
    for name in ("s/a", "s/copy"):
        found = events(root, name)
        assert sorted(found) == list(range(300)), name
        assert all(held == sorted(held) for held in by_key(found).values()), name


class Batches:
    """Writes each micro-batch of a query as two frames in one transaction, exactly once."""

    def __init__(self, root: str) -> None:
        self.root, self.fail, self.skipped = root, "", 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        manager = StreamManager(self.root)
        with manager.create_transactional_writer("s/b", writer_id="copy") as writer:
            if int(writer.last_note or -1) >= batch_id:
                self.skipped += 1
                return
            with writer.begin_transaction() as transaction:
                for odd in (0, 1):
                    part = frame.where(f"CAST(event AS STRING) % 2 = {odd}")
                    save(part.select("routing_key", "event"), self.root, transaction, "s/b")
                    self._crash("between the frames")
                transaction.commit(note=str(batch_id))
            self._crash("after the commit")

    def _crash(self, point: str) -> None:
        if self.fail == point:
            self.fail = ""
            raise RuntimeError(point)


@pytest.mark.versions
def test_batches_of_a_query_are_transactions_and_each_is_committed_once(
    root: str, make: Make, follow: Load, tmp_path: Path
) -> None:
    source, target = make(), make("s/b", 2)
    process: Any = Batches(root)

    def run() -> None:
        query = follow().writeStream.foreachBatch(process).trigger(availableNow=True)
        finish(query.option("checkpointLocation", str(tmp_path / "c")).start())

    for first, fail in ((0, ""), (30, "between the frames"), (60, "after the commit")):
        write(source, [(f"k{i % 7}", b"%d" % i) for i in range(first, first + 30)])
        process.fail = fail
        if fail:
            with pytest.raises(PySparkException, match=fail):
                run()
        run()
    assert process.skipped == 1
    assert sorted(events(root, "s/b")) == list(range(90))
    assert not target.view().transactions, "the next writer has ended the transaction of the crash"


def test_streaming_query_is_referred_to_foreach_batch(
    root: str, stream: StreamLog, writer: TransactionalWriter, follow: Load, tmp_path: Path
) -> None:
    options = {"root": root, "checkpointLocation": str(tmp_path / "c")}
    query = follow().select("routing_key", "event").writeStream.format("pravega").options(**options)
    with pytest.raises(PySparkException, match="use foreachBatch"):
        finish(query.option("transaction", writer.begin_transaction().id).start("s/a"))


def test_id_that_is_not_an_open_transaction_of_the_stream_is_an_error(
    spark: SparkSession, root: str, make: Make, writer: TransactionalWriter, load: Load
) -> None:
    transaction = writer.begin_transaction()
    make("s/b")
    frame = numbers(spark, 0, 3)
    with pytest.raises(PySparkException, match=r"NoSuchTransaction.*it began on another stream"):
        save(frame, root, transaction, "s/b")
    with pytest.raises(PySparkException, match="remove createIfMissing and numSegments"):
        save(frame, root, transaction, createIfMissing="true")
    with pytest.raises(PySparkException, match="transaction is for writing only"):
        load(transaction=transaction.id)
    transaction.abort()
    with pytest.raises(PySparkException, match=r"TxnFailed.*was aborted.*Begin another"):
        save(frame, root, transaction)
