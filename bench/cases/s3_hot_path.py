"""One writer and one follower on a real S3 server with 30 ms added to each call."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from bench.harness.context import Context
from bench.harness.dataset import EVENT, KEYS
from bench.harness.distant_bucket import CALL_SECONDS, DistantBucket, start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.measure import percentile, timed, timed_each
from bench.harness.registry import benchmark
from pravega_spark import EventStreamWriter, ScalingPolicy, StreamConfiguration, StreamManager

_KEYS = [f"key-{number}" for number in range(KEYS)]
_FOLLOWER = """
import json, sys, time
from pravega_spark import StreamCut, StreamManager

root, options, stream, count = json.loads(sys.argv[1])
manager, found = StreamManager(root, storage_options=options), []
for event in manager.follow(stream, StreamCut.EARLIEST, timeout=60.0):
    found.append((int(event.data[:20]), time.monotonic_ns()))
    if len(found) == 1:
        print("ready", flush=True)
    if len(found) == count:
        break
print(json.dumps(found))
"""


def _manager(bucket: DistantBucket, stream: str) -> StreamManager:
    manager = StreamManager(bucket.root, storage_options=bucket.options)
    manager.create_scope(stream.partition("/")[0])
    manager.create_stream(stream, StreamConfiguration(ScalingPolicy.fixed(4)))
    return manager


def _pipelined(writer: EventStreamWriter, count: int) -> None:
    write = writer.write_event
    for number in range(count):
        write(EVENT, _KEYS[number % KEYS])
    writer.flush()


@benchmark()
def s3_append(context: Context) -> Iterator[Figure]:
    """One event at a time, and as many as the writer takes, from one writer."""
    with start_distant_bucket() as bucket:
        manager = _manager(bucket, "s/append")
        with manager.create_writer("s/append") as writer:
            writer.write_event(EVENT, "key").result()
            bucket.endpoint.calls()
            count = context.size(300, 20)
            times = timed_each(lambda: writer.write_event(EVENT, "key").result(), count)
            calls = bucket.endpoint.calls()
            yield Figure.of_rounds(
                "lone append of one event, S3 with 30 ms a call, p50",
                [1e3 * percentile(times, 0.5)],
                "ms",
                "two calls",
                [2e3 * CALL_SECONDS],
                note=f"{bucket.server}; p99 {1e3 * percentile(times, 0.99):.0f} ms; "
                f"{calls.total() / count:.2f} calls each",
            ).within(at_most=75.0)
        count = context.size(1_000_000, 5_000)
        cpu, rates = time.process_time(), []
        for _ in range(context.size(3, 1)):
            with manager.create_writer("s/append") as writer:
                rates.append(count / timed(partial(_pipelined, writer, count)))
        cpu = time.process_time() - cpu
        yield Figure(
            "one writer, S3 with 30 ms a call: events a second, pipelined",
            percentile(rates, 0.5),
            "/s",
            note=f"{bucket.server}; {cpu / sum(count / rate for rate in rates):.2f} cores of the "
            "writer's process",
            limited_by="a commit follows the upload of its chunks",
        ).within(at_least=250_000)


@benchmark()
def s3_follower(context: Context) -> Iterator[Figure]:
    """One event every quarter of a second: from ``write_event`` to the follower's loop."""
    count = context.size(100, 8)
    randomness = random.Random(1)
    with start_distant_bucket() as bucket:
        manager = _manager(bucket, "s/tail")
        given = json.dumps([bucket.root, bucket.options, "s/tail", 1 + count])
        with (
            manager.create_writer("s/tail") as writer,
            subprocess.Popen(
                [sys.executable, "-c", _FOLLOWER, given], stdout=subprocess.PIPE, text=True
            ) as reader,
        ):
            assert reader.stdout is not None

            def write() -> None:
                writer.write_event(b"%020d" % time.monotonic_ns() + b"e" * 80, "key")

            write()
            assert reader.stdout.readline() == "ready\n"
            bucket.endpoint.calls()
            for _ in range(count):
                time.sleep(0.25 * randomness.uniform(0.5, 1.5))
                write()
            calls = bucket.endpoint.calls()
            found = json.loads(reader.stdout.read())
    delays = [(seen - sent) / 1e6 for sent, seen in found[1:]]
    yield Figure.of_rounds(
        "writer to reader in another process, S3 with 30 ms a call, p50",
        [percentile(delays, 0.5)],
        "ms",
        "the writer's two calls and the reader's two",
        [4e3 * CALL_SECONDS],
        note=f"{bucket.server}; p99 {percentile(delays, 0.99):.0f} ms; an event about every 250 ms;"
        f" {(calls.total() - calls['PUT']) / count:.1f} calls of the reader an event",
        limited_by="two calls to write; then a poll, and the read of the chunk",
    ).within(at_most=150.0)
