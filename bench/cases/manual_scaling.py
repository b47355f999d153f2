"""Manual scaling: the time of a scale, and the pause of a writer during one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count, pairwise

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.floor import put_durably
from bench.harness.measure import interleave, percentile, timed
from bench.harness.registry import benchmark
from pravega_spark import KeyRange
from pravega_spark.engine.layout import epochs
from pravega_spark.engine.stream.open_streams import open_stream

WHOLE = KeyRange(0.0, 1.0)
PARTS = 16


@benchmark()
def scale_1_to_16(context: Context) -> Iterator[Figure]:
    """One segment into sixteen, durable. The merge back into one is not timed."""
    name = context.create("manual-scale")
    stream = open_stream(context.root, name)
    manager = context.manager

    def scale_to(parts: int) -> None:
        old = [segment.segment_id for segment in manager.segments(name)]
        manager.scale_stream(name, old, epochs.split(WHOLE, parts))

    scale_to(PARTS)
    commit = stream.store.get(stream.log.reader.key(stream.view().version))
    scale_to(1)
    folder = str(context.folder / "floor-scale")
    os.makedirs(folder)
    numbers = count()

    def floor() -> None:
        put_durably(folder, str(next(numbers)), commit)

    def ours() -> float:
        seconds = timed(lambda: scale_to(PARTS))
        scale_to(1)
        return 1e3 * seconds

    sides = {"ours": ours, "floor": lambda: 1e3 * timed(floor)}
    interleave(3, sides)
    found = interleave(context.size(100, 5), sides)
    yield Figure.of_rounds(
        f"manual scale 1 to {PARTS} segments",
        found["ours"],
        "ms",
        "the same write, link and fsyncs",
        found["floor"],
        note=f"p99 {percentile(found['ours'], 0.99):.1f} ms",
        limited_by="one commit: its two fsyncs, and the JSON of a few dozen records",
    ).within(at_most=15.0)


_SCALER = """
import json, sys, time
from pravega_spark import KeyRange, StreamManager

root, stream, count, interval = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
manager = StreamManager(root)
manager.segments(stream)
print("ready", flush=True)
sys.stdin.readline()
found = []
for number in range(count):
    time.sleep(interval)
    old = [segment.segment_id for segment in manager.segments(stream)]
    parts = 1 if number % 2 else 4
    new = [KeyRange(part / parts, (part + 1) / parts) for part in range(parts)]
    begun = time.monotonic_ns()
    manager.scale_stream(stream, old, new)
    found.append((begun, time.monotonic_ns()))
print(json.dumps(found))
"""
_INTERVAL_SECONDS = 0.25
_AROUND_NS = 100_000_000


@benchmark()
def pause_of_a_writer(context: Context) -> Iterator[Figure]:
    """A writer of many keys sends about an event a millisecond while another process scales.

    The pause is the longest time between two acknowledgements, from just before a scale until a
    tenth of a second after it. Its peer is the same halfway between two scales.
    """
    name = context.create("pause")
    scales = context.size(200, 4)
    acknowledged: list[int] = []
    command = [sys.executable, "-c", _SCALER]
    command += [context.root, name, str(scales), str(_INTERVAL_SECONDS)]
    pipe = subprocess.PIPE
    with (
        context.manager.create_writer(name) as writer,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as scaler,
    ):
        assert scaler.stdin is not None
        assert scaler.stdout is not None
        assert scaler.stdout.readline() == "ready\n"
        scaler.stdin.write("go\n")
        scaler.stdin.flush()
        number = 0
        while scaler.poll() is None:
            future = writer.write_event(EVENT, f"key-{number % 1_000}")
            future.add_done_callback(lambda _: acknowledged.append(time.monotonic_ns()))
            number += 1
            time.sleep(0.001)
        found: list[tuple[int, int]] = json.loads(scaler.stdout.read())
    pauses = [_longest_gap(acknowledged, begun, ended) for begun, ended in found]
    half = int(_INTERVAL_SECONDS / 2 * 1e9)
    usual = [_longest_gap(acknowledged, begun - half, ended - half) for begun, ended in found[1:]]
    yield Figure(
        "a writer's pause when its segment is split under load, p99",
        percentile(pauses, 0.99),
        "ms",
        "its longest pause in as long a time without a scale, p99",
        percentile(usual, 0.99),
        percentile(pauses, 0.99) / percentile(usual, 0.99),
        note=f"p50 {statistics.median(pauses):.1f} ms against {statistics.median(usual):.1f} ms; "
        f"{scales} splits and merges, {number} events",
        limited_by="routing and staging the batch in flight again, which is four more chunks and "
        "a commit; otherwise the slowest fsyncs of a disk that two processes write to",
    ).within(at_most=50.0)


def _longest_gap(acknowledged: list[int], begun: int, ended: int) -> float:
    """Return the longest gap in milliseconds between acknowledgements around a scale."""
    first, last = begun - _AROUND_NS // 20, ended + _AROUND_NS
    inside = [moment for moment in acknowledged if first <= moment <= last]
    before = max((moment for moment in acknowledged if moment < first), default=first)
    return max((b - a for a, b in pairwise([before, *inside])), default=0) / 1e6
