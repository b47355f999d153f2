"""One writer and one follower on a real S3 server with 30 ms added to each call."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from functools import partial

from bench.harness.context import Context
from bench.harness.dataset import EVENT, KEYS
from bench.harness.distant_bucket import CALL_SECONDS, DistantBucket, start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.measure import percentile, timed, timed_each
from bench.harness.registry import benchmark
from bench.harness.tail_reader import STREAM_READER, TailReader, stamped
from pravega_spark import EventStreamWriter, ScalingPolicy, StreamConfiguration, StreamManager

_KEYS = [f"key-{number}" for number in range(KEYS)]


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
                "lone append of one event, S3, p50",
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
            "one writer, S3: events a second, pipelined",
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
        with (
            manager.create_writer("s/tail") as writer,
            TailReader(STREAM_READER, bucket.root, "s/tail", 1 + count, bucket.options) as reader,
        ):
            writer.write_event(stamped(), "key")
            reader.wait_until_it_reads()
            bucket.endpoint.calls()
            for _ in range(count):
                time.sleep(0.25 * randomness.uniform(0.5, 1.5))
                writer.write_event(stamped(), "key")
            calls = bucket.endpoint.calls()
            delays = reader.delays_ms()
    yield Figure.of_rounds(
        "writer to reader in another process, S3, p50",
        [percentile(delays, 0.5)],
        "ms",
        "the writer's two calls and the reader's two",
        [4e3 * CALL_SECONDS],
        note=f"{bucket.server}; p99 {percentile(delays, 0.99):.0f} ms; an event about every 250 ms;"
        f" {(calls.total() - calls['PUT']) / count:.1f} calls of the reader an event",
        limited_by="two calls to write; then a poll, and the read of the chunk",
    ).within(at_most=150.0)
