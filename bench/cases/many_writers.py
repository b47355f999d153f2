"""Many writers of one stream, each of which waits for an acknowledgement before its next event."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from bench.harness.slow_store import SlowStore
from bench.harness.writer_load import WriterLoad
from pravega_spark import EventStreamWriter, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog

_CALL_SECONDS = 0.030
_SLOWED = 4
"""So much slower runs the simulated store, so that what one interpreter computes costs little."""
_WRITER = """
import json, sys, time
from pravega_spark import StreamManager

root, stream, name, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
with StreamManager(root).create_writer(stream) as writer:
    writer.write_event(b"e" * 100, name).result()
    print("ready", flush=True)
    sys.stdin.readline()
    began, times, cpu = time.monotonic(), [], time.process_time()
    while time.monotonic() < began + seconds:
        before = time.monotonic()
        writer.write_event(b"e" * 100, name).result()
        times.append(time.monotonic() - before)
    print(json.dumps([times, time.process_time() - cpu]))
"""


def _processes(context: Context, stream: str, count: int, seconds: float) -> WriterLoad:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WRITER, context.root, stream, f"w{n}", str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(count)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [json.loads(process.communicate()[0]) for process in processes]
    return WriterLoad(seconds, [times for times, _ in found], sum(cpu for _, cpu in found))


@benchmark()
def many_writer_processes(context: Context) -> Iterator[Figure]:
    """16 processes that write to one stream of 4 segments, beside one."""
    seconds = context.size(60, 2)
    stream = context.create("many-writers", 4)
    alone = _processes(context, stream, 1, seconds / 4)
    many = _processes(context, stream, 16, seconds)
    figure = Figure.of_rounds(
        "16 writer processes, one stream, local: appends a second",
        [many.per_second],
        "/s",
        "one writer process",
        [alone.per_second],
        note=many.note,
        limited_by="two cores and one disk: each event is a chunk file with two fsyncs",
    )
    yield figure.within(ratio_at_least=1.0)
    yield Figure.of_rounds(
        "the same: p99 of an acknowledgement",
        [1e3 * many.quantile(0.99)],
        "ms",
        "its p50",
        [1e3 * many.quantile(0.5)],
    ).within(ratio_at_most=10.0)
    yield Figure("the same: slowest writer by fastest", many.fairness, "x").within(at_least=0.5)


class _Slowed(Runtime):
    """Clocks that are so many times as slow: as if the processor were so many times as fast."""

    def monotonic(self) -> float:
        return super().monotonic() / _SLOWED

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds * _SLOWED)


def _remote(count: int, warm_seconds: float, seconds: float) -> WriterLoad:
    """Threads on a store with 30 ms a call; each has its own view of the stream, as a process.

    All times are those of the slowed clock.
    """
    counting, runtime = CountingStore(MemoryStore()), _Slowed()
    slow = SlowStore(counting)
    streams = [StreamLog(slow, "s/t", runtime) for _ in range(count)]
    lifecycle.create(streams[0], 1, StreamConfiguration(ScalingPolicy.fixed(4)))
    for stream in streams:
        stream.log.maintain = None
    writers = [EventStreamWriter(stream) for stream in streams]
    slow.delay_seconds = _CALL_SECONDS * _SLOWED
    times: list[list[float]] = [[] for _ in writers]
    begin, first = runtime.monotonic() + warm_seconds, [0.0] * count

    def write(number: int) -> None:
        while (before := runtime.monotonic()) < begin + seconds:
            writers[number].write_event(b"e" * 100, f"w{number}").result()
            took = runtime.monotonic() - before
            if before >= begin:
                times[number].append(took)
            else:
                first[number] = max(first[number], took)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    runtime.sleep(warm_seconds)
    counting.calls.clear()
    cpu = time.process_time()
    runtime.sleep(seconds)
    calls = counting.calls.total() - counting.calls["durable"]
    cpu = time.process_time() - cpu
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.close()
    return WriterLoad(seconds, times, cpu / _SLOWED, calls, max(first))


@benchmark()
def many_remote_writers(context: Context) -> Iterator[Figure]:
    """1, 16 and 64 writers on a simulated store with 30 ms a call, in threads of one process."""
    seconds, warm = context.size(10, 1), context.size(4, 1)
    alone = _remote(1, 0.5, seconds / 4)
    for count, target in ((16, 8.0), (64, 24.0)):
        many = _remote(count, warm, seconds)
        yield Figure.of_rounds(
            f"{count} writers, simulated store: appends a second",
            [many.per_second],
            "/s",
            "one such writer",
            [alone.per_second],
            note=many.note,
            limited_by="a listing and a commit follow one another, and owners look for their "
            "commit",
        ).within(ratio_at_least=target)
        yield Figure("the same: p99 of an acknowledgement", 1e3 * many.quantile(0.99), "ms").within(
            at_most=400.0
        )
        yield Figure("the same: calls an acknowledgement", many.calls_each, "").within(at_most=4.0)
        yield Figure(
            "the same: longest acknowledgement while all begin at once",
            1e3 * many.longest_at_first,
            "ms",
        ).within(at_most=2000.0)
