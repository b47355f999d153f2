"""End-to-end latency from a writer in one process to a reader at the tail in another."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.floor import AppendFloor, last_append
from bench.harness.measure import percentile, percentile_ratio, timed
from bench.harness.registry import benchmark
from bench.harness.tail_reader import STREAM_READER, TailReader, stamped

_PAUSE_SECONDS = 0.005


@benchmark()
def writer_to_reader(context: Context) -> Iterator[Figure]:
    """One event at a time: the time from ``write_event`` to the body of the reader's loop.

    Both processes read the same monotonic clock. The floor is measured between two events, after
    an equal pause, because a processor and a disk are slower just after they slept.
    """
    rounds, calls = context.size(10, 2), context.size(100, 10)
    stream = context.create("tail", 1)
    randomness = random.Random(1)
    floors: list[float] = []
    with (
        context.manager.create_writer(stream) as writer,
        TailReader(STREAM_READER, context.root, stream, 1 + rounds * calls) as reader,
    ):
        writer.write_event(stamped(), "key")
        reader.wait_until_it_reads()
        floor = AppendFloor(context.folder / "floor-tail", *last_append(context.manager, stream))
        for _ in range(rounds):
            for _ in range(calls):
                writer.write_event(stamped(), "key")
                time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
                floors.append(1e3 * timed(floor))
                time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
        delays = reader.delays_ms()
    for share, name, limit, why in (
        (0.50, "p50", 2.5, "the writer's fsyncs until its commit is visible, 1.7 of 2.3 ms where "
         "the floor of its writes took 1.4; then the reader's fsync of the log's folder, 0.25 ms"),
        (0.99, "p99", 6.0, "the slowest fsync of a hundred, on a disk shared with others"),
    ):  # fmt: skip
        yield Figure(
            f"writer to reader in another process, {name}",
            percentile(delays, share),
            "ms",
            f"the writer's durable writes alone, {name}",
            percentile(floors, share),
            percentile_ratio(delays, floors, share, calls),
            note=f"an event about every {2e3 * _PAUSE_SECONDS:.0f} ms",
            limited_by=why,
        ).within(at_most=limit)
