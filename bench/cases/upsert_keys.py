"""What a write to a key-value table sends to the driver, which must see that no key comes twice."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark import KeyValueTableConfiguration
from pravega_spark.engine.store import open_store
from pravega_spark.spark.key_value.key_hashes import hashes_that_come_twice
from pravega_spark.spark.key_value.source import KeyValueDataSource

_BATCH = 10_000
_TASKS = 2
_ARROW = pa.schema([("key", pa.int64()), ("value", pa.binary())])
_SCHEMA = StructType([StructField("key", LongType()), StructField("value", BinaryType())])


@benchmark()
def upsert_keys(context: Context) -> Iterator[Figure]:
    """Two tasks stage 10^7 rows of different keys, and 10^6; the driver merges their hashes."""
    many, few = context.size(10_000_000, 200_000), context.size(1_000_000, 20_000)
    (sent, seconds, most), (sent_few, seconds_few, most_few) = (
        _measured(context, rows) for rows in (many, few)
    )
    yield Figure(
        f"a write of {many:,} rows to a key-value table, to the driver",
        sent / many,
        "B/row",
        f"{few:,} rows",
        sent_few / few,
        (sent / many) / (sent_few / few),
        note=f"all: {sent:,.0f} B against {sent_few:,.0f} B",
    ).within(at_most=0.05)
    yield Figure(
        f"memory of the driver that finds no key twice in {many:,} rows",
        most / 2**20,
        "MiB",
        f"{few:,} rows",
        most_few / 2**20,
        most / most_few,
        note=f"processor time {seconds:.2f} s against {seconds_few:.2f} s",
        limited_by="the hashes that it reads at a time, and their sorted copy",
    ).within(at_most=160.0)


@benchmark()
def merge_key_hashes(context: Context) -> Iterator[Figure]:
    """The driver's merge alone, of the hashes that 200 tasks have stored: 10^7 and 10^8."""
    many, few = context.size(100_000_000, 10_000_000), context.size(10_000_000, 1_000_000)
    (used, most), (used_few, most_few) = (_merged(context, rows) for rows in (many, few))
    yield Figure(
        f"the driver's merge of {many:,} hashes of keys, of 200 tasks",
        1e9 * used / many,
        "ns/row",
        f"{few:,} hashes",
        1e9 * used_few / few,
        (used / many) / (used_few / few),
        note=f"processor time {used:.2f} s and {used_few:.2f} s",
    ).within(at_most=60.0, ratio_at_most=2.0)
    yield Figure(
        f"the memory of that process while it merges {many:,} hashes",
        most / 2**20,
        "MiB",
        f"{few:,} hashes",
        most_few / 2**20,
        most / most_few,
        note="resident, above what it was before",
        limited_by="four million hashes at a time, read, joined and sorted: copies of 32 MiB each",
    ).within(at_most=320.0)


_MERGE = """
import os, sys, threading, time
import numpy as np
from pravega_spark.engine.store import open_store
from pravega_spark.spark.key_value.key_hashes import KeyHashes, hashes_that_come_twice

root, rows, tasks = sys.argv[1], int(sys.argv[2]), 200
store, random = open_store(root), np.random.default_rng(rows)
messages, runs = [], []
for _ in range(tasks):
    task = KeyHashes(store, f"hashes-{rows}")
    task.add(random.integers(0, 2**64, rows // tasks, dtype=np.uint64))
    messages.append(task.finish())
    runs += task.runs

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

before, most, is_done = resident_bytes(), 0, threading.Event()

def watch():
    global most
    while not is_done.wait(0.005):
        most = max(most, resident_bytes())

watcher = threading.Thread(target=watch)
watcher.start()
begun = time.process_time()
assert not list(hashes_that_come_twice(store, messages, runs))
used = time.process_time() - begun
is_done.set()
watcher.join()
print(used, most - before)
"""


def _merged(context: Context, rows: int) -> tuple[float, float]:
    """Return the processor seconds of a merge, and the memory that its process took for it."""
    command = [sys.executable, "-c", _MERGE, context.root, str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    used, most = map(float, done.stdout.split())
    return used, most


def _measured(context: Context, rows: int) -> tuple[float, float, float]:
    """Return the bytes of the messages; the seconds and the most memory of the driver's search."""
    name = f"bench/upserts-{rows}"
    configuration = KeyValueTableConfiguration(partitions=4, key_type="long")
    context.manager.create_key_value_table(name, configuration)
    source = KeyValueDataSource({"root": context.root, "path": name})
    writer: Any = source.writer(_SCHEMA, False)
    part = rows // _TASKS
    messages = [writer.write(_rows(n * part, part)) for n in range(_TASKS)]
    sent = sum(len(pickle.dumps(message)) for message in messages)
    hashes, runs = [m.hashes for m in messages], [run for m in messages for run in m.runs]
    begun = time.process_time()
    assert not list(hashes_that_come_twice(open_store(context.root), hashes, runs))
    seconds = time.process_time() - begun
    tracemalloc.start()
    assert not list(hashes_that_come_twice(open_store(context.root), hashes, runs))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    writer.commit(messages)
    return sent, seconds, most


def _rows(first: int, count: int) -> Iterator[pa.RecordBatch]:
    for at in range(first, first + count, _BATCH):
        keys = pa.array(np.arange(at, at + _BATCH))
        yield pa.record_batch([keys, pa.array([b"value"] * _BATCH)], schema=_ARROW)
