"""Release 0.1.0 beside this code where queries write: it moves their records on, and reads all."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.errors import BatchConflict
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


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "root", tmp_path / "checkpoint")


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
