"""Reads of 50 and of 500 streams on a real S3 server with 30 ms a call; idle ones on a disk."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import cpu_seconds
from bench.harness.dataset import EVENT
from bench.harness.distant_bucket import CALL_SECONDS, DistantBucket, start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.registry import Phase, benchmark
from pravega_spark import EventStreamWriter, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.spark.read.offsets import OffsetPlanner
from pravega_spark.spark.settings import read_settings
from pravega_spark.values.limits import STREAM_REFRESH_SECONDS

_FEW, _MANY = 50, 500
_FILL = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import pyarrow as pa
from pravega_spark import EventStreamWriter, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog

root, options, names = json.loads(sys.argv[1])
manager = StreamManager(root, storage_options=options)
store = open_store(root, **options)
schema = pa.schema([("x", pa.int32())])

def fill(name):
    stream = StreamLog(store, name)
    lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(1), schema=schema))
    with EventStreamWriter(stream) as writer:
        writer.write_event({"x": 1}, "key").result()

with ThreadPoolExecutor(32) as pool:
    list(pool.map(fill, names))
    scopes = [name.replace("s/", "p-") for name in names]
    list(pool.map(manager.create_scope, scopes))
manager.create_stream(f"{scopes[0]}/t")
"""
_STEPS = """
import json, sys, time
from pravega_spark.spark.versions import ReadAllAvailable
from pyspark.sql.types import StructType
from pravega_spark.spark.groups.query_reader_group import QueryMembership
from pravega_spark.spark.read.discovery import matching_streams
from pravega_spark.spark.settings import read_settings
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.source_offsets import decode, present

options, steps, schema = json.loads(sys.argv[1])
source = PravegaDataSource(options)
warm = PravegaDataSource({**options, "subscribe": "s/warm"})  # imports, and the root's marker
warm.reader(warm.schema()).partitions()

def load():
    global schema
    schema = source.schema().jsonValue()

def batch():
    assert len(source.reader(StructType.fromJson(schema)).partitions()) > 0

def start():
    global reader, begin, end
    reader = source.streamReader(StructType.fromJson(schema))
    reader.initialOffset()
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())

def first():
    assert len(reader.partitions(begin, end)) > 0

def idle():
    assert reader.latestOffset(end, ReadAllAvailable()) == end

def create():
    global member, offsets
    offsets, group = present(decode(begin)), f"s/g{time.time_ns()}"
    member = QueryMembership(read_settings({**options, "readergroup": group}), group)
    member.check(offsets, None)

def join():
    member.leave()
    member.check(offsets, None)

def names():
    assert matching_streams(options["root"], "p-n.*/t")

print("ready", flush=True)
for step in steps:
    sys.stdin.readline()
    if step in ("idle", "create"):
        time.sleep(1.1)
    begun = time.monotonic(), time.process_time()
    globals()[step]()
    took = time.monotonic() - begun[0], time.process_time() - begun[1]
    print(json.dumps([*took, schema]), flush=True)
"""
_PROCESSES = (("load",), ("batch",), ("start", "first", "idle", "create", "join"), ("names",))
"""The steps of each process: Spark starts one for load(), and one for each read or query."""
_TITLES = {
    "load": ("load() of {} typed streams", 3.0),
    "batch": ("the plan of a batch read of {} streams", 5.0),
    "start": ("a query of {} streams, until its first micro-batch is planned", 5.0),
    "first": ("the plan of that micro-batch", 1.0),
    "idle": ("an idle look of a query of {} streams", 1.0),
    "create": ("a query's group created over {} streams", 6.0),
    "join": ("a query's group joined, {} streams", 1.0),
    "names": ("subscribePattern, over {} scopes", 5.0),
}


class _Step:
    """What a step took: seconds, processor seconds, and calls."""

    def __init__(self, seconds: float, used: float, calls: int) -> None:
        self.seconds, self.used, self.calls = seconds, used, calls


