"""What streaming queries leave in the driver's process when they have ended: nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import Phase, benchmark
from pravega_spark import StreamLagListener, stream_frame

_SETTLE_SECONDS = 15.0
"""After this time the threads that a process keeps for further work have ended."""


def _held() -> tuple[int, int]:
    """Return the descriptors and the threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@benchmark(Phase.SPARK)
def what_ended_queries_leave(context: Context) -> Iterator[Figure]:
    """Queries one after the other: in groups, measured by a listener; and native ones."""
    stream = context.create("queried")
    with context.manager.create_writer(stream) as writer:
        writer.write_events([b"1", b"2"], "key").result()
    for kind in ("in groups", "over native frames"):
        yield from _left(context, stream, kind)


def _left(context: Context, stream: str, kind: str) -> Iterator[Figure]:
    few, many = 3, context.size(30, 6)
    started = 0

    def run_to(count: int) -> tuple[int, int, float]:
        nonlocal started
        begun, first = time.process_time(), started
        for number in range(started, count):
            if kind == "in groups":
                reader = context.spark.readStream.format("pravega").option("root", context.root)
                reader = reader.option("readerGroup", f"bench/g{number}")
                frame = reader.option("startingOffsets", "earliest").load(stream)
            else:
                frame = stream_frame(
                    context.spark, stream, root=context.root, startingOffsets="earliest"
                )
            query = frame.writeStream.format("noop").trigger(once=True)
            checkpoint = context.folder / f"queried-{kind}-{number}"
            query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
        started = count
        used = 1e3 * (time.process_time() - begun) / (count - first)
        context.spark._jvm.System.gc()  # its thread tells Python what is free: one connection
        time.sleep(_SETTLE_SECONDS)
        return *_held(), used

    listener = StreamLagListener()
    context.spark.streams.addListener(listener)
    before = run_to(few)
    after = run_to(many)
    context.spark.streams.removeListener(listener)
    yield Figure(
        f"descriptors and threads of a driver after {many} queries {kind}",
        sum(after[:2]) / sum(before[:2]),
        "x",
        note=f"of those after {few}: {before[0]} and {before[1]}, then {after[0]} and {after[1]}; "
        f"{before[2]:.0f} and {after[2]:.0f} ms of processor time a query in the driver's Python",
    ).within(at_most=1.0)
