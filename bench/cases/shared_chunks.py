"""What followers of one process fetch together: requests for chunks, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.distant_bucket import DistantBucket, start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark import Event, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store import open_store
from tests.harness.counted_chunks import CountedChunks, process_on

_FOLLOWERS = 10
_CACHE_BYTES = 64 << 20
_STREAM = "s/shared"

Gets = tuple[float, float]
"""Requests for chunks, and bytes of chunks, for each event."""


def _process(bucket: DistantBucket, cache_bytes: int) -> tuple[StreamManager, CountedChunks]:
    return process_on(open_store(bucket.root, **bucket.options), cache_bytes)


def _at_the_tail(bucket: DistantBucket, followers: int, count: int, cache_bytes: int) -> Gets:
    """Write events one by one, which followers of another process get, in a thread each."""
    writing = StreamManager(bucket.root, storage_options=bucket.options)
    manager, store = _process(bucket, cache_bytes)
    tail = manager.tail(_STREAM)
    followed = [manager.follow(_STREAM, tail, timeout=60.0) for _ in range(followers)]
    with ThreadPoolExecutor(followers) as threads, writing.create_writer(_STREAM) as writer:
        for _ in range(count):
            events = [threads.submit(partial(next, each)) for each in followed]
            writer.write_event(EVENT, "key").result()
            assert all(isinstance(event.result(), Event) for event in events)
    gets, size = store.gets()
    return gets / count, size / count


def _in_catch_up(bucket: DistantBucket, readers: int, count: int, cache_bytes: int) -> Gets:
    """Read what :func:`_at_the_tail` wrote, in a thread each."""
    manager, store = _process(bucket, cache_bytes)

    def read(_: int) -> int:
        return sum(1 for _ in manager.read(_STREAM))

    with ThreadPoolExecutor(readers) as threads:
        assert {*threads.map(read, range(readers))} == {count}
    gets, size = store.gets()
    return gets / count, size / count


@benchmark()
def shared_chunks(context: Context) -> Iterator[Figure]:
    """1 and 10 followers of one process, at the tail and in catch-up, with and without a cache."""
    count = context.size(100, 5)
    with start_distant_bucket() as bucket:
        manager = StreamManager(bucket.root, storage_options=bucket.options)
        manager.create_scope("s")
        manager.create_stream(_STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))
        alone = _at_the_tail(bucket, 1, count, _CACHE_BYTES)
        shared = _at_the_tail(bucket, _FOLLOWERS, count, _CACHE_BYTES)
        apart = _at_the_tail(bucket, _FOLLOWERS, count, 0)
        yield _figure("10 followers at the tail", alone, shared, apart, bucket.server)
        alone = _in_catch_up(bucket, 1, 3 * count, _CACHE_BYTES)
        shared = _in_catch_up(bucket, _FOLLOWERS, 3 * count, _CACHE_BYTES)
        apart = _in_catch_up(bucket, _FOLLOWERS, 3 * count, 0)
        yield _figure("10 readers in catch-up", alone, shared, apart, bucket.server)


def _figure(who: str, alone: Gets, shared: Gets, apart: Gets, server: str) -> Figure:
    return Figure.of_rounds(
        f"{who} of one process, S3: GETs of chunks an event",
        [shared[0]],
        "GETs",
        "without a cache",
        [apart[0]],
        note=f"{server}; {shared[1]:,.0f} bytes an event, {apart[1]:,.0f} without a cache; one "
        f"alone {alone[0]:.2f} GETs, {alone[1]:,.0f} bytes",
    ).within(at_most=1.0)