def _measure(bucket: DistantBucket, names: list[str]) -> dict[str, _Step]:
    """Read the streams as Spark's Python processes do, without a JVM."""
    keys = bucket.options
    environment = os.environ | {
        "AWS_ENDPOINT_URL": keys["endpoint_url"],
        "AWS_ACCESS_KEY_ID": keys["key"],
        "AWS_SECRET_ACCESS_KEY": keys["secret"],
    }
    found: dict[str, _Step] = {}
    schema = None
    for steps in _PROCESSES:
        options = {"root": bucket.root, "subscribe": ",".join(names)}
        if "start" in steps:
            options["startingoffsets"] = "earliest"
        with subprocess.Popen(
            [sys.executable, "-c", _STEPS, json.dumps([options, steps, schema])],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            bucket.endpoint.calls()
            for step in steps:
                process.stdin.write("go on\n")
                process.stdin.flush()
                seconds, used, schema = json.loads(process.stdout.readline())
                found[step] = _Step(seconds, used, bucket.endpoint.calls().total())
    return found


def _fill(bucket: DistantBucket, names: list[str]) -> None:
    """Create these streams, with an event each, and a scope for each of them, without the delay."""
    filled = json.dumps([bucket.root, bucket.near, names])
    subprocess.run([sys.executable, "-c", _FILL, filled], check=True)


@benchmark()
def reads_of_many_streams(context: Context) -> Iterator[Figure]:
    """What Spark's driver waits for, and asks the storage, in reads of 50 and of 500 streams."""
    many = context.size(_MANY, _FEW)
    names = [f"s/n{number:04}" for number in range(many)]
    with start_distant_bucket() as bucket:
        StreamManager(bucket.root, storage_options=bucket.options).create_scope("s")
        _fill(bucket, ["s/warm"])
        _fill(bucket, names[:_FEW])
        few = _measure(bucket, names[:_FEW])
        _fill(bucket, names[_FEW:])
        all_of_them = _measure(bucket, names)
    for step, (title, limit) in _TITLES.items():
        mine, other = all_of_them[step], few[step]
        yield Figure.of_rounds(
            title.format(many),
            [mine.seconds],
            "s",
            f"{_FEW} streams",
            [other.seconds],
            note=f"{bucket.server}, {1e3 * CALL_SECONDS:.0f} ms a call; {mine.calls / many:.2f} "
            f"calls a stream, of {_FEW} {other.calls / _FEW:.2f}; processor time {mine.used:.2f} "
            f"and {other.used:.2f} s",
            limited_by="round trips of 32 streams, and half a millisecond of processor time a call",
        ).within(at_most=limit)


@benchmark()
def idle_looks(context: Context) -> Iterator[Figure]:
    """The looks alone of an idle query, of 500 and of 5,000 streams on a local disk."""
    few, many = context.size(_MANY, 20), context.size(10 * _MANY, 200)
    store = open_store(context.manager.root)
    names = [f"bench/look{number:04}" for number in range(many)]

    def create(name: str) -> None:
        lifecycle.create(StreamLog(store, name), 1, StreamConfiguration(ScalingPolicy.fixed(1)))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(create, names))
    used, used_few = (_look(context, names[:count]) for count in (many, few))
    share = used / max(STREAM_REFRESH_SECONDS, used)
    yield Figure(
        f"an idle look at {many:,} streams on a local disk, CPU of each",
        1e6 * used / many,
        "us",
        f"{few:,} streams",
        1e6 * used_few / few,
        (used / many) / (used_few / few),
        note=f"{1e3 * used:.0f} and {1e3 * used_few:.0f} ms in all; without a trigger {share:.2f} "
        "cores, since a query looks again after 1 s at the latest",
    ).within(at_most=80.0, ratio_at_most=2.0)


def _look(context: Context, names: list[str]) -> float:
    """Return the processor seconds of a look that finds nothing, the median of some."""
    planner = OffsetPlanner(read_settings({"root": context.root, "subscribe": ",".join(names)}))
    at, found = planner.initial_offsets(), []
    for _ in range(6):
        begun = time.process_time()
        assert planner.next_offsets(at, limited=False) == at
        found.append(time.process_time() - begun)
    return statistics.median(found[1:])


@benchmark(Phase.SPARK)
def idle_query(context: Context) -> Iterator[Figure]:
    """A query without a trigger and without news, with all that Spark does for it; then news."""
    store = open_store(context.manager.root)
    names = [f"bench/idle{number:04}" for number in range(context.size(_MANY, _FEW))]
    for name in names:
        lifecycle.create(StreamLog(store, name), 1, StreamConfiguration(ScalingPolicy.fixed(1)))
    for count in (_FEW, len(names)):
        reader = context.spark.readStream.format("pravega").option("root", context.root)
        frame = reader.option("subscribe", ",".join(names[:count])).load()
        checkpoint = str(context.folder / f"idle-{count}")
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        query.processAllAvailable()
        time.sleep(context.size(10, 2))
        begun, used = time.monotonic(), cpu_seconds()
        time.sleep(context.size(15, 2))
        cores = (cpu_seconds() - used) / (time.monotonic() - begun)
        delays = [_delay(context, query, names[0]) for _ in range(context.size(7, 2))]
        query.stop()
        yield Figure(
            f"an idle query of {count} streams on a local disk, without a trigger",
            cores,
            "cores",
            note="Spark's processes, too; an event is processed, and its batch reported, after "
            f"{1e3 * statistics.median(delays):.0f} ms, at most {1e3 * max(delays):.0f} ms",
        ).within(at_most=0.1)


def _delay(context: Context, query: Any, name: str) -> float:
    """Return how long an event takes until the query has reported its batch."""
    time.sleep(1.5)
    done = _batches(query)
    with EventStreamWriter(StreamLog(open_store(context.root), name)) as writer:
        writer.write_event(EVENT, "key").result()
    begun = time.monotonic()
    while _batches(query) <= done:
        time.sleep(0.002)
    return time.monotonic() - begun


def _batches(query: Any) -> set[int]:
    return {progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]}
