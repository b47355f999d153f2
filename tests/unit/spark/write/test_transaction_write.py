"""Batch writes into transactions as Spark's processes do them, without Spark."""

from __future__ import annotations

import logging
import pickle
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import WriterCommitMessage

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    InvalidOption,
    NoSuchStream,
    NoSuchTransaction,
    TxnFailed,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.settings import read_settings, write_settings
from pravega_spark.txn import sweeper
from pravega_spark.txn.manifests import Manifests
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from tests.harness.failpoints import at_failpoint
from tests.harness.small_streams import scale
from tests.harness.spark_writing import TEXT, batch_writer, read, rows, schema, source


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in ("s/a", "s/b"):
        manager.create_stream(name, StreamConfiguration(scaling=ScalingPolicy.fixed(2)))
    return tmp_path


@pytest.fixture
def stream(root: Path) -> StreamLog:
    return open_stream(str(root), "s/a")


@pytest.fixture
def writer(root: Path) -> Iterator[TransactionalWriter]:
    with StreamManager(root).create_transactional_writer("s/a") as writer:
        yield writer


@pytest.fixture
def transaction(writer: TransactionalWriter) -> Transaction:
    return writer.begin_transaction()


def save(root: Path, transaction: Transaction, *parts: pa.RecordBatch, **options: str) -> None:
    """Write a frame of these partitions; pickle the commit messages as Spark does."""
    frame = batch_writer(root, transaction=transaction.id, **options)
    frame.commit(pickle.loads(pickle.dumps([frame.write(iter([part])) for part in parts])))


def manifests(stream: StreamLog, transaction: Transaction) -> Manifests:
    found = Manifests(stream, transaction.id)
    found.read()
    return found


def by_key(root: Path) -> dict[str | None, list[int]]:
    found = defaultdict(list)
    for event in StreamManager(root).read("s/a"):
        found[event.routing_key].append(int(event.data))
    return found


def test_frame_is_one_manifest_and_visible_with_the_transaction(
    root: Path, stream: StreamLog, transaction: Transaction
) -> None:
    before = stream.view().version
    save(root, transaction, *(rows(10 * p, 10 * p + 10) for p in range(4)))
    (entry,) = manifests(stream, transaction).entries
    folder = f"data/t-{transaction.id}/"
    assert sum(chunk.rows for chunk in entry.chunks) == 40
    assert all(chunk.path.startswith(folder) for chunk in entry.chunks)
    assert read(root) == []
    assert stream.view().version == before, "no commit of the log"
    transaction.commit()
    assert sorted(read(root)) == list(range(40))
    assert all(held == sorted(held) for held in by_key(root).values())
    assert stream.view().version == before + 1


def test_failed_attempts_are_not_in_the_manifest(root: Path, transaction: Transaction) -> None:
    frame = batch_writer(root, transaction=transaction.id)
    frame.write(iter([rows(0, 10)]))
    again = frame.write(iter([rows(0, 10)]))
    with pytest.raises(IllegalState, match="1 of 2 tasks sent no commit message"):
        frame.commit([again, None])
    frame.abort([again, None])
    frame.commit([again])
    transaction.commit()
    assert sorted(read(root)) == list(range(10))


def test_empty_frame_adds_no_manifest(
    root: Path, stream: StreamLog, transaction: Transaction
) -> None:
    save(root, transaction, rows(0, 0), rows(0, 0))
    assert manifests(stream, transaction).entries == []


def test_numbered_write_is_added_to_a_transaction_once(
    root: Path, transaction: Transaction, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"transaction": transaction.id, "txnappid": "etl", "txnversion": "7"}
    first, racing = batch_writer(root, **options), batch_writer(root, **options)
    with caplog.at_level(logging.WARNING):
        for frame in (first, racing):
            frame.commit([frame.write(iter([rows(0, 10)]))])
        late = batch_writer(root, **options)
        message = late.write(iter([rows(0, 10)]))
        assert message.chunks == [], "a write that the transaction has is not staged again"
        late.commit([message])
    assert (
        caplog.text.count(
            f"skipped a duplicate write: transaction {transaction.id} of stream s/a has version 7 "
            "of txnAppId etl, or a later one"
        )
        == 2
    )
    save(root, transaction, rows(10, 20), txnappid="etl", txnversion="6")
    save(root, transaction, rows(10, 20), txnappid="etl", txnversion="8")
    save(root, transaction, rows(20, 30), txnappid="other", txnversion="1")
    transaction.commit()
    assert sorted(read(root)) == list(range(30))


def test_frames_and_plain_writers_share_a_transaction(
    root: Path, stream: StreamLog, transaction: Transaction
) -> None:
    transaction.write_event(b"0", "k0")
    transaction.flush()
    save(root, transaction, rows(1, 10))
    with StreamManager(root).create_transactional_writer("s/a") as other:
        joined = other.get_transaction(transaction.id)
        joined.write_events([b"10", b"15"], "k0")
        joined.flush()
    save(root, transaction, rows(11, 15), rows(16, 20))
    transaction.write_event(b"20", "k0")
    with StreamManager(root).create_writer("s/a") as plain:
        plain.write_event(b"-1", "k0").result()
    assert read(root) == [-1]
    transaction.commit()
    assert sorted(read(root)) == list(range(-1, 21))
    assert by_key(root)["k0"] == [-1, 0, 5, 10, 15, 20]
    assert len(stream.view().tail.positions) == 2


