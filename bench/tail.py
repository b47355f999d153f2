"""From a writer in one process to a reader that follows the tail in another."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.append import median_ms
from bench.context import Context
from bench.figures import Figure
from bench.floor import Floor, last_append
from bench.measure import percentile, ratio
from bench.registry import benchmark

_PAUSE_SECONDS = 0.020
_READER = """
import json, sys, time
from pravega_spark import StreamCut, StreamManager

root, stream, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
found = []
for event in StreamManager(root).follow(stream, StreamCut.EARLIEST, timeout=60.0):
    found.append((int(event.data[:20]), time.monotonic_ns()))
    if len(found) == 1:
        print("ready", flush=True)
    if len(found) == count:
        break
print(json.dumps(found))
"""


@benchmark
def writer_to_reader(context: Context) -> Iterator[Figure]:
    """One event about every 20 ms; the time from ``write_event`` to the reader's loop.

    Both processes read one monotonic clock. While a round waits, the floor takes its turn.
    """
    rounds, calls = context.size(10, 2), context.size(60, 10)
    stream = context.create("tail", 1)
    command = [sys.executable, "-c", _READER, context.root, stream, str(1 + rounds * calls)]
    randomness = random.Random(1)
    floors: list[float] = []
    with (
        context.manager.create_writer(stream) as writer,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader,
    ):
        assert reader.stdout is not None

        def write() -> None:
            writer.write_event(b"%020d" % time.monotonic_ns() + b"e" * 80, "key")

        write()
        assert reader.stdout.readline() == "ready\n"
        floor = Floor(context.folder / "floor-tail", *last_append(context.manager, stream))
        for _ in range(rounds):
            for _ in range(calls):
                write()
                time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
            floors.append(median_ms(floor, calls))
        found = json.loads(reader.stdout.read())
    delays = [(seen - sent) / 1e6 for sent, seen in found[1:]]
    ours = [statistics.median(delays[i : i + calls]) for i in range(0, len(delays), calls)]
    peer = "the writer's durable writes alone"
    p50 = Figure(
        "writer to reader in another process, p50",
        statistics.median(delays),
        "ms",
        peer,
        statistics.median(floors),
        ratio(ours, floors),
        note=f"an event about every {1e3 * _PAUSE_SECONDS:.0f} ms",
        limited_by="the writer's four fsyncs, the reader's pause between two looks, and its "
        "fsync of the log's folder before it shows an event",
    )
    yield p50.within(at_most=5.0)
    p99 = percentile(delays, 0.99)
    yield Figure(
        "the same, p99",
        p99,
        "ms",
        peer + ", p50",
        statistics.median(floors),
        p99 / statistics.median(floors),
        note=p50.note,
        limited_by="the slowest fsync of a hundred, on a disk shared with others",
    ).within(at_most=20.0)
