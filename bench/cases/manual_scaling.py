"""Manual scaling: the time of a scale, and the pause of a writer during one."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count, pairwise
from typing import Any

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.floor import put_durably
from bench.harness.measure import Side, interleave, percentile, timed
from bench.harness.registry import benchmark
from pravega_spark import Epoch, KeyRange
from pravega_spark.engine.layout import epoch_changes, epochs
from pravega_spark.engine.stream.stream_log import open_stream

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


@benchmark()
def split_by_segments(context: Context) -> Iterator[Figure]:
    """One segment of many into two, durable: processor time in streams of 1,000 and 100 segments.

    The epoch's record, which each scale writes, names all segments, so some growth is the format's.
    """
    manager = context.manager

    def side(segments: int) -> Side:
        name = context.create(f"split-{segments}", segments)

        def split_first() -> float:
            first = manager.segments(name)[0]
            begun = time.process_time()
            manager.scale_stream(name, [first], epochs.split(first.key_range, 2))
            return 1e3 * (time.process_time() - begun)

        return split_first

    sides = {"many": side(1_000), "few": side(100)}
    interleave(2, sides)
    found = interleave(context.size(20, 3), sides)
    yield Figure.of_rounds(
        "a split in a stream of 1,000 segments, CPU",
        found["many"],
        "ms",
        "in a stream of 100 segments",
        found["few"],
        limited_by="the JSON of the new epoch, which names all segments",
    ).within(ratio_at_most=10.0)


_WRITER = """
import sys, time
from pravega_spark import StreamManager

slowest, count = 0.0, 0
with StreamManager(sys.argv[1]).create_writer(sys.argv[2]) as writer:
    print("ready", flush=True)
    end = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < end:
        begun = time.monotonic()
        writer.write_event(b"event", f"key-{count % 64}").result()
        slowest, count = max(slowest, time.monotonic() - begun), count + 1
print(slowest)
"""
_SLOW_SECONDS = (0.2, 2.0)


@benchmark()
def slow_scale_beside_writers(context: Context) -> Iterator[Figure]:
    """A scale whose decision is made to take long, beside two processes that never pause."""
    for seconds in _SLOW_SECONDS:
        name = context.create(f"slow-{seconds}")
        end = str(6 * seconds + 3)
        command = [sys.executable, "-c", _WRITER, context.root, name, end]
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        first = context.manager.segments(name)[0]
        halves = epochs.split(first.key_range, 2)
        with _slow_scales(seconds):
            took = timed(partial(context.manager.scale_stream, name, [first], halves))
        slowest = max(float(writer.communicate()[0]) for writer in writers)
        yield Figure(
            f"a scale that decides for {seconds} s, beside two writers",
            took,
            "s",
            "its decision",
            seconds,
            took / seconds,
            note=f"the longest append {slowest:.2f} s",
            limited_by="the race that it loses before it asks for the version: two decisions",
        ).within(ratio_at_most=3.0)


@contextmanager
def _slow_scales(seconds: float) -> Iterator[None]:
    """Let each decision on a scale take so much longer."""
    original = epoch_changes.scale

    def slow(*arguments: Any, **options: Any) -> Epoch:
        time.sleep(seconds)
        return original(*arguments, **options)

    epoch_changes.scale = slow
    try:
        yield
    finally:
        epoch_changes.scale = original


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
        "its longest pause without a scale, p99",
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
