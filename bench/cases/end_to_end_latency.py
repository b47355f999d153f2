"""End-to-end latency from a writer in one process to a reader at the tail in another."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.floor import AppendFloor, last_append
from bench.harness.measure import percentile, ratio, timed
from bench.harness.registry import benchmark

_PAUSE_SECONDS = 0.005
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


@benchmark()
def writer_to_reader(context: Context) -> Iterator[Figure]:
    """One event at a time: the time from ``write_event`` to the body of the reader's loop.

    Both processes read the same monotonic clock. The floor is measured between two events, after
    an equal pause, because a processor and a disk are slower just after they slept.
    """
    rounds, calls = context.size(10, 2), context.size(100, 10)
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
        floor = AppendFloor(context.folder / "floor-tail", *last_append(context.manager, stream))
        for _ in range(rounds):
            for _ in range(calls):
                write()
                time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
                floors.append(1e3 * timed(floor))
                time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
        found = json.loads(reader.stdout.read())
    delays = [(seen - sent) / 1e6 for sent, seen in found[1:]]
    parts = [slice(i, i + calls) for i in range(0, len(delays), calls)]
    for share, name, limit, why in (
        (0.50, "p50", 2.5, "the writer's fsyncs, and the reader's fsync of the log's folder "
         "before it returns an event"),
        (0.99, "p99", 6.0, "the slowest fsync of a hundred, on a disk shared with others"),
    ):  # fmt: skip
        yield Figure(
            f"writer to reader in another process, {name}",
            percentile(delays, share),
            "ms",
            f"the writer's durable writes alone, {name}",
            percentile(floors, share),
            ratio(
                [percentile(delays[part], share) for part in parts],
                [percentile(floors[part], share) for part in parts],
            ),
            note=f"an event about every {2e3 * _PAUSE_SECONDS:.0f} ms",
            limited_by=why,
        ).within(at_most=limit)