def test_scale_between_tasks_and_driver_does_not_disturb_the_write(
    root: Path, stream: StreamLog, transaction: Transaction
) -> None:
    frame = batch_writer(root, transaction=transaction.id)
    messages: list[WriterCommitMessage | None] = [frame.write(iter([rows(10, 20)]))]
    before = stream.view().active.segment_ids
    scale(stream, before, [(0.0, 0.3), (0.3, 0.8), (0.8, 1.0)])
    frame.commit(messages)
    save(root, transaction, rows(20, 30))
    held = {chunk.segment_id for chunk in manifests(stream, transaction).chunks}
    assert held <= set(before), "a frame planned after the scale keeps the transaction's epoch"
    batch_writer(root).commit([batch_writer(root).write(iter([rows(0, 10)]))])
    transaction.commit()
    assert stream.view().record.active_epoch == 3, "the commit rolled"
    assert len(stream.view().active.segments) == 3
    assert all(held == sorted(held) for held in by_key(root).values())
    assert sorted(read(root)) == list(range(30))


def test_rows_without_a_key_are_spread_over_the_segments(
    root: Path, stream: StreamLog, transaction: Transaction
) -> None:
    save(root, transaction, pa.record_batch({**dict.fromkeys(TEXT, pa.array(["0"] * 20))}))
    frame = batch_writer(root, {"event": "string"}, transaction=transaction.id)
    frame.commit([frame.write(iter([pa.record_batch({"event": pa.array(["1"] * 20)})]))])
    transaction.commit()
    keyless = [e.segment_id for e in StreamManager(root).read("s/a") if e.routing_key is None]
    assert {keyless.count(segment) for segment in set(keyless)} == {10}


class TestRefusals:
    """Each is raised before any task has run, and names the next step."""

    def refused(self, root: Path, transaction_id: str, **options: str) -> None:
        writer = source(root, transaction=transaction_id, **options).writer
        writer(schema(**TEXT), False)

    def test_malformed_id(self, root: Path) -> None:
        with pytest.raises(InvalidInput, match="32 hexadecimal digits"):
            self.refused(root, "yesterday's")

    def test_unknown_id_and_id_of_another_stream(
        self, root: Path, transaction: Transaction
    ) -> None:
        with pytest.raises(NoSuchTransaction, match=r"s/a \(life 1\) has no transaction"):
            self.refused(root, "00000000" + "ab" * 12)
        with pytest.raises(NoSuchTransaction, match=r"s/b .*it began on another stream"):
            self.refused(root, transaction.id, path="s/b")

    def test_stream_that_does_not_exist_is_not_created(
        self, root: Path, transaction: Transaction
    ) -> None:
        with pytest.raises(NoSuchStream, match="s/c does not exist"):
            self.refused(root, transaction.id, path="s/c")
        assert not (root / "s/c").exists()

    def test_committed_and_aborted_transaction(
        self, root: Path, writer: TransactionalWriter
    ) -> None:
        one, two = writer.begin_transaction(), writer.begin_transaction()
        one.commit()
        two.abort()
        with pytest.raises(TxnFailed, match=r"was committed at version .* Begin another"):
            self.refused(root, one.id)
        with pytest.raises(TxnFailed, match=r"was aborted \(the application asked for it\)"):
            self.refused(root, two.id)

    def test_prepared_and_decided_transaction(
        self, root: Path, writer: TransactionalWriter
    ) -> None:
        one, two = writer.begin_transaction(), writer.begin_transaction()
        one.prepare()
        with pytest.raises(TxnFailed, match="is PREPARED and accepts no more events"):
            self.refused(root, one.id)
        two.commit(wait=False)
        with pytest.raises(TxnFailed, match="is COMMITTING and accepts no more events"):
            self.refused(root, two.id)

    def test_options_for_a_new_stream(self) -> None:
        given = {"root": "/r", "path": "s/a", "transaction": "1"}
        for more in ({"createIfMissing": "true"}, {"numSegments": "2"}):
            with pytest.raises(InvalidOption, match="remove createIfMissing and numSegments"):
                write_settings({**given, **more})
        assert not write_settings({**given, "createIfMissing": "false"}).create_if_missing

    def test_streaming_query_is_referred_to_foreach_batch(
        self, root: Path, transaction: Transaction
    ) -> None:
        with pytest.raises(InvalidOption, match="use foreachBatch"):
            source(root, transaction=transaction.id).streamWriter(schema(**TEXT), False)

    def test_read_with_the_option_transaction(self) -> None:
        with pytest.raises(InvalidOption, match="transaction is for writing only"):
            read_settings({"root": "/r", "path": "s/a", "transaction": "1"})


def staged(root: Path, transaction: Transaction) -> tuple[Any, list[Any]]:
    frame = batch_writer(root, transaction=transaction.id)
    return frame, [frame.write(iter([rows(0, 10)]))]


def test_transaction_that_ends_before_the_driver_commits_fails_the_write(
    root: Path, writer: TransactionalWriter
) -> None:
    ends = {"committed": Transaction.commit, "aborted": Transaction.abort}
    for word, end in ends.items():
        transaction = writer.begin_transaction()
        frame, messages = staged(root, transaction)
        end(transaction)
        with pytest.raises(TxnFailed, match=f"was {word}"):
            frame.commit(messages)
    assert read(root) == []


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.abort])
def test_transaction_that_ends_and_is_swept_while_the_driver_commits_fails_the_write(
    root: Path, stream: StreamLog, transaction: Transaction, end: Any
) -> None:
    frame, messages = staged(root, transaction)

    def ending() -> None:
        end(StreamManager(root).transaction("s/a", transaction.id))
        sweeper.sweep_transactions(stream)

    with at_failpoint("txn.staged", ending), pytest.raises(TxnFailed, match="that is final"):
        frame.commit(messages)
    assert read(root) == []
