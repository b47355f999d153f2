"""Release 0.1.0 beside this code where queries write: it moves their records on, and reads all."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pravega_spark.errors import BatchConflict, StaleIdentity
from pravega_spark.manager import StreamManager
from tests.harness.query_checkpoints import Query
from tests.harness.releases import run_release
from tests.harness.spark_writing import read, rows

WRITE = """
import pickle, sys
import pyarrow as pa
from pyspark.sql.types import StructType
from pravega_spark import StreamManager
from pravega_spark.spark.source import PravegaDataSource
root, first, *numbers = sys.argv[1], *map(int, sys.argv[2:])
frame = StructType().add("routing_key", "string").add("event", "string")
for number in numbers:
    source = PravegaDataSource({"root": root, "path": "s/a"})
    task = pickle.loads(pickle.dumps(source.streamWriter(frame, False)))
    texts = [str(first + i) for i in range(5)]
    message = task.write(iter([pa.record_batch([texts, texts], names=frame.names)]))
    message.query_id = "q-1"
    source.streamWriter(frame, False).commit([message], number)
manager = StreamManager(root)
print(sorted(int(event.data) for event in manager.read("s/a")))
"""

KEEP = """
import sys
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
manager.backup(sys.argv[2])
copy = StreamManager(sys.argv[2])
print(copy.restore().failed)
"""


JOIN = """
import pickle, sys
import pyarrow as pa
from pyspark.sql.types import StructType
from pravega_spark import StreamManager
from pravega_spark.spark.source import PravegaDataSource
root, transaction = sys.argv[1:]
frame = StructType().add("routing_key", "string").add("event", "string")
for number, event in (("1", "99"), ("2", "2")):
    options = {"path": "s/a", "transaction": transaction}
    options |= {"txnAppId": "app", "txnVersion": number}
    writer = PravegaDataSource({"root": root, **options}).writer(frame, False)
    rows = pa.record_batch([[event], [event]], names=frame.names)
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter([rows]))])
StreamManager(root).transaction("s/a", transaction).commit()
"""


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "root", tmp_path / "checkpoint")


@pytest.mark.medium
def test_previous_release_moves_a_query_on_and_its_batches_are_known_by_number(
    query: Query,
) -> None:
    for number in range(2):
        query.plan(number, {"end": number})
        query.write(number, rows(5 * number, 5 * number + 5))
    assert run_release("0.1.0", WRITE, query.root, 10, 1, 2) == f"{list(range(15))}\n"
    query.plan(2, {"end": 99})
    query.write(2, rows(99, 100))
    query.plan(3, {"end": 100})
    query.write(3, rows(15, 20))
    assert run_release("0.1.0", WRITE, query.root, 10, 3) == f"{list(range(20))}\n"
    (query.checkpoint / "offsets/3").unlink()
    query.plan(3, {"end": 101})
    with pytest.raises(BatchConflict):
        query.write(3, rows(20, 25))


def test_previous_release_goes_on_beside_the_record_of_a_batch_of_several_streams(
    query: Query,
) -> None:
    """It stops in one stream, as between two commits; its number is known without an origin."""
    named = Query(query.root, query.checkpoint, options={"scope": "s"})
    named.columns = {"stream": "string", **query.columns}

    def batch(first: int) -> pa.RecordBatch:
        return rows(first, first + 2).add_column(0, "stream", pa.array(["s/a", "s/b"]))

    named.write(0, batch(0))
    assert run_release("0.1.0", WRITE, query.root, 10, 1) == f"{[0, *range(10, 15)]}\n"
    named.write(1, batch(10))
    named.write(2, batch(20))
    assert run_release("0.1.0", WRITE, query.root, 30, 2, 3) == (
        f"{[0, *range(10, 15), 20, *range(30, 35)]}\n"
    )
    assert read(query.root, "s/b") == [1, 11, 21]


def test_backup_and_restore_by_the_previous_release_keep_a_batchs_identity(query: Query) -> None:
    query.plan(0, {"end": 0})
    query.write(0, rows(0, 5))
    copy = query.root.with_name("copy")
    assert run_release("0.1.0", KEEP, query.root, copy) == "{}\n"
    there = Query(copy, query.checkpoint, run="run-2")
    there.write(0, rows(0, 5))
    (query.checkpoint / "offsets/0").unlink()
    there.plan(0, {"end": 7})
    with pytest.raises(BatchConflict):
        there.write(0, rows(5, 10))
    assert read(copy) == list(range(5))


def test_previous_release_skips_a_write_that_a_transaction_has_and_commits_it(
    query: Query,
) -> None:
    query.save(0, rows(0, 1), txnappid="first")
    with StreamManager(query.root).create_transactional_writer("s/a") as writer:
        txn = writer.begin_transaction()
        query.save(1, rows(1, 2), transaction=txn.id)
        run_release("0.1.0", JOIN, query.root, txn.id)
    assert read(query.root) == [0, 1, 2]


@pytest.mark.medium
def test_previous_release_goes_on_in_a_restored_stream_and_restores_it_again(query: Query) -> None:
    query.plan(0, {"end": 0})
    query.write(0, rows(0, 5))
    assert not StreamManager(query.root).restore().failed
    assert run_release("0.1.0", WRITE, query.root, 5, 1) == f"{list(range(10))}\n"
    copy = query.root.with_name("copy")
    assert run_release("0.1.0", KEEP, query.root, copy) == "{}\n"
    there = Query(copy, query.checkpoint, run="run-2")
    there.plan(4, {"end": 9})
    with pytest.raises(StaleIdentity):
        there.write(4, rows(10, 15))
    there.plan(2, {"end": 8})
    there.write(2, rows(10, 15))
    assert read(copy) == list(range(15))
